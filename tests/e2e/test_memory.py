"""What a call has brought is the caller's alone: once it lets go, the memory is free, without a garbage collection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPT = """
import gc, json, time, weakref
import clusterfn

@clusterfn.cluster(host="here")
def answer():
    return 42

job = answer.submit()
job.result()
gc.collect()
gc.disable()
job = answer.submit()
job.result()
left = weakref.ref(job)
del job
until = time.monotonic() + 100
while left() is not None and time.monotonic() < until:
    time.sleep(0.01)
print(json.dumps(left() is None))
"""


def test_nothing_holds_a_job_that_its_caller_has_dropped(here: Path, run_script: Callable[..., Any]) -> None:
    assert run_script(SCRIPT) is True
