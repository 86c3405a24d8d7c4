"""The shortest way to write what is wanted in an environment, `packages=[…]`.

    packages=["python=3.11", "torch==2.7.1", "numpy>=2"]    from conda-forge
    "bioconda::samtools"                                    from a channel that is named
    "pip:torch-geometric"                                   from PyPI, or the index that pip is configured for
    "--index-url https://download.pytorch.org/whl/cu118"    an option of pip's: where its packages are

torch, torchvision and torchaudio come from PyPI, as wheels: PyTorch makes builds for each CUDA, and none for conda any
longer. "conda-forge::pytorch" is conda-forge's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clusterfn.bridge.builder.addresses import masked
from clusterfn.environment import condarc
from clusterfn.environment.requirement_lines import WITH_VALUE, RequirementLines
from clusterfn.environment.specification import (
    TORCHES,
    USUAL_CHANNEL,
    WITH_EXTRAS,
    Requirement,
    Specification,
    conda_requirement,
    named_channels,
    wheel_requirement,
)

_PIP = "pip:"


def from_packages(packages: Sequence[str]) -> Specification:
    """Parse `packages=` into a specification.

    Raises:
        ConfigError: One of them is not understood.

    Example:
        >>> from_packages(["numpy>=2", "pip:rich"]).conda[0].text
        'numpy >=2'
    """
    title = masked(f"packages={json.dumps(list(packages))}")
    conda, lines = list[Requirement](), RequirementLines(Path.cwd())
    sentences: list[str] = []
    words = iter(packages)
    for word in words:
        text = f"{word} {next(words, '')}" if word in WITH_VALUE else word  # as a shell splits them
        if text.startswith("-"):
            lines.add(text)
            continue
        if text.startswith(_PIP):
            if not text[len(_PIP) :].strip():
                wheel_requirement("")
            lines.add(text[len(_PIP) :])
            continue
        found = conda_requirement(text)
        if found.name in TORCHES and "::" not in text:
            single = re.fullmatch(r"([\w.-]+)\s*=\s*([\d.]+?)(\.?\*)?", text.strip())  # conda's torch=2.7
            lines.add(f"{single[1]}=={single[2]}.*" if single else text.replace(" ", ""))
            told = f"{found.name} comes from PyPI, as a wheel (conda-forge's is {USUAL_CHANNEL}::pytorch)"
            sentences += [] if sentences else [told]
        elif WITH_EXTRAS.match(text):
            lines.add(text)
            sentences.append(f"{text} comes from PyPI, because conda packages have no extras")
        else:
            conda.append(found)
    named = named_channels(conda)
    channels = named if conda and len(named) == len(conda) else [*condarc.usual_channels(), *named]
    spec = Specification(title, tuple(dict.fromkeys(channels)), tuple(conda))
    return lines.added_to(replace(spec, sentences=tuple(sentences)))
