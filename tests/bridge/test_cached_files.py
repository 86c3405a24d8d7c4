"""A root that two machines share, each of which remembers for seconds what files were like, as over NFS.

The agent sees it through one FUSE mount, the jobs through another in a mount namespace of their own: what one writes,
the other sees late, and inotify tells it nothing.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import clusterfn
from tests.processes import named
from tests.waiting import until

REMEMBERS_S = 4
PROGRAMS = ("bindfs", "nsenter", "unshare")


@dataclass
class Shared:
    """The root, as this machine sees it, and a process of the machine that runs the jobs."""

    root: Path
    there: int

    def touch_there(self, path: Path) -> None:
        subprocess.run(["nsenter", f"--mount=/proc/{self.there}/ns/mnt", "touch", str(path)], check=True)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_root: None) -> Iterator[Shared]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or not Path("/dev/fuse").exists():
        pytest.skip(f"there is no {', '.join(missing or ['/dev/fuse'])}")
    store, root = tmp_path / "store", tmp_path / "root"
    store.mkdir()
    root.mkdir()
    remembers = ",".join(f"{what}_timeout={REMEMBERS_S}" for what in ("attr", "entry", "negative"))
    mount = ["bindfs", "-o", remembers, str(store), str(root)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this kernel mounts no FUSE: {done.stderr.strip()}")
    line = f"{shlex.join(mount)} && echo there && exec sleep 1000"
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", line], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "there\n"
        config = tmp_path / "clusterfn.yml"
        enter = f'[ -n "$THERE" ] || THERE=1 exec nsenter --mount=/proc/{holder.pid}/ns/mnt /bin/sh "$0"'
        lines = ["scheduler: bare", "transport: local", "limits: {cores: 64}", f"root: {root}", f"setup: ['{enter}']"]
        config.write_text(f"hosts:\n  {tmp_path.name}:\n" + "".join(f"    {line}\n" for line in lines))
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
        yield Shared(root, holder.pid)
        # Each bindfs ends with the last of its mounts, and the other machine has those of both.
        both = f"umount -l {shlex.quote(str(root))} && umount -l {shlex.quote(str(root))}"
        subprocess.run(["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "sh", "-c", both], check=True)
        holder.kill()
    subprocess.run(["umount", "-l", str(root)], check=True)
    until(lambda: not named(store, root))


def namespace(size: int) -> tuple[str, bytes]:
    """Where it runs, and so many bytes; printed, too."""
    import os

    where = os.readlink("/proc/self/ns/mnt")
    print("runs in", where)
    return where, b"x" * size


def fails(number: int) -> int:
    if number % 3 == 0:
        raise ValueError(f"{number} is odd here")
    return number


def sleeps() -> None:
    import time

    print("up", flush=True)
    time.sleep(600)


for _each in (namespace, fails, sleeps):
    _each.__module__ = "__main__"


def test_one_machine_sees_late_what_the_other_has_written(shared: Shared) -> None:
    """Else the tests below prove nothing. A busy machine may take longer for a try than the other remembers."""

    def seen_late() -> bool:
        path = shared.root / f"new-{time.monotonic_ns()}"
        before = path.exists()
        shared.touch_there(path)
        late = not before and not path.exists()
        until(path.exists)
        return late

    until(seen_late)


def test_calls_and_maps_return_and_raise_as_everywhere(shared: Shared, capfd: pytest.CaptureFixture[str]) -> None:
    where, data = clusterfn.cluster(namespace)(3_000_000)

    assert where != os.readlink("/proc/self/ns/mnt") and len(data) == 3_000_000
    assert f"runs in {where}" in capfd.readouterr().out
    with pytest.raises(ValueError, match="3 is odd here"):
        clusterfn.cluster(fails)(3)
    results = clusterfn.cluster(fails).map(range(6), max_parallel=2).results()
    assert [each if isinstance(each, int) else type(each) for each in results] == [ValueError, 1, 2, ValueError, 4, 5]


@pytest.mark.long
def test_a_job_is_stopped_and_found_again_there(shared: Shared) -> None:
    job = clusterfn.cluster(sleeps).submit()
    until(lambda: job.state == "RUNNING")
    assert clusterfn.attach(job.id).state == "RUNNING"

    job.stop()

    assert isinstance(job.exception(100), clusterfn.Cancelled)
    assert [info.state for info in clusterfn.jobs()] == ["CANCELLED"]
