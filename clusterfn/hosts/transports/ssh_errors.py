"""The errors of SSH, the same for both transports, and the table that turns the system ssh's stderr into them.

ssh runs with -v: its `debug1:` lines say which keys were shown and offered. The patterns match whole lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from clusterfn.config.spec import Host
from clusterfn.errors import AuthenticationError, ConfigError, HostError, Unreachable
from clusterfn.hosts.transports import host_keys
from clusterfn.hosts.transports.ssh_config import Settings, jumps

INTERACTIVE = ("keyboard-interactive", "password")
# Words of a refused login: before the methods that the host allows, and where it wants more than a key.
ALLOWS = "the host allows: "
_TAKES_KEY = " accepts the key of "


# Maps a kind of error to its message and its hint.
_UNREACHABLE = {
    "refused": ("{place} refused the connection", "check that sshd is running and that its port is {port}; try: {ssh}"),
    "silent": ("{place} did not answer within {timeout} s", "check your network and VPN; try: {ssh}"),
    "mute": ("{place} accepted the connection, but did not answer within {timeout} s",
             "its sshd may be stopped or overloaded: ask the administrator, or try: {ssh}"),
    "not reached": ("{place} cannot be reached", "check your network and VPN; try: {ssh}"),
    "hung up": ("{place} closed the connection at once",
                "it may have too many logins in progress (MaxStartups): wait; or see what this prints: {ssh}"),
    "no server": ("{place} does not answer like an SSH server", "see what this prints: {ssh}"),
    "no session": ("{place} let {user} in but rejected the next step",
                   "the host may limit MaxSessions or forwarding, or a jump host cannot reach the next one"),
    "no more sessions": ("The held connection to {place} accepts no further session (MaxSessions)",
                         "end a program that uses it, or ask the administrator for a higher MaxSessions"),
    "ended": ("ssh has opened no session on {place}: {how}", "see what this prints: {batch} true"),
}  # fmt: skip


def unreachable(
    kind: str, host: Host, settings: Settings, evidence: Sequence[str], *, place: str | None = None, how: str = ""
) -> Unreachable:
    """Make the error of that kind of `_UNREACHABLE`, for host:port in `place`; `how` an ssh ended."""
    place = place or settings.place
    words = {"place": place, "port": place.rpartition(":")[2], "user": settings.user, "how": how}
    words.update(timeout=f"{settings.timeout_s:g}", ssh=settings.ssh, batch=_batch(settings))
    message, hint = (text.format(**words) for text in _UNREACHABLE[kind])
    return Unreachable(message, host=host.name, evidence=evidence, hint=hint, retryable=True)


def unresolved(host: Host, settings: Settings, name: str, evidence: Sequence[str]) -> Unreachable:
    """Return the error for a name that DNS does not know."""
    written = settings.named_in(host) if name == settings.hostname else f"{name}, a jump host on the way to it,"
    hint = f"check {written} and your network or VPN"
    message = f"The name {name} of host {host.name} cannot be resolved"
    return Unreachable(message, host=host.name, evidence=evidence, hint=hint, retryable=True)


def no_common(host: Host, place: str, ours: str, evidence: Sequence[str], hint: str) -> HostError:
    return HostError(f"{place} and {ours} have no algorithm in common", host=host.name, evidence=evidence, hint=hint)


def login_refused(
    host_name: str,
    settings: Settings,
    evidence: Sequence[str],
    allowed: Sequence[str],
    *,
    partly: bool = False,
    asked: bool = False,
) -> AuthenticationError:
    """Return the error for a login that was refused.

    Args:
        allowed: The methods that the host allows.
        partly: Whether it accepted a key, and wants more.
        asked: Whether a person could be asked.
    """
    by_person = partly or bool(allowed) and all(method in INTERACTIVE for method in allowed)
    if not by_person or (asked and not partly):
        message = f"{settings.place} did not let {settings.user} in"
    elif asked:
        message = f"{settings.place}{_TAKES_KEY}{settings.user}, but rejected the rest of the login"
    elif partly:
        message = f"{settings.place}{_TAKES_KEY}{settings.user}, but also wants a password (or a code)"
        message += f" ({', '.join(allowed)})"
    else:
        message = f"{settings.place} requires an interactive login of {settings.user} ({', '.join(allowed)})"
    how = "ssh-copy-id or ssh-add"
    if allowed and not set(allowed) & set(INTERACTIVE):
        # Without a method for a person, ssh-copy-id could not log in either.
        how = "ssh-add, IdentityFile in ~/.ssh/config, or your .pub sent to the administrator"
    hint = f"make `{_batch(settings)} true` work, for example with {how}"
    if not by_person and not asked and set(allowed) & set(INTERACTIVE):
        hint += f", or log in with a password once for all programs: clusterfn login {host_name}"
    if by_person:
        hint = f"try again{'' if asked else ' in a terminal'}, or log in once for all programs: "
        hint += f'clusterfn login {host_name} (in a notebook: clusterfn.login("{host_name}"))'
    return AuthenticationError(message, host=host_name, evidence=evidence, hint=hint)


def offers_password(refused: AuthenticationError) -> bool:
    """Whether the host that has refused a login would take a password, or a person's answers, and nothing else."""
    lines = [line[len(ALLOWS) :] for line in refused.evidence if line.startswith(ALLOWS)]
    return _TAKES_KEY not in refused.message and any(set(line.split(", ")) & set(INTERACTIVE) for line in lines)


