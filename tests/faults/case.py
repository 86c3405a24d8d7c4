"""A row of the table, run on a host: what was sent, what was done to it, how it ended, and what is left there.

`Row` is plain data, `Case` one run of it; `rows` holds the table and `bench` runs it. The lab's hosts lie on this
machine, so a case looks at its job's folder and processes itself, not through clusterfn.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clusterfn
from clusterfn import ClusterFunction, Job
from tests.processes import command_of, is_running, named, parent_of, supervisor_of, tagged

if TYPE_CHECKING:
    from tests.faults.hosts import World

# For an end that does not come; the mutants need not be waited for so long.
LIMIT_S = float(os.environ.get("FAULTS_LIMIT_S", "250"))
_UP_S = LIMIT_S / 2
NOTHING = object()


@dataclass(frozen=True)
class Row:
    """One way to end.

    Attributes:
        name: Of the row, in the matrix.
        fault: Where it is asked for: a row of faults.md 3c ("3c 5"), of requirements section 2 ("2.4"), or "-".
        call: The function, with `args`.
        expect: The exception's exact class; None if the call returns.
        value: What it returns.
        text: Each must stand in str(error).
        seen: Each must stand in the evidence.
        stage: Of the error; None if it has none (the user's own exceptions), several where chance decides.
        hosts: Names in `hosts.HOSTS`; "local" is this machine.
        options: As `with_options`.
        act: What is done to the running job.
        send: How the call is sent, where it is not `submit`.
        check: More to look at when it has ended.
        within_s: From death to error.
        takes_s: About how long it takes, to start long ones first.
        left_s: How long processes of the job may go on after the outcome.
        alone: Rows of the same word do not run at the same time; those of "nodes" not beside any other.
        long: Only in test-long.
        long_on: Hosts on which it runs only in test-long: what differs there from its others, other rows show.
    """

    name: str
    fault: str
    call: Callable[..., Any]
    args: Sequence[Any] = ()
    expect: type[BaseException] | None = None
    value: Any = NOTHING
    text: Sequence[str] = ()
    seen: Sequence[str] = ()
    stage: str | tuple[str, ...] | None = None
    hosts: Sequence[str] = ("bare", "slurm")
    options: Mapping[str, Any] = field(default_factory=dict)
    act: Callable[[Case], None] | None = None
    send: Callable[[Case], Job[Any]] | None = None
    check: Callable[[Case], None] | None = None
    within_s: float = 120.0
    takes_s: float = 2.0
    left_s: float = 30.0
    alone: str = ""
    long: bool = False
    long_on: Sequence[str] = ()


class Case:
    """A row on a host.

    Attributes:
        job: Its Job; None while nothing was accepted.
        error: What it raised, or None.
        value: What it returned.
        seconds: From death to the end as the caller sees it.
    """

    def __init__(self, row: Row, host: str, world: World | None) -> None:
        self.row = row
        self.host = host
        self.world = world
        self.job: Job[Any] | None = None
        self.error: BaseException | None = None
        self.value: Any = NOTHING
        self.seconds = 0.0
        self.published: dict[str, bytes] = {}
        self.notes: dict[str, Any] = {}
        self._sent = self._ended = 0.0
        self._died: float | None = None

    def __str__(self) -> str:
        return f"{self.row.name}-{self.host}"

    @property
    def function(self) -> ClusterFunction[..., Any]:
        """The function, decorated as the row wants it."""
        return clusterfn.cluster(host=self.host, **self.row.options)(self.row.call)

    # running it

    def run(self) -> None:
        """Send it, do to it what is to be done, and wait for its end."""
        self._sent = time.time()
        try:
            self.job = self.row.send(self) if self.row.send else self.function.submit(*self.row.args)
            done = threading.Event()
            self.job.add_done_callback(lambda _: self._end(done))
            if self.row.act is not None:
                self.row.act(self)
            limit_s = LIMIT_S + self.row.takes_s
            if not done.wait(limit_s):
                raise TimeoutError(f"no end within {limit_s} s: {self.job.status}\n{self.describe()}")
            self._take(self.job)
        except BaseException as error:  # whatever it is, it is this case's, not the thread's
            self.error = error
            self._ended = self._ended or time.time()
        self.seconds = max(0.0, self._ended - self._death())
        self.published = self.outcomes()

    def _end(self, done: threading.Event) -> None:
        self._ended = time.time()
        done.set()

    def _take(self, job: Job[Any]) -> None:
        if self.error is None and self.value is NOTHING:
            try:
                self.value = job.result(0)
            except BaseException as error:  # SystemExit would be a finding
                self.error = error

    def _death(self) -> float:
        """When it died: what was done to it, else the function's own beginning, else the sending."""
        if self._died is not None:
            return self._died
        began = [event["t"] for event in self.events() if event["event"] == "running"]
        return began[-1] if began else self._sent

    def dies_now(self) -> None:
        """The clock from death to error begins."""
        self._died = time.time()

    # what lies on the host

    @property
    def folder(self) -> Path:
        """The job's folder."""
        assert self.job is not None, f"{self}: nothing was sent: {self.error!r}"
        return Path(self.job.folder)

    def attempts(self) -> list[Path]:
        if self.job is None:
            return []
        return sorted(self.folder.glob("attempts/*"), key=lambda path: int(path.name))

    def outcomes(self) -> dict[str, bytes]:
        """Attempt -> outcome.json, as it stands."""
        return {path.name: (path / "outcome.json").read_bytes() for path in self.attempts() if _has_outcome(path)}

    def final(self) -> list[dict[str, Any]]:
        """All final outcomes."""
        return [found for found in map(json.loads, self.outcomes().values()) if found["final"]]

    def events(self, attempt: int = 1) -> list[dict[str, Any]]:
        if self.job is None:
            return []
        path = self.folder / "attempts" / str(attempt) / "events.jsonl"
        try:
            return [json.loads(line) for line in path.read_text().split("\n")[:-1]]  # the next may be half written
        except OSError:
            return []

    def log(self, name: str = "scheduler.log") -> str:
        try:
            return (self.folder / name).read_text(errors="replace")
        except OSError:
            return ""

    def describe(self) -> str:
        """What lies there, for a failed assertion."""
        if self.job is None:
            return "(nothing was sent)"
        shown = [f"{self.folder}", self.log()]
        for path in self.attempts():
            outcome = json.loads((path / "outcome.json").read_text()) if _has_outcome(path) else None
            shown += [f"attempt {path.name}: {json.dumps(outcome)}"]
            shown += [json.dumps(event) for event in self.events(int(path.name))]
        return "\n".join(shown)

    def tally(self) -> dict[str, Any]:
        """What it adds to the table of faults.

        Lost: a job that was accepted and has no final outcome. Invented: a second final outcome, one that changed, and
        a value that the host does not have. Left: processes.
        """
        sent = self.job is not None and self.folder.exists()
        finals = self.final() if sent else []
        given = self.value is not NOTHING and self.error is None
        false_value = sent and given and not any(final["kind"] == "returned" for final in finals)
        invented = max(0, len(finals) - 1) + (sent and self.outcomes() != self.published) + false_value
        return {
            "fault": self.row.fault, "what": self.row.name, "host": self.host,
            "saw": type(self.error).__name__ if self.error is not None else "its value",
            "stage": getattr(self.error, "stage", None), "seconds": self.seconds,
            "lost": int(sent and not finals), "invented": int(invented), "left": len(self.processes()) if sent else 0,
        }  # fmt: skip

    # its processes

    def until(self, look: Callable[[], Any], limit_s: float = _UP_S, what: str = "") -> Any:
        """What `look` gives as soon as it is true."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{self}: not within {limit_s} s: {what or look}\n{self.describe()}")

    def await_up(self, attempt: int = 1) -> None:
        """Until the function has said "up"."""
        path = self.folder / "attempts" / str(attempt) / "stdout"
        self.until(lambda: path.exists() and "up" in path.read_text(errors="replace"), what="up")

    def pids(self, attempt: int = 1) -> dict[str, int]:
        """worker, supervisor and script."""
        self.await_up(attempt)
        worker = next(event["pid"] for event in self.events(attempt) if event["event"] == "starting")
        supervisor = supervisor_of(self.folder)
        return {"worker": worker, "supervisor": supervisor, "script": parent_of(supervisor)}

    def signal(self, number: int, *names: str) -> None:
        """Send a signal to some of worker, supervisor, script; all are stopped first, so that they get it together."""
        pids = self.pids()
        chosen = [pids[name] for name in names]
        if len(chosen) > 1 and number == signal.SIGKILL:
            for pid in chosen:
                os.kill(pid, signal.SIGSTOP)
        self.dies_now()
        for pid in chosen:
            os.kill(pid, number)

    def processes(self) -> list[int]:
        """Living processes of this job: those that carry its tag, and those that name it in their arguments."""
        assert self.job is not None
        programs = (b"job.sh", b"supervise.py", b"slurm_script")
        naming = [pid for pid in named(self.job.id) if any(each in command_of(pid) for each in programs)]
        return list({*tagged(self.job.id), *filter(is_running, naming)})

    def command(self, pid: int) -> str:
        """What a process is, for a failed assertion."""
        said = command_of(pid).replace(b"\0", b" ").decode(errors="replace")
        return f"{pid} (parent {parent_of(pid)}): {said}" if said else f"{pid} (gone)"

    def attached(self) -> BaseException | None:
        """What a second reader gets."""
        assert self.job is not None
        return clusterfn.attach(self.job.id, self.host).exception(150)

    def rendered(self) -> str:
        """The error as a traceback would show it."""
        assert self.error is not None
        return "".join(traceback.format_exception(type(self.error), self.error, self.error.__traceback__))


def _has_outcome(attempt: Path) -> bool:
    return (attempt / "outcome.json").exists()
