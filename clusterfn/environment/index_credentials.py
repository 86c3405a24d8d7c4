"""Find the user's credentials for a server, with which this machine downloads what a host cannot.

They are those that pip, uv and conda would use: in an address that the user's file names, in that of an index or a
channel in their settings, in uv's variables, or in a netrc file. They are sent to that server alone: no lock, no plan
and no error has them.
"""

from __future__ import annotations

import netrc
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from clusterfn.environment import condarc, pip_settings
from clusterfn.environment.uv import INDEX_VARIABLES


def with_credentials(url: str, indexes: Sequence[tuple[str, str]]) -> str:
    """Return an address with the user's name and password for its server; "" if none are known.

    Args:
        indexes: (name, address) of what a project names: indexes by their names, a package or a repository without.
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
    of_netrc = _of_netrc(parts.hostname or "")
    return urlunsplit(parts._replace(netloc=f"{of_netrc}@{parts.netloc}")) if of_netrc else ""


def _addresses(indexes: Sequence[tuple[str, str]]) -> Iterator[str]:
    for name, address in indexes:
        words = re.sub(r"[^A-Z0-9]", "_", name.upper())
        user, password = (os.environ.get(f"UV_INDEX_{words}_{each}", "") for each in ("USERNAME", "PASSWORD"))
        if name and (user or password):
            parts = urlsplit(address)
            server = parts.netloc.rpartition("@")[2]
            yield urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{server}"))
        yield os.path.expandvars(address)
    for variable in INDEX_VARIABLES:
        for word in os.environ.get(variable, "").split():
            yield re.sub(r"^[\w-]+=", "", word)  # name=address
    yield from pip_settings.pip_config().indexes
    yield from condarc.addresses(condarc.settings())


def _of_netrc(host: str) -> str:
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        found = netrc.netrc(str(path)).hosts.get(host)  # no default entry: it would be sent to every server
    except (OSError, netrc.NetrcParseError):  # none, or one that pip cannot read either
        return ""
    return f"{quote(found[0], safe='')}:{quote(found[2] or '', safe='')}" if found else ""
