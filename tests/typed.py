"""What a type checker knows of calls; `make lint` checks this file, and nothing runs it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

from typing_extensions import assert_type

from clusterfn import Executor, Job, JobGroup, Session, SweepResult, attach, cluster, sweep


@cluster
def half(x: float) -> float:
    return x / 2


@cluster
async def awaited(x: int) -> str:
    return str(x)


@cluster(cores=1)
async def awaited_too(x: int) -> str:
    return str(x)


@cluster(cores=1)
def third(x: float) -> float:
    return x / 3


def check_types() -> None:
    coroutines = [assert_type(awaited(1), Coroutine[Any, Any, str])]  # as without the decorator
    coroutines += [assert_type(awaited_too(1), Coroutine[Any, Any, str])]
    assert_type(awaited_too.submit(1), Job[str])
    assert_type(awaited_too.map([1]).results(), list[str | Exception])
    assert_type(awaited_too.map([1], on_error="raise").results(), list[str])
    assert_type(third(1.0), float)
    assert_type(half(1.0), float)
    assert_type(half.submit(1.0), Job[float])
    collected = half.map([1.0])
    assert_type(collected.results(), list[float | Exception])  # a failure stands in the place of its value
    assert_type(collected.result(0), float)  # which raises it
    assert_type(half.map([1.0], on_error="raise").results(), list[float])
    for value in collected:
        assert_type(value, float)  # a failure is raised in its place
    for index, result in collected.as_completed():
        assert_type((index, result), tuple[int, float | Exception])
    assert_type(half.map([1.0], on_error="collect").results(), list[float | Exception])
    for either in half.map([1.0], on_error="collect"):
        assert_type(either, float | Exception)


def check_other_callers() -> None:
    """They give the value of an `async def` function, too."""
    executor, session = Executor(), Session()
    assert_type(executor.submit(awaited, 1), Job[str])
    assert_type(executor.map(awaited, [1]), Iterator[str])
    assert_type(executor.submit(half, 1.0), Job[float])
    assert_type(session.submit(awaited, 1), Job[str])
    assert_type(session.call(awaited, 1), str)
    assert_type(session.map(awaited, [1]), Iterator[str])
    assert_type(session.call(half, 1.0), float)
    assert_type(session.map(half, [1.0]), Iterator[float])
    assert_type(sweep(awaited, {"x": [1]}), SweepResult[str])
    assert_type(sweep(half, {"x": [1.0]}), SweepResult[float])


def check_attach() -> None:
    """A user writes what he attaches to, or needs no types."""
    job: Job[float] = attach("7f3a")
    group: JobGroup[float, Exception] = attach("7f3a")
    assert_type(job.result(), float)
    assert_type(group.result(0), float)
    attach("7f3a").result()
    for _ in attach("7f3a"):
        pass


class Model:
    @cluster
    def fit(self, rate: float) -> str:
        return f"{rate}"

    @cluster(cores=1)
    async def fit_later(self, rate: float) -> str:
        return f"{rate}"

    @classmethod
    @cluster
    def made(cls, size: int) -> Model:
        return cls()

    @staticmethod
    @cluster
    def measure(size: int) -> float:
        return size / 2


def check_methods() -> None:
    assert_type(Model().fit(0.1), str)
    assert_type([Model().fit_later(0.1)], list[Coroutine[Any, Any, str]])
    assert_type(Model().fit_later.submit(0.1), Job[str])
    assert_type(Model().fit.submit(rate=0.1), Job[str])
    assert_type(Model().fit.map([0.1]).results(), list[str | Exception])
    assert_type(Model().fit.on("tensor01")(0.1), str)
    Model.fit(Model(), 0.1)
    Model.made(3)
    Model.measure(3)
    Model().fit("three")  # type: ignore[arg-type]
    Model().fit()  # type: ignore[call-arg]


def check_keywords() -> None:
    """Each line that has to be an error is one: mypy complains of an `ignore` that nothing needs."""
    third.with_options(gpus=1, time="2h", retries=2)
    third.with_options(gpu=1)  # type: ignore[call-arg]
    third.with_options(cores="2")  # type: ignore[arg-type]
    cluster(core=1)  # type: ignore[call-overload]
    Session("tensor01", idle="1h", gpus=4, workers=4)
    Session(name="train")  # type: ignore[call-arg]
    Executor("tensor01", packages=["numpy"])
    Executor(cores=1.5)  # type: ignore[arg-type]
