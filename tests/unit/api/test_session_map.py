"""Sessions without a host: what a map rejects, its order, and which actors have workers."""

from __future__ import annotations

import functools
import gc
import itertools
import pickle
import re
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn import ActorLost, ConfigError, Executor, Session, cluster
from clusterfn.api.actor import ActorClass, ActorMethod
from clusterfn.calls.session_call import ActorCall, Actors, CallLocation
from tests.fakes.session_calls import Calls, mapped
from tests.fakes.taken import run
from tests.waiting import until


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_all_calls_are_sent_at_once_and_values_come_in_the_order_of_the_items(calls: Calls) -> None:
    values = mapped(calls, [1, 2, 3])
    assert calls.items == [1, 2, 3]

    calls.end(2, 0, 1)

    assert list(values) == [10, 20, 30]
    assert calls.withdrawn == []


def test_a_generator_is_read_only_as_far_as_calls_are_on_their_way(calls: Calls) -> None:
    values = mapped(calls, itertools.count(1), size=3)
    assert calls.items == [1, 2, 3]

    calls.end(0, 1, 2)

    assert (next(values), calls.items) == (10, [1, 2, 3, 4])
    assert (next(values), calls.items) == (20, [1, 2, 3, 4, 5])


def test_a_failure_is_raised_at_its_turn_and_the_calls_after_it_are_withdrawn(calls: Calls) -> None:
    values = mapped(calls, [1, 2, 3, 4])
    calls.end(0)
    calls.sent[1].set_exception(ZeroDivisionError("two"))
    calls.sent[2].set_running_or_notify_cancel()

    assert next(values) == 10
    with pytest.raises(ZeroDivisionError, match="two"):
        next(values)
    until(lambda: calls.withdrawn == [4])
    assert calls.sent[2].running()


def test_after_the_timeout_what_has_not_started_is_withdrawn(calls: Calls) -> None:
    values = mapped(calls, [1, 2], timeout=0.05)
    began = time.monotonic()

    with pytest.raises(TimeoutError):
        next(values)

    assert time.monotonic() - began >= 0.04
    until(lambda: calls.withdrawn == [1, 2])


def test_who_stops_iterating_withdraws_the_rest(calls: Calls) -> None:
    values = mapped(calls, [1, 2, 3])
    calls.end(0)

    assert next(values) == 10
    values.close()  # type: ignore[attr-defined]

    until(lambda: calls.withdrawn == [2, 3])


def test_an_error_of_the_iterable_is_raised_and_what_was_sent_is_withdrawn(calls: Calls) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("no more input")

    with pytest.raises(OSError, match="no more input"):
        mapped(calls, items())
    until(lambda: calls.withdrawn == [1])


def test_no_value_is_kept_that_was_given(calls: Calls) -> None:
    class Large:
        pass

    values = mapped(calls, [1, 2])
    value = Large()
    kept = weakref.ref(value)
    calls.sent[0].set_result(value)
    calls.end(1)
    assert next(values) is value
    calls.sent.pop(0)
    del value
    next(values)
    gc.collect()

    assert kept() is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"chunksize": 0}, "chunksize=0 is not a number of calls"),
        ({"buffersize": 0}, "buffersize=0 is not a number of calls"),
        ({"buffersize": "all"}, "buffersize='all' is not a number of calls"),
        ({"timeout": "1min"}, "timeout='1min' is not a number of seconds"),
    ],
)
def test_keywords_that_mean_nothing_are_rejected_before_anything_is_sent(words: dict[str, Any], says: str) -> None:
    session = Session("tensor01")

    with pytest.raises(ConfigError) as rejected:
        session.map(abs, [1], **words)

    assert says in str(rejected.value)
    assert session.job is None


