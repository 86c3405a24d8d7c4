"""Pickles that name modules which another version of a package does not have."""

from __future__ import annotations

import pickle
import sys
import types
from typing import Optional, Protocol, TypedDict, TypeVar

import pytest

from tests.sent import pickled, unpickled


@pytest.fixture
def package(monkeypatch):
    """A package `moving` whose modules are gone; it has a class Foo."""
    module = types.ModuleType("moving")
    module.__path__ = []  # type: ignore[attr-defined]
    module.Foo = type("Foo", (), {"__module__": "moving"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "moving", module)
    return module


def named(module: str, name: str) -> bytes:
    return pickle.dumps(len, 2).replace(b"c__builtin__\nlen\n", f"c{module}\n{name}\n".encode())


def test_an_object_of_a_private_module_is_found_in_the_package(package):
    assert unpickled(named("moving._private", "Foo")) is package.Foo


def test_an_object_of_a_public_module_is_not_taken_for_another_of_that_name(package):
    with pytest.raises(ModuleNotFoundError):
        unpickled(named("moving.models", "Foo"))


class Counts:
    """Raises in its own code, which must not run twice."""

    calls = 0

    def __setstate__(self, state):
        type(self).calls += 1
        raise AttributeError("no such part")


def test_an_error_of_the_users_own_code_is_that_error_and_runs_it_once():
    value = Counts()
    value.__dict__["a"] = 1

    with pytest.raises(AttributeError, match="no such part"):
        unpickled(pickle.dumps(value))
    assert Counts.calls == 1


def test_a_submodule_that_the_other_version_does_not_have_keeps_no_function_from_running(package, monkeypatch):
    monkeypatch.setitem(sys.modules, "moving.linear", types.ModuleType("moving.linear"))
    package.__package__, package.linear = "moving", types.SimpleNamespace(norm=abs)
    scope = {"moving": package, "__name__": "__main__"}
    exec("def norm(): return moving.linear.norm(-3)", scope)
    data = pickled(scope["norm"])

    monkeypatch.delitem(sys.modules, "moving.linear")

    assert b"moving.linear" in data
    assert unpickled(data)() == 3


@pytest.mark.parametrize("name", ["no_such_package", "no_such_package.linear"])
def test_a_package_that_is_missing_altogether_is_an_error(name):
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        unpickled(named(name, "anything"))


def test_a_type_that_only_annotations_name_keeps_nothing_from_being_loaded(package):
    package.__file__ = "/site-packages/moving/__init__.py"
    buffer = types.new_class("_Buffer", (Protocol[TypeVar("T")],))
    kinds = (buffer, TypedDict("_Table", {"a": int}), TypeVar("_Item_co"))
    for kind in kinds:
        kind.__module__ = "moving"
        setattr(package, kind.__name__, kind)
    hints = [Optional[buffer[int]], *(list[kind] for kind in kinds[1:])]
    packed = pickled(hints)

    assert unpickled(packed) == hints
    for kind in kinds:
        delattr(package, kind.__name__)
    assert len(unpickled(packed)) == 3
