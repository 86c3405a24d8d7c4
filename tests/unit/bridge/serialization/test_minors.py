"""Calls between two minor versions of Python, there and back: all that holds code travels as text."""

from __future__ import annotations

import pytest

from tests.fixtures import roundtrip
from tests.unit.bridge.serialization.test_calls import CALLS, GROUPS, version

PYTHONS = {version(python): python for python in roundtrip.pythons()}
USUAL = (("3.9", "3.13"), ("3.13", "3.9"))
ALL = [(caller, there) for caller in PYTHONS for there in PYTHONS if caller != there]


def pairs(those, usual):
    """Those of the pairs that this machine has: all but the usual ones are left to `make test-long`."""
    return [
        pytest.param(*pair, marks=() if pair in usual else pytest.mark.long, id="{}-to-{}".format(*pair))
        for pair in those
        if PYTHONS.keys() >= set(pair)
    ]


# Groups of exceptions are of Python 3.11: without them there is nothing to bring back.
UNKNOWN_THERE = {"3.9": GROUPS, "3.10": GROUPS}


def not_kept(caller, there, script, folder, *options):
    argv = [*options, str(CALLS / script)]
    report = roundtrip.run(PYTHONS[caller], argv, folder, CALLS, there=(PYTHONS[there], there))
    assert report.pop("*said*") == ""
    assert report
    return {promise: how for promise, how in report.items() if how != "kept"}


@pytest.mark.parametrize(("caller", "there"), pairs(ALL, USUAL))
def test_each_shape_of_code_gives_what_it_gives_here(caller, there, tmp_path):
    assert not_kept(caller, there, "shapes.py", tmp_path) == {}


WITHIN = [pytest.param(each, marks=() if each == "3.11" else pytest.mark.long) for each in PYTHONS]


@pytest.mark.parametrize("python", WITHIN)
def test_within_one_version_each_shape_does_too(python, tmp_path):
    assert not_kept(python, python, "shapes.py", tmp_path) == {}


@pytest.mark.parametrize(("caller", "there"), pairs(ALL, USUAL))
def test_what_arrives_within_one_version_arrives_between_two(caller, there, tmp_path):
    failed = not_kept(caller, there, "script.py", tmp_path)

    assert failed.keys() <= set(UNKNOWN_THERE.get(there, ()))


@pytest.mark.skipif("3.9" not in PYTHONS or "3.11" not in PYTHONS, reason="Python 3.9 or 3.11 is not installed here")
def test_parts_of_a_file_go_and_come_back_where_the_whole_cannot_be_read(tmp_path):
    assert not_kept("3.11", "3.9", "newer.py", tmp_path) == {}


@pytest.mark.parametrize(("caller", "there"), pairs(ALL, USUAL[1:2]))
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