def _batch(settings: Settings) -> str:
    return settings.ssh.replace("ssh ", "ssh -o BatchMode=yes ", 1)


EVIDENCE_LINES = 8
# These patterns are compiled only after an ssh has failed, because that takes a noticeable part of a first call.
# CHATTER matches what -v adds about things that work.
CHATTER = (
    r"debug\d: |OpenSSH_\S+[ ,]|OpenSSH_for_Windows|Authenticated to |Authenticated using \S+ with partial"
    r"|Transferred: |Bytes per second: |Killed by signal \d+\.$|Pseudo-terminal will not be allocated"
)
LOST = (
    r"Timeout, server \S+ not responding\.|Connection to .+ closed by remote host\.|client_loop: .+"
    r"|Connection (?:closed|reset) by .+|ssh_dispatch_run_fatal: .+|packet_write_\w+: .+|Write failed: .+"
    r"|Read from remote host .+|Received disconnect from .+|mux_client_\w+: .+|Shared connection to \S+ closed\."
)
_SIGNALLED = r"debug1: client_input_channel_req: channel \d+ rtype exit-signal reply \d"
_SHOWN = r"debug1: Server host key: (\S+) (\S+)"
_OFFERED = r"debug1: Offering (?:\S+ )?public key: (.+?)(?: (?:explicit|agent|explicit agent))?"
_PARTLY = r"Authenticated (?:using \S+ )?with partial success\."
_OFFENDING = r"Offending \S+ key in (.+:\d+)"
_OF_HOST = r"No \S+ host key is known for (\S+) and .*|Host key for (\S+) has changed and .*"
_REVOKED = r".*REVOKED HOST KEY DETECTED.*|The \S+ host key for \S+ is marked as revoked\."
_CHANGED = r"@\s+WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\s+@"


class SshOutput(NamedTuple):
    """What one ssh has written to stderr, line by line. `asked`: whether a person could be asked."""

    host: Host
    settings: Settings
    lines: Sequence[str]
    asked: bool = False

    @property
    def plain_lines(self) -> list[str]:
        """The lines without those of -v."""
        return [line for line in self.lines if line.strip() and not re.match(CHATTER, line)]

    @property
    def evidence(self) -> list[str]:
        return self.plain_lines[-EVIDENCE_LINES:]

    def hops(self) -> list[Settings]:
        """Return each host on the way, the nearest first."""
        return [*jumps(self.host, self.settings), self.settings]


