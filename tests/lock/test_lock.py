"""Locks from the lab's channel by the real py-rattler."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from clusterfn import LockError
from clusterfn.environment import package_sources, resolve, solver
from tests.lab.channel import Channel
from tests.lock.conftest import HOST, Bench, names

pytestmark = pytest.mark.lab


def test_a_lock_is_written_beside_its_file_with_hashes_and_what_was_supposed(bench: Bench, channel: Channel):
    lock = bench.lock("  - numpy\n  - greeter\n")

    assert lock.path == bench.folder / "environment.conda-lock.yml"
    assert names(lock)["numpy"] == "2.1.3 py311h0123456_0"
    assert lock.python("linux-64") == (3, 11)
    assert lock.virtual_packages("linux-64")["__glibc"] == "2.28"
    greeter = next(each for each in lock.packages if each.name == "greeter")
    index = json.loads((channel.root / "main" / "noarch" / "repodata.json").read_text())
    assert greeter.sha256 == index["packages.conda"][greeter.file]["sha256"]
    assert any(line.startswith("solving environment.yml for linux-64 (glibc 2.28, no GPU)") for line in bench.said)


def test_conda_lock_itself_reads_the_lock(bench: Bench):
    lockfile = pytest.importorskip("conda_lock.lockfile")
    lock = bench.lock("  - numpy\n")

    read = lockfile.parse_conda_lock_file(lock.path)

    assert {(each.name, each.version, each.url, each.hash.sha256) for each in read.package} == {
        (each.name, each.version, each.url, each.sha256) for each in lock.packages
    }
    numpy = next(each for each in read.package if each.name == "numpy")
    assert numpy.dependencies["python"].startswith(">=3.11") or "3.11" in numpy.dependencies["python"]


def test_a_version_may_be_pinned_in_each_way_that_conda_knows(bench: Bench):
    pinned = ["numpy=1.26.4=py311h0123456_0", "pytorch==2.5.1", "python =3.11", "pip 25.3", "setuptools 80.*"]

    found = names(bench.lock("".join(f"  - {each}\n" for each in pinned)))

    assert found["numpy"] == "1.26.4 py311h0123456_0"
    assert found["pytorch"].startswith("2.5.1 ") and found["python"].startswith("3.11.")
    assert found["pip"].startswith("25.3 ") and found["setuptools"].startswith("80.9.0 ")


def test_a_lock_that_fits_needs_no_solver(bench: Bench, no_solver):
    first = bench.lock("  - numpy\n  - six\n")
    no_solver()
    bench.said.clear()

    again = bench.lock("  # the same, in another order\n  - six\n  - numpy\n")

    assert again.id("linux-64") == first.id("linux-64")
    assert bench.said == []


def test_a_lock_does_for_every_host_that_has_at_least_what_it_was_solved_for(bench: Bench, no_solver):
    bench.locked("  - pytorch\n", replace(HOST, cuda="11.8"))
    no_solver()

    newer = bench.lock("  - pytorch\n", replace(HOST, glibc="2.39", cuda="12.8", python="3.12"))
    without = bench.lock("  - pytorch\n", replace(HOST, cuda=None))

    assert newer.id("linux-64") == without.id("linux-64")


def test_hosts_with_different_limits_agree_on_a_lock_instead_of_undoing_each_others(bench: Bench, no_solver):
    bench.locked("  - pytorch\n", replace(HOST, cuda="11.8"))
    bench.lock("  - pytorch\n", replace(HOST, glibc="2.17"))
    assert "was solved for glibc 2.28, and the host has 2.17" in bench.said[-2]
    no_solver()

    assert "cuda118" in names(bench.lock("  - pytorch\n", replace(HOST, cuda="12.8")))["pytorch"]


def test_a_changed_specification_is_solved_again_and_the_difference_is_said(bench: Bench):
    bench.lock("  - numpy =1.26\n  - six\n")
    lock = bench.lock("  - numpy >=2\n  - tqdm\n")

    assert names(lock)["numpy"].startswith("2.1.3")
    assert "environment.yml has changed" in bench.said[-2]
    assert bench.said[-1].endswith("numpy 1.26.4 -> 2.1.3; new: tqdm; gone: six")


def test_torch_among_condas_packages_gets_condas_name(bench: Bench):
    with pytest.raises(LockError) as caught:
        bench.lock("  - torch\n")

    assert caught.value.hint.startswith("conda calls it pytorch")


@pytest.mark.parametrize(
    ("cuda", "build"),
    [
        (None, "cpu"),
        pytest.param("11.8", "cuda118", marks=pytest.mark.long),
        ("12.4", "cuda128"),  # CUDA 12.8 runs on any driver for CUDA 12
        pytest.param("12.8", "cuda128", marks=pytest.mark.long),
    ],
)
def test_the_build_of_pytorch_is_chosen_by_the_driver(bench: Bench, cuda: str | None, build: str):
    lock = bench.lock("  - pytorch\n", replace(HOST, cuda=cuda))

    assert names(lock)["pytorch"].startswith(f"2.7.1 {build}_generic_py311_")


def test_a_failed_solve_shows_the_solvers_sentence_alone(bench: Bench):
    with pytest.raises(LockError, match=r"there is no solution for environment\.yml") as caught:
        bench.lock("  - nosuchpackage\n")

    assert len(caught.value.evidence) == 1
    assert "No candidates were found for nosuchpackage *" in caught.value.evidence[0]
    assert not (bench.folder / "environment.conda-lock.yml").exists()


@pytest.mark.parametrize(
    "written",
    [
        "channels: ['http://ada:sekret@127.0.0.1:9/main']\ndependencies: [nosuchpackage]\n",
        pytest.param("channels: ['http://nobody.invalid/main']\ndependencies: [six]\n", marks=pytest.mark.long),
        "channels: ['{channel}']\ndependencies:\n- pip:\n  - -i http://ada:se@kret@127.0.0.1:9/simple\n  - x\n",
    ],
)
def test_a_channel_that_does_not_answer_is_not_called_a_missing_solution(bench: Bench, written: str):
    path = bench.folder / "environment.yml"
    path.write_text(written.format(channel=bench.channel))

    with pytest.raises(
        LockError, match=r"environment\.yml could not be locked: a (channel|package index) cannot"
    ) as told:
        bench.lock_of(path)

    shown = str(told.value) + "".join(bench.said)
    assert "127.0.0.1" in shown or "nobody.invalid" in shown
    assert "kret" not in shown
    assert "proxy" in (told.value.hint or "") and "loosen" not in shown


@pytest.mark.parametrize("package", ["http://127.0.0.1:9/main::six", "pip:six"])
def test_without_a_channel_the_error_of_packages_names_the_way_that_needs_none(bench: Bench, monkeypatch, package: str):
    monkeypatch.setattr(package_sources, "usual_channels", lambda: ("http://127.0.0.1:9/main",))

    with pytest.raises(LockError, match="could not be locked: a channel cannot be reached") as told:
        solver.lock_for(resolve.read_specification(None, (package,)), HOST, bench.said.append)

    assert 'environment="requirements.txt[python:host]"' in str(told.value.hint)


def test_the_nearest_python_that_solves_is_taken_and_said(bench: Bench):
    lock = bench.lock("  - numpy =1.26\n", replace(HOST, python="3.13"))

    assert lock.python("linux-64") == (3, 11)
    assert "no solution for Python 3.13: the environment has 3.11.7, the nearest that works" in bench.said


def test_a_python_that_was_named_is_not_replaced(bench: Bench):
    with pytest.raises(LockError, match="there is no solution"):
        bench.lock("  - python =3.13\n  - numpy =1.26\n")


EXPORTED = """\
  - numpy=1.26.4=py311hfoe1234_0
  - python=3.11.7=h1234567_5
  - six=1.17.0=pyhd3eb1b0_1
