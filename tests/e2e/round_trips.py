"""How often each action goes to its host and back.

Counted are the round trips that a caller waits for (`waits`), through a proxy that delays; no time is measured.
Every action is also seen to do what it should. `test_delay.py` holds the counts below `Action.limit`, and
`make bench ROWS=round-trips` writes them to benchmarks/results.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import runpy
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterfn import ClusterFunction, File
from clusterfn.calls import attach
from clusterfn.calls.group import run_of_group
from clusterfn.calls.job import Job
from clusterfn.config.config_file import load
from clusterfn.config.options import parse_options
from clusterfn.hosts import connection as hosts_connection
from clusterfn.hosts.transports import held_connections
from tests.e2e.waits import Waits
from tests.lab import DelayProxy, Lab
from tests.programs import main as command

SCRIPTS = Path(__file__).parents[1] / "fixtures"
MINOR = f"3.{sys.version_info[1]}"

DELAYS_MS = (50, 150)
NEW = 40  # names of one host: a name that this process has not used is to it what a host is to a new process
MANY = 20
ITEMS = 1000
MARK = b"one function for all items"  # of `rest` in scripts/work.py
MB = 1 << 20


CALLS: dict[str, Any] = runpy.run_path(str(SCRIPTS / "work.py"), run_name="__main__")  # they travel by value


class There:
    """A host behind proxies that delay, its names, and what earlier actions left for later ones.

    Attributes:
        folder: A local folder for files.
    """

    def __init__(self, folder: Path, proxies: Sequence[DelayProxy], one_way_s: float) -> None:
        self.folder = folder
        self.proxies = proxies
        self.one_way_s = one_way_s
        self.waits = Waits(lambda: sum(proxy.round_trips for proxy in proxies))
        self.names = (f"new{number}" for number in itertools.count())
        self.warm = "new0"
        self.job: Any = None
        self.group: Any = None

    def settle(self) -> None:
        """Until nothing is under way any more: what nobody waits for must not be counted for who connects meanwhile."""
        before = -1
        while (now := sum(proxy.bytes_up + proxy.bytes_down for proxy in self.proxies)) != before:
            before = now
            time.sleep(16 * self.one_way_s)

    def new(self) -> str:
        """A name that was not used yet."""
        return next(self.names)

    def on(self, where: str, function: Callable[..., Any]) -> ClusterFunction[..., Any]:
        return ClusterFunction(function, parse_options({"host": where}))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call it on the host that is connected already."""
        return self.on(self.warm, function)(*args)

    def submit(self, function: Callable[..., Any], *args: Any) -> Job[Any]:
        return self.on(self.warm, function).submit(*args)


# The most that a connection may take: some to spare, for what ssh says in pieces on a busy machine.
BY_PARAMIKO, BY_OPENSSH, BEHIND_LOGIN = 11, 14, 5


@dataclass(frozen=True)
class Action:
    """What is counted.

    Attributes:
        name: In words.
        limit: The most round trips that it may take, besides those of a connection.
        act: Does it, and says what came of it.
        comes_to: What must come of it.
        connecting: The most that its connection may take, if it makes one; 0 if it must not.
        prepare: Does what is not counted before.
    """

    name: str
    limit: int
    act: Callable[[There], Any]
    comes_to: Any
    connecting: int = 0
    prepare: Callable[[], None] | None = None


def _connect(where: str) -> str:
    connection = hosts_connection.connect(load().hosts[where])
    connection.close()
    return connection.via


def _first(there: There) -> Any:
    there.warm = there.new()
    return there.call(CALLS["double"], 21)


def _module(there: There) -> Any:
    sys.path.insert(0, str(SCRIPTS))
    try:
        work = importlib.import_module("work")
        there.warm = there.new()
        return there.call(work.double, 21)
    finally:
        sys.path.remove(str(SCRIPTS))


def _raise(there: There) -> str:
    try:
        there.call(CALLS["fail"])
    except KeyError as error:
        return str(error)
    return ""


def _printed(there: There) -> list[Any]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        value = there.call(CALLS["speak"], 200)
    return [value, out.getvalue() == "".join(f"line {number}\n" for number in range(200))]


def _many(there: There) -> list[int]:
    jobs = [there.submit(CALLS["double"], number) for number in range(MANY)]
    return [job.result(150) for job in jobs]


