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


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_with_all_its_facts_and_says_what_where_seen_next_and_log(again):
    for cls in TREE:
        error = again(full(cls))

        assert type(error) is cls
        assert vars(error) == vars(full(cls)) and error.args == ("it failed",)
        assert str(error) == SAID


EVIL = "it\x1b]0;PWNED\x07 \x1b[2J\x1b]52;c;cm0=\x1b\\fai\u202eled\x9b1m\r\x08"


def test_no_fact_of_an_error_reaches_the_terminal_as_an_escape():
    error = errors.HostError(EVIL, host=EVIL, job=EVIL, stage=EVIL, evidence=[EVIL, "a\tb"], hint=EVIL, log=EVIL)

    assert str(error).replace("it failed1m", "X").splitlines() == [
        "X", "  where: host X, job X, stage X", "  seen:", "    X", "    a\tb", "  next:  X", "  log:   X",
    ]  # fmt: skip
    assert error.message == EVIL


def test_each_class_is_in_the_drawing_explains_itself_and_says_no_facts_that_are_not_known():
    assert [cls for cls in TREE if cls.__name__ not in errors.__doc__ or not cls.__doc__] == []
    assert {str(cls("it failed")) for cls in TREE} == {"it failed"}
    assert issubclass(errors.Cancelled, concurrent.futures.CancelledError)
