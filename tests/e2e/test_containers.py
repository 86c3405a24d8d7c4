"""`environment="apptainer:IMAGE"` and the like: a call in a container is as any other call.

bubblewrap, Charliecloud and Apptainer run here as an ordinary account, with images of nothing but a Python.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterfn import (
    Cancelled,
    ClusterfnError,
    ConfigError,
    EnvironmentBuildError,
    File,
    KilledBySignal,
    OutOfMemory,
    Session,
    cluster,
    command,
)
from tests.e2e.conftest import MINOR, RANKS, Hosts
from tests.e2e.terminal import Terminal
from tests.fixtures.calls.actor_model import Model
from tests.lab import apptainer
from tests.lab.layout import IMAGES
from tests.waiting import until

pytestmark = [pytest.mark.lab]
# Python newer and older than the caller's, on a machine without a scheduler and on SLURM
_USUAL = [("tensor01", "bwrap", "3.13"), ("slurm", "charliecloud", "3.9")]
_MORE = [("tensor01", "charliecloud", "3.13"), ("tensor01", "charliecloud", "3.9"), ("tensor01", "bwrap", "3.9"),
         ("slurm", "bwrap", "3.13"), ("slurm", "bwrap", "3.9"), ("slurm", "charliecloud", "3.13"),
         ("tensor01", "apptainer", "3.13"), ("tensor01", "apptainer", "3.9"), ("slurm", "apptainer", "3.13"),
         ("slurm", "apptainer", "3.9"), ("tensor01", "sif", "3.9"), ("slurm", "sif", "3.13")]  # fmt: skip


def where() -> tuple[str, str, bool]:
    minor = ".".join(map(str, sys.version_info[:2]))
    return minor, sys.executable, Path("/opt/clusterfn-lab/python").exists()


def double(n: int) -> int:
    import subprocess

    print("doubling", n)
    said = subprocess.run([sys.executable, "-c", f"print({n})"], capture_output=True, check=True, text=True).stdout
    return 2 * int(said)


def starter(_: int) -> int:
    return os.getppid()


def starter_of_starter() -> int:
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def fails(path: str) -> None:
    raise ValueError(Path(path).read_text())


def takes(size: int) -> int:
    held = bytearray(b"x" * size)
    time.sleep(600)  # until a sample of a busy machine sees it
    return len(held)


def ends(number: int) -> None:
    os.kill(os.getpid(), number)


def sleeps(mark: str) -> None:
    import subprocess

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(mark).write_text(str(child.pid))
    child.wait()


for _each in (where, double, starter, starter_of_starter, fails, takes, ends, sleeps):
    _each.__module__ = "__main__"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("host", "kind", "minor"),
    [pytest.param(*each) for each in _USUAL] + [pytest.param(*each, marks=pytest.mark.long) for each in _MORE],
)
def test_a_call_in_a_container_is_as_any_other_call(
    hosts: Hosts, lab: Any, tmp_path: Path, gate: Path, capfd: Any, monkeypatch: Any, host: str, kind: str, minor: str
) -> None:
    image = f"{kind}:{IMAGES}/python{minor}"
    if kind in ("apptainer", "sif"):
        # As with a module, the runtime is in PATH once the host's own lines have run. It unpacks each `.sif` at its
        # start, because nobody but root may mount one here.
        lines = f'setup: [export PATH="$PATH:{apptainer.build()}" APPTAINER_UNSQUASH=1 APPTAINER_TMPDIR="{gate}"]'
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(hosts.describe(lab, tmp_path / "yml", hosts.python, lines)))
        image = f"apptainer:{apptainer.image(minor)}" if kind == "sif" else image
    usual: dict[str, Any] = {"host": host, "environment": image}

    assert cluster(**usual)(where)() == (minor, "/usr/local/bin/python3", False)
    assert cluster(**usual)(double)(21) == 42
    assert "doubling 21" in capfd.readouterr().out
    assert cluster(**usual)(double).map(range(6)).results() == [0, 2, 4, 6, 8, 10]
    starters = cluster(**usual)(starter).map(range(12), max_parallel=1).results()
    assert len(set(starters)) < len(starters), "each item has entered the image by itself"
    if host == "tensor01" and kind not in ("apptainer", "sif"):  # no template runs the lines of a host first
        # Calls in a row have keepers of their own, which one template has forked.
        until(lambda: cluster(**usual)(starter_of_starter)() == cluster(**usual)(starter_of_starter)())

    (tmp_path / "said.txt").write_text("from a file")
    with pytest.raises(ValueError, match="from a file"):
        cluster(**usual)(fails)(File(tmp_path / "said.txt"))
    with pytest.raises(FileNotFoundError, match="no-such") as missing:
        cluster(**usual)(fails)("/data/no-such")
    assert "binds: [/data]" in "".join(getattr(missing.value, "__notes__", ())) + capfd.readouterr().err
    with pytest.raises(KilledBySignal, match="SIGSEGV"):
        cluster(**usual)(ends)(11)
    with pytest.raises(OutOfMemory):
        cluster(memory="400MB", **usual)(takes)(1 << 30)

    with Session(**usual) as session:
        assert session.call(double, 4) == 8
        model = session.actor(Model, "weights")
        assert [model.predict(2), model.predict(3)] == [4, 6]

    command(["python3", "-c", "print(7 * 6)"], **usual)()
    assert "42" in capfd.readouterr().out

    job = cluster(**usual)(sleeps).submit(str(gate / "child"))
    until((gate / "child").exists)
    until(lambda: (gate / "child").read_text() != "")
    child = int((gate / "child").read_text())
    assert job.cancel()
    with pytest.raises(Cancelled):
        job.result(150)
    until(lambda: not Path(f"/proc/{child}").exists())


def test_a_folder_of_the_host_is_shown_where_binds_says_so(
    hosts: Hosts, lab: Any, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gate / "data").write_text("42")
    config = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, f"binds: [{gate}:/mnt]", ("tensor01",))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    (gate / "more").mkdir()
    (gate / "more" / "data").write_text("43")
    read = cluster(host="tensor01", environment=f"bwrap:{IMAGES}/python3.13", binds=[f"{gate}/more:/more"])(fails)

    for path, said in (("/mnt/data", "42"), ("/more/data", "43")):
        with pytest.raises(ValueError, match=said):
            read(path)
    before = hosts.jobs()
    with pytest.raises(ConfigError, match="cannot show both"):
        read.with_options(binds=["/srv:/mnt"])("/mnt/data")
    assert hosts.jobs() == before


def test_a_shell_of_a_host_is_in_the_image(hosts: Hosts, tmp_path: Path, gate: Path) -> None:
    (gate / "shown").touch()
    image = f"bwrap:{IMAGES}/python3.13"
    terminal = Terminal(["/bin/sh"], tmp_path, {**os.environ, "SHELL": "/bin/sh"})
    try:
        terminal.type(
            f"'{sys.executable}' -m clusterfn shell tensor01 --environment {image} --binds {gate}:/mnt; echo status=$?"
        )
        terminal.wait_for(re.escape(f"({os.uname().nodename}) $ "))
        terminal.type("python3 --version; ls /mnt; ls -d /opt/clusterfn-lab/python; exit 4")
        terminal.wait_for("Python 3.13")
        terminal.wait_for("shown")
        terminal.wait_for("ls: cannot access")
        terminal.wait_for("status=4")
    finally:
        os.kill(terminal.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("environment", "message", "hint"),
    [
        ("bwrap:/no/image", "/no/image does not exist on the host", "correct the path"),
        ("singularity:/no/image.sif", "singularity is not in PATH of the host", "modules: [singularity]"),
        ("bwrap:/var/empty-image", "its python3 did not run", "python3 --version"),
    ],
)
def test_what_an_image_lacks_is_one_clear_error_before_a_job_begins(
    hosts: Hosts, environment: str, message: str, hint: str
) -> None:
    Path("/var/empty-image").mkdir(exist_ok=True)
    before = hosts.jobs()

    with pytest.raises(EnvironmentBuildError, match=message) as raised:
        cluster(host="tensor01", environment=environment)(double)(1)

    assert hint in str(raised.value.hint) and raised.value.host == "tensor01"
    assert hosts.jobs() == before


def test_an_image_of_an_unnamed_runtime_and_packages_for_an_image_are_rejected_here(hosts: Hosts) -> None:
    with pytest.raises(ConfigError, match="a runtime that the host tensor01 does not name"):
        cluster(host="tensor01", environment="container:/image")(double)(1)
    with pytest.raises(ConfigError, match="packages"):
        cluster(host="tensor01", environment="apptainer:/image.sif", packages=["einops"])(double)(1)


def test_an_image_that_the_node_alone_lacks_is_an_error_of_the_environment(
    hosts: Hosts, lab: Any, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login node shows it; the job finds that the folder is gone."""
    image = gate / "image"
    image.symlink_to(IMAGES / "python3.13")
    assert cluster(host="slurm", environment=f"bwrap:{image}")(double)(4) == 8
    image.unlink()

    with pytest.raises(EnvironmentBuildError, match="the image cannot be entered") as raised:
        cluster(host="slurm", environment=f"bwrap:{image}")(double)(4)
    assert f"{image} does not exist on the host" in str(raised.value.evidence)


