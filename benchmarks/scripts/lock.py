"""Lock the requirements.txt in the present folder for a host with this Python; print how long that took."""

from __future__ import annotations

import time

began = time.perf_counter()

from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402

from clusterfn.environment import environment_files, solver  # noqa: E402
from clusterfn.environment.conda_solver import SolveTarget  # noqa: E402
from clusterfn.environment.python_source import HOST, HostPython, PythonSource  # noqa: E402

python = PythonSource(HOST, found=HostPython("/usr/bin/python3.11", "3.11.7", "2.28", "cpython-311-x86_64-linux-gnu"))
spec = replace(environment_files.read_file(Path("requirements.txt").absolute()), python=python)
lock = solver.lock_for(spec, SolveTarget("linux-64", "2.28", None, "3.11"), lambda line: None)
print(f"{time.perf_counter() - began:.3f} {len(lock.packages)}")
