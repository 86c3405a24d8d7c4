"""The backend of joblib, registered inside a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.hosts.test_bridge_bundle import run_with_bridge


def test_a_module_that_registers_our_backend_of_joblib_is_imported_in_a_job_and_its_loops_run_there(tmp_path):
    installed = Path(pytest.importorskip("joblib").__file__).parents[1]
    code = (
        f"sys.path.append({str(installed)!r})\nimport clusterfn, joblib\nclusterfn.register_joblib()\n"
        "with joblib.parallel_config('clusterfn', host='tensor01', n_jobs=2):\n"
        "    print(joblib.Parallel()(joblib.delayed(abs)(-x) for x in range(3)))"
    )

    assert run_with_bridge(tmp_path, sys.executable, code, CLUSTERFN_JOB="7f3a000011112222/1") == "[0, 1, 2]\n"
