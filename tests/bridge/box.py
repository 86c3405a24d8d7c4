"""A machine with cards of its own and a program that plays nvidia-smi. No test in here."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.bridge.apart import Apart
from tests.bridge.host import Bench, Job
from tests.processes import command_line, named, parent_of
from tests.programs import python_program
from tests.waiting import until


def waiting_name(uid: int, cards: int, ms: int = 1, cores: int = 1, kind: str = "", later_s: int = 0) -> str:
    """The name of a job that is the next of its line, and counts for less than a minute."""
    until_s = int(time.clock_gettime(time.CLOCK_BOOTTIME)) + 59 + later_s
    return f"wait/{uid}/{ms}/{until_s}/{cards}/{cores}/0/aaaaaaaaaaaaaaaa~0/{kind}/0"


# Holds names until it is killed.
HOLDS = """
import socket, sys, time
def bind(name):
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind("\\0clusterfn/" + name)
        held.listen()
    except OSError:
        held.close()
        return None
    return held
held = {name: bind(name) for name in sys.argv[2:]}
assert all(held.values())
print("holds", flush=True)
while True:
    time.sleep(0.05 if sys.argv[1] == "again" else 600)
    for name in held:  # another process each time, as far as others can see
        if held[name] is not None:
            held[name].close()
        held[name] = bind(name)
"""
SMI = """import json, os, sys, time
state = json.load(open({state!r}))
if state["mode"] == "hang":
    time.sleep(600)
if state["mode"] == "garbage":
    print("<html>502</html>"); sys.exit(0)
if state["mode"] == "mismatch":
    print("Failed to initialize NVML: Driver/library version mismatch"); sys.exit(18)
if state["mode"] == "none":
    print("No devices were found"); sys.exit(6)
query = sys.argv[1]
while "compute-apps" in query and os.path.exists(state["gate"]):
    time.sleep(0.01)
open({asked!r}, "a").write(query + " ")
for index in reversed(range(state["cards"])):
    if index == state.get("lost"):
        if "query-gpu" in query:
            print("Unable to determine the device handle for GPU0: GPU is lost.")
        continue
    uuid = "GPU-%s-%d" % (state["name"], index)
    if query == "--query-gpu=pci.bus_id,index,uuid,memory.total,mig.mode.current,name":
        name = state["kinds"][index % len(state["kinds"])]
        mode = "Enabled" if index == state.get("divided") else "Disabled"
        print("00000000:%02X:00.0, %d, %s, 49140, %s, %s" % (index + 1, index, uuid, mode, name))
    elif query == "--query-gpu=uuid,memory.used":
        print("%s, %d" % (uuid, state["used"].get(str(index), 3)))
    elif query == "--query-compute-apps=gpu_uuid,pid,process_name" and str(index) in state["apps"]:
        print("%s, %d, /usr/bin/python3" % (uuid, state["apps"][str(index)]))