def error_of(host: Host, settings: Settings, text: str, code: int, *, asked: bool = False) -> HostError | ConfigError:
    """Return the error for an ssh that ended before the session was open.

    Its cause is a ConnectionResetError if ssh was dropped at once, as by a busy sshd, and a ConnectionAbortedError if
    the connection broke off later, or ssh was killed.
    """
    output = SshOutput(host, settings, [line.rstrip() for line in text.splitlines()], asked)
    rows = ((line, re.fullmatch(pattern, line), make) for pattern, make in _TABLE for line in output.plain_lines)
    line, match, make = next((row for row in rows if row[1]), ("", None, ""))
    kind = "ended" if match is None else make
    error: HostError | ConfigError
    if isinstance(kind, str):
        error = unreachable(kind, host, settings, output.evidence, how=f"it ended with status {code}")
    else:
        assert match is not None
        error = kind(output, match)
    broke_off = ConnectionAbortedError if kind in ("ended", "hung up") else ConnectionError
    end = ConnectionResetError if re.fullmatch(_DROPPED, line) else broke_off
    error.__cause__ = end(line or f"exit status {code}")
    return error


def lost(text: str) -> str | None:
    """Return why a session broke off, if ssh wrote so at the end of its stderr."""
    lines = [line.rstrip() for line in text.splitlines()]
    causes = [line for line in lines if re.fullmatch(LOST, line)]
    if causes:
        return f"the connection was lost: {causes[-1]}"
    return "it was ended by a signal" if any(re.fullmatch(_SIGNALLED, line) for line in lines) else None


def without_chatter(text: str) -> str:
    """Return stderr without what -v adds."""
    cut = [re.sub(r"debug\d: .*", "", line) if "debug" in line else line for line in text.splitlines(keepends=True)]
    return "".join(line for line in cut if line.strip() and not re.match(CHATTER, line))


def _not_connected(output: SshOutput, match: re.Match[str]) -> HostError:
    why = match["why"]
    place = f"{match['name']}:{match['port']}"
    kind = "silent" if "timed out" in why else "not reached"
    if why == "Connection refused":
        kind = "refused"
    return unreachable(kind, output.host, output.settings, [match[0]], place=place)


def _no_common_algorithm(output: SshOutput, match: re.Match[str]) -> HostError:
    groups = match.groupdict()
    place = f"{groups['name']}:{groups['port']}" if groups.get("name") else output.settings.place
    hint = "its sshd is too old or too strict for this ssh; if you trust it, allow what it offers in your ssh "
    hint += "configuration, such as HostKeyAlgorithms +ssh-rsa"
    return no_common(output.host, place, "the ssh of this machine", [match[0]], hint)


def _denied(output: SshOutput, match: re.Match[str]) -> HostError:
    who = match["who"]
    at = next((hop for hop in output.hops() if who == f"{hop.user}@{hop.hostname}"), output.settings)
    allowed = [method for method in match["methods"].split(",") if method]
    partly = any(re.fullmatch(_PARTLY, line.removeprefix("debug1: ")) for line in output.lines)
    fate = "accepted" if partly else "refused"
    offered = [f"tried {key[1]}: {fate}" for key in (re.fullmatch(_OFFERED, line) for line in output.lines) if key]
    complaints = [line for line in output.plain_lines if line != match[0]][-EVIDENCE_LINES:]
    evidence = [*(offered or ["tried no key: none was found"]), *complaints, f"{ALLOWS}{', '.join(allowed)}"]
    return login_refused(output.host.name, at, evidence, allowed, partly=partly, asked=output.asked)


def _too_many(output: SshOutput, match: re.Match[str]) -> HostError:
    error = login_refused(output.host.name, output.settings, [match[0]], [])
    error.hint = "ssh offered more keys than the host tries; name the right one in your ssh configuration: "
    error.hint += "IdentityFile and IdentitiesOnly yes"
    return error


