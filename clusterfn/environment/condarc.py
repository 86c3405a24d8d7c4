"""Read the user's .condarc, as far as a solver needs it: the channels and their addresses."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from clusterfn.environment.specification import USUAL_CHANNEL

ALIAS = "https://conda.anaconda.org"
DEFAULTS = ("https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r")


def _places() -> Iterator[Path]:
    """Yield the files that conda reads, the strongest last."""
    system = Path("C:/ProgramData/conda") if sys.platform == "win32" else Path("/etc/conda")
    home = Path("~").expanduser()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    yield from (system / ".condarc", system / "condarc")
    yield from (config / "conda" / ".condarc", config / "conda" / "condarc")
    yield from (home / ".conda" / ".condarc", home / ".conda" / "condarc", home / ".condarc")
    if os.environ.get("CONDA_PREFIX"):
        yield Path(os.environ["CONDA_PREFIX"]) / ".condarc"
    if os.environ.get("CONDARC"):
        yield Path(os.environ["CONDARC"])


def settings(places: Iterable[Path] | None = None) -> dict[str, Any]:
    """Merge all files; a later one wins. Conda itself complains about a file that is not YAML."""
    found: dict[str, Any] = {}
    for path in _places() if places is None else places:
        try:
            read = yaml.safe_load(path.read_bytes())  # by its byte order mark
        except (OSError, yaml.YAMLError):
            continue
        found.update(read if isinstance(read, dict) else {})
    return found


def channels(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the configured channels; empty if there are none."""
    return tuple(str(name) for name in found.get("channels") or () if name != "nodefaults")


def usual_channels() -> tuple[str, ...]:
    """Return the channels that count where none are named: this user's own, else conda-forge."""
    return channels(settings()) or (USUAL_CHANNEL,)


def urls(name: str, found: Mapping[str, Any]) -> list[str]:
    """Return the addresses of a channel; `defaults` and those of custom_multichannels have several.

    Example:
        >>> urls("conda-forge/label/dev", {"channel_alias": "https://mirror.example"})
        ['https://mirror.example/conda-forge/label/dev']
    """
    if "://" in name:
        return [os.path.expandvars(name)]
    several = found.get("custom_multichannels") or {}
    if name == "defaults":
        several = {"defaults": found.get("default_channels") or several.get("defaults") or DEFAULTS}
    if name in several:
        return [url for part in several[name] for url in urls(str(part), {**found, "custom_multichannels": {}})]
    if Path(name).is_absolute():
        return [Path(name).as_uri()]
    customs = (found.get("custom_channels") or {}).items()
    bases = [base for known, base in customs if name == known or name.startswith(f"{known}/")]
    base = bases[0] if bases else found.get("channel_alias") or ALIAS
    return [os.path.expandvars(str(base)).rstrip("/") + f"/{name}"]


def addresses(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield all addresses that the files have, with the passwords and tokens in them."""
    custom = [*(found.get("custom_channels") or ()), *(found.get("custom_multichannels") or ()), "defaults"]
    for name in (*channels(found), *custom):
        yield from map(os.path.expandvars, urls(str(name), found))
    yield os.path.expandvars(str(found.get("channel_alias") or ALIAS))


def proxies(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that mean the same as proxy_servers."""
    servers = found.get("proxy_servers") or {}
    return {f"{kind.upper()}_PROXY": str(servers[kind]) for kind in ("http", "https") if servers.get(kind)}
