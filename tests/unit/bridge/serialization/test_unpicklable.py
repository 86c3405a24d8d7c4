"""Where in a value the part is that cannot be pickled."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import socket
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.sent import look_patiently, why_not_returned

LOCK = threading.Lock()
WHY = ": cannot pickle '_thread.lock' object"


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    look_patiently(monkeypatch)


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
    (LOCK, "result" + WHY), ({"model": LOCK}, "result['model']" + WHY),
    ({1: {"a": [0, (1, LOCK)]}}, "result[1] … [1][1]" + WHY), ({1, LOCK}, "result (an element)" + WHY),
    (Holder(Holder(LOCK)), "result.lock.lock" + WHY), (Slotted([LOCK]), "result.lock[0]" + WHY),
    (Config(Config({"x": LOCK})), "result.inner.inner['x']" + WHY), (Leaves(), "result.kept" + WHY),
    (closure(LOCK), "result (closure variable lock)" + WHY),
    (by_value("def f(): return LOCK"), "result (global LOCK)" + WHY), (with_default, "result (default 0)" + WHY),
    (with_keyword_default, "result (default c)" + WHY), (functools.partial(print, LOCK), "result.args[0]" + WHY),
    (Holder(LOCK).__init__, "result.__self__.lock" + WHY),
    ({Refuses(): 1}, "result (key <Refuses>): pickling it raised ValueError: not me"),
    ([Refuses()], "result[0]: pickling it raised ValueError: not me"),
    ({"k" * 200: LOCK}, f"result['{'k' * 59}…]" + WHY),
]  # fmt: skip


@pytest.mark.parametrize(("value", "path"), PATHS, ids=[path for _, path in PATHS])
def test_the_path_is_named(value, path):
    assert why_not_returned(value)[0] == path


def test_a_cycle_ends():
    value = {"a": [1]}
    value["a"] += [value, LOCK]

    assert why_not_returned(value)[0] == "result['a'][2]" + WHY


def test_parts_that_only_fail_together_are_left_at_the_whole():
    class Whole:
        def __reduce__(self):
            return "not a name of anything"

    assert why_not_returned([1, Whole()])[0].startswith("result[1]: ")


def test_what_can_be_pickled_is_said_so():
    assert why_not_returned([1])[0] == "result: cannot be pickled"


async def later():
    return 1


@pytest.fixture
def coroutine():
    made = later()
    yield made
    made.close()


def test_a_coroutine_is_to_be_awaited(coroutine):
    assert "await it" in why_not_returned(coroutine)[1]


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

    assert hint in why_not_returned(part)[1]
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
    (Nameless, "result[0]: pickling it raised ValueError: no "),
    (Classless, "result[0]: pickling it raised KeyError: 'class'"),
    (Silent, "result[0]: pickling it raised NotImplementedError"),
    (Speaks, "result[0]: cannot pickle a Speaks: it has a window"),
    (of_unreadable, "result[0]: pickling it raised RuntimeError: no "),
    (lambda: NoItems(a=LOCK), "result[0]: pickling it raised ValueError: no items"),
    (NoTuple, "result[0]: fourth element of the tuple"),
]


@pytest.mark.parametrize(("make", "path"), BROKEN, ids=[path for _, path in BROKEN])
def test_an_object_whose_own_code_raises_is_named_and_breaks_nothing(make, path):
    said, instead = why_not_returned([make()])

    assert said.startswith(path) and instead


def test_what_is_nested_too_deep_is_said_to_be():
    value = 1
    for _ in range(2000):
        value = [value]

    assert why_not_returned(value)[0] == "result: it is nested too deep to pickle"
