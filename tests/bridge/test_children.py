"""What the worker says of processes that its function forks."""

from __future__ import annotations

import pytest

from tests.bridge.host import Bench

FORKS = """def f(used):
    import os, sys, types
    sys.modules['torch.cuda'] = types.ModuleType('torch.cuda')
    sys.modules['torch.cuda'].is_initialized = lambda: used
    for _ in range(2):
        if not os.fork():
            os._exit(0)
        os.wait()
"""


@pytest.mark.parametrize(("used", "times"), [(True, 1), (False, 0)])
def test_a_fork_after_cuda_was_used_is_told_once(bench: Bench, used: bool, times: int):
    job, outcome = bench.run(FORKS, used)

    assert outcome["kind"] == "returned", outcome
    assert job.output("stderr").count("multiprocessing.get_context('spawn')") == times


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
