"""Ask the caller's pip where it finds packages, so that its files, variables and defaults count."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

PYPI = "https://pypi.org/simple"
_LIST = ("-m", "pip", "config", "list")
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
    return read("\n".join(f":env:.{name[4:].lower().replace('_', '-')}={value!r}" for name, value in _variables()))


def _variables() -> list[tuple[str, str]]:
    return [(name, value) for name, value in sorted(os.environ.items()) if name.startswith("PIP_")]


def read(listing: str) -> PipConfig:
    """Parse what `pip config list` prints.

    Example:
        >>> read("global.index-url='https://mirror.example/simple'").indexes
        ('https://mirror.example/simple',)
    """
    told = _told(listing)
    first = [] if told.get("no-index", "").lower() in ("1", "true", "yes", "on") else [told.get("index-url", PYPI)]
    indexes = [*first, *told.get("extra-index-url", "").split()] if first else []
    return PipConfig(
        tuple(dict.fromkeys(url.rstrip("/") for url in indexes)),
        tuple(dict.fromkeys(told.get("find-links", "").split())),
        tuple(_for_requests(told).items()),
    )


def _told(listing: str) -> dict[str, str]:
    """Key -> value; of several sections the strongest."""
    found: dict[tuple[int, str], str] = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in _SECTIONS and value:
            found[_SECTIONS.index(section), key] = str(ast.literal_eval(value))
    return {key: found[order, key] for order, key in sorted(found)}


def _for_requests(told: Mapping[str, str]) -> dict[str, str]:
    pairs = {"REQUESTS_CA_BUNDLE": told.get("cert"), "HTTPS_PROXY": told.get("proxy"), "HTTP_PROXY": told.get("proxy")}
    return {name: value for name, value in pairs.items() if value}
