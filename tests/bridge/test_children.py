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
