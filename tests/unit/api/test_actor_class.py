"""What the class of an actor lets one call, and which actors have workers, without a host."""

from __future__ import annotations

import pickle
import re
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn import ActorLost, ConfigError, cluster
from clusterfn.api.actor import ActorClass, ActorMethod
from clusterfn.calls.session_call import ActorCall, Actors
from clusterfn.calls.session_job import is_packed_at_once


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
    actors.begin(1, "Model")

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
    assert ActorCall(0, "Model").facts(7) == {"actor": 7, "name": "Model"}
    assert ActorCall(7, "close", closes=True).facts(9) == {"actor": 7, "name": "close", "closes": True}


@pytest.mark.parametrize(
    ("args", "is_quick"),
    [((1, "a", None, True, 2.0, b"x"), True), ((b"x" * (2 << 20),), False), (([1],), False), ((), True)],
)
def test_only_small_plain_arguments_are_packed_without_a_word(args: tuple[Any, ...], is_quick: bool):
    assert is_packed_at_once(args, {}) is is_quick
