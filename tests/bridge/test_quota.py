"""A real disk quota: each end is named, although the disk itself has room, and the outcome is published all the same.

The file system is btrfs with a limit on a subvolume: of the file systems of Linux it needs the least of the kernel.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterfn
from clusterfn import HostDiskFull
from tests.bridge.host import Bench
from tests.bridge.layout import IMPATIENT, PATIENT, layout_bridge

LIMIT_BYTES = 16 << 20
# Fills what is left, then raises, or exits.
FILLS = """
def f(path, ends):
    import os
    with open(path, "wb", 0) as file:
        try:
            while True:
                file.write(os.urandom(4096))
        except OSError:
            if ends == "exits":
                os._exit(3)
            raise
"""


def run(*argv: object) -> str:
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{argv[0]}: {done.stderr.strip()}")
    return done.stdout


@pytest.fixture
def limited(tmp_path: Path, as_root: None) -> Iterator[Path]:
    """A folder that takes so many bytes of a disk that has room."""
    programs = [shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("mkfs.btrfs", "btrfs")]
    if None in programs:
        pytest.skip("btrfs-progs is not installed")
    make, btrfs = programs
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    run(make, "-q", image)
    try:
        run("mount", "-o", "loop", image, disk)
    except OSError as error:
        pytest.skip(f"this kernel mounts no btrfs: {error}")
    try:
        run(btrfs, "quota", "enable", disk)
        run(btrfs, "subvolume", "create", disk / "mine")
        run(btrfs, "qgroup", "limit", LIMIT_BYTES, disk / "mine")
        yield disk / "mine"
    finally:
        run("umount", "-l", disk)


@pytest.fixture
def small(bench: Bench, limited: Path, tmp_path: Path) -> Bench:
    """Jobs below a root with a quota, which wait a second for room."""
    impatient = layout_bridge(tmp_path / "impatient", ("layout.py", PATIENT, IMPATIENT))
    return Bench(limited, impatient, bench.host, bench.python)


@pytest.fixture
def own_host(tmp_path: Path, limited: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a bare host."""
    config, root = tmp_path / "clusterfn.yml", limited / "root"
    lines = ["scheduler: bare", "transport: local", "limits: {cores: 64}", f"root: {root}"]
    config.write_text(f"hosts:\n  {tmp_path.name}:\n" + "".join(f"    {line}\n" for line in lines))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    return root


@pytest.mark.fault("33")
def test_a_value_that_the_quota_does_not_take(small: Bench) -> None:
    _, outcome = small.run("def f():\n    import os\n    return os.urandom(40 << 20)\n")

    assert (outcome["kind"], outcome["stage"]) == ("disk", "result"), outcome
    assert "Disk quota exceeded" in outcome["message"]


@pytest.mark.fault("33")
def test_a_function_that_uses_the_quota_up_names_it(small: Bench) -> None:
    _, outcome = small.run(FILLS, str(small.root / "ballast"), "raises")

    assert (outcome["kind"], outcome["stage"]) == ("disk", "function"), outcome
    assert "Disk quota exceeded" in outcome["message"]


@pytest.mark.fault("33")
def test_a_function_that_dies_with_the_quota_used_up_has_that_in_its_error(small: Bench) -> None:
    job, outcome = small.run(FILLS, str(small.root / "ballast"), "exits")

    assert outcome["kind"] == "disk", outcome
    assert outcome["message"].endswith("and the disk quota is used up")
    assert [path.name for path in job.attempt.glob(".*")] == []


@pytest.mark.fault("33")
def test_an_argument_that_the_quota_does_not_take_is_refused_before_the_call(own_host: Path) -> None:
    length = clusterfn.cluster(len)
    with pytest.raises(HostDiskFull, match="Your disk quota on .* leaves no space for .*/blobs/") as caught:
        length(os.urandom(40 << 20))

    assert "Disk quota exceeded" in caught.value.evidence[0]
    assert not any("free" in line for line in caught.value.evidence), caught.value.evidence
    assert list((own_host / "blobs").iterdir()) == []
    assert length(b"abc") == 3, "the next call finds the room that was left"