def _stopped(there: There) -> str:
    job = there.submit(CALLS["wait"])
    while not job.running():
        time.sleep(0.01)
    job.stop()
    return type(job.exception(150)).__name__


def _file(there: There) -> int:
    path = there.folder / "data"
    if not path.exists():
        path.write_bytes(os.urandom(MB))
    return int(there.call(CALLS["read"], File(path)))


def _left(there: There) -> int:
    there.job = there.submit(CALLS["leave"], 5)
    return int(there.job.result(150))


def _download(there: There) -> list[str]:
    found = there.job.download("*.txt", to=there.folder / secrets.token_hex(4))
    return [path.read_text() for path in found]


def _attach(there: There) -> int:
    return int(attach.attach(there.job.id, there.new()).result(150))


def _listed(there: There) -> bool:
    return there.job.id in [job.id for job in attach.jobs(there.new())]


def _mapped(there: There, where: str) -> list[int]:
    """Send many items; how many there are, and in how many of the files that were sent for them the function lies."""
    there.group = there.on(where, CALLS["rest"]).map(range(ITEMS), max_parallel=2)
    run_of_group(there.group).queue.await_submissions()
    folder = Path(there.group.folder)
    sent = [*folder.iterdir(), *folder.parents[1].glob("blobs/*")]
    return [len(there.group), sum(MARK in path.read_bytes() for path in sent if path.is_file())]


def _ended(there: There) -> set[str]:
    there.group.stop()
    there.group.wait(150)
    return set(there.group.states)


def _check(there: There) -> int:
    with contextlib.redirect_stdout(io.StringIO()):
        return command(["check", there.new()])


def _log_in() -> None:
    subprocess.run([sys.executable, "-m", "clusterfn", "login", "held"], check=True, timeout=150)


def _cut(there: There) -> Any:
    there.proxies[0].cut()
    return there.call(CALLS["double"], 21)


LINES = [f"left {number}" for number in range(5)]
# In this order: some use what those before them left.
ACTIONS = [
    Action("connect: TCP, key exchange, login, agent", 0, lambda there: _connect(there.new()), "openssh",
           connecting=BY_OPENSSH),
    Action("the same by paramiko", 0, lambda there: _connect("paramiko"), "paramiko", connecting=BY_PARAMIKO),
    Action("first call, on a host that has nothing yet", 2, _first, 42, connecting=BY_OPENSSH),
    Action("first call of a new process", 2, _first, 42, connecting=BY_OPENSSH),
    Action("the same of a function in a module of one's own", 2, _module, 42, connecting=BY_OPENSSH),
    Action("warm call", 1, lambda there: there.call(CALLS["double"], 21), 42),
    Action("warm call that prints 200 lines", 1, _printed, [200, True]),
    Action("warm call that raises", 1, _raise, "'as itself'"),
    Action(f"{MANY} jobs submitted at once, all values", 1, _many, [2 * number for number in range(MANY)]),
    Action(f"map of {ITEMS:,} items, sent", 1, lambda there: _mapped(there, there.warm), [ITEMS, 1]),
    Action("group.stop() of it", 2, _ended, {"CANCELLED"}),
    Action("argument of 1 MB", 2, lambda there: there.call(CALLS["length"], b"x" * MB), MB),
    Action("value of 1 MB", 1, lambda there: there.call(CALLS["made"], MB) == b"x" * MB, True),
    Action("File of 1 MB, first time", 2, _file, MB),
    Action("File of 1 MB, again", 1, _file, MB),
    Action("job.stop() of a running job, from its submission", 2, _stopped, "Cancelled"),
    Action("job that leaves 5 files", 1, _left, 5),
    Action("job.download() of 5 files", 2, _download, LINES),
    Action("job.files", 1, lambda there: len(there.job.files), 5),
    Action("job.logs()", 1, lambda there: there.job.logs(), ""),
    Action("attach(id).result() in a new process", 3, _attach, 5, connecting=BY_OPENSSH),
    Action("jobs() in a new process", 1, _listed, True, connecting=BY_OPENSSH),
    Action("clusterfn check", 5, _check, 0, connecting=BY_OPENSSH),
    Action("call after the connection was cut", 1, _cut, 42, connecting=BY_OPENSSH),
    Action("first call of a new process on SLURM", 2, lambda there: there.on("slurm", CALLS["double"])(21), 42,
           connecting=BY_OPENSSH),
    Action("warm call on SLURM", 1, lambda there: there.on("slurm", CALLS["double"])(21), 42),
    Action(f"first map of {ITEMS:,} items on SLURM, sent", 2, lambda there: _mapped(there, "slurm"), [ITEMS, 1]),
    Action("group.stop() of it, on SLURM", 2, _ended, {"CANCELLED"}),
    Action(f"next map of {ITEMS:,} items on SLURM, sent", 1, lambda there: _mapped(there, "slurm"), [ITEMS, 1]),
    Action("group.stop() of that", 2, _ended, {"CANCELLED"}),
    # The last one: all names lead to one host, so the connection that is held would serve the others too.
    Action("first call of a new process behind a held login", 2,
           lambda there: there.on("held", CALLS["double"])(21), 42, connecting=BEHIND_LOGIN, prepare=_log_in),
]  # fmt: skip


