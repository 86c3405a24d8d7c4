"""The lock of a project: a Python of a mirror, the wheels that uv found, and when it is made again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterfn import LockError
from tests.lock.conftest import sha256
from tests.unit.environment.shelf import HOST, Shelf, locked, where
from tests.unit.environment.test_lock import HEAD, PYTHON

ARM = replace(HOST, platform="linux-aarch64")


def rows(lock: Any, platform: str = "linux-64") -> list[tuple[str, str, str]]:
    return sorted((each.manager, each.name, each.version) for each in lock.on(platform))


def test_a_lock_that_fits_asks_neither_uv_nor_a_mirror(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    shelf.wheel("toy")
    shelf.pyproject('"toy"')
    first = shelf.lock()
    shelf.said.clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("clusterfn.environment.uv.find_uv", None)

    assert shelf.lock() == first
    assert shelf.said == [] and shelf.pythons == ["3.11"]


def test_a_changed_project_keeps_its_python_and_says_what_changed(shelf: Shelf):
    shelf.wheel("toy")
    shelf.wheel("more")
    shelf.pyproject('"toy"')
    shelf.lock()
    shelf.pyproject('"toy", "more"')

    lock = shelf.lock()

    assert ("pip", "more", "1.0") in rows(lock)
    assert shelf.pythons == ["3.11"]
    assert shelf.said[-1].endswith(": new: more") and "pyproject.toml has changed" in shelf.said[-2]


def test_a_project_that_admits_the_python_of_its_lock_no_longer_gets_another(shelf: Shelf):
    shelf.wheel("toy")
    shelf.pyproject('"toy"')
    shelf.lock()
    shelf.pyproject('"toy"', python=">=3.12")

    assert shelf.lock().python_package("linux-64").version == "3.12.7"


def test_a_host_of_another_platform_is_added_and_the_first_stays(shelf: Shelf):
    shelf.wheel("toy", "1.0", "cp311-cp311-manylinux_2_17_x86_64")
    shelf.wheel("toy", "1.0", "cp311-cp311-manylinux_2_17_aarch64")
    shelf.pyproject('"toy"')
    first = shelf.lock()

    both = shelf.lock(target=replace(ARM, glibc="2.17"))

    assert set(both.platforms) == {"linux-64", "linux-aarch64"}
    assert both.id("linux-64") == first.id("linux-64")
    assert [each.file for each in both.on("linux-aarch64") if each.name == "toy"] == [
        "toy-1.0-cp311-cp311-manylinux_2_17_aarch64.whl"
    ]
    assert both.virtual_packages("linux-64")["__glibc"] == "2.28"
    assert shelf.lock() == both


def test_the_patch_of_the_mirrors_python_decides_about_markers(shelf: Shelf):
    shelf.wheel("early")
    shelf.wheel("late")
    shelf.pyproject("\"early; python_full_version < '3.11.3'\", \"late; python_full_version >= '3.11.3'\"")

    assert ("pip", "late", "1.0") in rows(shelf.lock())
    assert ("pip", "early", "1.0") not in rows(shelf.lock())


@pytest.mark.parametrize(
    "marker", ["platform_release >= '20.0' and sys_platform == 'darwin'", "platform_version > '5'", "os_name == 'nt'"]
)
def test_a_marker_of_another_system_leaves_its_package_out(shelf: Shelf, marker: str):
    shelf.pylock(locked("toy"), locked("other", more=where(marker)))

    assert [row[1] for row in rows(shelf.lock(name="pylock.toml")) if row[0] == "pip"] == ["toy"]


def test_a_wheel_for_later_patches_alone_is_found_for_such_a_python(shelf: Shelf):
    shelf.pylock(locked("toy", more='requires-python = ">=3.11.5"'))

    assert shelf.lock("pylock.toml").python_package("linux-64").version == "3.11.7"  # and not 3.12


@pytest.mark.parametrize(("wanted", "expected"), [(">=3.12", "3.12"), ("<3.11", "3.10"), (">=3.9", "3.11")])
def test_python_is_the_callers_or_the_nearest_that_the_project_admits(shelf: Shelf, wanted: str, expected: str):
    shelf.wheel("toy")
    shelf.pyproject('"toy"', python=wanted)

    assert shelf.lock().python_package("linux-64").version == f"{expected}.7"


OLD_LOCK = PYTHON.replace("3.11", "3.8")
OLD = "needs 3.9 or newer"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("environment.yml", "dependencies: [python=3.8, numpy]\n", f"^environment.yml wants Python 3.8, .* {OLD}"),
        ("environment.yml", "dependencies: [python=3.7, pip: [toy]]\n", f"^environment.yml wants Python 3.7, .* {OLD}"),
        ("gpu.conda-lock.yml", HEAD % "" + OLD_LOCK, f"^gpu.conda-lock.yml wants Python 3.8, .* {OLD}"),
        (
            "pyproject.toml",
            "[project]\nname = 'a'\nversion = '1'\nrequires-python = '<3.9'\n",
            "no Python 3.9 or newer",
        ),
    ],
)
def test_a_python_that_runs_no_function_is_refused_and_no_lock_is_written(shelf, name, text, message):
    shelf.minors = ("3.7", "3.8", *shelf.minors)
    shelf.wheel("toy")
    shelf.write(text, name)

    with pytest.raises(LockError, match=message) as caught:
        shelf.lock(name)

    assert caught.value.hint
    assert [path.name for path in shelf.project.iterdir()] == [name]


def test_a_python_that_the_mirror_or_the_wheels_do_not_have_gives_way_to_the_nearest(shelf: Shelf):
    shelf.wheel("toy", "1.0", "cp310-cp310-manylinux_2_17_x86_64")
    shelf.write("toy\n", "requirements.txt")

    lock = shelf.lock("requirements.txt")

    assert lock.python_package("linux-64").version == "3.10.7"
    assert "no solution for Python 3.11: the environment has 3.10.7, the nearest that works" in shelf.said

    shelf.pyproject("", python=">=3.13")
    with pytest.raises(LockError, match=r"there is no solution for Python 3\.13"):
        shelf.lock()


def test_nothing_is_written_where_nothing_is_found(shelf: Shelf):
    shelf.pyproject('"toy"')

    with pytest.raises(LockError, match=r"there is no solution for pyproject\.toml") as caught:
        shelf.lock()

    assert "toy" in " ".join(caught.value.evidence)
    assert shelf.pythons == []  # the mirror was not asked
    assert [path.name for path in shelf.project.iterdir()] == ["pyproject.toml"]


def test_a_wheel_without_a_hash_gets_one(shelf: Shelf):
    wheel = shelf.wheel("toy")
    text = '[[packages]]\nname = "toy"\nversion = "1.0"\nwheels = [{path = "../wheels/toy-1.0-py3-none-any.whl"}]\n'
    shelf.write(text, "pylock.toml")

    lock = shelf.lock("pylock.toml")

    assert {each.name: each.sha256 for each in lock.packages}["toy"] == sha256(wheel)


def test_a_change_of_a_uv_lock_makes_the_lock_again_and_its_torch_is_not_chosen(shelf: Shelf):
    for version in ("2.6.0", "2.7.1"):
        shelf.wheel("torch", version)
    shelf.pyproject('"torch<2.7"', shelf.settings)
    shelf.uv_lock()
    first = rows(shelf.lock("uv.lock"))
    shelf.pyproject('"torch"', shelf.settings)
    shelf.uv_lock().write_text((shelf.project / "uv.lock").read_text())

    spec = shelf.read("uv.lock")

    assert ("pip", "torch", "2.6.0") in first
    assert spec.is_locked
    assert ("pip", "torch", "2.6.0") in rows(shelf.lock("uv.lock"))  # uv keeps what is locked


def test_what_was_asked_for_and_private_indexes_reach_the_environment(shelf: Shelf):
    shelf.wheel("toy", requires="deep")
    shelf.wheel("deep")
    index = '[[tool.uv.index]]\nname = "ours"\nurl = "https://ours.invalid/simple"\nexplicit = true\n'
    shelf.pyproject('"toy"', index)
    made = shelf.environment(shelf.read())

    assert made.wanted == ("toy",)
    assert made.indexes == (("ours", "https://ours.invalid/simple"),)
    assert made.interpreter.version == (3, 11)
