"""The steps of `clusterfn check`. Each takes what earlier ones found, and returns a sentence or raises what is wrong.

Prints nothing; `check` runs them. A step that asks the host builds an argv and reads the answer, as everything does.
"""

from __future__ import annotations

import concurrent.futures
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clusterfn import config, dispatch
from clusterfn.cli import screen
from clusterfn.errors import AuthenticationError, HostError, HostKeyError, Unreachable
from clusterfn.host import Completed
from clusterfn.job import Job
from clusterfn.session import Session, open_session
from clusterfn.spec import Host, parse_options
from clusterfn.transport.sshconfig import resolve

_TIMEOUT_S = 60.0
_LITTLE_BYTES = 50 * 2**20
_NOISY_LINES = 5


class Failed(Exception):
    """A step failed, and clusterfn has no error of its own for it."""

    def __init__(self, message: str, hint: str, evidence: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.hint = hint
        self.evidence = tuple(evidence)


class Skipped(Exception):
    """A step does not apply here; the text says why."""


@dataclass
class Found:
    """What the steps have found so far.

    Attributes:
        wanted: The host that the user named, if any.
        broken: The error of the one attempt to connect, from which three steps are judged.
    """

    wanted: str | None
    environment: str | None = None
    no_job: bool = False
    timeout_s: float = 300.0
    _host: Host | None = None
    _session: Session | None = field(default=None, repr=False)
    broken: HostError | None = None

    @property
    def name(self) -> str:
        return self.host.name if self._host else self.wanted or "the host"

    @property
    def host(self) -> Host:
        assert self._host is not None
        return self._host

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    def run(self, *argv: str, unset: Sequence[str] = ()) -> Completed:
        """Run a command there."""
        return self.session.connection.run(argv, unset=unset, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)


@dataclass(frozen=True)
class Step:
    """One step: its name, those without which it makes no sense, and what it does."""

    name: str
    needs: tuple[str, ...]
    run: Callable[[Found], str]


def _configuration(found: Found) -> str:
    known = config.load()
    found._host, because = known.resolve(found.wanted)
    where = found.host.source if known.path else "built in"
    return f"{found.host.name} ({where}), scheduler: {found.host.scheduler}; chosen by {because}"


def _name(found: Found) -> str:
    if not found.host.address:
        raise Skipped("this machine, without ssh")
    settings = resolve(found.host)
    if settings.proxy_jump or settings.proxy_command:
        way = ", ".join(settings.proxy_jump) or settings.proxy_command
        return f"{settings.user}@{settings.place}, through {way}"
    try:
        address = socket.getaddrinfo(settings.hostname, settings.port, type=socket.SOCK_STREAM)[0][4][0]
    except socket.gaierror as error:
        hint = f"check address: of host {found.host.name} ({found.host.source}) and your network or VPN"
        raise Failed(f"the name {settings.hostname} cannot be resolved", hint, [str(error)]) from error
    return f"{settings.user}@{settings.place}" + (f" ({address})" if address != settings.hostname else "")


def _connection(found: Found) -> str:
    """Connect once. A refused login or a strange host key is another step's: the host was reached."""
    began = time.monotonic()
    try:
        found._session = open_session(found.host)
        found.session.connection.ping().result(_TIMEOUT_S)
    except HostError as error:
        found.broken = error
        if isinstance(error, Unreachable) or (type(error) is HostError and error.__cause__ is not None):
            raise  # no way there, or no common word with its sshd
    if not found.host.address:
        return "an agent was started"
    return "the host answers" + ("" if found.broken else f", in {time.monotonic() - began:.2f} s")


def _host_key(found: Found) -> str:
    if not found.host.address:
        raise Skipped("not by ssh")
    if isinstance(found.broken, HostKeyError):
        raise found.broken
    return "as remembered in known_hosts"


def _login(found: Found) -> str:
    if isinstance(found.broken, AuthenticationError):
        raise found.broken
    if found.broken is not None:
        return "accepted"
    facts = found.session.connection.facts
    return f"{facts.user} on {facts.hostname}, {facts.cpus} CPUs, {screen.size(facts.memory_bytes)} of memory"


def _python(found: Found) -> str:
    if found.broken is not None:
        if getattr(found.broken, "kind", None):  # the agent itself said no
            return "runs the agent"
        raise found.broken
    facts = found.session.connection.facts
    return f"{facts.python} ({'.'.join(map(str, facts.version))}) runs the agent and the supervisor"


def _warnings(found: Found) -> str:
    connection = found.session.connection
    warnings = [*connection.facts.warnings, *_noise(connection.noise)]
    return "\n".join(warnings) if warnings else "nothing to warn of"


def _noise(text: str) -> list[str]:
    """An rc file that prints does no harm here, but scp, rsync and sftp fail with it: the user should know."""
    lines = [line for line in text.splitlines() if line.strip()]
    more = [f"  … and {len(lines) - _NOISY_LINES} more lines"] if len(lines) > _NOISY_LINES else []
    shown = [f"  {line}" for line in lines[:_NOISY_LINES]]
    return ["an rc file there prints this although nobody is at the terminal:", *shown, *more] if lines else []


_LINK = (
    'cd -- "$1" || exit 1; a=.check-$$-a; b=.check-$$-b; : > "$a" || exit 1; ln -- "$a" "$b"; s=$?; '
    'rm -f -- "$a" "$b"; exit $s'
)


def _root(found: Found) -> str:
    if found.broken is not None:
        raise found.broken
    answer = found.run("ls", "-ld", "--", found.session.root)
    return f"{found.session.root} ({(_text(answer.out) or ['?'])[0].split()[0]})"


def _space(found: Found) -> str:
    answer = found.run("df", "-Pk", "--", found.session.root)
    words = (_text(answer.out) or [""])[-1].split()
    if answer.rc != 0 or len(words) < 4 or not words[3].isdigit():
        raise Skipped("df cannot say how much there is")
    free = int(words[3]) * 1024
    if free < _LITTLE_BYTES:
        hint = f"free some there, or set root: of host {found.host.name} ({found.host.source}) to a larger file system"
        raise Failed(f"only {screen.size(free)} are free in {found.session.root}", hint)
    return f"{screen.size(free)} free (a quota may allow less)"


def _links(found: Found) -> str:
    answer = found.run("/bin/sh", "-c", _LINK, "sh", found.session.root)
    if answer.rc == 0:
        return "work there: an outcome is published by link(2)"
    if "denied" in b"".join(answer.err.splitlines()).decode("utf-8", "replace").lower():
        hint = f"set root: of host {found.host.name} ({found.host.source}) to a folder that you may write to"
        raise Failed(f"{found.session.root} cannot be written to", hint, _text(answer.err))
    return "are refused there; the rename of a folder decides instead, which works too"


def _scheduler(found: Found) -> str:
    if found.host.scheduler != "slurm":
        return "none: a job starts at once, or when enough cards are free"
    unset = found.session.scheduler.unset
    answer = found.run("sinfo", "--noheader", "--format=%P|%a|%l|%D|%G", unset=unset)
    if answer.rc != 0:
        hint = f"log in and try sinfo; where it needs a module, add it to setup: of {found.host.source}"
        raise Failed("sinfo does not answer", hint, _text(answer.err))
    partitions = [line.split("|") for line in _text(answer.out) if line.count("|") == 4]
    _known_partition(found, {partition[0].rstrip("*") for partition in partitions})
    rows = [f"{name}  {state}, limit {limit}, nodes {nodes}, {gres}" for name, state, limit, nodes, gres in partitions]
    return "\n".join([f"SLURM with {len(rows)} partitions (* is the default):", *rows])


def _known_partition(found: Found, names: set[str]) -> None:
    wanted = found.host.slurm.get("partition")
    chosen = list(wanted.values()) if isinstance(wanted, dict) else [wanted] if wanted else []
    for each in ",".join(str(name) for name in chosen if name).split(","):
        if each and each not in names:
            hint = f"correct slurm: partition: of host {found.host.name} ({found.host.source})"
            raise Failed(f"there is no partition {each}", hint, sorted(names))


def _gpus(found: Found) -> str:
    if found.host.scheduler == "slurm":
        raise Skipped("on the nodes, see scheduler")
    query = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    answer = found.run("/bin/sh", "-c", 'command -v nvidia-smi >/dev/null || exit 127; exec "$@"', "sh", *query)
    if answer.rc == 127:
        raise Skipped("there is no nvidia-smi: gpus=0 only")
    lines = _text(answer.out)
    if answer.rc != 0:
        hint = "log in and run nvidia-smi; after an update of the driver the machine must be restarted"
        raise Failed("nvidia-smi fails", hint, (lines + _text(answer.err))[-5:])
    cards = [line.split(", ") for line in lines if line.count(", ") >= 2]
    if not cards:
        return "nvidia-smi lists none"
    kinds = sorted({", ".join(card[:-1]) for card in cards})
    return f"{len(cards)} x {'; '.join(kinds)}; driver {cards[0][-1]}"


def _environment(found: Found) -> str:
    interpreter = found.session.environment(found.environment).interpreter
    return f"{interpreter.path} (Python {interpreter.version[0]}.{interpreter.version[1]}, as here)"


def _function(found: Found) -> str:
    if found.no_job:
        raise Skipped("--no-job")

    def tell() -> tuple[str, str, int]:  # travels by value, as it has no name that can be imported
        import os
        import platform

        return platform.node(), platform.python_version(), os.getpid()

    options = parse_options({"host": found.host.name, "environment": found.environment, "name": "check"})
    began = time.monotonic()
    job = dispatch.submit(tell, (), {}, options)
    try:
        node, python, pid = job.result(timeout=found.timeout_s)
    except concurrent.futures.TimeoutError:
        if not job.done():
            raise _late(found, job) from None
        raise
    except KeyboardInterrupt:
        job.stop()
        raise
    return f"returned from {node}, Python {python}, process {pid}, after {time.monotonic() - began:.2f} s"


def _late(found: Found, job: Job[tuple[str, str, int]]) -> Failed:
    status = job.status
    job.stop()
    hint = "wait longer with --timeout, or leave it out with --no-job; the job was stopped"
    return Failed(f"no result within {found.timeout_s:.0f} s: {status}", hint)


def _text(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").splitlines()


STEPS = (
    Step("configuration", (), _configuration),
    Step("name", ("configuration",), _name),
    Step("connection", ("configuration", "name"), _connection),
    Step("host key", ("connection",), _host_key),
    Step("login", ("connection", "host key"), _login),
    Step("python", ("login",), _python),
    Step("root", ("python",), _root),
    Step("warnings", ("root",), _warnings),
    Step("space", ("root",), _space),
    Step("links", ("root", "space"), _links),
    Step("scheduler", ("root",), _scheduler),
    Step("gpus", ("root",), _gpus),
    Step("environment", ("root",), _environment),
    Step("function", ("links", "scheduler", "environment"), _function),
)
