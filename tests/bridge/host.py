"""Writes jobs and runs them with real processes, by a bridge that layout.py lays out. No test in here.

Payloads are made by the interpreter of the environment, from the text of a function named `f`, so that any pair of
interpreters can be tested.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.bridge.apart import Apart
from tests.processes import tagged
from tests.waiting import until

T = TypeVar("T")
# Mechanisms, 1: the script of a job, in its shortest form.
JOB_SH = """#!/bin/sh
trap : TERM INT USR1
'{python}' -I -S '{bridge}/supervise.py' run '{job}'
rc=$?
case $rc in 0|10|20) exit $rc;; esac
while '{python}' -I -S '{bridge}/supervise.py' after '{job}' $rc; said=$?; [ $said -eq 12 ]; do
    '{python}' -I -S '{bridge}/supervise.py' run '{job}' $rc
    rc=$?
    case $rc in 0|10|20) exit $rc;; esac
done
exit $said
"""

# Answers each line of JSON in a child of its own, which is forked from one that has started already.
PICKLER = """
import json, os, sys, traceback
bridge = sys.argv[1]
sys.path.insert(0, bridge)
from _clusterfn_wire import container
sys.path.remove(bridge)
container.dump((print, (), {}), open(os.devnull, "wb"))  # loads what each of them needs

def pickle(given):
    scope = {"__name__": "__main__"}
    exec(given["source"], scope)
    sys.modules["__main__"].__dict__.update(scope)
    with open(given["path"], "wb") as file:
        container.dump((scope["f"], tuple(given["args"]), {}), file)

def pickle_items(given):
    ends = []
    with open(given["path"], "wb") as file:
        for number in range(given["count"]):
            container.dump((number,), file)
            ends.append(file.tell())
    return ends

def answer_to(given):
    if "source" in given:
        return pickle(given)
    return pickle_items(given) if "count" in given else container.load(given["path"], str)

for line in sys.stdin:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    given = json.loads(line)
    try:
        answer = json.dumps({"value": answer_to(given)})
    except BaseException:
        answer = json.dumps({"error": traceback.format_exc()})
    os.write(1, answer.encode() + b"\\n")
    os._exit(0)
"""


class Pickler:
    """Writes payloads and the items of a map, and reads values, under one interpreter."""

    def __init__(self, python: str, bridge: Path) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [python, "-c", PICKLER, str(bridge)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            encoding="utf-8", env=clean_environ(),
        )  # fmt: skip
        atexit.register(self._close)

    def ask(self, **given: Any) -> Any:
        """What became of it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(given) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def _close(self) -> None:
        self._process.communicate()


@functools.cache
def pickler(python: str, bridge: Path) -> Pickler:
    """Each is started once."""
    return Pickler(python, bridge)


def clean_environ(**more: str) -> dict[str, str]:
    """This process's variables without what a development machine sets for Python."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}, **more}


def obey_modes() -> None:
    """Let the modes of files hold for this process and its children even if they are root's."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


class Job:
    """One job's folder and the processes that run it."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench = bench
        self.folder = folder
        self.id = folder.name
        self.script: subprocess.Popen[bytes] | None = None

    @property
    def attempt(self) -> Path:
        return self.folder / "attempts" / "1"

    def start(self, *, before: Callable[[], object] | None = None, **env: str) -> subprocess.Popen[bytes]:
        """job.sh, as the agent starts it; `before` is called in its process before it begins."""
        with (self.folder / "scheduler.log").open("ab") as log:
            script = self.bench.inside(
                lambda: subprocess.Popen(
                    ["/bin/sh", str(self.folder / "job.sh")], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    cwd="/", env=clean_environ(**env), start_new_session=True, preexec_fn=before,
                )
            )  # fmt: skip
        self.script = script
        self.bench.started.append(script)
        return script

    def run(self, **env: str) -> dict[str, Any]:
        """Run it to its end; the outcome of the first attempt."""
        self.start(**env).wait(150)
        return self.outcome()

    def call(self, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """`supervise.py COMMAND <job> ...`, not through job.sh."""
        command, *rest = arguments
        argv = [self.bench.host, "-I", "-S", str(self.bench.bridge / "supervise.py"), command, str(self.folder), *rest]
        run = functools.partial(subprocess.run, argv, input=stdin, capture_output=True, text=True, timeout=150)
        return self.bench.inside(lambda: run(env=clean_environ(**env)))

    def outcome(self, attempt: int = 1) -> dict[str, Any]:
        path = self.folder / "attempts" / str(attempt) / "outcome.json"
        assert path.exists(), self.log()
        return json.loads(path.read_text())

    def has_outcome(self) -> bool:
        return (self.attempt / "outcome.json").exists()

    def log(self) -> str:
        return (self.folder / "scheduler.log").read_text(errors="replace")

    def output(self, name: str = "stdout") -> str:
        return (self.attempt / name).read_text(errors="replace")

    def events(self) -> list[dict[str, Any]]:
        path = self.attempt / "events.jsonl"
        lines = path.read_text().splitlines(True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be half written

    def value(self) -> Any:
        """The value, read by the environment's interpreter; it must be plain data."""
        return pickler(self.bench.python, self.bench.bridge).ask(path=str(self.attempt / "value.pkl"))

    def wait_for(self, event: str) -> dict[str, Any]:
        """The first event of that name."""
        return until(lambda: next((e for e in self.events() if e["event"] == event), None))

    def wait_for_text(self, text: str, name: str = "stdout") -> str:
        """What was written so far, as soon as it holds `text`."""
        return until(lambda: (self.attempt / name).exists() and text in self.output(name) and self.output(name))

    def used(self) -> dict[str, Any]:
        """What it has used so far, as its supervisor keeps it, or uses now; zeros while that is being written."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.attempt / "usage.json").read_bytes().partition(b"\n")[0])
        return {"wall_s": 0.0, "peak_memory_bytes": 0}

    def wait_for_memory(self, size: int) -> None:
        """Until its supervisor has seen it use more: what it writes after it first said so is of a later sample."""
        seen = until(lambda: (used := self.used())["peak_memory_bytes"] > size and used["wall_s"])
        until(lambda: self.used()["wall_s"] > seen)

    def worker_pid(self) -> int:
        return self.wait_for("starting")["pid"]

    def supervisor_pid(self) -> int:
        stat = Path(f"/proc/{self.worker_pid()}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])

    def tagged(self) -> list[int]:
        """Living processes that carry this job's tag."""
        return tagged(self.id)


