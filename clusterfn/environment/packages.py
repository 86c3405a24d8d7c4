"""Make a specification without a file: from `packages=[…]`, or from what a function imports.

    packages=["python=3.11", "torch==2.7.1", "numpy>=2"]    from conda-forge
    "bioconda::samtools"                                    from a channel that is named
    "pip:torch-geometric"                                   from PyPI, or the index that uv is configured for
    "--index-url https://download.pytorch.org/whl/cu118"    an option of pip's: where its packages are

torch, torchvision and torchaudio come from PyPI, as wheels: PyTorch makes builds for each CUDA, and none for conda any
longer. "conda-forge::pytorch" is conda-forge's.

Of imports, the caller's Python counts, and the installed versions of the modules. Nothing is imported; the metadata of
installed projects is read.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clusterfn.bridge.builder.plan import masked
from clusterfn.environment import package_sources, specification
from clusterfn.environment.project import normalize
from clusterfn.environment.requirement_lines import WITH_VALUE, RequirementLines
from clusterfn.environment.specification import Requirement, Specification, conda_requirement, wheel_requirement

_PIP = "pip:"
# Every call sends them, so no environment needs them.
_TRAVELS = ("clusterfn", "cloudpickle")


def from_packages(packages: Sequence[str]) -> Specification:
    """Parse `packages=` into a specification; raise ConfigError if one of them is not understood."""
    title = masked(f"packages={json.dumps(list(packages))}")
    conda, lines = list[Requirement](), RequirementLines(Path.cwd())
    sentences: list[str] = []
    words = iter(packages)
    for word in words:
        # A shell splits an option from its value.
        text = f"{word} {next(words, '')}" if word in WITH_VALUE else word
        if text.startswith("-"):
            lines.add(text)
            continue
        if text.startswith(_PIP):
            # An empty name raises here, as a comment would be left out without a word.
            if not text[len(_PIP) :].strip():
                wheel_requirement("")
            lines.add(text[len(_PIP) :])
            continue
        found = conda_requirement(text)
        if found.name in specification.TORCHES and "::" not in text:
            # conda writes torch=2.7 for what pip calls torch==2.7.*.
            single = re.fullmatch(r"([\w.-]+)\s*=\s*([\d.]+?)(\.?\*)?", text.strip())
            lines.add(f"{single[1]}=={single[2]}.*" if single else text.replace(" ", ""))
            other = f"{specification.USUAL_CHANNEL}::pytorch"
            sentence = f"{found.name} comes from PyPI, as a wheel (conda-forge's is {other})"
            sentences += [] if sentences else [sentence]
        elif specification.WITH_EXTRAS.match(text):
            lines.add(text)
            sentences.append(f"{text} comes from PyPI, because conda packages have no extras")
        else:
            conda.append(found)
    named = [each.channel for each in conda if each.channel]
    channels = named if conda and len(named) == len(conda) else [*package_sources.usual_channels(), *named]
    spec = Specification(title, tuple(dict.fromkeys(channels)), tuple(conda))
    return lines.added_to(replace(spec, sentences=tuple(sentences)))


def automatic(names: Iterable[str], python: tuple[int, int]) -> Specification:
    """Make the specification for imports of these top-level modules, with the caller's Python."""
    lines, sentences = RequirementLines(Path.cwd()), []
    owners = projects_by_module()
    found = {normalize(project): project for name in names for project in owners.get(name, ())}
    # The standard library and the user's own modules belong to no project.
    for each in sorted(found.keys() - set(_TRAVELS)):
        project = importlib.metadata.distribution(found[each])
        name = normalize(project.metadata["Name"])
        why_not = _origin(project)
        if why_not:
            sentences.append(f"{name} {why_not}")
        else:
            lines.add(f"{name}=={project.version.partition('+')[0]}")
    minor = conda_requirement(f"python={python[0]}.{python[1]}")
    listed = ", ".join([f"Python {python[0]}.{python[1]}", *(each.text.replace("==", " ") for each in lines.wanted)])
    said = f"no environment is set: clusterfn builds one from your imports: {listed}"
    spec = Specification(
        "what the function imports", package_sources.usual_channels(), (minor,), sentences=(said, *sentences)
    )
    return lines.added_to(spec)


def needed(names: Iterable[str]) -> list[str]:
    """List the modules that installed projects provide; neither the standard library nor what clusterfn sends."""
    owners = projects_by_module()
    return sorted(name for name in names if {normalize(each) for each in owners.get(name, ())} - set(_TRAVELS))


@functools.cache
def projects_by_module() -> Mapping[str, Sequence[str]]:
    """Map each installed top-level module to its projects, as importlib.metadata does from Python 3.10 on."""
    known = getattr(importlib.metadata, "packages_distributions", None)
    owners: dict[str, list[str]] = {} if known is None else dict(known())
    for project in importlib.metadata.distributions() if known is None else ():
        files = {path.parts[0].partition(".")[0] for path in project.files or () if path.suffix == ".py"}
        for name in (project.read_text("top_level.txt") or "").split() or files:
            owners.setdefault(name, []).append(project.metadata["Name"])
    return owners


def _origin(project: importlib.metadata.Distribution) -> str:
    """Say why no index has this project; "" if one may have it."""
    # conda writes the folder of its build as the origin, which says nothing about indexes.
    if (project.read_text("INSTALLER") or "").strip() == "conda":
        return ""
    origin = json.loads(project.read_text("direct_url.json") or "{}")
    if (origin.get("dir_info") or {}).get("editable"):
        return "is editable: clusterfn sends it as source, unless it is compiled"
    if "vcs_info" in origin or "dir_info" in origin:
        return f"was installed from {origin['url']}, which a lock cannot name: it is skipped"
    return ""
