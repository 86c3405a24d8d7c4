"""Executor keeps the contract of concurrent.futures, as CPython's own tests have it; a map is one group."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import json
import os
import subprocess
import sys
import time
import weakref

import pytest

import clusterfn
from clusterfn import Cancelled, Executor, cluster
from tests.waiting import until


@pytest.fixture
def executor(here):
    with Executor("here") as made:
        yield made


def until_there(path):
    """A function that returns once this file is there; of an item that is no number at once."""
    name = str(path)

    def wait(x):
        import time

        until = time.monotonic() + 200  # longer than any test waits
        while x is not None and not os.path.exists(name):
            if time.monotonic() > until:
                raise TimeoutError(name)
            time.sleep(0.02)
        return x

    return wait


def sent(root):
    return list((root / "jobs").iterdir())


def test_map_is_one_group_and_reads_its_iterables_at_once(executor, here):
    numbers = iter(range(10))

    values = executor.map(pow, numbers, itertools.repeat(2))

    assert next(numbers, None) is None and iter(values) is values
    assert list(values) == [n**2 for n in range(10)]
    assert [(path / "items.pkl").exists() for path in sent(here)] == [True]
    assert list(executor.map(pow, [], [])) == []


class Weighty:
    """What can be referred to weakly, with a method to submit."""

    def name(self) -> str:
        return type(self).__name__


def is_collected(reference: weakref.ref) -> bool:
    """Whether nothing holds it. A thread that has just passed it on may still have it for a moment."""
    until = time.monotonic() + 60
    while reference() is not None and time.monotonic() < until:
        gc.collect()  # takes long beside thousands of tests
        time.sleep(0.2)
    return reference() is None


def test_the_iterator_of_a_map_keeps_no_value_that_it_has_given(executor):
    kept = []
    for value in executor.map(lambda _: Weighty(), range(3)):
        kept.append(weakref.ref(value))
        del value
        assert is_collected(kept[-1]), len(kept)


def test_an_executor_keeps_neither_what_it_was_given_nor_what_came_back(executor):
    weighty = Weighty()
    given = weakref.ref(weighty)
    job = executor.submit(weighty.name)
    del weighty
    assert job.result(150) == "Weighty" and is_collected(given)

    job = executor.submit(Weighty)
    returned = weakref.ref(job.result(150))
    del job
    assert is_collected(returned)
    assert repr(executor) == "<Executor on here: 2 sent>"


def test_nothing_is_given_after_the_first_exception_of_a_map(executor):
    values = executor.map(divmod, [1, 1, 1], [1, 0, 1])

    assert next(values) == (1, 0)
    with pytest.raises(ZeroDivisionError):
        next(values)
    with pytest.raises(StopIteration):
        next(values)


def test_a_map_without_values_or_with_one_that_fails_sends_nothing(executor, here):
    def broken():
        yield 1
        raise KeyError("of the iterable")

    with pytest.raises(KeyError, match="of the iterable"):
        executor.map(abs, broken())
    assert list(executor.map(abs, [])) == []
    assert not (here / "jobs").exists()


def test_values_can_be_read_after_shutdown_and_shutdown_twice_is_once(here):
    executor = Executor("here")
    values, job = executor.map(abs, [-1, -2]), executor.submit(abs, -3)
    executor.shutdown(wait=False)
    executor.shutdown()
    executor.shutdown(cancel_futures=True)

    assert list(values) == [1, 2] and job.result(0) == 3


def test_futures_are_waited_for_as_those_of_threads_are(executor, tmp_path):
    wait, failing = until_there(tmp_path / "go"), executor.submit(divmod, 1, 0)
    waiting = executor.submit(wait, 1)
    futures = [failing, waiting]

    assert concurrent.futures.wait(futures, 150, concurrent.futures.FIRST_EXCEPTION) == ({failing}, {waiting})
    assert isinstance(failing.exception(), ZeroDivisionError)
    assert concurrent.futures.wait(futures, 0) == ({failing}, {waiting})
    with pytest.raises(concurrent.futures.TimeoutError):
        list(concurrent.futures.as_completed([waiting], 0))
    with pytest.raises(concurrent.futures.TimeoutError):
        waiting.result(0)
    (tmp_path / "go").touch()
    assert list(concurrent.futures.as_completed([waiting, waiting], 150)) == [waiting]
    assert concurrent.futures.wait(futures) == (set(futures), set())
    assert not waiting.cancel() and not waiting.cancelled() and not waiting.running()
    called = []
    waiting.add_done_callback(called.append)
    assert called == [waiting]


AT_EXIT = """
import atexit, clusterfn
executor = clusterfn.Executor("here")
values = executor.map(abs, [-1, -2])
job = executor.submit(abs, -3)
atexit.register(lambda: print(list(values), job.result(150)))
"""


def test_what_was_taken_can_be_waited_for_while_the_interpreter_ends(here):
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=150, check=False)

    assert done.stdout == "[1, 2] 3\n", done.stderr


@pytest.mark.long
def test_a_timeout_ends_the_waiting_and_not_the_calls(here, tmp_path):
    executor = Executor("here")
    values = executor.map(until_there(tmp_path / "go"), [None, 1], timeout=30)

    assert next(values) is None
    with pytest.raises(concurrent.futures.TimeoutError):
        next(values)
    (tmp_path / "go").touch()
    executor.shutdown()

    assert clusterfn.attach(sent(here)[0].name).results(150) == [None, 1]


def test_after_shutdown_nothing_is_taken_and_all_that_was_has_ended(here):
    with Executor("here") as executor:
        job, values = executor.submit(pow, 2, 5), executor.map(pow, [3], [2])

    assert job.done() and next(values) == 9
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(pow, 2, 5)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.map(pow, [3], [2])


def test_what_has_not_started_can_be_withdrawn_at_shutdown(here, tmp_path):
    executor = Executor("here", cores=33)
    values = executor.map(until_there(tmp_path / "go"), range(5))
    group = executor._groups[0]
    until(lambda: "RUNNING" in group.states)

    executor.shutdown(wait=False, cancel_futures=True)
    (tmp_path / "go").touch()

    assert next(values) == 0
    assert group.wait(150) and group.states.count("CANCELLED") == 4
    with pytest.raises(Cancelled, match="withdrawn before it started"):
        list(values)


class Model:
    @cluster(cores=2, memory="1GB", retries=1, host="elsewhere", env={"OWN": "kept"})
    def score(self, x):

        return x, os.environ.get("OWN")


def test_a_functions_own_options_hold_and_those_of_the_executor_go_over_them(here):
    with Executor("here", cores=1) as executor:
        jobs = [executor.submit(Model.score, None, 1), executor.submit(Model().score, 1)]
        values = [*executor.map(Model.score, [None], [1]), *(job.result(150) for job in jobs)]

    assert values == [(1, "kept")] * 3
    specs = [json.loads((path / "spec.json").read_text()) for path in sent(here)]
    assert [(spec["resources"]["cores"], spec["resources"]["memory_bytes"]) for spec in specs] == [(1, 2**30)] * 3
    assert [spec["retries"] for spec in specs] == [1] * 3


@pytest.mark.parametrize("call", [lambda made: made.submit(abs(-4)), lambda made: made.map(abs(-4), [1])])
def test_a_value_in_the_place_of_the_function_is_refused_before_anything_is_sent(call, here):
    with pytest.raises(clusterfn.ConfigError, match="4 is not a function") as refused:
        call(Executor("here"))

    assert "f, 3" in refused.value.hint
    assert not (here / "jobs").exists()


def test_an_executor_inside_a_job_is_refused(executor):
    def inside():
        from clusterfn import Executor

        Executor().submit(pow, 2, 5)

    assert "inside a job" in str(executor.submit(inside).exception(150))


def test_a_map_has_as_many_items_at_work_as_there_are_workers(here):
    with Executor("here", max_workers=2) as limited:
        assert list(limited.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]

    (folder,) = sent(here)
    assert json.loads((folder / "spec.json").read_text())["group"]["at_once"] == 2


@pytest.mark.parametrize("workers", [0, -1, "2", 1.5, True])
def test_a_limit_that_is_no_number_of_calls_is_rejected(workers):
    with pytest.raises(clusterfn.ConfigError, match="is not a number of calls"):
        Executor("here", max_workers=workers)


def test_calls_beyond_the_room_wait_in_the_queue_of_the_host_whatever_max_workers_is(here, tmp_path, capfd):
    with Executor("here", max_workers=1, cores=40) as executor:  # of 64
        wait = until_there(tmp_path / "go")
        first = executor.submit(wait, 0)
        until(first.running)  # its supervisor could be overtaken by those of the others
        withdrawn, last = executor.submit(wait, 1), executor.submit(wait, 2)
        until(lambda: all("waiting for your own jobs" in job.status for job in (withdrawn, last)))
        assert first.running() and len(sent(here)) == 3
        assert withdrawn.cancel() and withdrawn.cancelled()
        (tmp_path / "go").touch()
        assert (first.result(150), last.result(150)) == (0, 2)
    assert (
        capfd.readouterr().err.count("max_workers=1 limits map alone: here runs as many calls of submit as have room")
        == 1
    )
