"""Turn an agent's error frames into exceptions."""

from __future__ import annotations

import re
import shlex

from clusterfn.config.spec import Host
from clusterfn.errors import HostDiskFull, HostError
from clusterfn.hosts.rpc.frames import Header

_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")


def error_of(host: Host, data: Header) -> HostError:
    """Return the exception for an error frame, with the frame's `kind` and `path` as attributes."""
    kind, said, path = data["kind"], data["message"], data.get("path")
    path = path if isinstance(path, str) else ""
    root = f"set root: of host {host.name} ({host.source}) to"
    where = f" ({path})" if path else ""
    error = HostError(f"{host.name} did not do what was asked{where}: {said}", host=host.name)
    if kind == "full":
        error = _full(host, data, path)
    elif kind == "denied":
        message = f"{path or 'A file'} on {host.name} may not be used: {said}"
        error = HostError(message, host=host.name, hint=f"{root} a folder that you may write to")
    elif kind == "refused":
        hint = (
            f"{root} a folder below your home; if you trust who may write there, name the user or the group in owners:"
        )
        own = f"run `chmod go-w {path}` on {host.name}"
        message = f"{path} on {host.name} is not safe to use: {said}"
        error = HostError(message, host=host.name, hint=own if data.get("own") else hint)
    elif kind == "missing":
        error = HostError(f"{path or 'The file'} does not exist on {host.name}", host=host.name, evidence=[said])
    elif kind == "bad" and said.startswith("the root ") and (unset := _VARIABLE.search(path)):
        # mostly a variable that only a login shell sets, and not a command by ssh
        config = f"-F {shlex.quote(host.ssh_config)} " if host.ssh_config else ""
        log_in = f"`ssh {config}{host.address}`, then " if host.address else ""
        error = HostError(
            f"{unset[0]} is not set in a non-interactive shell of {host.name}",
            host=host.name,
            evidence=[f"root: {host.root} ({host.source})"],
            hint=f"write the path in full ({log_in}`echo {unset[0]}` in a login shell shows it)",
        )
    error.kind, error.path = kind, path
    return error


def _full(host: Host, data: Header, path: str) -> HostError:
    amounts = [("free", data.get("free")), ("needed", data.get("needed"))]
    known = [(word, amount) for word, amount in amounts if type(amount) is int and 0 <= amount < 2**63]
    seen = ", ".join(f"{_shown(amount)} {word}" for word, amount in known)
    return HostDiskFull(
        f"No space is left on {host.name} for {path}",
        host=host.name,
        evidence=[data["message"], *([seen] if seen else [])],
        hint=f"free some there (old jobs are in {host.root}/jobs), and call again; or set root: of host {host.name}"
        f" ({host.source}) to a larger file system",
        retryable=True,
    )


def _shown(size: int) -> str:
    return f"{size / 2**20:.1f} MB" if size >= 2**20 else f"{-(-size // 1024)} KB"