@contextlib.contextmanager
def behind(lab: Lab, one_way_s: float, root: str = "") -> Iterator[There]:
    """A host so far away, for this process; what was left there is removed. `root` is in its home, else a new one."""
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-trips-"))
    root = root or f"trips-{secrets.token_hex(4)}"
    aliases = ("py36-bash", "slurm-bash")
    before = {name: os.environ.get(name) for name in ("CLUSTERFN_CONFIG", "XDG_STATE_HOME", held_connections.VARIABLE)}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(shutil.rmtree, lab.home("bash") / root, ignore_errors=True)
        proxies = [stack.enter_context(DelayProxy(0, lab.host(alias).port, one_way_s)) for alias in aliases]
        through = [
            f"Host {alias}\n    Port {proxy.port}\n    HostKeyAlias [127.0.0.1]:{lab.host(alias).port}\n\n"
            for alias, proxy in zip(aliases, proxies)
        ]
        (folder / "ssh_config").write_text("".join(through) + lab.ssh_config.read_text())
        (folder / "clusterfn.yml").write_text(_config(root, folder, lab.python(MINOR)))
        os.environ.update(CLUSTERFN_CONFIG=str(folder / "clusterfn.yml"), XDG_STATE_HOME=str(folder / "state"))
        os.environ[held_connections.VARIABLE] = str(folder / "run")
        stack.callback(_restore, before)
        stack.callback(_log_out)
        yield There(folder, proxies, one_way_s)


def _log_out() -> None:
    if held_connections.has_records():
        subprocess.run(
            [sys.executable, "-m", "clusterfn", "logout", "held"], check=True, capture_output=True, timeout=150
        )


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def _config(root: str, folder: Path, python: Path) -> str:
    common = [f"ssh_config: {folder / 'ssh_config'}", f"root: ~/{root}", f'environment: "python:{python}"']
    bare = [*common, "address: py36-bash", "scheduler: bare", "limits: {cores: 64}"]
    slurm = [*common, "address: slurm-bash", "scheduler: slurm", "slurm: {partition: short}", "poll_floor: 1s"]
    hosts = {f"new{number}": bare for number in range(NEW)}
    hosts |= {"held": bare, "paramiko": [*bare, "transport: paramiko"], "slurm": [*slurm, "defaults: {time: 10min}"]}
    blocks = (f"  {name}:\n" + "".join(f"    {line}\n" for line in lines) for name, lines in hosts.items())
    return "hosts:\n" + "".join(blocks)


@dataclass(frozen=True)
class Count:
    """The round trips of one action: those of its connection, if it made one, and the others."""

    action: Action
    connecting: int
    others: int

    @property
    def is_kept(self) -> bool:
        """Whether it is no more than promised."""
        return self.connecting <= self.action.connecting and self.others <= self.action.limit

    def __str__(self) -> str:
        return f"{self.connecting} + {self.others}" if self.connecting else str(self.others)


def counted(there: There, actions: Sequence[Action] = ACTIONS) -> Iterator[Count]:
    """Do each action, see that it came to what it must, and count its round trips."""
    waits = there.waits
    with waits.installed():
        for action in actions:
            if action.prepare:
                action.prepare()
            there.settle()
            trips, connecting = waits.trips, waits.connecting
            came_to = action.act(there)
            if came_to != action.comes_to:
                raise RuntimeError(f"{action.name}: {came_to!r} instead of {action.comes_to!r}")
            connected = waits.connecting - connecting
            yield Count(action, connected, waits.trips - trips - connected)
