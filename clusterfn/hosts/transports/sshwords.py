"""What the system's ssh says when it fails, as errors of clusterfn: one table, anchored on whole lines of ssh's own.

ssh is run with -v: its `debug1:` lines tell which keys were shown and offered. Reads text, and known_hosts for the
line of a changed key; starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, HostError
from clusterfn.hosts.transports import failures, hostkeys
from clusterfn.hosts.transports.sshconfig import Settings, jumps

EVIDENCE_LINES = 8
# With -v ssh also talks about what works.
CHATTER = re.compile(
    r"debug\d: |OpenSSH_\S+[ ,]|OpenSSH_for_Windows|Authenticated to |Authenticated using \S+ with partial"
    r"|Transferred: |Bytes per second: |Killed by signal \d+\.$|Pseudo-terminal will not be allocated"
)
LOST = re.compile(
    r"Timeout, server \S+ not responding\.|Connection to .+ closed by remote host\.|client_loop: .+"
    r"|Connection (?:closed|reset) by .+|ssh_dispatch_run_fatal: .+|packet_write_\w+: .+|Write failed: .+"
    r"|Read from remote host .+|Received disconnect from .+|mux_client_\w+: .+|Shared connection to \S+ closed\."
)
_SIGNALLED = re.compile(r"debug1: client_input_channel_req: channel \d+ rtype exit-signal reply \d")
_SHOWN = re.compile(r"debug1: Server host key: (\S+) (\S+)")
_OFFERED = re.compile(r"debug1: Offering (?:\S+ )?public key: (.+?)(?: (?:explicit|agent|explicit agent))?")
_PARTLY = re.compile(r"Authenticated (?:using \S+ )?with partial success\.")
_OFFENDING = re.compile(r"Offending \S+ key in (.+:\d+)")
_OF_HOST = re.compile(r"No \S+ host key is known for (\S+) and .*|Host key for (\S+) has changed and .*")
_REVOKED = re.compile(r".*REVOKED HOST KEY DETECTED.*|The \S+ host key for \S+ is marked as revoked\.")
_CHANGED = re.compile(r"@\s+WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\s+@")


class SshEnded(Exception):
    """ssh ended before the session was open. `dropped`: at once, as a busy sshd lets it."""

    def __init__(self, message: str, *, dropped: bool = False) -> None:
        super().__init__(message)
        self.dropped = dropped


@dataclass(frozen=True)
class Said:
    """All that one ssh has written to stderr, line by line. `asked`: a person could be asked."""

    host: Host
    settings: Settings
    lines: Sequence[str]
    asked: bool = False

    @property
    def told(self) -> list[str]:
        """Without the chatter: what a person would have seen."""
        return [line for line in self.lines if line.strip() and not CHATTER.match(line)]

    @property
    def evidence(self) -> list[str]:
        return self.told[-EVIDENCE_LINES:]

    def hops(self) -> list[Settings]:
        """Each host on the way, in the order in which they are met."""
        return [*jumps(self.host, self.settings), self.settings]


def error_of(host: Host, settings: Settings, text: str, code: int, *, asked: bool = False) -> HostError | ConfigError:
    """The error for an ssh that ended before the session was open; its `__cause__` is an `SshEnded`."""
    said = Said(host, settings, [line.rstrip() for line in text.splitlines()], asked)
    error, line = _first(said) or (failures.ended(host, settings, f"it ended with status {code}", said.evidence), "")
    error.__cause__ = SshEnded(line or f"exit status {code}", dropped=bool(_DROPPED.fullmatch(line)))
    return error


def _first(said: Said) -> tuple[HostError | ConfigError, str] | None:
    for pattern, make in _TABLE:
        for line in said.told:
            match = pattern.fullmatch(line)
            if match:
                return make(said, match), line
    return None


def lost(text: str) -> str | None:
    """Why a session was cut off, if ssh has said so in the end of its stderr."""
    lines = [line.rstrip() for line in text.splitlines()]
    found = [line for line in lines if LOST.fullmatch(line)]
    if found:
        return f"the connection was lost: {found[-1]}"
    return "it was ended by a signal" if any(_SIGNALLED.fullmatch(line) for line in lines) else None


def without_chatter(text: str) -> str:
    """What the command itself has written to stderr, and what ssh had to say besides -v."""
    cut = [re.sub(r"debug\d: .*", "", line) if "debug" in line else line for line in text.splitlines(keepends=True)]
    return "".join(line for line in cut if line.strip() and not CHATTER.match(line))


def _unresolved(said: Said, match: re.Match[str]) -> HostError:
    return failures.unresolved(said.host, said.settings, match["name"], [match[0]])


def _not_connected(said: Said, match: re.Match[str]) -> HostError:
    why, place = match["why"], f"{match['name']}:{match['port']}"
    make = failures.refused if why == "Connection refused" else failures.not_reached
    return (failures.silent if "timed out" in why else make)(said.host, said.settings, place, [match[0]])


def _mute(said: Said, match: re.Match[str]) -> HostError:
    return failures.mute(said.host, said.settings, said.settings.place, said.evidence)


def _silent(said: Said, match: re.Match[str]) -> HostError:
    return failures.silent(said.host, said.settings, said.settings.place, said.evidence)


def _no_common(said: Said, match: re.Match[str]) -> HostError:
    named = match.groupdict()
    place = f"{named['name']}:{named['port']}" if named.get("name") else said.settings.place
    hint = "its sshd is too old or too narrow for this ssh; if you trust it, allow what it offers in your ssh "
    hint += "configuration, such as HostKeyAlgorithms +ssh-rsa"
    return failures.no_common(said.host, place, "the ssh of this machine", [match[0]], hint)


def _denied(said: Said, match: re.Match[str]) -> HostError:
    who = match["who"]
    at = next((hop for hop in said.hops() if who == f"{hop.user}@{hop.hostname}"), said.settings)
    allowed = [method for method in match["methods"].split(",") if method]
    offered = [f"tried {key[1]}: {_fate(said)}" for key in map(_OFFERED.fullmatch, said.lines) if key]
    complaints = [line for line in said.told if line != match[0]][-EVIDENCE_LINES:]
    evidence = [*(offered or ["tried no key: none was found"]), *complaints, f"the host allows: {', '.join(allowed)}"]
    return failures.login_refused(said.host.name, at, evidence, allowed, partly=_partly(said), asked=said.asked)


def _partly(said: Said) -> bool:
    return any(_PARTLY.fullmatch(line.removeprefix("debug1: ")) for line in said.lines)


def _fate(said: Said) -> str:
    return "accepted" if _partly(said) else "refused"


def _too_many(said: Said, match: re.Match[str]) -> HostError:
    error = failures.login_refused(said.host.name, said.settings, [match[0]], [])
    error.hint = "ssh offered more keys than the host looks at; name the right one in your ssh configuration: "
    error.hint += "IdentityFile and IdentitiesOnly yes"
    return error


def _host_key(said: Said, match: re.Match[str]) -> HostError:
    hops = said.hops()
    shown = [found for found in map(_SHOWN.fullmatch, said.lines) if found]
    names = [found[1] or found[2] for found in map(_OF_HOST.fullmatch, said.told) if found]
    by_order = hops[len(shown) - 1] if 0 < len(shown) <= len(hops) else said.settings
    at = next((hop for hop in hops if hop.key_name in names), by_order)
    key = f"{shown[-1][1]} {shown[-1][2]} by {at.place}" if shown else f"a key of {at.place} that ssh did not name"
    offending = next((found[1] for found in map(_OFFENDING.fullmatch, said.told) if found), "")
    if any(_REVOKED.fullmatch(line) for line in said.told):
        return hostkeys.revoked_error(at, said.host.name, key, offending or "known_hosts")
    known = hostkeys.known_keys(at.key_name, at.known_hosts)
    if any(_CHANGED.fullmatch(line) for line in said.told):
        named = [entry for entry in known if entry.place == offending] or known
        return hostkeys.changed(at, said.host.name, key, named)
    return hostkeys.unknown(at, said.host.name, key)


def _configuration(said: Said, match: re.Match[str]) -> ConfigError:
    return ConfigError(
        f"ssh cannot read its configuration for {said.settings.alias}",
        host=said.host.name,
        evidence=said.evidence,
        hint=f"mend it until `{said.settings.ssh.replace('ssh ', 'ssh -G ', 1)}` works",
    )


def _no_session(said: Said, match: re.Match[str]) -> HostError:
    return failures.no_session(said.host, said.settings, said.evidence)


def _hung_up(said: Said, match: re.Match[str]) -> HostError:
    return failures.hung_up(said.host, said.settings, said.settings.place, said.evidence)


def _no_server(said: Said, match: re.Match[str]) -> HostError:
    return failures.no_server(said.host, said.settings, said.settings.place, said.evidence)


_DROPPED = re.compile(r"(?:kex|ssh)_exchange_identification: (?:Connection closed by remote host|read: .* by peer)")
# The first row counts of which any line is one: causes stand before consequences, for a jump host's ssh speaks too.
_TABLE: tuple[tuple[re.Pattern[str], Callable[[Said, re.Match[str]], HostError | ConfigError]], ...] = (
    (re.compile(r".*(?:Bad configuration option: |Bad owner or permissions |terminating, \d+ bad ).*"), _configuration),
    (re.compile(r"ssh: Could not resolve hostname (?P<name>\S+): .*"), _unresolved),
    (re.compile(r"ssh: connect to host (?P<name>\S+) port (?P<port>\d+): (?P<why>.*)"), _not_connected),
    (re.compile(r"Connection timed out during banner exchange"), _mute),
    (re.compile(r"(?:ssh_dispatch_run_fatal: )?Connection to .+(?: |: \w+ )timed out"), _silent),
    (re.compile(r"Unable to negotiate with (?P<name>\S+) port (?P<port>\d+): no matching .+"), _no_common),
    (re.compile(r"Unable to negotiate with (?P<name>\S+): no matching .+"), _no_common),
    (re.compile(r"no (?:matching|hostkey|kex) .*(?:found|alg).*"), _no_common),
    (re.compile(r"(?:Host key verification failed\.|No \S+ host key is known for \S+ and .*)"), _host_key),
    (re.compile(r"(?:(?P<who>\S+@\S+): )?Permission denied \((?P<methods>[\w,@.-]*)\)\."), _denied),
    (re.compile(r"(?:Received disconnect from .*|Disconnect.*): ?Too many authentication failures.*"), _too_many),
    (re.compile(r"channel \d+: open failed: .*|stdio forwarding failed|ssh: .*open failed.*"), _no_session),
    (_DROPPED, _hung_up),
    (re.compile(r"(?:kex|ssh)_exchange_identification: .*|.*: invalid format"), _no_server),
    (re.compile(r"Protocol major versions differ: .*|Bad remote protocol version identification: .*"), _no_server),
    (re.compile(r"Connection (?:closed|reset) by .*|ssh_dispatch_run_fatal: .*|Received disconnect from .*"), _hung_up),
)
