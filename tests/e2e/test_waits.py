"""No public call waits without a word: whatever is broken, within ten seconds it ends, or says what it waits for."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client import write_connection_file

from clusterfn import cluster
from tests.chaos.onhost import session_of, stopped
from tests.e2e.conftest import MINOR
from tests.e2e.round_trips import behind
from tests.fixtures.waiting_call import calls_on
from tests.lab import DelayProxy
from tests.lab.own_slurm import ALIAS, OwnSlurm
from tests.processes import named, supervisor_of
from tests.programs import main
from tests.waiting import until

pytestmark = [pytest.mark.lab]
DRIVER = Path(__file__).parents[1] / "fixtures" / "waiting_call.py"
WITHIN_S = 10.0
AT_ONCE = 12
CALLS = list(calls_on("host", "", ""))
SOME = ["f()", "f.map()", "job.result()", "job.exception()", "job.logs()", "Session.call()"]
SOME += ["clusterfn jobs", "clusterfn cancel", "clusterfn jupyter"]
# They need a job that has run before they are made.
AFTER_A_JOB = ["clusterfn rm", "group.retry_failed()", *(each for each in CALLS if "Session." in each)]
# For all jobs of all calls.
NODE = "CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=640000"


@dataclass
class Scene:
    """A host, the jobs on it, and the processes that are about to call.

    Attributes:
        host: Its name in clusterfn.yml.
        root: Its root, as it lies on this machine.
        folder: Where the calls are made.
        proxies: Before the host.
        slurm: Whose login node it is.
        job: A job that runs.
        group: A map that runs.
        agents: The pids of the agents of those that call.
        controllers: Those of its SLURM that this test has started.
    """

    host: str
    root: Path
    folder: Path
    proxies: Sequence[DelayProxy] = ()
    slurm: OwnSlurm | None = None
    job: Any = None
    group: Any = None
    agents: list[int] = field(default_factory=list)
    controllers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def supervisor(self) -> int:
        """The supervisor of the job."""
        return supervisor_of(Path(self.job.folder))

    def controller(self) -> list[int]:
        """The controller of its SLURM."""
        assert self.slurm is not None
        return named("/usr/sbin/slurmctld", "-D", "-f", str(self.slurm.conf))

    def controller_answers(self) -> bool:
        assert self.slurm is not None
        return self.slurm.run("scontrol", "ping").returncode == 0


@contextlib.contextmanager
def moved_away(folder: Path) -> Iterator[None]:
    aside = folder.with_name(folder.name + ".aside")
    folder.rename(aside)
    try:
        yield
    finally:
        made = folder.with_name(folder.name + ".made")
        if folder.exists():  # in which agents may still write
            folder.rename(made)
        aside.rename(folder)
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def full(lab: Any, root: Path) -> Iterator[None]:
    """Nothing can be written below the root: what is there is shown on a small disk that is full."""
    aside = root.with_name(root.name + ".full")
    aside.mkdir()
    try:
        with lab.disk(aside, "cfbash", "256m"):
            subprocess.run(["cp", "-a", f"{root}/.", aside], check=True)
            with contextlib.suppress(OSError), (aside / "filler").open("wb") as file:
                while True:
                    file.write(b"x" * (1 << 16))
            subprocess.run(["mount", "--bind", aside, root], check=True)
            try:
                yield
            finally:
                subprocess.run(["umount", "--lazy", root], check=True)
    finally:
        aside.rmdir()


@contextlib.contextmanager
def pulled(scene: Scene) -> Iterator[None]:
    for proxy in scene.proxies:
        proxy.blackhole()
    try:
        yield
    finally:
        for proxy in scene.proxies:
            proxy.restore()


@contextlib.contextmanager
def gone(scene: Scene) -> Iterator[None]:
    for proxy in scene.proxies:
        proxy.refuse()
        proxy.cut()
    try:
        yield
    finally:
        for proxy in scene.proxies:
            proxy.refuse(refusing=False)


@contextlib.contextmanager
def killed(pids: Sequence[int]) -> Iterator[None]:
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    yield


@contextlib.contextmanager
def controller_gone(scene: Scene) -> Iterator[None]:
    """It ends, and saves which jobs there are; another one begins after that, which ends with this test."""
    (pid,) = scene.controller()
    argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    os.kill(pid, signal.SIGTERM)
    until(lambda: not scene.controller())
    yield
    scene.controllers.append(subprocess.Popen(["/usr/bin/setpriv", "--pdeathsig=KILL", *argv], cwd=scene.folder))
    until(scene.controller_answers)


STATES: dict[str, Callable[[Scene, Any], contextlib.AbstractContextManager[None]]] = {
    "agent stopped": lambda scene, _: stopped(scene.agents),
    "supervisor stopped": lambda scene, _: stopped([scene.supervisor]),
    "sshd stopped": lambda scene, _: stopped([session_of(agent)[0] for agent in scene.agents]),
    "cable pulled": lambda scene, _: pulled(scene),
    "host gone": lambda scene, _: gone(scene),
    "root removed": lambda scene, _: moved_away(scene.root),
    "disk full": lambda scene, lab: full(lab, scene.root),
    "spooler gone": lambda scene, _: killed(named("spool", str(scene.root))),
    "controller stopped": lambda scene, _: stopped(scene.controller()),
    "controller gone": lambda scene, _: controller_gone(scene),
    "clock jump": lambda *_: contextlib.nullcontext(),  # by those that call
    "other version": lambda *_: contextlib.nullcontext(),  # as above
}


@contextlib.contextmanager
def slurm(lab: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """The login node of a SLURM of its own."""
    with lab.own_slurm(nodes={"s1": NODE}) as own:
        config = own.clusterfn_yml(folder / "clusterfn.yml", lab.python(MINOR), "defaults: {time: 15min}")
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        scene = Scene(ALIAS, own.root, folder, slurm=own)
        yield scene
        for started in scene.controllers:
            started.kill()
            started.wait()


@contextlib.contextmanager
def machine(lab: Any, folder: Path) -> Iterator[Scene]:
    """A machine without a scheduler, behind proxies."""
    with behind(lab, 0.0) as there:
        root = next(line for line in (there.folder / "clusterfn.yml").read_text().splitlines() if "root:" in line)
        scene = Scene(there.warm, lab.home("bash") / root.rpartition("/")[2], folder, there.proxies)
        try:
            yield scene
        finally:
            main(["cancel", "--all", "--yes", scene.host])  # what the calls have begun, too


def begin(scene: Scene, state: str) -> None:
    """Start the jobs that the calls are about."""
    sleep = cluster(host=scene.host)(time.sleep)
    scene.job, scene.group = sleep.submit(600.0), sleep.map([600.0, 600.0])
    until(lambda: scene.job.state == "RUNNING" and scene.group.state == "RUNNING")
    if state == "spooler gone":  # all that come after this one wait behind it
        scene.job = sleep.with_options(cores=64).submit(600.0)
        until(lambda: scene.job.reason)


def told(lab: Any, state: str, scene: Scene, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Make these calls at once while the host is broken; what each of them has told."""
    argv = [sys.executable, str(DRIVER), json.dumps(names), scene.host, scene.job.id, scene.group.id, str(WITHIN_S)]
    env = {**os.environ, "PYTHONPATH": str(DRIVER.parents[2])}
    env.update({"OTHER_VERSION": "1"} if state == "other version" else {})
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, text=True, cwd=scene.folder, env=env, start_new_session=True
    ) as calling:
        assert calling.stdin is not None and calling.stdout is not None
        try:
            scene.agents = [json.loads(calling.stdout.readline())["agent"] for _ in names]
            with STATES[state](scene, lab):
                calling.stdin.write(f"{state}\n")
                calling.stdin.flush()
                said = [json.loads(calling.stdout.readline()) for _ in names]
        finally:
            os.killpg(calling.pid, signal.SIGKILL)
    return {each.pop("name"): each for each in said}


