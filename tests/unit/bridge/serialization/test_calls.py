"""Calls as people write them, there and back through a process of the bridge alone, also of another Python."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import roundtrip

CALLS = roundtrip.HERE / "calls"
TORCH = Path("/opt/clusterfn-lab/envs/torch/bin/python")  # has numpy; made by `make test`
ENDS = ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "CancelledError")
GROUPS = ("a nested group and its own class", "a group of more than a hundred")
# Of which libraries a script has classes; between other versions of them they go in `test_arrays.py`.
OF_LIBRARIES = {
    "made_by_libraries.py": ("attrs", "pydantic"),
    "made_by_calls.py": ("attrs", "pydantic"),
    "postponed.py": ("pydantic",),
}


@functools.cache
def version(python: str) -> str:
    return (
        subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1].rpartition(".")[0]
    )


# What the others pack goes between them below.
PYTHONS = [
    pytest.param(each, id=version(each), marks=() if each == sys.executable else pytest.mark.long)
    for each in roundtrip.pythons()
]


@pytest.mark.parametrize("python", PYTHONS)
def test_each_call_arrives_and_comes_back(python, tmp_path):
    promised = {*roundtrip.promises("script.py"), *(f"{name} arrives as FunctionError" for name in ENDS)} - {*GROUPS}

    report = roundtrip.run(python, [str(CALLS / "script.py")], tmp_path, CALLS)

    assert report.pop("*said*") == "", "rebuilding prints nothing"
    if version(python) not in ("3.9", "3.10"):
        promised |= {*GROUPS}  # of Python 3.11
    assert {promise: report.get(promise) for promise in promised | report.keys()} == dict.fromkeys(promised, "kept")


def test_a_program_run_with_m(tmp_path):
    report = roundtrip.run(sys.executable, ["-m", "project.main"], tmp_path, CALLS)

    assert report == {**dict.fromkeys(roundtrip.promises("project/main.py"), "kept"), "*said*": ""}


@pytest.mark.skipif(not TORCH.exists(), reason="the lab's torch environment, which has numpy, is not there")
def test_arrays_go_and_come_back(tmp_path):
    report = roundtrip.run(str(TORCH), [str(CALLS / "numbers_script.py")], tmp_path, CALLS)

    assert {promise for promise, how in report.items() if how != "kept"} == {"*said*"}


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_a_class_that_a_library_made_goes_and_comes_back(name, tmp_path):
    for library in OF_LIBRARIES[name]:
        pytest.importorskip(library)
    there = (sys.executable, version(sys.executable))
    report = roundtrip.run(sys.executable, [str(CALLS / name)], tmp_path, CALLS, there=there)

    assert {promise: how for promise, how in report.items() if how not in ("kept", "")} == {}


BY_VERSION = {version(python): python for python in roundtrip.pythons()}
USUAL = (("3.9", "3.13"), ("3.13", "3.9"))
ALL = [(caller, there) for caller in BY_VERSION for there in BY_VERSION if caller != there]


def pairs(those, usual):
    """Those of the pairs that this machine has: all but the usual ones are left to `make test-long`."""
    return [
        pytest.param(*pair, marks=() if pair in usual else pytest.mark.long, id="{}-to-{}".format(*pair))
        for pair in those
        if BY_VERSION.keys() >= set(pair)
    ]


# Groups of exceptions are of Python 3.11: without them there is nothing to bring back.
UNKNOWN_THERE = {"3.9": GROUPS, "3.10": GROUPS}


def not_kept(caller, there, script, folder, *options):
    argv = [*options, str(CALLS / script)]
    report = roundtrip.run(BY_VERSION[caller], argv, folder, CALLS, there=(BY_VERSION[there], there))
    assert report.pop("*said*") == ""
    assert report
    return {promise: how for promise, how in report.items() if how != "kept"}


@pytest.mark.parametrize(("caller", "there"), pairs(ALL, USUAL[:1]))
def test_each_shape_of_code_gives_what_it_gives_here(caller, there, tmp_path):
    assert not_kept(caller, there, "shapes.py", tmp_path) == {}


WITHIN = [pytest.param(each, marks=() if each == "3.11" else pytest.mark.long) for each in BY_VERSION]


@pytest.mark.parametrize("python", WITHIN)
def test_within_one_version_each_shape_does_too(python, tmp_path):
    assert not_kept(python, python, "shapes.py", tmp_path) == {}


@pytest.mark.parametrize(("caller", "there"), pairs(ALL, USUAL[1:]))
def test_what_arrives_within_one_version_arrives_between_two(caller, there, tmp_path):
    failed = not_kept(caller, there, "script.py", tmp_path)

    assert failed.keys() <= set(UNKNOWN_THERE.get(there, ()))


@pytest.mark.skipif(
    "3.9" not in BY_VERSION or "3.11" not in BY_VERSION, reason="Python 3.9 or 3.11 is not installed here"
)
def test_parts_of_a_file_go_and_come_back_where_the_whole_cannot_be_read(tmp_path):
    assert not_kept("3.11", "3.9", "newer.py", tmp_path) == {}


@pytest.mark.parametrize(("caller", "there"), pairs(ALL, USUAL[1:]))
def test_what_dataclass_looks_for_in_postponed_annotations_is_there(caller, there, tmp_path):
    # Without -S, the caller alone may have pydantic: what the script does with it needs it on both sides.
    assert not_kept(caller, there, "postponed.py", tmp_path, "-S") == {}


ALIASES = [("3.12", "3.13"), ("3.13", "3.11"), ("3.12", "3.12"), ("3.13", "3.13"), ("3.13", "3.12")]


@pytest.mark.parametrize(("caller", "there"), pairs(ALIASES, ALIASES[:2]))
def test_type_aliases_go_and_come_back(caller, there, tmp_path):
    assert not_kept(caller, there, "aliases.py", tmp_path) == {}


SCRIPTS = ("members", "constructors", "decorated")
FEW = [("3.11", "3.11"), ("3.13", "3.9"), ("3.9", "3.13")]


@pytest.mark.parametrize(("caller", "there"), pairs(FEW, FEW[:2]))
@pytest.mark.parametrize("script", [f"{each}_script.py" for each in SCRIPTS])
def test_what_a_script_does_with_classes_goes_and_comes_back(caller, there, script, tmp_path):
    assert not_kept(caller, there, script, tmp_path) == {}
