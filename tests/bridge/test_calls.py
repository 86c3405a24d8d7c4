"""A call from the job's script to its published outcome, under old and new interpreters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bridge.host import Bench
from tests.interpreters import interpreter


def bench_of(bridge: Path, root: Path, host: str, python: str) -> Bench:
    found = [interpreter(host), interpreter(python)]
    if None in found:
        pytest.skip(f"Python {host} or {python} is not installed here")
    return Bench(root, bridge, str(found[0]), str(found[1]))


ADD = "def f(a, b):\n    print('adding')\n    return a + b\n"


@pytest.mark.parametrize(("host", "python"), [("3.6", "3.13"), ("3.8", "3.11"), ("3.13", "3.9")])
def test_a_call_returns_its_value(bridge, tmp_path, host, python):
    bench = bench_of(bridge, tmp_path, host, python)

    job, outcome = bench.run(ADD, 20, 22)

    assert outcome["kind"] == "returned", outcome
    assert job.value() == 42
    assert job.output() == "adding\n"
