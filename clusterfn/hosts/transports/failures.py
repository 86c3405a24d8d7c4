"""What can go wrong on the way to a host by SSH, in words: the same ones whichever transport has met it.

Makes errors and raises none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterfn.config.spec import Host
from clusterfn.errors import AuthenticationError, HostError, Unreachable
from clusterfn.hosts.transports import sshfile
from clusterfn.hosts.transports.sshconfig import DEFAULTS, Settings

INTERACTIVE = ("keyboard-interactive", "password")


def unresolved(host: Host, settings: Settings, name: str, evidence: Sequence[str]) -> HostError:
    written = settings.named_in(host) if name == settings.hostname else f"{name}, which is on the way to it,"
    return Unreachable(
        f"The name {name} of host {host.name} cannot be resolved",
        host=host.name,
        evidence=evidence,
        hint=f"check {written} and your network or VPN{_other_file(settings)}",
        retryable=True,
    )


def _other_file(settings: Settings) -> str:
    """What to do about a configuration in $HOME that ssh does not read: it looks in the home of the user database."""
    file = Path("~/.ssh/config").expanduser()
    if settings.config_file or file == sshfile.config_file() or not file.is_file():
        return ""
    return f"; ssh reads {sshfile.config_file()}, not {file}: to use that file, add ssh_config: {file} to the host"


def refused(host: Host, settings: Settings, place: str, evidence: Sequence[str]) -> HostError:
    hint = f"is sshd running there, and is {place.rpartition(':')[2]} its port? try: {settings.ssh}"
    return _no_way(host, f"{place} refused the connection", evidence, hint)


def silent(host: Host, settings: Settings, place: str, evidence: Sequence[str]) -> HostError:
    message = f"{place} did not answer within {settings.timeout_s:g} s"
    return _no_way(host, message, evidence, f"check network and VPN; try: {settings.ssh}")


def mute(host: Host, settings: Settings, place: str, evidence: Sequence[str]) -> HostError:
    message = f"{place} took the connection, but did not answer within {settings.timeout_s:g} s"
    hint = f"its sshd may be stopped or overloaded; if nobody knows of it, try: {settings.ssh}"
    return _no_way(host, message, evidence, hint)


def not_reached(host: Host, settings: Settings, place: str, evidence: Sequence[str]) -> HostError:
    return _no_way(host, f"{place} cannot be reached", evidence, f"check network and VPN; try: {settings.ssh}")


def hung_up(host: Host, settings: Settings, place: str, evidence: Sequence[str]) -> HostError:
    hint = f"it may have too many logins under way (MaxStartups): wait; or see what this prints: {settings.ssh}"
    return _no_way(host, f"{place} closed the connection at once", evidence, hint)


def no_server(host: Host, settings: Settings, place: str, evidence: Sequence[str]) -> HostError:
    hint = f"see what this prints: {settings.ssh}"
    return _no_way(host, f"{place} does not answer as an SSH server does", evidence, hint)


def no_session(host: Host, settings: Settings, evidence: Sequence[str]) -> HostError:
    return _no_way(
        host,
        f"{settings.place} let {settings.user} in but refused what came next",
        evidence,
        "MaxSessions or forwarding may be limited there, or a jump host cannot reach the next one",
    )


def ended(host: Host, settings: Settings, how: str, evidence: Sequence[str]) -> HostError:
    hint = f"see what this prints: {_batch(settings)} true"
    return _no_way(host, f"ssh has opened no session on {settings.place}: {how}", evidence, hint)


def _no_way(host: Host, message: str, evidence: Sequence[str], hint: str) -> HostError:
    return Unreachable(message, host=host.name, evidence=evidence, hint=hint, retryable=True)


def no_common(host: Host, place: str, ours: str, evidence: Sequence[str], hint: str) -> HostError:
    return HostError(f"{place} and {ours} know no common algorithm", host=host.name, evidence=evidence, hint=hint)


def login_refused(
    host_name: str,
    settings: Settings,
    evidence: Sequence[str],
    allowed: Sequence[str],
    *,
    partly: bool = False,
    asked: bool = False,
) -> AuthenticationError:
    """What could be given was not enough.

    Args:
        allowed: With which methods the host would have gone on.
        partly: It took a key, and wants more.
        asked: A person could be asked.
    """
    evidence = [*_keys_not_there(settings), *evidence]
    by_person = partly or bool(allowed) and all(method in INTERACTIVE for method in allowed)
    if not by_person or (asked and not partly):
        message = f"{settings.place} did not let {settings.user} in"
    elif asked:
        message = f"{settings.place} accepts the key of {settings.user}, and refused the rest of the login"
    elif partly:
        message = f"{settings.place} accepts the key of {settings.user}, but wants a password (or a code) besides"
        message += f" ({', '.join(allowed)})"
    else:
        message = f"{settings.place} wants an interactive login of {settings.user} ({', '.join(allowed)})"
    how = "ssh-copy-id or ssh-add"
    if allowed and not set(allowed) & set(INTERACTIVE):  # ssh-copy-id would not get in either
        how = "ssh-add, IdentityFile in ~/.ssh/config, or your .pub sent to the administrator"
    hint = f"make `{_batch(settings)} true` work, say with {how}"
    return AuthenticationError(
        message, host=host_name, evidence=evidence, hint=_by_login(host_name, asked) if by_person else hint
    )


def _keys_not_there(settings: Settings) -> list[str]:
    """Keys that the ssh configuration names and that do not exist; nobody misses those that ssh tries by default."""
    usual = {sshfile.expanded(name) for name in DEFAULTS["identityfile"] if not name.endswith("_sk")}
    if usual <= {*settings.identity_files}:
        return []
    missing = [path for path in settings.identity_files if not path.exists()]
    public = {path for path in missing if path.with_name(f"{path.name}.pub").exists()}  # an agent may hold the rest
    return [f"{path}: no such file (IdentityFile in your ssh configuration)" for path in missing if path not in public]


def _by_login(host_name: str, asked: bool) -> str:
    again = "try again, or " if asked else ""
    return (
        f"{again}log in once for all programs: clusterfn login {host_name} (in a notebook: "
        f'clusterfn.login("{host_name}"))'
    )


def no_more_sessions(host: Host, place: str, evidence: Sequence[str]) -> HostError:
    hint = "end a program that uses it, or ask the administrator for a higher MaxSessions"
    return _no_way(host, f"The held connection to {place} takes no further session (MaxSessions)", evidence, hint)


def _batch(settings: Settings) -> str:
    return settings.ssh.replace("ssh ", "ssh -o BatchMode=yes ", 1)