@pytest.fixture
def runs_in(
    hosts: Hosts, lab: Any, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], None]:
    """Have a host enter containers by this program of sh."""

    def describe(host: str, program: str) -> None:
        (gate / "enter").write_text(f"#!/bin/sh\n{program}")
        (gate / "enter").chmod(0o755)
        path = f"setup: ['export PATH=\"{lab.python(MINOR).parent}:$PATH\"']"
        lines = f'{path}\ncontainer: [{gate / "enter"}, "{{image}}"]'
        config = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, lines, (host,))
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))

    return describe


def test_a_runtime_that_prints_first_and_one_that_dies_in_a_job(runs_in: Callable[[str, str], None], gate: Path):
    runs_in("slurm", f'echo Welcome; echo a notice >&2\n[ ! -e "{gate}/full" ] || exit 3\nshift\nexec "$@"\n')
    call = cluster(host="slurm", environment="container:docker://any")(double)

    assert call(3) == 6
    (gate / "full").touch()
    with pytest.raises(ClusterfnError) as raised:
        call(3)

    assert "a notice" in str(raised.value.evidence)


def test_what_a_runtime_has_beside_the_program_ends_with_a_map(runs_in: Callable[[str, str], None], gate: Path):
    """As Apptainer has the process that mounts a `.sif`, and ends it itself unless it is killed."""
    beside = f'shift\nsleep 600 >/dev/null 2>&1 &\necho $! >>"{gate}/beside"\n'
    runs_in("tensor01", beside + '"$@"\nstatus=$?\nkill $!\nexit $status\n')

    assert cluster(host="tensor01", environment="container:any")(double).map(range(8), max_parallel=2).results()

    beside = (gate / "beside").read_text().split()
    assert len(beside) >= 2
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in beside))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("host", ["tensor01", "slurm"])
def test_torchrun_trains_two_ranks_in_a_container(
    hosts: Hosts, lab: Any, torch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, host: str
) -> None:
    packages = next(Path(lab.torch_python).parents[1].glob("lib/python3.11/site-packages"))
    config = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, f"binds: ['{packages}:/mnt']")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(RANKS)
    monkeypatch.chdir(project)
    torchrun = ["python3", "-m", "torch.distributed.run", "--nproc_per_node=2", "train.py"]

    command(torchrun, host=host, environment=f"charliecloud:{IMAGES}/python3.11", env={"PYTHONPATH": "/mnt"})()

    printed = capfd.readouterr().out.splitlines()
    assert sorted(printed) == ["rank 0 of 2 3.0", "rank 1 of 2 3.0"]
