"""The error tree: every class keeps its facts, through pickle too, and says them in the same order."""

from __future__ import annotations

import concurrent.futures
import copy
import inspect
import pickle

import pytest

from clusterfn import errors

TREE = [
    cls for _, cls in sorted(vars(errors).items()) if inspect.isclass(cls) and issubclass(cls, errors.ClusterfnError)
]
FACTS = {
    "host": "tensor01", "job": "7f3a", "stage": "function", "evidence": ("line 1", "line 2"), "hint": "do this",
    "log": "tensor01:/x", "retryable": True,
}  # fmt: skip
SAID = """it failed
  where: host tensor01, job 7f3a, stage function
  seen:
    line 1
    line 2
  next:  do this
  log:   tensor01:/x"""


def full(cls):
    error = cls("it failed", **FACTS)
    error.code, error.signal, error.type_name, error.traceback = 3, "SIGSEGV", "mod.Odd", "text"
    error.__dict__["__notes__"] = ["a note"]
    return error


@pytest.mark.parametrize("cls", TREE)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_with_all_its_facts(cls, again):
    error = again(full(cls))

    assert type(error) is cls
    assert vars(error) == vars(full(cls)) and error.args == ("it failed",)
    assert str(error) == str(full(cls))


@pytest.mark.parametrize("cls", TREE)
def test_an_error_says_what_where_seen_next_and_log(cls):
    assert str(full(cls)) == SAID


EVIL = "it\x1b]0;PWNED\x07 \x1b[2J\x1b]52;c;cm0=\x1b\\fai\u202eled\x9b1m\r\x08"


def test_no_fact_of_an_error_reaches_the_terminal_as_an_escape():
    error = errors.HostError(EVIL, host=EVIL, job=EVIL, stage=EVIL, evidence=[EVIL, "a\tb"], hint=EVIL, log=EVIL)

    assert str(error).replace("it failed1m", "X").splitlines() == [
        "X", "  where: host X, job X, stage X", "  seen:", "    X", "    a\tb", "  next:  X", "  log:   X",
    ]  # fmt: skip
    assert error.message == EVIL


@pytest.mark.parametrize("cls", TREE)
def test_facts_that_are_not_known_are_not_said(cls):
    assert str(cls("it failed")) == "it failed"


@pytest.mark.parametrize("cls", TREE)
def test_each_class_stands_in_the_drawing_and_explains_itself(cls):
    assert cls.__name__ in errors.__doc__ and cls.__doc__


def test_cancelled_is_what_concurrent_futures_calls_cancelled():
    assert issubclass(errors.Cancelled, concurrent.futures.CancelledError)