def test_an_executor_of_a_session_is_the_session_itself() -> None:
    for wrong in (lambda: Executor(session=Session()), lambda: Executor(Session())):  # type: ignore[call-arg,arg-type]
        with pytest.raises(ConfigError, match="a Session is an executor already: use session.submit"):
            wrong()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "workers=0 is not a number of workers"),
        ({"workers": True}, "workers=True is not a number of workers"),
        ({"workers": 2, "gpus": 3}, "workers=2 cannot share gpus=3 equally"),
        ({"workers": 4, "cores": 3}, "workers=4 cannot share cores=3"),
    ],
)
def test_workers_that_cannot_share_what_the_session_has_are_rejected(options: dict[str, Any], says: str):
    with pytest.raises(ConfigError) as rejected:
        Session("tensor01", **options)

    assert says in str(rejected.value)
    assert "next:" in str(rejected.value)


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("send", [Session.call, Session.submit, lambda session, f: next(session.map(f, [1]))])
@pytest.mark.parametrize("function", [numbers, functools.partial(numbers)])
def test_a_generator_function_is_rejected_before_anything_is_sent(send, function):
    session = Session("local")

    with pytest.raises(ConfigError, match="is a generator function"):
        send(session, function)
    assert session.job is None


class Model:
    def __init__(self, path: str, *, deep: bool = False) -> None: ...

    def predict(self, batch: list[int], top: int = 1) -> None: ...

    @staticmethod
    def read(path: str) -> None: ...

    @classmethod
    def make(cls, path: str) -> None: ...

    @cluster
    def fit(self, epochs: int) -> None: ...

    @cluster(gpus=2)
    def tune(self, epochs: int) -> None: ...


class Dynamic:
    def __getattr__(self, name: str) -> Any: ...


def test_a_class_that_makes_its_attributes_itself_may_have_any():
    ActorClass(Dynamic).check_name("anything")


def test_arguments_that_it_takes_pass():
    kind = ActorClass(Model)
    for name, args in (("predict", ([1], 2)), ("read", ("a",)), ("make", ("a",)), ("fit", (1,))):
        kind.method(name).check_call(args, {})
    kind.check_construction(("a",), {"deep": True})


def test_a_method_with_options_that_nothing_would_obey_is_rejected():
    with pytest.raises(ConfigError, match="tune has options of its own"):
        ActorClass(Model).method("tune")


def test_an_option_in_a_call_of_a_method_belongs_to_the_session():
    with pytest.raises(TypeError, match=re.escape("write Session(gpus=…)")):
        ActorClass(Model).method("predict").check_call((1,), {"gpus": 1})


def test_a_method_of_an_actor_has_no_map_and_cannot_be_sent():
    handle: Any = SimpleNamespace(kind=ActorClass(Model))
    predict = ActorMethod(None, handle, "predict")  # type: ignore[arg-type] # it calls nothing here

    with pytest.raises(AttributeError, match=re.escape("[actor.predict.submit(x) for x in xs]")):
        predict.map
    with pytest.raises(TypeError, match="a method of an actor, which runs it itself"):
        pickle.dumps(predict)
    assert predict.__name__ == "predict"
    with pytest.raises(AttributeError, match="_name"):
        ActorMethod.__new__(ActorMethod).map


def test_an_actor_that_is_being_closed_has_its_worker_until_it_is_and_takes_no_calls():
    actors = Actors(1)
    actors.living[1] = "Model"

    actors.close(1)
    with pytest.raises(ActorLost, match="it was closed"):
        actors.check(1, "Model")
    with pytest.raises(ConfigError, match="its only worker has the actor"):
        actors.check_room("train")
    actors.end(1, "")
    actors.check_room("train")
    with pytest.raises(ActorLost, match="it was closed"):
        actors.check(1, "Model")


def test_a_call_tells_the_host_which_actor_it_is_of():
    at = CallLocation(run().at, 9, ActorCall(7, "close", closes=True))
    assert (at.actor, at.constructs, at.closes) == (7, False, True)
    calls = (None, ActorCall(0, "Model"), ActorCall(7, "predict"))
    own, first, later = (CallLocation(run().at, 9, of_actor).work_folder for of_actor in calls)
    assert (first, later) == (own, own.replace("/9/", "/7/"))
