"""Environments are listed, mended when files are taken from them, and removed when nobody uses them; never before."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from tests.builder import toys
from tests.builder.host import Host
from tests.fakes.job_spec import job_spec
from tests.lab.condapackage import Entry

PLACEHOLDER = toys.PLACEHOLDER
DAY_S = 86400


@pytest.fixture
def plan(host: Host, shelf: Path, python: dict) -> dict:
    """An environment that is there: with a package of 60 files, rewritten ones, and a wheel."""
    placed = {
        "bin/where": Entry(f"#!{PLACEHOLDER}/bin/python\nprint(1)\n".encode(), 0o755, placeholder=PLACEHOLDER),
        f"{toys.SITE}/placed.py": Entry(f"P = '{PLACEHOLDER}'\n".encode(), placeholder=PLACEHOLDER),
    }
    wheel = toys.wheel(
        shelf, "thing", {"thing.py": b"def main(): pass\n"}, entry_points__txt=b"[console_scripts]\nt = thing:main\n"
    )
    plan = host.plan([python, toys.module(shelf, "mine", 60), toys.conda(shelf, "placed", placed), wheel])
    assert host.build(plan).rc == 0
    return plan


def files(folder: Path) -> dict[str, bytes | str]:
    """Every file of a tree with its content."""
    found = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {
        str(each.relative_to(folder)): os.readlink(each) if each.is_symlink() else each.read_bytes() for each in found
    }


def purge(folder: Path, count: int) -> None:
    """Take files away as a file system does that removes what is old."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    chosen = random.Random(count).sample([each for each in paths if ".clusterfn" not in each.parts], count)
    for path in [*chosen, folder / "bin/where", folder / f"{toys.SITE}/placed.py"]:
        path.unlink(missing_ok=True)
    cache = folder / toys.SITE / "__pycache__"
    shutil.rmtree(cache)


def test_fifty_purged_files_are_linked_again(host: Host, plan: dict):
    before = files(host.prefix(plan))
    purge(host.prefix(plan), 50)

    told = host.call("repair", str(host.root), plan["id"]).last["mended"]

    assert told["missing"] >= 50 and told["relinked"] == told["missing"] and told["lost"] == []
    assert files(host.prefix(plan)) == before
    assert host.call("repair", str(host.root), plan["id"]).last["mended"]["missing"] == 0
    assert (host.prefix(plan) / f"{toys.SITE}/mine/data1.txt").stat().st_nlink == 2


@pytest.mark.parametrize("left", ["", pytest.param('{"format": 0}', marks=pytest.mark.long)])
def test_packages_that_were_purged_too_are_unpacked_again(host: Host, plan: dict, left: str):
    before = files(host.prefix(plan))
    purge(host.prefix(plan), 50)
    for package in (host.root / "pkgs").iterdir():
        (package / "manifest.json").unlink()
        shutil.rmtree(package / "files")
        if left:  # by another version of clusterfn
            (package / "manifest.json").write_text(left)

    told = host.call("repair", str(host.root), plan["id"]).last["mended"]

    assert told["lost"] == [] and told["relinked"] == told["missing"]
    assert files(host.prefix(plan)) == before


def test_what_cannot_be_unpacked_again_is_asked_for(host: Host, plan: dict, shelf: Path):
    (host.prefix(plan) / f"{toys.SITE}/mine/data7.txt").unlink()
    (host.root / "pkgs" / plan["packages"][1]["sha256"] / "files" / toys.SITE / "mine/data7.txt").unlink()
    shutil.rmtree(shelf)

    answer = host.call("repair", str(host.root), plan["id"])

    assert answer.rc == 1 and answer.last["need"] == [plan["packages"][1]["sha256"]], answer


