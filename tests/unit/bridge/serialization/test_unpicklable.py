"""Where in a value the part is that cannot be pickled."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import os
import socket
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterfn.hosts import serialization

where = serialization.part("unpicklable").where
unpicklable = serialization.part("unpicklable")
LOCK = threading.Lock()
WHY = ": cannot pickle '_thread.lock' object"


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine has time to find the part."""
    monkeypatch.setattr(unpicklable, "LIMIT_S", 60.0)


class Holder:
    def __init__(self, lock):
        self.lock = lock


class Slotted:
    __slots__ = ("lock",)

    def __init__(self, lock):
        self.lock = lock


@dataclass
class Config:
    inner: Any


class Leaves:
    """Keeps a lock that it does not pickle, beside one that it does."""

    def __init__(self):
        self.ignored, self.kept = LOCK, LOCK

    def __getstate__(self):
        return {"kept": self.kept}


class Refuses:
    def __reduce__(self):
        raise ValueError("not me")

    def __repr__(self):
        raise ValueError("nor so")

    __hash__ = object.__hash__


class ListOf(list):
    pass


def closure(lock):
    return lambda: lock


def with_default(a, b=LOCK, *, c=1):
    return a


def with_keyword_default(*, c=LOCK):
    return c


with_default.__module__ = with_keyword_default.__module__ = "__main__"


def by_value(code):
    scope = {"LOCK": LOCK, "__name__": "__main__"}
    exec(code, scope)
    return scope["f"]


PATHS = [
    (LOCK, "result" + WHY),
    ({"model": LOCK}, "result['model']" + WHY),
    ({1: {"a": [0, LOCK]}}, "result[1]['a'][1]" + WHY),
    ({1: {"a": [0, (1, LOCK)]}}, "result[1] … [1][1]" + WHY),
    ({1, LOCK}, "result (an element)" + WHY),
    (Holder(Holder(LOCK)), "result.lock.lock" + WHY),
    (Slotted([LOCK]), "result.lock[0]" + WHY),
    (Config(Config({"x": LOCK})), "result.inner.inner['x']" + WHY),
    (Leaves(), "result.kept" + WHY),
    (ListOf([1, LOCK]), "result[1]" + WHY),
    (closure(LOCK), "result (closure variable lock)" + WHY),
    (by_value("def f(): return LOCK"), "result (global LOCK)" + WHY),
    (by_value("def f():\n  def g(): return LOCK\n  return g"), "result (global LOCK)" + WHY),
    (with_default, "result (default 0)" + WHY),
    (with_keyword_default, "result (default c)" + WHY),
    (functools.partial(print, LOCK), "result.args[0]" + WHY),
    (Holder(LOCK).__init__, "result.__self__.lock" + WHY),
    ({Refuses(): 1}, "result (key <Refuses>): pickling it calls Refuses.__reduce__, which raised ValueError: not me"),
    ([Refuses()], "result[0]: pickling it calls Refuses.__reduce__, which raised ValueError: not me"),
    ({"k" * 200: LOCK}, f"result['{'k' * 59}…]" + WHY),
]


@pytest.mark.parametrize(("value", "path"), PATHS, ids=[path for _, path in PATHS])
def test_the_path_is_named(value, path):
    assert where(value, "result") == path


def test_a_cycle_ends():
    value = {"a": [1]}
    value["a"] += [value, LOCK]

    assert where(value, "result") == "result['a'][2]" + WHY


def test_the_last_of_a_million_is_found_without_pickling_each_by_itself(monkeypatch):
    monkeypatch.setattr(unpicklable, "LIMIT_S", 60.0)
    pickled, failure = [], unpicklable.pickling_failure
    counted = lambda *told, **more: pickled.append(told) or failure(*told, **more)  # noqa: E731
    monkeypatch.setattr(unpicklable, "pickling_failure", counted)

    assert where([*range(1_000_000), LOCK], "result") == "result[1000000]" + WHY
    assert len(pickled) < 40


def test_a_deep_chain_ends_soon(monkeypatch):
    monkeypatch.setattr(unpicklable, "LIMIT_S", 0.05)
    value = LOCK
    for _ in range(300):
        value = [value]
    looks = []
    monkeypatch.setattr(
        unpicklable, "pickling_failure", lambda *told, **more: looks.append(time.sleep(0.02)) or WHY[2:]
    )

    assert where(value, "result").startswith("result[0]")
    assert len(looks) < 100, "it was followed to its end, however long that takes"


