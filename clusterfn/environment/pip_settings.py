"""Read where pip finds packages on this machine, for uv and for downloads."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PYPI = "https://pypi.org/simple"
_FOR_REQUESTS = {"REQUESTS_CA_BUNDLE": "cert", "HTTPS_PROXY": "proxy", "HTTP_PROXY": "proxy"}
_SECTIONS = ("global", "download", "install")  # the later count


@dataclass(frozen=True)
class PipConfig:
    """pip's settings as far as they say where packages are.

    Attributes:
        indexes: The first is pip's own; none with no-index.
        variables: A certificate and a proxy, as requests names them.
    """

    indexes: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def pip_config() -> PipConfig:
    """Read where pip finds packages from its files and variables, in the order in which it reads them itself."""
    values: dict[str, str] = {}
    parsers = list(map(_read_pip_file, _pip_files()))
    for section in _SECTIONS:
        for parser in parsers:
            pairs = parser.items(section) if parser.has_section(section) else []
            values.update((key.replace("_", "-"), value) for key, value in pairs if value)
    variables = ((name[4:], value) for name, value in os.environ.items() if name.startswith("PIP_") and value)
    values.update((name.lower().replace("_", "-"), value) for name, value in variables)
    has_none = values.get("no-index", "").lower() in ("1", "true", "yes", "on")
    indexes = [values.get("index-url", PYPI), *values.get("extra-index-url", "").split()] if not has_none else []
    return PipConfig(
        tuple(dict.fromkeys(url.rstrip("/") for url in indexes)),
        tuple(dict.fromkeys(values.get("find-links", "").split())),
        tuple((name, values[key]) for name, key in _FOR_REQUESTS.items() if values.get(key)),
    )


def _read_pip_file(path: Path) -> configparser.RawConfigParser:
    """Read one of pip's files; nothing from one that pip itself rejects."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return configparser.RawConfigParser()
    return parser


def _pip_files() -> Iterator[Path]:
    """Yield the files that pip reads, the strongest last."""
    named = os.environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    home, config = Path("~").expanduser(), Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    name, hidden, shared = "pip.conf", ".pip", os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    if sys.platform == "win32":
        name, hidden, shared = "pip.ini", "pip", os.environ.get("PROGRAMDATA", "C:/ProgramData")
        config = Path(os.environ.get("APPDATA", home))
    elif sys.platform == "darwin":
        shared, support = "/Library/Application Support", home / "Library" / "Application Support"
        config = support if (support / "pip").is_dir() else config
    yield from (Path(folder) / "pip" / name for folder in shared.split(os.pathsep))
    yield Path("/etc") / name
    if not (named and Path(named).exists()):
        yield from (home / hidden / name, config / "pip" / name)
    yield Path(sys.prefix) / name
    if named:
        yield Path(named)