prefix: C:\\Users\\ada\\miniconda3\\envs\\ml
"""


def test_an_exported_file_is_recognised_and_locked_without_its_builds(bench: Bench):
    lock = bench.lock(EXPORTED)

    assert names(lock)["numpy"] == "1.26.4 py311h0123456_0"
    said = "\n".join(bench.said)
    assert (
        r"is an export of C:\Users\ada\miniconda3\envs\ml (line 6): the build strings of 3 packages are dropped" in said
    )
    assert "conda env export --from-history" in said


def test_a_platform_is_added_to_a_lock_and_the_others_stay(bench: Bench, channel: Channel):
    bench.channel = two_platforms(channel, bench.folder / "both").as_uri()
    bench.lock("  - numpy =1.26\n")
    bench.lock("  - numpy =1.26\n", replace(HOST, platform="linux-aarch64", glibc="2.17"))

    both = bench.lock_of(bench.folder / "environment.conda-lock.yml")

    assert names(both).keys() == names(both, platform="linux-aarch64").keys()
    assert "environment.conda-lock.yml has nothing for linux-aarch64" in bench.said[-2]
    assert both.virtual_packages("linux-64")["__glibc"] == "2.28"
    assert both.virtual_packages("linux-aarch64")["__glibc"] == "2.17"


def two_platforms(channel: Channel, folder: Path) -> Path:
    """An index that claims the channel's packages for another platform too."""
    for subdir in ("linux-64", "noarch", "linux-aarch64"):
        source = channel.root / "main" / subdir.replace("aarch64", "64") / "repodata.json"
        (folder / subdir).mkdir(parents=True)
        (folder / subdir / "repodata.json").write_text(source.read_text().replace("linux-64", subdir))
    return folder


def test_a_given_lock_is_never_solved(bench: Bench, no_solver):
    path = bench.locked("  - six\n")
    no_solver()

    assert "six" in names(bench.lock_of(path))
    with pytest.raises(LockError, match=r"was solved for glibc 2\.28, and the host has 2\.17"):
        bench.lock_of(path, replace(HOST, glibc="2.17"))


def test_a_lock_that_others_made_is_taken_as_it_is(bench: Bench, no_solver):
    path = bench.locked("  - six\n")
    path.write_text(re.sub(r"  custom_metadata:\n(    .*\n)+", "", path.read_text()))
    no_solver()

    assert "six" in names(bench.lock("  - tqdm\n", replace(HOST, glibc="2.17", cuda="12.8")))


def test_an_environments_name_does_not_depend_on_addresses(bench: Bench, channel: Channel):
    first = bench.lock("  - six\n")
    with channel.served() as served:
        bench.channel = served.url
        second = bench.lock("  - six\n")

    assert first.packages != second.packages
    assert first.id("linux-64") == second.id("linux-64")


@pytest.mark.long
def test_a_python_that_is_too_old_for_the_channel_gets_the_nearest(bench: Bench):
    assert bench.lock("  - six\n", replace(HOST, python="3.7")).python("linux-64") == (3, 9)


def test_for_a_reason_of_the_callers_it_is_solved_for_this_host_alone(bench: Bench):
    bench.locked("  - pytorch\n", replace(HOST, cuda="11.8"))
    path, reason = bench.folder / "environment.yml", "the card is too new for CUDA 11.8"

    lock = bench.lock_of(path, replace(HOST, cuda="12.8"), other_reason=reason)

    assert "cuda128" in names(lock)["pytorch"]
    assert bench.said[-2].endswith(reason)
