"""What joblib's loop does with its batches once one of them has failed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("joblib")

from clusterfn import HostError, Job
from clusterfn.calls import call
from clusterfn.display import at_once
from clusterfn.integrations.joblib_backend import ClusterfnBackend
from tests.unit.hosts.test_bridge_bundle import run_with_bridge
from tests.waiting import until


class Batch(Job[Any]):
    """A batch that runs until it is stopped, which takes until `may_end`; that of the first one fails."""

    stopping: list[Batch] = []
    may_end = threading.Event()

    def __init__(self, *_: Any) -> None:
        Future.__init__(self)
        self.number = len(sent)
        sent.append(self)

    def stop(self) -> None:
        self.stopping.append(self)
        self.may_end.wait(150)
        if self.number == 0:
            raise HostError("the host does not answer")


sent: list[Batch] = []


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterfnBackend]:
    monkeypatch.setattr(call, "submit_call", Batch)
    made = ClusterfnBackend()
    made.parallel = None  # joblib's `Parallel` sets itself
    yield made
    Batch.may_end.clear()
    sent.clear()
    Batch.stopping.clear()


def test_all_other_batches_end_some_at_a_time_although_one_cannot_be_stopped(backend: ClusterfnBackend) -> None:
    for _ in range(2 * at_once.MOST):
        backend.submit(lambda: None)
    aborting = threading.Thread(target=backend.abort_everything)
    aborting.start()
    until(lambda: len(Batch.stopping) >= at_once.MOST)
    begun = len(Batch.stopping)
    Batch.may_end.set()
    aborting.join(150)

    assert begun == at_once.MOST, "each may keep a process of the host busy"
    assert set(Batch.stopping) == set(sent) and len(sent) == 2 * at_once.MOST


def test_a_module_that_registers_our_backend_of_joblib_is_imported_in_a_job_and_its_loops_run_there(tmp_path):
    installed = Path(pytest.importorskip("joblib").__file__).parents[1]
    code = (
        f"sys.path.append({str(installed)!r})\nimport clusterfn, joblib\nclusterfn.register_joblib()\n"
        "with joblib.parallel_config('clusterfn', host='tensor01', n_jobs=2):\n"
        "    print(joblib.Parallel()(joblib.delayed(abs)(-x) for x in range(3)))"
    )

    assert run_with_bridge(tmp_path, sys.executable, code, CLUSTERFN_JOB="7f3a000011112222/1") == "[0, 1, 2]\n"
