"""Processes that a function forks, or starts by the command of its own program."""

from __future__ import annotations

import ast
import subprocess

import pytest

from tests.bridge.host import Bench

PROXY = """class Proxy:
    def __init__(self, function):
        self.function = function
    def __call__(self, *args):
        return self.function(*args)
    def __getattr__(self, name):
        if name.startswith('__') or name == 'function':
            raise AttributeError(name)
        return Proxy(self)
f = Proxy(abs)
"""
ROUND = """def f(x):
    return abs(x)
f.__wrapped__ = f
"""


@pytest.mark.parametrize("source", [PROXY, ROUND])
def test_a_callable_without_an_innermost_one_is_called_all_the_same(bench: Bench, source: str):
    _, outcome = bench.run(source, -2)

    assert outcome["kind"] == "returned", outcome


RANKS = """import os, subprocess, sys
MODULE = 5
def f(how):
    if 'LOCAL_RANK' in os.environ and how != 'third':
        if how == 'fails':
            raise ValueError('of rank 1')
        here = sys.modules['__main__']
        found = [how, here.MODULE == MODULE, here.__name__, os.getcwd(), sys.argv, os.environ['CLUSTERFN_JOB']]
        open('rank', 'w').write(repr(found))
        return 'nobody wants this'
    done = subprocess.run([sys.executable, *sys.argv], env=dict(os.environ, LOCAL_RANK='1'))
    return [done.returncode, open('rank').read() if how == 'again' else '', sys.argv[0]]
"""


def test_a_program_that_starts_itself_again_runs_the_call_in_one_more_process(bench: Bench):
    job, outcome = bench.run(RANKS, "again")

    assert outcome["kind"] == "returned", outcome
    code, told, program = job.value()
    assert program == str(bench.bridge / "call.py")
    work = str(job.attempt / "work")
    assert (code, ast.literal_eval(told)) == (0, ["again", True, "__main__", work, [program], f"{job.id}/1"])


def test_an_exception_in_such_a_process_ends_it_as_a_script(bench: Bench):
    job, _ = bench.run(RANKS, "fails")

    assert job.value()[0] == 1
    assert job.output("stderr").endswith("ValueError: of rank 1\n")


def test_a_program_that_starts_itself_for_ever_is_stopped_at_the_first_time(bench: Bench):
    job, _ = bench.run(RANKS, "third")

    assert job.value()[0] == 0
    assert job.output("stderr").count("do that only if LOCAL_RANK is not set") == 1


def test_what_runs_the_call_again_needs_a_job(bench: Bench):
    done = subprocess.run([bench.python, str(bench.bridge / "call.py")], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "this process belongs to no job" in done.stderr
