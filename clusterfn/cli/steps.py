"""The steps of `clusterfn check`. Each takes what earlier ones found, and returns a sentence or raises what is wrong.

Prints nothing; `check` runs them. A step that asks the host builds an argv and reads the answer, as everything does.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clusterfn.cli import errand, screen, target
from clusterfn.errors import AuthenticationError, HostError, HostKeyError, Unreachable
from clusterfn.host import Completed
from clusterfn.session import Session, open_session
from clusterfn.spec import Host
from clusterfn.transport.sshconfig import resolve

_TIMEOUT_S = 60.0
_LITTLE_BYTES = 50 * 2**20
_TOO_LITTLE_BYTES = 2**20
_NOISY_LINES = 5


class Failed(Exception):
    """A step failed, and clusterfn has no error of its own for it."""

    def __init__(self, message: str, hint: str, evidence: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.hint = hint
        self.evidence = tuple(evidence)


class Warned(Failed):
    """A step found what may go wrong later; the steps that need it go on."""


class Skipped(Exception):
    """A step does not apply here; the text says why."""


@dataclass
class Found:
    """What the steps have found so far.

    Attributes:
        wanted: The host that the user named, if any.
        timeout_s: How long to wait for the function; None: a minute in the queue, five in all.
        progress: Shows how the function's job stands, in the place of the step's own line.
        broken: The error of the one attempt to connect, from which three steps are judged.
    """

    wanted: str | None
    environment: str | None = None
    no_job: bool = False
    timeout_s: float | None = None
    progress: errand.Progress = errand.silent
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
    known, found._host, because = target.host(found.wanted, "check")
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
        hint = f"check {settings.named_in(found.host)} and your network or VPN"
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
    if found.broken:
        return "the host answers"
    return f"the host answers, in {time.monotonic() - began:.2f} s, by {found.session.connection.via}"


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
    return "\n".join(warnings) if warnings else "none"


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


_IF_THERE = 'command -v "$1" >/dev/null || exit 127; exec "$@"'
_NOT_THERE = 127
_PARTITIONS = "--format=%P|%a|%l|%D|%G"


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
        wrong = Failed if free < _TOO_LITTLE_BYTES else Warned
        raise wrong(f"only {screen.size(free)} are free in {found.session.root}", hint)
    return f"{screen.size(free)} free (a quota may allow less)"


def _links(found: Found) -> str:
    answer = found.run("/bin/sh", "-c", _LINK, "sh", found.session.root)
    if answer.rc == 0:
        return "a file there can have two names, so a result appears whole or not at all"
    if "denied" in b"".join(answer.err.splitlines()).decode("utf-8", "replace").lower():
        hint = f"set root: of host {found.host.name} ({found.host.source}) to a folder that you may write to"
        raise Failed(f"{found.session.root} cannot be written to", hint, _text(answer.err))
    return "a file there cannot have two names; results appear by renaming a folder instead, which works too"


def _scheduler(found: Found) -> str:
    if found.host.scheduler != "slurm":
        return _no_scheduler(found)
    unset = found.session.scheduler.unset
    answer = found.run("/bin/sh", "-c", _IF_THERE, "sh", "sinfo", "--noheader", _PARTITIONS, unset=unset)
    place = f"host {found.host.name} ({found.host.source})"
    if answer.rc == _NOT_THERE:
        hint = f"set address: of {place} to the login node of the cluster, where sinfo works without loading a module; "
        raise Failed(f"there is no sinfo on {found.name}", f"{hint}for a machine without a queue: scheduler: bare")
    if answer.rc != 0:
        raise Failed("sinfo does not answer", f"log in and see what sinfo prints; is {place} the login node?",
                     _text(answer.err))  # fmt: skip
    partitions = [line.split("|") for line in _text(answer.out) if line.count("|") == 4]
    _usable_partitions(found, {name: state for name, state, *_ in partitions})
    rows = [f"{name}  {state}, limit {limit}, nodes {nodes}, {gres}" for name, state, limit, nodes, gres in partitions]
    return "\n".join([f"SLURM with {len(rows)} partitions (* is the default):", *rows])


def _no_scheduler(found: Found) -> str:
    if found.host.scheduler == "bare" and found.run("/bin/sh", "-c", "command -v sbatch").rc == 0:
        hint = f"write scheduler: slurm for host {found.host.name} ({found.host.source}), "
        hint += "unless this machine is yours to compute on"
        raise Warned("sbatch is here: is this a login node? then scheduler: slurm", hint)
    return "none: a job starts at once, or when enough cards are free"


def _usable_partitions(found: Found, states: dict[str, str]) -> None:
    """What the configuration chooses, or SLURM without it, must be there and up; of "a,b" SLURM takes one that is."""
    known = {name.rstrip("*"): state for name, state in states.items()}
    wanted = found.host.slurm.get("partition")
    chosen = list(wanted.values()) if isinstance(wanted, dict) else [wanted] if wanted else []
    for group in chosen or [name.rstrip("*") for name in states if name.endswith("*")]:
        names = [name for name in str(group or "").split(",") if name]
        hint = f"correct slurm: partition: of host {found.host.name} ({found.host.source})"
        for name in names:
            if name not in known:
                raise Failed(f"there is no partition {name}", hint, sorted(known))
        if names and all(known[name] != "up" for name in names):
            usable = ", ".join(name for name, state in known.items() if state == "up") or "none"
            hint = f"ask the administrator, or {hint}; those that are up: {usable}"
            raise Failed("; ".join(f"the partition {name} is {known[name]}" for name in names), hint)


def _gpus(found: Found) -> str:
    if found.host.scheduler == "slurm":
        raise Skipped("on the nodes, see scheduler")
    query = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    answer = found.run("/bin/sh", "-c", _IF_THERE, "sh", *query)
    if answer.rc == _NOT_THERE:
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

    try:
        return errand.run(found.host, found.environment, found.session, found.progress, found.timeout_s)
    except errand.StillWaiting as waiting:
        raise Skipped(f"still waiting ({waiting}); everything before it works") from waiting
    except errand.TooLate as late:
        hint = "wait longer with --timeout, or leave it out with --no-job; the job was stopped"
        raise Failed(str(late), hint) from late


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
