"""joblib's loops as jobs on a host: values in order, options, failures, loops within loops."""

from __future__ import annotations

import math
import threading

import joblib
import pytest

import clusterfn
from clusterfn import ConfigError, PayloadError


def squared(x):
    import os

    return x * x, "CLUSTERFN_JOB" in os.environ


def fails(x):
    if x == 3:
        raise ValueError(f"item {x}")
    return x


def nested(x):
    import joblib

    return sum(joblib.Parallel()(joblib.delayed(abs)(-each) for each in range(x)))


for each in (squared, fails, nested):
    each.__module__ = "__main__"


@pytest.fixture(autouse=True)
def registered():
    clusterfn.register_joblib()


def run(function, items, **options):
    with joblib.parallel_config("clusterfn", **options):
        return joblib.Parallel()(joblib.delayed(function)(each) for each in items)


def test_a_loop_runs_in_jobs_and_gives_its_values_in_order(here):
    assert run(squared, range(12), n_jobs=3) == [(x * x, True) for x in range(12)]


@pytest.mark.long
def test_short_items_share_jobs(here):
    assert run(math.sqrt, range(300), n_jobs=2) == [math.sqrt(x) for x in range(300)]

    assert len(list((here / "jobs").iterdir())) < 100


def test_a_failure_is_raised_as_itself_and_ends_the_others(here):
    with pytest.raises(ValueError, match="item 3"):
        run(fails, range(8), n_jobs=2)


@pytest.mark.timeout(120)
def test_an_item_that_cannot_be_sent_later_is_raised_and_not_waited_for(here):
    with pytest.raises(PayloadError, match="lock"):
        run(squared, [1, 2, 3, 4, 5, 6, 7, threading.Lock()], n_jobs=2)


def test_one_job_at_a_time_is_joblibs_own_loop_and_says_so(here, capsys):
    assert run(squared, [2], n_jobs=1) == [(4, False)]
    assert "n_jobs=1: joblib runs this loop in this process" in capsys.readouterr().err


def begin(*words):
    import builtins

    builtins.begun = words


def begun(x):
    import builtins

    return (*builtins.begun, x)


for each in (begin, begun):
    each.__module__ = "__main__"


@pytest.mark.parametrize("given", ["Parallel", pytest.param("parallel_config", marks=pytest.mark.long)])
def test_an_initializer_runs_in_each_process_before_its_items(here, given):
    words = {"initializer": begin, "initargs": ("warm", 3)}
    with joblib.parallel_config("clusterfn", n_jobs=2, **(words if given == "parallel_config" else {})):
        parallel = joblib.Parallel(**(words if given == "Parallel" else {}))
        assert parallel(joblib.delayed(begun)(x) for x in range(3)) == [("warm", 3, x) for x in range(3)]


def test_a_word_that_is_no_option_is_rejected_wherever_it_is_given(here):
    with joblib.parallel_config("clusterfn", n_jobs=2), pytest.raises(ConfigError, match="did you mean memory"):
        joblib.Parallel(memroy="1GB")(joblib.delayed(squared)(x) for x in range(2))
    with pytest.raises(ConfigError, match="did you mean memory"):
        run(squared, [1, 2], memroy="1GB")


def test_a_loop_within_a_job_stays_in_it(here):
    assert run(nested, [3, 4], n_jobs=2) == [3, 6]
    assert len(list((here / "jobs").iterdir())) == 2


def test_wrong_options_are_rejected_before_anything_is_sent(here):
    with pytest.raises(ConfigError, match="there is no argument 'core'; did you mean"):
        run(squared, [1], core=2)
    with pytest.raises(ConfigError, match="memory='16' is not an amount of memory"):
        run(squared, [1], memory="16")
    assert not (here / "jobs").exists() or not list((here / "jobs").iterdir())
