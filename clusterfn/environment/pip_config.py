"""Ask the caller's pip where it finds packages, so that its files, variables and defaults count."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass

PYPI = "https://pypi.org/simple"
_LIST = ("-m", "pip", "config", "list")
_FOR_REQUESTS = {"REQUESTS_CA_BUNDLE": "cert", "HTTPS_PROXY": "proxy", "HTTP_PROXY": "proxy"}
_SECTIONS = ("global", "download", "install", ":env:")  # the later count


@dataclass(frozen=True)
class PipConfig:
    """pip's settings as far as they say where packages are.

    Attributes:
        indexes: The first is pip's own; none with no-index.
        variables: For requests, which the solver uses: a certificate, a proxy.
    """

    indexes: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def pip_config() -> PipConfig:
    """Return the settings of this interpreter's pip; those of the variables alone if it has none."""
    done = subprocess.run(
        [sys.executable, *_LIST], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace"
    )
    if done.returncode == 0:
        return read(done.stdout)
    variables = [(name, value) for name, value in sorted(os.environ.items()) if name.startswith("PIP_")]
    return read("\n".join(f":env:.{name[4:].lower().replace('_', '-')}={value!r}" for name, value in variables))


def read(listing: str) -> PipConfig:
    """Parse what `pip config list` prints.

    Example:
        >>> read("global.index-url='https://mirror.example/simple'").indexes
        ('https://mirror.example/simple',)
    """
    values = _strongest_values(listing)
    first = [] if values.get("no-index", "").lower() in ("1", "true", "yes", "on") else [values.get("index-url", PYPI)]
    indexes = [*first, *values.get("extra-index-url", "").split()] if first else []
    return PipConfig(
        tuple(dict.fromkeys(url.rstrip("/") for url in indexes)),
        tuple(dict.fromkeys(values.get("find-links", "").split())),
        tuple((name, values[key]) for name, key in _FOR_REQUESTS.items() if values.get(key)),
    )


def _strongest_values(listing: str) -> dict[str, str]:
    """Key -> value; of several sections the strongest."""
    found: dict[tuple[int, str], str] = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in _SECTIONS and value:
            found[_SECTIONS.index(section), key] = str(ast.literal_eval(value))
    return {key: found[order, key] for order, key in sorted(found)}
