"""Where this user's packages come from: what conda is set to, and credentials for servers.

Credentials are those that uv and conda would use: in an address that the user's file names, in that of an index or
a channel in their settings, in uv's variables, or in a netrc file. With them this machine downloads what a host cannot.
They are sent to that server alone: no lock, no plan and no error has them.
"""

from __future__ import annotations

import contextlib
import netrc
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import yaml

from clusterfn.environment.project import load_toml
from clusterfn.environment.specification import USUAL_CHANNEL

PYTORCH = "https://download.pytorch.org/whl/"
# pip's settings that say where packages are, and the variables that tell uv the same.
_FOR_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "no-index in a uv.toml",
    "cert": "SSL_CERT_FILE",
    "proxy": "HTTPS_PROXY",
}
ALIAS = "https://conda.anaconda.org"
DEFAULTS = ("https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r")
# uv reads the indexes from these variables.
MORE_INDEXES = ("UV_INDEX", "UV_EXTRA_INDEX_URL")
DEFAULT_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")


def unread_settings() -> str:
    """Say which of pip's settings do not count, because uv does not read them; "" if pip is set to none."""
    found = {key: f"PIP_{key.upper().replace('-', '_')}" for key in _FOR_UV}
    found = {key: name for key, name in found.items() if os.environ.get(name)}
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    shared = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    folders = [*shared.split(os.pathsep), config, "~/Library/Application Support", os.environ.get("APPDATA", "~")]
    files = [Path(folder, "pip", name) for folder in folders for name in ("pip.conf", "pip.ini")]
    files += [Path("/etc/pip.conf"), Path("~/.pip/pip.conf"), Path(sys.prefix, "pip.conf"), Path(sys.prefix, "pip.ini")]
    files += [Path(os.environ["PIP_CONFIG_FILE"])] if os.environ.get("PIP_CONFIG_FILE") else []
    for path in (file.expanduser() for file in files):
        with contextlib.suppress(OSError):
            for key in re.findall(r"(?m)^([a-z_-]+)[ \t]*[=:]", path.read_text(encoding="utf-8", errors="replace")):
                found.setdefault(key.replace("_", "-"), str(path))
    unread = {key: place for key, place in found.items() if key in _FOR_UV and not os.environ.get(_FOR_UV[key])}
    if not unread:
        return ""
    named = ", ".join(f"{key} ({place})" if key not in place else place for key, place in unread.items())
    instead = ", ".join(dict.fromkeys(_FOR_UV[key] for key in unread))
    return f"uv does not read pip's settings, so these do not count: {named}; set {instead} instead"


def read_condarc(places: Iterable[Path] | None = None) -> dict[str, Any]:
    """Merge all files of conda's settings; a later one wins. Conda itself complains about a file that is not YAML."""
    found: dict[str, Any] = {}
    for path in _condarcs() if places is None else places:
        try:
            # YAML finds the encoding by the byte order mark, so it is given bytes.
            read = yaml.safe_load(path.read_bytes())
        except (OSError, yaml.YAMLError):
            continue
        found.update(read if isinstance(read, dict) else {})
    return found