def test_each_of_many_packages_with_holes_is_unpacked_again(host: Host, shelf: Path, python: dict):
    names = [f"mine{number}" for number in range(12)]
    plan = host.plan([python, *(toys.module(shelf, name) for name in names)])
    other = {**plan, "id": "another0"}
    assert host.build(plan).rc == 0

    def lost(folder: Path) -> list[str]:
        return [name for name in names if not (folder / toys.SITE / name / "data0.txt").exists()]

    for path in list((host.root / "pkgs").rglob("data0.txt")):
        path.unlink()
    assert host.build(other).rc == 0 and lost(host.prefix(other)) == []

    for path in list(host.root.rglob("data0.txt")):
        path.unlink()
    assert host.call("repair", str(host.root), plan["id"]).rc == 0 and lost(host.prefix(plan)) == []


def test_a_file_that_was_cut_off_is_a_hole(host: Host, plan: dict):
    path = host.prefix(plan) / f"{toys.SITE}/mine/data11.txt"
    path.unlink()
    path.write_text("")

    assert host.call("repair", str(host.root), plan["id"]).last["mended"]["relinked"] == 1
    assert path.read_text() == "11\n"


def test_byte_code_that_was_cut_off_is_compiled_again(host: Host, plan: dict):
    site = host.prefix(plan) / toys.SITE
    paths = [next(site.glob(name)) for name in ("mine/__pycache__/__init__.*.pyc", "__pycache__/placed.*.pyc")]
    whole = [path.stat().st_size for path in paths]
    for path in paths:
        os.truncate(path, 16)  # also in the package, if it is one file there and here

    assert host.call("repair", str(host.root), plan["id"]).last["mended"]["relinked"] == 2
    assert [path.stat().st_size for path in paths] == whole


def test_an_environment_whose_list_of_files_was_purged_is_made_again(host: Host, plan: dict):
    purge(host.prefix(plan), 20)
    (host.prefix(plan) / ".clusterfn" / "manifest").unlink()

    assert not host.build({**plan, "purged": True}).last["reused"]
    assert host.run(plan, "where") == "1"


def test_an_environment_without_its_ready_is_mended_not_made_again(host: Host, plan: dict):
    inode = (host.prefix(plan) / "bin/where").stat().st_ino
    (host.prefix(plan) / "READY").unlink()

    assert host.build(plan).last["reused"]
    assert (host.prefix(plan) / "READY").exists() and (host.prefix(plan) / "bin/where").stat().st_ino == inode


def lease(host: Host, plan: dict, *outcomes: dict) -> Path:
    """A job that uses the environment, with the outcomes of its attempts."""
    job = host.root / "jobs" / "0123456789abcdef"
    (job / "attempts").mkdir(parents=True)
    (job / "spec.json").write_text(json.dumps(job_spec(job)))
    for number, outcome in enumerate(outcomes, 1):
        (job / "attempts" / str(number)).mkdir()
        (job / "attempts" / str(number) / "outcome.json").write_text(json.dumps({"kind": "returned", **outcome}))
    uses = host.root / "uses" / plan["id"]
    uses.mkdir(parents=True, exist_ok=True)
    (uses / job.name).write_text(f"{job}\n")
    return job


def test_the_list_says_what_is_there_and_who_uses_it(host: Host, plan: dict):
    job = lease(host, plan)

    told = host.call("list", str(host.root)).last

    assert (told["id"], told["about"], told["used_by"]) == (plan["id"], "environment.yml", [job.name])
    assert told["files"] > 60 and told["bytes"] > 0 and told["python"].startswith(toys.MINOR)
    assert abs(told["built"] - time.time()) < 600 and told["used"] >= told["built"] - 60


@pytest.mark.parametrize(("cuda", "told"), [(None, ""), ("12.8", "12.8")])
def test_the_list_says_for_which_cuda_its_pytorch_is(
    host: Host, shelf: Path, python: dict, cuda: str | None, told: str
):
    module = f"class version:\n    cuda = {cuda!r}\n".encode()
    plan = host.plan([python, toys.conda(shelf, "pytorch", {f"{toys.SITE}/torch.py": module})], verify=["torch"])
    assert host.build(plan).rc == 0

    assert host.call("list", str(host.root)).last["torch_cuda"] == told