def _host_key(output: SshOutput, match: re.Match[str]) -> HostError:
    hops = output.hops()
    shown = [hit for hit in (re.fullmatch(_SHOWN, line) for line in output.lines) if hit]
    names = [hit[1] or hit[2] for hit in (re.fullmatch(_OF_HOST, line) for line in output.plain_lines) if hit]
    by_order = hops[len(shown) - 1] if 0 < len(shown) <= len(hops) else output.settings
    at = next((hop for hop in hops if hop.key_name in names), by_order)
    key = f"{shown[-1][1]} {shown[-1][2]} by {at.place}" if shown else f"a key of {at.place} that ssh did not name"
    offending = next((hit[1] for hit in (re.fullmatch(_OFFENDING, line) for line in output.plain_lines) if hit), "")
    if any(re.fullmatch(_REVOKED, line) for line in output.plain_lines):
        return host_keys.revoked_error(at, output.host.name, key, offending or "known_hosts")
    remembered = host_keys.known_keys(at.key_name, at.known_hosts)
    if any(re.fullmatch(_CHANGED, line) for line in output.plain_lines):
        matching = [entry for entry in remembered if entry.place == offending] or remembered
        return host_keys.changed(at, output.host.name, key, matching)
    return host_keys.unknown(at, output.host.name, key)


def _configuration(output: SshOutput, match: re.Match[str]) -> ConfigError:
    message = f"ssh cannot read its configuration for {output.settings.alias}"
    hint = f"fix it until `{output.settings.ssh.replace('ssh ', 'ssh -G ', 1)}` works"
    return ConfigError(message, host=output.host.name, evidence=output.evidence, hint=hint)


_DROPPED = r"(?:kex|ssh)_exchange_identification: (?:Connection closed by remote host|read: .* by peer)"
# The first row that matches any line counts: causes before consequences, because a jump host's ssh writes here too.
_TABLE: tuple[tuple[str, str | Callable[[SshOutput, re.Match[str]], HostError | ConfigError]], ...] = (
    (r".*(?:Bad configuration option: |Bad owner or permissions |terminating, \d+ bad ).*", _configuration),
    (
        r"ssh: Could not resolve hostname (?P<name>\S+): .*",
        lambda output, match: unresolved(output.host, output.settings, match["name"], [match[0]]),
    ),
    (r"ssh: connect to host (?P<name>\S+) port (?P<port>\d+): (?P<why>.*)", _not_connected),
    (r"Connection timed out during banner exchange", "mute"),
    (r"(?:ssh_dispatch_run_fatal: )?Connection to .+(?: |: \w+ )timed out", "silent"),
    (r"Unable to negotiate with (?P<name>\S+) port (?P<port>\d+): no matching .+", _no_common_algorithm),
    (r"Unable to negotiate with (?P<name>\S+): no matching .+", _no_common_algorithm),
    (r"no (?:matching|hostkey|kex) .*(?:found|alg).*", _no_common_algorithm),
    (r"(?:Host key verification failed\.|No \S+ host key is known for \S+ and .*)", _host_key),
    (r"(?:(?P<who>\S+@\S+): )?Permission denied \((?P<methods>[\w,@.-]*)\)\.", _denied),
    (r"(?:Received disconnect from .*|Disconnect.*): ?Too many authentication failures.*", _too_many),
    (r"channel \d+: open failed: .*|stdio forwarding failed|ssh: .*open failed.*", "no session"),
    (_DROPPED, "hung up"),
    (r"(?:kex|ssh)_exchange_identification: .*|.*: invalid format", "no server"),
    (r"Protocol major versions differ: .*|Bad remote protocol version identification: .*", "no server"),
    (r"Connection (?:closed|reset) by .*|ssh_dispatch_run_fatal: .*|Received disconnect from .*", "hung up"),
)