def test_parts_that_only_fail_together_are_left_at_the_whole():
    class Whole:
        def __reduce__(self):
            return "not a name of anything"

    assert where([1, Whole()], "result").startswith("result[1]: ")


def test_what_can_be_pickled_is_said_so():
    assert where([1], "result") == "result: cannot be pickled"


async def later():
    return 1


@pytest.fixture
def coroutine():
    made = later()
    yield made
    made.close()


def test_a_coroutine_is_to_be_awaited(coroutine):
    assert "await it" in unpicklable.instead_of(coroutine)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: (n for n in ()), "return a list"),
        (Path(os.devnull).open, "outputs="),
        (threading.Lock, "lock, thread or process"),
        (threading.Thread, "lock, thread or process"),
        (concurrent.futures.Future, "lock, thread or process"),
        (socket.socket, "a connection"),
        (lambda: sqlite3.connect(":memory:"), "the rows"),
        (lambda: os, "the module itself can be imported here"),
        (lambda: memoryview(b""), "bytes"),
        (object, "plain data"),
    ],
)
def test_what_to_return_instead_is_said_for_each_kind(make, hint):
    part = make()

    assert hint in unpicklable.instead_of(part)
    getattr(None if part is os else part, "close", int)()


class ByKey(dict):
    __getattr__ = dict.__getitem__


class Nameless:
    def __getattribute__(self, name):
        raise ValueError(f"no {name}")


class Classless:
    @property
    def __class__(self):
        raise KeyError("class")


class Silent:
    def __getstate__(self):
        raise NotImplementedError


class Speaks:
    def __reduce__(self):
        raise TypeError("cannot pickle a Speaks: it has a window")


def of_unreadable():
    """Made here: other tests look at all classes of this process."""

    class Unreadable(type):
        def __getattribute__(cls, name):
            raise RuntimeError(f"no {name}")

    class OfUnreadable(metaclass=Unreadable):
        pass

    return OfUnreadable()


class NoItems(dict):
    def items(self):
        raise ValueError("no items")


class NoTuple:
    def __reduce_ex__(self, protocol):
        return list, (), None, 5


BROKEN = [
    (lambda: ByKey(a=LOCK), "result[0]['a']" + WHY),
    (Nameless, "result[0]: pickling it calls Nameless.__getattribute__, which raised ValueError: no "),
    (Classless, "result[0]: pickling it calls Classless.__class__, which raised KeyError: 'class'"),
    (Silent, "result[0]: pickling it calls Silent.__getstate__, which raised NotImplementedError"),
    (Speaks, "result[0]: cannot pickle a Speaks: it has a window"),
    (of_unreadable, "result[0]: pickling it calls Unreadable.__getattribute__, which raised RuntimeError: no "),
    (lambda: NoItems(a=LOCK), "result[0]: pickling it calls NoItems.items, which raised ValueError: no items"),
    (NoTuple, "result[0]: fourth element of the tuple"),
]


@pytest.mark.parametrize(("make", "path"), BROKEN, ids=[path for _, path in BROKEN])
def test_an_object_whose_own_code_raises_is_named_and_breaks_nothing(make, path):
    said, part = unpicklable.find([make()], "result")

    assert said.startswith(path)
    assert unpicklable.instead_of(part)


class Linked:
    def __init__(self, rest):
        self.rest = rest


DEEP = {
    "instances": Linked, "lists": lambda inner: [inner], "dicts": lambda inner: {"a": inner},
    "partials": lambda inner: functools.partial(print, inner), "exceptions": ValueError,
    "deques": lambda inner: collections.deque([inner]), "closures": lambda inner: lambda: inner,
}  # fmt: skip


@pytest.mark.parametrize("wrap", DEEP.values(), ids=DEEP)
def test_what_is_nested_too_deep_is_said_to_be_with_its_depth(wrap):
    value = 1
    for _ in range(2000):
        value = wrap(value)

    assert where(value, "result") == "result: it is nested too deep to pickle: at least 2001 levels"
