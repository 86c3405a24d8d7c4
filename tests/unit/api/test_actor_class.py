"""What the class of an actor lets one call, and which actors have workers, without a host."""

from __future__ import annotations

import pickle
import re
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn import ActorLost, ConfigError, cluster
from clusterfn.api.actor import ActorMethod
from clusterfn.api.actor_class import ActorClass
from clusterfn.calls.session_actor import ActorCall, Actors, is_packed_at_once


class Model:
    scale = 2
    inner = dict

    def __init__(self, path: str, *, deep: bool = False) -> None: ...

    def predict(self, batch: list[int], top: int = 1) -> None: ...

    @staticmethod
    def read(path: str) -> None: ...

    @classmethod
    def make(cls, path: str) -> None: ...

    @property
    def size(self) -> int:
        return 0

    def parts(self) -> Iterator[int]:
        yield 1

    async def arriving(self) -> AsyncIterator[int]:
        yield 1

    @cluster(gpus=2)
    def fit(self, epochs: int) -> None: ...

    def _private(self) -> None: ...


class Dynamic:
    def __getattr__(self, name: str) -> Any: ...


@pytest.mark.parametrize("what", [abs, 3, "Model", Model("x")])
def test_an_actor_is_of_a_class(what: Any):
    with pytest.raises(ConfigError, match="takes a class, not"):
        ActorClass(what)


@pytest.mark.parametrize("name", ["predict", "read", "make", "fit", "_private", "parts"])
def test_its_methods_are_known(name: str):
    ActorClass(Model).check_name(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("predct", "Model has no method predct; did you mean predict?"),
        ("weights", "Model has no method weights; what it sets on itself stays on the host: add a method"),
        ("scale", "scale of Model is not a method; what it sets on itself stays on the host"),
        ("size", "size of Model is not a method"),
        ("__len__", "an actor has no __len__"),
    ],
)
def test_what_is_no_method_is_named(name: str, says: str):
    with pytest.raises(AttributeError) as refused:
        ActorClass(Model).check_name(name)

    assert says in str(refused.value)


def test_a_class_that_makes_its_attributes_itself_may_have_any():
    ActorClass(Dynamic).check_name("anything")


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "says"),
    [
        ("predict", (), {}, r"predict\(\) missing 1 required positional argument: 'batch'"),
        ("predict", ([],), {"topp": 1}, "unexpected keyword argument 'topp'"),
        ("read", (), {}, r"read\(\) missing 1 required positional argument: 'path'"),
        ("make", ("a", "b"), {}, "takes 2 positional arguments but 3 were given"),
        ("fit", (), {}, r"fit\(\) missing 1 required positional argument: 'epochs'"),
    ],
)
def test_arguments_that_a_method_does_not_take_are_rejected_in_pythons_words(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], says: str
):
    with pytest.raises(TypeError, match=says):
        ActorClass(Model).method(name).check_call(args, kwargs)


def test_arguments_that_it_takes_pass():
    kind = ActorClass(Model)
    for name, args in (("predict", ([1], 2)), ("read", ("a",)), ("make", ("a",)), ("fit", (1,))):
        kind.method(name).check_call(args, {})
    kind.check_construction(("a",), {"deep": True})
    assert kind.method("fit").options.gpus == 2


@pytest.mark.parametrize("name", ["parts", "arriving"])
def test_a_generator_is_rejected(name: str):
    with pytest.raises(ConfigError, match=f"Model.{name} is a generator function"):
        ActorClass(Model).method(name).check_call((), {})


def test_a_construction_that_could_only_fail_is_rejected():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"):
        ActorClass(Model).check_construction((), {"deep": True})


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


def test_actors_take_workers_until_they_end():
    actors = Actors(2)
    actors.begin(1, "Model")
    actors.check_room("train")
    actors.begin(2, "Other")

    with pytest.raises(ConfigError, match=r"no worker for train: all of its 2 workers have actors \(Model, Other\)"):
        actors.check_room("train")
    actors.end(1, "it was closed")
    actors.end(1, "a later reason")
    actors.check_room("train")
    actors.check(2, "Other")
    with pytest.raises(ActorLost, match="the actor Model is gone, and its state with it: it was closed"):
        actors.check(1, "Model")


def test_an_actor_that_is_being_closed_has_its_worker_until_it_is_and_takes_no_calls():
    actors = Actors(1)
    actors.begin(1, "Model")

    actors.close(1)
    with pytest.raises(ActorLost, match="it was closed"):
        actors.check(1, "Model")
    with pytest.raises(ConfigError, match="its only worker has the actor"):
        actors.check_room("train")
    actors.reopen(1)
    actors.check(1, "Model")
    actors.close(1)
    actors.end(1, "")
    actors.reopen(1)
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
