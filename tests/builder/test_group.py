"""A root that two users of a group share: each has a umask of 077, and neither may look into the other's home."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge.layout import layout_bridge
from tests.builder import toys
from tests.builder.host import Host
from tests.builder.test_together import begun, go, slow
from tests.lab import Lab

pytestmark = pytest.mark.lab
ALICE, BOB, GROUP = 54321, 54322, 54300


def user(uid: int, root: Path, bridge: Path, python: str) -> Host:
    """The host as this user sees it."""
    ids = [f"--reuid={uid}", f"--regid={uid}", f"--groups={GROUP}"]
    before = ["setpriv", *ids, "sh", "-c", 'umask 077; exec "$@"', "sh"]
    return Host(root, bridge, python, before, [str(GROUP)])


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody may look into, which pytest's own is not."""
    path = Path(tempfile.mkdtemp(prefix="clusterfn-group-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def both(folder: Path, lab: Lab) -> Iterator[tuple[Host, Host]]:
    """Two users, and a root of their group."""
    bridge, root = layout_bridge(folder / "bridge"), folder / "root"
    root.mkdir()
    os.chown(root, 0, GROUP)
    root.chmod(0o2770)
    for path in bridge.rglob("*"):
        path.chmod(0o755)
    old = str(lab.python("3.6"))
    hosts = user(ALICE, root, bridge, old), user(BOB, root, bridge, old)
    yield hosts
    for each in hosts:
        each.close()


@pytest.fixture
def python(folder: Path, lab: Lab) -> dict:
    """A Python that everybody may start."""
    return toys.python(folder / "shelf", lab.python(toys.MINOR))


def lease_of(host: Host, uid: int, plan: dict, home: Path, name: str = "abc") -> Path:
    """A job of this user's that runs, in a folder that nobody else sees."""
    job = home / "jobs" / name
    (job / "attempts" / "1").mkdir(parents=True)
    (job / "spec.json").write_text("{}")
    (job / "claim").write_text("1")
    for path in [home, *home.rglob("*")]:
        os.chown(path, uid, uid)
    home.chmod(0o700)
    code = (
        f"import sys; sys.path.insert(0, {str(host.bridge)!r})\n"
        "from _clusterfn.bridge.builder import leases\n"
        f"leases.add_lease({str(host.root)!r}, {plan['id']!r}, {str(job)!r})"
    )
    subprocess.run([*host.before, host.python, "-I", "-c", code], check=True, cwd="/")
    return job


def test_what_one_has_built_the_other_uses_shares_and_removes(both: tuple[Host, Host], folder: Path, python: dict):
    alice, bob = both
    first = alice.plan([python, toys.module(folder / "shelf", "mine")])
    second = alice.plan([python, first["packages"][1], toys.module(folder / "shelf", "other")])

    assert alice.build(first).rc == 0
    assert bob.build(second).rc == 0
    assert bob.call("remove", str(bob.root), first["id"]).last["removed"]
    assert alice.build(first).last["reused"] is False
    assert alice.call("gc", str(alice.root), "0", "0").last["packages"] == 3


def test_without_a_word_nothing_of_another_user_is_used(both: tuple[Host, Host], folder: Path, python: dict):
    alice, bob = both
    bob.owners = []
    plan = bob.plan([python])

    assert f"{alice.root} is not safe to use: the group {GROUP} may write to it" in bob.build(plan).last["message"]

    os.chown(alice.root, ALICE, ALICE)
    alice.root.chmod(0o755)
    assert alice.build(alice.plan([python])).rc == 0
    said = bob.build(plan).last
    assert f"{alice.root} is not safe to use: it belongs to the user with id {ALICE}" in said["message"]
    assert "owners:" in said["hint"]


@pytest.mark.parametrize("planted", ["READY", "bin/python"])
def test_an_environment_that_another_user_has_planted_is_refused(
    both: tuple[Host, Host], folder: Path, python: dict, planted: str
):
    alice, bob = both
    bob.owners = []
    os.chown(bob.root, BOB, BOB)
    bob.root.chmod(0o755)
    plan = bob.plan([python])
    assert bob.build(plan).rc == 0
    os.chown(bob.prefix(plan) / planted, ALICE, ALICE, follow_symlinks=False)

    said = bob.build(plan).last

    assert f"{planted} is not safe to use: it belongs to the user with id {ALICE}" in said["message"]


def test_a_package_folder_that_another_user_has_planted_is_never_linked(
    both: tuple[Host, Host], folder: Path, python: dict
):
    alice, bob = both
    bob.owners = []
    os.chown(bob.root, BOB, BOB)
    bob.root.chmod(0o755)
    assert bob.build(bob.plan([python])).rc == 0
    package = bob.root / "pkgs" / python["sha256"]
    for path in [package, *package.rglob("*")]:
        os.chown(path, ALICE, ALICE, follow_symlinks=False)

    said = bob.build(bob.plan([python, toys.module(folder / "shelf", "mine")])).last

    assert f"{package} is not safe to use: it belongs to the user with id {ALICE}" in said["message"]


def test_who_waits_for_another_user_follows_and_takes_over(both: tuple[Host, Host], folder: Path, python: dict):
    alice, bob = both
    plan = slow(alice, folder / "shelf", python)
    first = alice.start(plan)
    begun(alice)
    second = bob.start(plan)
    assert "builds it" in second.waits()["text"]

    first.process.send_signal(signal.SIGKILL)
    first.answer()
    go(alice)

    assert second.answer().rc == 0


def test_a_job_that_another_user_cannot_see_keeps_its_environment(both: tuple[Host, Host], folder: Path, python: dict):
    alice, bob = both
    plan = alice.plan([python])
    alice.build(plan)
    job = lease_of(alice, ALICE, plan, folder / "alice")

    answer = bob.call("remove", str(bob.root), plan["id"])

    assert answer.last.get("used_by") == [job.name], answer
    assert (bob.prefix(plan) / "READY").exists()
    assert bob.call("list", str(bob.root)).last["used_by"] == [job.name]
    lease_of(bob, BOB, plan, folder / "bob", "def")
    assert alice.call("list", str(bob.root)).last["used_by"] == [job.name, "def"]


def test_what_one_has_seen_of_the_gpus_the_other_reads(both: tuple[Host, Host], folder: Path):
    alice, bob = both
    path = alice.root / "cards" / "gpu.json"
    code = (
        f"import sys; sys.path.insert(0, {str(alice.bridge)!r})\n"
        "from _clusterfn.bridge.supervisor import built\n"
        f"built._write({str(alice.root)!r}, {str(path)!r}, sys.argv[1])"
    )
    for host in both:
        subprocess.run([*host.before, host.python, "-I", "-c", code, host.before[1]], check=True, cwd="/")

    seen = subprocess.run([*alice.before, "cat", str(path)], capture_output=True, text=True, check=True)
    assert seen.stdout == bob.before[1]
