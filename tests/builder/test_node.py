"""An environment as one archive: made for its path on the nodes, unpacked once on each."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.bridge.host import Bench
from tests.builder import toys
from tests.builder.host import Host
from tests.builder.test_together import held_by
from tests.builder.toys import PLACEHOLDER
from tests.lab.condapackage import Entry
from tests.waiting import until


def built(host: Host, shelf: Path, python: dict) -> dict:
    """An environment with everything that names its prefix."""
    files = {
        "bin/where": Entry(
            f"#!{PLACEHOLDER}/bin/python\nimport placed\nprint(placed.P)\n".encode(), 0o755, placeholder=PLACEHOLDER
        ),
        "lib/blob": Entry(PLACEHOLDER.encode() + b"\0end", placeholder=PLACEHOLDER, binary=True),
        f"{toys.SITE}/placed.py": Entry(f"P = '{PLACEHOLDER}'\n".encode(), placeholder=PLACEHOLDER),
        "bin/.linked-post-link.sh": Entry(b'echo "$PREFIX" > "$PREFIX/made.txt"\n', 0o755),
        "lib/link": Entry(link="blob"),
    }
    plan = host.plan([python, toys.conda(shelf, "linked", files), toys.module(shelf, "mine", 20)], verify=["placed"])
    assert host.build(plan).rc == 0
    return plan


def test_an_environment_on_a_node(host: Host, shelf: Path, python: dict, tmp_path: Path):
    plan = built(host, shelf, python)
    node = tmp_path / "node of a user"
    packed = host.call("pack", str(host.root), plan["id"], str(node))
    assert packed.rc == 0, packed
    shutil.rmtree(host.root / "pkgs")
    shutil.rmtree(host.root / "envs")

    answers = [
        each.answer() for each in [host.start_command("unpack", str(host.root), plan["id"], str(node)) for _ in "abc"]
    ]

    assert [each.rc for each in answers] == [0, 0, 0], answers
    assert sorted(each.last["reused"] for each in answers) == [False, True, True]
    prefix = node / "envs" / plan["id"]
    there = Host(node, host.bridge, host.python)
    assert there.run(plan, "where") == str(prefix)
    assert there.run(plan, "python", "-c", "import mine; print(mine.__file__)").startswith(f"{prefix}/")
    assert (prefix / "made.txt").read_text() == f"{prefix}\n"
    assert (prefix / "lib/blob").read_bytes().startswith(os.fsencode(prefix) + b"\0") and os.readlink(
        prefix / "lib/link"
    ) == "blob"
    assert os.fsencode(host.prefix(plan)) not in b"".join(path.read_bytes() for path in prefix.rglob("*.pyc"))
    assert there.leftovers() == []


def beats(folder: Path) -> int:
    """How often the holder beat that has done so most often."""
    return max(int(path.read_text().split("\n")[0] or 0) for path in folder.glob("????????"))


def test_who_comes_while_another_unpacks_waits(host: Host, shelf: Path, python: dict, tmp_path: Path):
    plan = built(host, shelf, python)
    node = Host(tmp_path / "node", host.bridge, host.python)
    host.call("pack", str(host.root), plan["id"], str(node.root))
    beat = held_by(node, plan)
    running = host.start_command("unpack", str(host.root), plan["id"], str(node.root))
    until(lambda: running.process.poll() is not None or beats(beat.parent) > 1)

    assert running.process.poll() is None and not node.prefix(plan).exists()
    beat.unlink()

    assert running.answer().last["reused"] is False


def test_an_archive_goes_with_its_environment(host: Host, shelf: Path, python: dict, tmp_path: Path):
    plan = built(host, shelf, python)
    host.call("pack", str(host.root), plan["id"], str(tmp_path / "node"))

    assert host.call("remove", str(host.root), plan["id"]).last["removed"]

    assert list((host.root / "packed").iterdir()) == []
    answer = host.call("unpack", str(host.root), plan["id"], str(tmp_path / "node"))
    assert answer.rc == 1 and "there is no archive" in answer.last["message"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it gives a folder away")
def test_a_folder_of_somebody_else_is_refused(host: Host, tmp_path: Path):
    (tmp_path / "node").mkdir()
    os.chown(tmp_path / "node", 12345, 12345)

    answer = host.call("unpack", str(host.root), "abcdef01", str(tmp_path / "node"))

    assert answer.rc == 1 and "belongs to the user with id 12345" in answer.last["message"]


@pytest.mark.parametrize("whose", ["of another", "a link", "open to all"])
def test_a_job_takes_nothing_from_a_folder_that_others_may_have_filled(bridge: Path, tmp_path: Path, whose: str):
    if whose == "of another" and os.geteuid() != 0:
        pytest.skip("needs root: it gives a folder away")
    bench, node = Bench(tmp_path / "root", bridge, sys.executable, sys.executable), tmp_path / "clusterfn-1"
    laid = tmp_path / "elsewhere" if whose == "a link" else node
    for root in (bench.root, laid):
        ready = root / "envs" / "abcdef01" / "READY"
        ready.parent.mkdir(parents=True)
        ready.write_text("{}")
    if whose == "of another":
        os.chown(node, 12345, 12345)
    elif whose == "a link":
        node.symlink_to(laid)
    else:
        node.chmod(0o777)
    building = {"id": "abcdef01", "root": str(bench.root), "purged": False, "cuda": "", "node_root": str(node)}

    _, outcome = bench.run("def f():\n    return 1\n", building=building)
    bench.close()

    assert outcome["kind"] == "environment", outcome
    assert str(node) in outcome["message"] and "environment_at" in outcome["hint"], outcome