def channels(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the channels that conda is set to; empty if there are none."""
    return tuple(str(name) for name in found.get("channels") or () if name != "nodefaults")


def usual_channels() -> tuple[str, ...]:
    """Return the channels that count where none are named: this user's own, else conda-forge."""
    return channels(read_condarc()) or (USUAL_CHANNEL,)


def channel_urls(name: str, found: Mapping[str, Any]) -> list[str]:
    """Return the addresses of a channel; `defaults` and those of custom_multichannels have several."""
    if "://" in name:
        return [os.path.expandvars(name)]
    several = found.get("custom_multichannels") or {}
    if name == "defaults":
        several = {"defaults": found.get("default_channels") or several.get("defaults") or DEFAULTS}
    if name in several:
        return [url for part in several[name] for url in channel_urls(str(part), {**found, "custom_multichannels": {}})]
    if Path(name).is_absolute():
        return [Path(name).as_uri()]
    customs = (found.get("custom_channels") or {}).items()
    bases = [base for known, base in customs if name == known or name.startswith(f"{known}/")]
    base = bases[0] if bases else found.get("channel_alias") or ALIAS
    return [os.path.expandvars(str(base)).rstrip("/") + f"/{name}"]


def conda_proxies(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that mean the same as proxy_servers of conda."""
    servers = found.get("proxy_servers") or {}
    return {f"{kind.upper()}_PROXY": str(servers[kind]) for kind in ("http", "https") if servers.get(kind)}


def _condarcs() -> Iterator[Path]:
    """Yield the files that conda reads, the strongest last."""
    home = Path("~").expanduser()
    system = Path("C:/ProgramData/conda") if sys.platform == "win32" else Path("/etc/conda")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    folders = (system, config / "conda", home / ".conda")
    yield from (folder / name for folder in folders for name in (".condarc", "condarc"))
    yield home / ".condarc"
    if os.environ.get("CONDA_PREFIX"):
        yield Path(os.environ["CONDA_PREFIX"]) / ".condarc"
    if os.environ.get("CONDARC"):
        yield Path(os.environ["CONDARC"])


def with_credentials(url: str, indexes: Sequence[tuple[str, str]]) -> str:
    """Return an address with the user's name and password for its server; "" if none are known.

    What a project names is given as (name, address): indexes by their names, a package or a repository without.
    """
    parts = urlsplit(url)
    best, nearest = "", -1
    for address in _addresses(indexes):
        known = urlsplit(address)
        user, at, server = known.netloc.rpartition("@")
        token = re.match(r"/t/[^/]+(?=/)", f"{known.path}/")
        if (user or token) and (server, known.scheme) == (parts.netloc, parts.scheme):
            beneath = known.path[len(token[0]) if token else 0 :]
            # Of several, that of the package's own channel, or of the index beside whose page it lies.
            near = len(os.path.commonprefix([beneath.split("/"), parts.path.split("/")]))
            if near > nearest:
                path = (token[0] if token else "") + parts.path
                best, nearest = urlunsplit(parts._replace(netloc=f"{user}{at}{server}", path=path)), near
    if best:
        return best
    of_netrc = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        # Not its default entry, which would be sent to every server.
        found = netrc.netrc(str(of_netrc)).hosts.get(parts.hostname or "")
    except (OSError, netrc.NetrcParseError):
        # There is none, or no other program can read it either.
        return ""
    user = f"{quote(found[0], safe='')}:{quote(found[2] or '', safe='')}" if found else ""
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc}")) if user else ""


def without_password(url: str) -> str:
    """Return an address without user, password and fragment."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def _addresses(indexes: Sequence[tuple[str, str]]) -> Iterator[str]:
    for name, address in indexes:
        words = re.sub(r"[^A-Z0-9]", "_", name.upper())
        user, password = (os.environ.get(f"UV_INDEX_{words}_{part}", "") for part in ("USERNAME", "PASSWORD"))
        if name and (user or password):
            parts = urlsplit(address)
            server = parts.netloc.rpartition("@")[2]
            yield urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{server}"))
        yield os.path.expandvars(address)
    for variable in (*MORE_INDEXES, *DEFAULT_INDEX):
        for word in os.environ.get(variable, "").split():
            # An index of uv may have a name, name=address.
            yield re.sub(r"^[\w-]+=", "", word)
    config = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    own = Path(os.environ.get("UV_CONFIG_FILE") or config / "uv" / "uv.toml")
    settings = load_toml(own) if own.is_file() else {}
    yield from (str(index["url"]) for index in settings.get("index", []) if "url" in index)
    yield from filter(None, [settings.get("index-url"), *settings.get("extra-index-url", [])])
    conda = read_condarc()
    custom = [*(conda.get("custom_channels") or ()), *(conda.get("custom_multichannels") or ()), "defaults"]
    for channel in (*channels(conda), *custom):
        yield from map(os.path.expandvars, channel_urls(str(channel), conda))
    yield os.path.expandvars(str(conda.get("channel_alias") or ALIAS))
