"""What `@cluster` makes of a function: how other libraries pickle it, and which functions it refuses."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import cloudpickle
import pytest

from clusterfn import ConfigError, cluster


@cluster(cores=1)
def factorial(n: int) -> int:
    """Call itself."""
    return 1 if n == 0 else n * factorial.local(n - 1)


two_cores = factorial.with_options(cores=2)


class Model:
    @cluster
    def fit(self, x: int) -> int:
        return x


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_decorated_function_is_pickled_by_its_name(protocol: int) -> None:
    assert pickle.loads(pickle.dumps(factorial, protocol)) is factorial


def test_a_decorated_method_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(Model.fit)) is Model.fit


def test_a_copy_of_a_decorated_function_is_that_function() -> None:
    assert copy.copy(factorial) is factorial and copy.deepcopy([factorial]) == [factorial]


def test_a_variant_with_other_options_keeps_them() -> None:
    came = pickle.loads(pickle.dumps(two_cores))

    assert (came.__wrapped__, came.options, came.__doc__) == (factorial.__wrapped__, two_cores.options, "Call itself.")


def test_a_function_without_a_name_is_refused_by_pickle_and_taken_by_cloudpickle() -> None:
    @cluster(cores=3)
    def inner(n: int) -> int:
        return n if n == 0 else inner.local(n - 1)

    with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
        pickle.dumps(inner)
    came = cloudpickle.loads(cloudpickle.dumps(inner))
    assert came is not inner and came.options.cores == 3 and came.local(3) == 0 and came.__name__ == "inner"


OF_MAIN = """
import multiprocessing, pickle, joblib, cloudpickle
from clusterfn import cluster

OFFSET = 1

@cluster(cores=2)
def add(n):
    return n + OFFSET if n else add.local(1)

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(add)) is add
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(add.local, [0, 1, 2]))
    with joblib.parallel_backend("loky"):
        print(joblib.Parallel(2)(joblib.delayed(add.local)(n) for n in range(3)))
    came = cloudpickle.loads(cloudpickle.dumps(add))
    OFFSET = 10
    print(came is add, came.options == add.options, came.local(1), came)
"""


def test_functions_of_main_behave_under_every_pickler_as_plain_ones(tmp_path) -> None:
    (tmp_path / "main.py").write_text(OF_MAIN)

    done = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, check=False)

    listed = "[2, 2, 3]\n" * 2
    assert done.stdout == listed + "False True 2 <cluster function __main__.add>\n", done.stderr


def numbers() -> Iterator[int]:
    yield 1


async def later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [numbers, later])
def test_a_generator_function_is_refused_when_it_is_decorated(function) -> None:
    with pytest.raises(ConfigError, match=f"{function.__name__} is a generator function") as refused:
        cluster(cores=1)(function)
    assert "return a list" in (refused.value.hint or "")


@cluster(cores=1)
async def slowly(x: int) -> int:
    await asyncio.sleep(0)
    return x


class Slow:
    @cluster
    async def run(self, x: int) -> int:
        return x


async def value(x: int) -> int:
    return x


def test_the_call_of_an_async_function_is_awaited_as_without_the_decorator(monkeypatch) -> None:
    sent: list[int] = []

    def submit(function, args, kwargs, options):
        sent.append(args[-1])
        return value(args[-1])

    monkeypatch.setattr("clusterfn.calls.call.submit_call", submit)

    async def all_of_them() -> list[int]:
        called = slowly(3)
        assert sent == []
        return [await slowly(1), *await asyncio.gather(Slow().run(2), called)]

    assert asyncio.run(all_of_them()) == [1, 2, 3]
    assert asyncio.run(slowly(4)) == 4
    assert sent == [1, 2, 3, 4]


def test_a_call_that_was_never_awaited_is_named_and_sends_nothing(monkeypatch) -> None:
    monkeypatch.setattr("clusterfn.calls.call.submit_call", lambda *given: pytest.fail("it is sent"))

    with pytest.warns(RuntimeWarning, match="coroutine 'slowly' was never awaited"):
        slowly(1)
        gc.collect()


def test_inside_a_job_an_async_function_is_awaited_too(monkeypatch) -> None:
    monkeypatch.setenv("CLUSTERFN_JOB", "7f3a000011112222/1")

    assert asyncio.run(slowly(1)) == 1


def test_an_error_of_an_awaited_call_shows_the_users_frames_alone(monkeypatch) -> None:
    def refuse(*given):
        raise ConfigError("no")

    monkeypatch.setattr("clusterfn.calls.call.submit_call", refuse)

    async def awaits() -> int:
        return await slowly(1)

    with pytest.raises(ConfigError) as refused:
        asyncio.run(awaits())

    ours = {"public_api.py"} if sys.version_info < (3, 11) else set()
    files = [Path(each.filename) for each in traceback.extract_tb(refused.value.__traceback__)]
    shown = [each.name for each in files if each.parent.name != "asyncio" and each.name not in ours]
    assert shown == ["test_decorator.py"] * 3  # the last is `refuse`


def test_a_variable_redirects_what_is_decorated_and_not_what_a_call_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERFN_HOST", "other")
    redirected = cluster(host="tensor01", cores=2)(abs)
    monkeypatch.delenv("CLUSTERFN_HOST")

    assert (redirected.options.host, redirected.options.cores) == ("other", 2)
    assert redirected.on("third").options.host == "third"
    assert cluster(host="tensor01")(abs).options.host == "tensor01"