"""

TOY = "NVIDIA Toy"
SHOW = "def f(s=0):\n    import os, time\n    time.sleep(s)\n    return os.environ['CUDA_VISIBLE_DEVICES']\n"


class Box:
    """A machine with cards; its state can be changed at any time."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.bench = bench
        self.apart = bench.apart or Apart(os.getpid())
        self.name = f"{os.getpid()}{time.monotonic_ns()}"
        self._file = folder / "state.json"
        self.marks = contextlib.ExitStack()  # also for a test that fails
        python_program(folder / "nvidia-smi", self._program())
        self.path = f"{folder}:{os.environ['PATH']}"
        self.say()

    def _program(self) -> str:
        return SMI.format(state=str(self._file), asked=str(self._file.with_suffix(".asked")))

    def looks(self) -> int:
        """How often somebody has looked for strangers."""
        asked = self._file.with_suffix(".asked")
        return asked.read_text().count("--query-compute-apps") if asked.exists() else 0

    def say(self, mode: str = "ok", cards: int = 2, kinds: tuple[str, ...] = (TOY,), **more: Any) -> None:
        """`kinds` in turn; `used` MiB, `apps` (pids) by the card's index. While `gate` is there, nobody looks."""
        state = {"mode": mode, "cards": cards, "kinds": kinds, "name": self.name}
        state |= {"used": {}, "apps": {}, "gate": "", **more}
        self._file.with_suffix(".new").write_text(json.dumps(state))
        self._file.with_suffix(".new").rename(self._file)

    def uuid(self, index: int) -> str:
        return f"GPU-{self.name}-{index}"

    def job(self, gpus: int, *args: Any, kind: str | None = None, **spec: Any) -> Job:
        return self.bench.job(SHOW, *args, resources={"gpus": gpus, "gpu_type": kind}, **spec)

    def start(self, job: Job) -> subprocess.Popen[bytes]:
        return job.start(PATH=self.path)

    def run(self, job: Job) -> dict[str, Any]:
        """Run it to its end, whether it must wait or not."""
        self.start(job).wait(150)
        until(job.has_outcome)
        return job.outcome()

    def start_all(self, jobs: list[Job]) -> None:
        for job in jobs:
            self.start(job)

    def queued(self, job: Job) -> None:
        """Start it, and see that it waits."""
        assert self.start(job).wait(150) == 20, job.log()

    def waits(self, cards: int, ms: int = 1, cores: int = 1, kind: str = "") -> contextlib.ExitStack:
        """A job of another user's that does until it is closed. Its later names count when the first no longer does."""
        held = contextlib.ExitStack()
        for later_s in (177, 118, 59, 0):
            held.enter_context(self.mark(waiting_name(4242, cards, ms, cores, kind, later_s)))
        return held

    def mark(self, name: str) -> socket.socket:
        """A name held there by somebody else."""

        def hold() -> socket.socket:
            held = socket.socket(socket.AF_UNIX)
            held.bind(f"\0clusterfn/{name}")
            held.listen()
            return held

        held = self.apart.inside(hold)
        self.marks.callback(held.close)
        return held

    def listed(self, job: str) -> tuple[str, str]:
        """The state of a job, and what the list of jobs says of it; the list starts a spooler that is missing."""
        lines = map(json.loads, self.here("list", str(self.bench.root)).splitlines())
        return next((told["state"], told["message"]) for told in lines if told["id"] == job)

    def here(self, *words: str) -> str:
        """What a command of the supervisor's prints there."""
        argv = [sys.executable, "-I", "-S", str(self.bench.bridge / "supervise.py"), *words]
        env = {**os.environ, "PATH": self.path}
        done = self.apart.inside(
            lambda: subprocess.run(argv, capture_output=True, text=True, timeout=150, check=True, env=env)
        )
        return done.stdout

    @property
    def machine(self) -> Path:
        """The folder of this machine."""
        return next((self.bench.root / "machines").glob("*-*"))

    def tickets(self) -> set[str]:
        """The ids of the jobs that wait."""
        return {path.name for path in self.bench.root.glob("machines/*/queue/[!.]*")}

    def status(self) -> list[dict[str, Any]]:
        """What the spooler has told."""
        texts = [path.read_text() for path in self.bench.root.glob("machines/*/queue.jsonl")]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    def reason(self, job: Job) -> str:
        """Why it waits, as the spooler has told."""
        return next((line["reason"] for line in self.status() if line["job"] == job.id), "")

    def holds(self) -> list[dict[str, Any]]:
        """The journal so far."""
        texts = [path.read_text() for path in self.bench.root.glob("machines/*/holds.jsonl")]
        lines = [line for text in texts for line in text.splitlines(True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be half written

    def order(self, event: str = "taken") -> list[str]:
        """The jobs in the order in which they were let in."""
        return [line["job"] for line in self.holds() if line["event"] == event]

    def spoolers(self) -> list[int]:
        """Pids of the spoolers of this root."""
        root = os.fsencode(self.bench.root)
        found = [pid for pid in named(self.bench.root) if {b"spool", root} <= set(command_line(pid))]
        # A child of a spooler looks like one until it execs.
        return [pid for pid in found if parent_of(pid) not in (0, *found)]