@pytest.mark.parametrize("outcomes", [pytest.param((), marks=pytest.mark.long), ({"final": False},)])
def test_an_environment_in_use_is_not_removed(host: Host, plan: dict, outcomes: tuple):
    job = lease(host, plan, *outcomes)

    answer = host.call("remove", str(host.root), plan["id"])

    assert answer.rc == 1 and answer.last["used_by"] == [job.name]
    assert host.build(plan).last["reused"]
    assert host.call("gc", str(host.root), "0", "0").last["kept"][0]["used_by"] == [job.name]
    assert (host.prefix(plan) / "READY").exists()


@pytest.mark.parametrize("ends", ["final", pytest.param("gone", marks=pytest.mark.long)])
def test_a_job_that_is_over_uses_nothing(host: Host, plan: dict, ends: str):
    job = lease(host, plan, {"final": True})
    if ends == "gone":
        shutil.rmtree(job)

    answer = host.call("remove", str(host.root), plan["id"])

    assert answer.last["removed"] and answer.last["packages"] == 4 and answer.last["freed"] > 0
    assert list((host.root / "envs").iterdir()) == [] and list((host.root / "pkgs").iterdir()) == []
    assert host.build(plan).last["reused"] is False


def test_packages_of_another_environment_stay(host: Host, plan: dict):
    other = {**plan, "id": "another0", "packages": plan["packages"][:2]}
    host.build(other)

    assert host.call("remove", str(host.root), plan["id"]).last["packages"] == 2
    assert host.call("repair", str(host.root), other["id"]).last["mended"]["missing"] == 0
    assert len(list((host.root / "pkgs").iterdir())) == 2


def test_there_is_none_to_remove(host: Host, plan: dict):
    assert host.call("remove", str(host.root), "nosuchid").last["why"] == "there is none"


def test_what_was_not_used_for_long_goes_but_for_the_last_ones(host: Host, plan: dict):
    plans = [{**plan, "id": f"number{number}"} for number in range(4)]
    for each in plans:
        host.build(each)
    for number, each in enumerate([plan, *plans]):
        then = time.time() - (40 - 5 * number) * DAY_S
        os.utime(host.prefix(each) / "READY", (then, then))

    told = host.call("gc", str(host.root), "22", "2").last

    assert sorted(told["removed"]) == sorted([plan["id"], "number0", "number1"])
    assert told["packages"] == 0
    assert sorted(os.listdir(host.root / "envs")) == ["number2", "number3"]


def test_looking_at_environments_does_not_make_them_young(host: Host, plan: dict):
    job = lease(host, plan, {"final": True})
    then = round(time.time()) - 40 * DAY_S
    uses = host.root / "uses" / plan["id"]
    for path in (job / "attempts" / "1" / "outcome.json", uses, host.prefix(plan) / "READY"):
        os.utime(path, (then, then))

    looks = [host.call("list", str(host.root)).last for _ in range(2)]
    dry = host.call("gc-dry", str(host.root), "30", "0").last

    assert [(look["used"], look["used_by"]) for look in looks] == [(then, [])] * 2
    assert dry["removed"] == [plan["id"]] and dry["freed"] > 0 and (host.prefix(plan) / "READY").exists()
    assert host.call("gc", str(host.root), "50", "0").last["removed"] == []
    assert host.call("list", str(host.root)).last["used"] == then
    assert list(uses.iterdir()) == []
    assert host.call("gc", str(host.root), "30", "0").last["removed"] == [plan["id"]]


def test_an_environment_was_last_used_when_its_last_job_ended(host: Host, plan: dict):
    job = lease(host, plan, {"final": True})
    then = round(time.time()) - 40 * DAY_S
    for path in (host.root / "uses" / plan["id"], host.prefix(plan) / "READY"):
        os.utime(path, (then, then))

    used = host.call("list", str(host.root)).last["used"]

    assert used == (job / "attempts" / "1" / "outcome.json").stat().st_mtime