class Bench:
    """Writes and runs jobs under one root.

    Attributes:
        host: The interpreter of the supervisor.
        python: The interpreter of the worker.
        apart: Where its jobs run, so that they share cards and cores with nobody else's; None for this namespace.
    """

    def __init__(self, root: Path, bridge: Path, host: str, python: str, apart: Apart | None = None) -> None:
        self.apart = apart
        self.root = root
        self.bridge = bridge
        self.host = host
        self.python = python
        self.started: list[subprocess.Popen[bytes]] = []
        self._version = _version(python)
        (root / "machines").mkdir(parents=True, exist_ok=True)

    def job(self, source: str, *args: Any, secret: dict[str, str] | None = None, **spec: Any) -> Job:
        """A job that calls the function `f` of `source`."""
        job_id = secrets.token_hex(8)
        folder = self.root / "jobs" / job_id
        folder.mkdir(parents=True)
        resources = {"cores": 1, "memory_bytes": None, "gpus": 0, "time_s": None, **spec.pop("resources", {})}
        facts = {
            "format": 1, "id": job_id, "name": "f", "host": "test", "scheduler": "bare", "root": str(self.root),
            "bridge": str(self.bridge), "resources": resources, "queue_timeout_s": None,
            "limits": {"cores": 64},
            "python": self.python, "version": self._version, "activation": {}, "sys_path": [], "env": {},
            "secrets": sorted(secret or {}), "cwd": None, "outputs": [],
            "keep_days": 14.0, "log_limit_bytes": 1 << 20, "grace_s": 30.0,
            **spec,
        }  # fmt: skip
        (folder / "spec.json").write_text(json.dumps(facts))
        if secret:
            (folder / "secrets").write_text(json.dumps(secret))
        script = JOB_SH.format(python=self.host, bridge=self.bridge, job=folder)
        (folder / "job.sh").write_text(script)
        self._pickle(folder / "payload.pkl", source, args)
        return Job(self, folder)

    def inside(self, start: Callable[[], T]) -> T:
        """Start a process where its jobs run."""
        return start() if self.apart is None else self.apart.inside(start)

    def run(self, source: str, *args: Any, **spec: Any) -> tuple[Job, dict[str, Any]]:
        """Run a job to its end."""
        job = self.job(source, *args, **spec)
        return job, job.run()

    def ended(self, **spec: Any) -> Job:
        """A job that has returned 1, with this in its spec: a copy of one that has run."""
        if not _ENDED:
            ran, outcome = self.run("def f():\n    return 1\n")
            assert outcome["kind"] == "returned", outcome
            for path in ran.folder.rglob("*"):
                name = path.relative_to(ran.folder)
                _ENDED[name] = (ran, path.read_bytes() if path.is_file() else None)
            shutil.rmtree(ran.folder)  # in no other test is there one more job
        job = Job(self, self.root / "jobs" / secrets.token_hex(8))
        job.folder.mkdir(parents=True)
        for name, (ran, content) in sorted(_ENDED.items()):
            path = job.folder / name
            if content is None:
                path.mkdir()
                continue
            moved = content.replace(os.fsencode(ran.bench.root), os.fsencode(self.root))
            path.write_bytes(moved.replace(ran.id.encode(), job.id.encode()))
        facts = json.loads((job.folder / "spec.json").read_text())
        (job.folder / "spec.json").write_text(json.dumps({**facts, **spec}))
        return job

    def listed(self, after: str = "") -> dict[str, dict[str, Any]]:
        """What the list of jobs says of each; under `after`, after which one the next page begins."""
        argv = [self.host, "-I", "-S", str(self.bridge / "supervise.py"), "list", str(self.root), after]
        done = subprocess.run(
            argv, capture_output=True, text=True, env=clean_environ(), timeout=150, preexec_fn=obey_modes
        )
        assert done.returncode == 0, done.stderr
        return {line.get("id", "after"): line for line in map(json.loads, done.stdout.splitlines())}

    def _pickle(self, path: Path, source: str, args: tuple[Any, ...]) -> None:
        pickler(self.python, self.bridge).ask(path=str(path), source=source, args=args)

    def close(self) -> None:
        """End what a failed test left running, and what it left waiting: a spooler without tickets ends."""
        for ticket in self.root.glob("machines/*/queue/*"):
            ticket.unlink(missing_ok=True)
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


_ENDED: dict[Path, tuple[Job, bytes | None]] = {}


@functools.cache
def _version(python: str) -> list[int]:
    code = "import sys, json; print(json.dumps(sys.version_info[:2]))"
    done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, check=True, env=clean_environ())
    return json.loads(done.stdout)
