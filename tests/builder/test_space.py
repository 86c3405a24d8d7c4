"""A file system that is too small, full, without inodes or closed: told with its numbers, nothing half made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge.host import obey_modes
from tests.builder import toys
from tests.builder.host import Host
from tests.interpreters import interpreter
from tests.lab.condapackage import Entry

KB = 1 << 10


@pytest.fixture
def small(bridge: Path, tmp_path: Path) -> Iterator[Host]:
    """A host with a root of one megabyte and 300 files."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a small file system")
    root = tmp_path / "small"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=300,mode=700", "none", str(root)], check=True)
    yield Host(root, bridge, interpreter("3.6") or sys.executable)
    subprocess.run(["umount", "-l", str(root)], check=True)


def test_what_does_not_fit_is_refused_before_anything_is_fetched(small: Host, python: dict):
    big = {**python, "name": "big", "sha256": "0" * 64, "size": 2000 * KB, "url": "http://127.0.0.1:9/big.conda"}

    last = small.build(small.plan([python, {**big, "file": "big.conda"}])).last

    assert (last["stage"], last["at"]) == ("failed", "space")
    assert "it needs more than 2 MB, and" in last["message"] and "KB are free" in last["message"]
    assert "make room" in last["hint"]
    assert not (small.root / "blobs").exists() or os.listdir(small.root / "blobs") == []


def test_a_disk_that_fills_meanwhile(small: Host, shelf: Path, python: dict):
    package = toys.conda(shelf, "zeros", {"share/zeros": Entry(bytes(2 << 20))})  # packs to nothing
    plan = small.plan([python, package])

    answer = small.build(plan)

    assert (answer.rc, answer.last["at"]) == (1, "disk"), answer
    assert "No space left on device" in answer.last["message"]
    assert "free under" in answer.last["evidence"][0]
    assert not os.path.lexists(small.prefix(plan)) and small.leftovers() == []
    assert small.build(small.plan([python])).rc == 0


def test_inodes_that_run_out_meanwhile(small: Host, shelf: Path, python: dict):
    package = toys.conda(shelf, "many", {f"share/{number}": b"" for number in range(400)})
    plan = small.plan([python, package])

    answer = small.build(plan)

    assert (answer.rc, answer.last["at"]) == (1, "disk")
    assert " 0 files" in answer.last["evidence"][0] or "files" in answer.last["evidence"][0]
    assert not os.path.lexists(small.prefix(plan)) and small.leftovers() == []


def test_a_root_that_may_not_be_written_to(host: Host, python: dict):
    plan = host.plan([python])
    host.start(plan).process.wait()
    subprocess.run(["rm", "-rf", *map(str, host.root.glob("*s"))], check=True)
    path = host.root.parent / "plan.json"
    path.write_text(json.dumps(plan))
    host.root.chmod(0o500)
    argv = [host.python, "-I", "-S", str(host.bridge / "build.py"), "build", str(path)]

    done = subprocess.run(argv, capture_output=True, text=True, preexec_fn=obey_modes)
    host.root.chmod(0o700)

    assert done.returncode == 1
    assert "nothing may be written there: Permission denied" in done.stdout, done
    assert "env_root" in done.stdout