def silent(lab: Any, state: str, scene: Scene, names: Sequence[str]) -> str:
    """Those of the calls that neither end nor say anything in time while the host is in that state."""
    begin(scene, state)
    if state == "spooler gone":
        names = [name for name in names if name not in AFTER_A_JOB]
    found: dict[str, dict[str, Any]] = {}
    for first in range(0, len(names), AT_ONCE):
        found.update(told(lab, state, scene, names[first : first + AT_ONCE]))
    return "\n".join(f"{name}: {each}" for name, each in found.items() if each["after_s"] >= WITHIN_S)


@pytest.fixture
def scene(lab: Any, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A host with a folder that has what the calls need."""
    (tmp_path / "work.py").write_text("def nap():\n    import time\n    time.sleep(600)\n")
    write_connection_file(str(tmp_path / "kernel.json"), key=b"secret")
    of_slurm = "controller" in request.node.name
    with slurm(lab, tmp_path, monkeypatch) if of_slurm else machine(lab, tmp_path) as made:
        yield made


@pytest.mark.parametrize("state", ["cable pulled"])
def test_a_call_ends_or_says_within_10_s_what_it_waits_for(lab: Any, scene: Scene, state: str) -> None:
    assert silent(lab, state, scene, SOME) == ""


@pytest.mark.long
@pytest.mark.parametrize("state", list(STATES))
def test_every_public_call_ends_or_says_within_10_s_what_it_waits_for(
    lab: Any, scene: Scene, locked: Path, state: str
) -> None:
    for name in ("environment.yml", "environment.conda-lock.yml"):
        shutil.copy(locked / name, scene.folder)
    shutil.copy(locked / "environment.yml", scene.folder / "again.yml")
    assert silent(lab, state, scene, CALLS) == ""
