"""Run the suites: see the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import joblib.test.test_parallel

_HERE = Path(__file__).parent
_FILE = "hosts:\n  here: {{scheduler: local, root: {root}}}\n"
_SCRIPT = "from joblib import Parallel, delayed\n"
# What is changed in joblib's suite: its list of backends, and that programs and jobs know ours.
_CHANGES = {
    'PROCESS_BACKENDS = ["multiprocessing", "loky"]': 'PROCESS_BACKENDS = ["clusterfn"]',
    _SCRIPT: f"{_SCRIPT}import clusterfn; clusterfn.register_joblib()\n",
    "\nimport joblib\n": "\nimport joblib\nimport clusterfn\nclusterfn.register_joblib()\n",
}
# The seconds that joblib's suite gives a program and a loop: too few where other programs need the cores.
_SECONDS = re.compile(r"(?<=timeout=)1[05]\b|(?<=assert dt < )20\b")
# Tests that cannot hold where a call runs in a job; section.md says why.
_CANNOT_HOLD = re.compile(
    r"test_dispatch_multiprocessing|test_initializer_(?:context|parallel)"  # they share an object of a Manager()
    r"|test_auto_memmap_on_arrays_from_generator|test_memmapping_leaks"  # their arrays are mapped from a file
    r"|test_error_capture"  # an item raises KeyboardInterrupt
    r"|test_custom_sweeper_run_workdir|test_to_absolute_path_multirun"  # of Hydra: a run is in the job's folder
)
_END = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) (test_\w+\.py::.*?)(?: - .*)?$", re.MULTILINE)


def copy(folder: Path, times: int) -> None:
    """Copy the suites; of joblib's, the parameters that name its backends for processes name ours.

    Args:
        times: How much longer its programs and loops may take.
    """
    text = Path(joblib.test.test_parallel.__file__).read_text(encoding="utf-8")
    for before, after in _CHANGES.items():
        if before not in text:
            raise SystemExit(f"the suite of joblib {version('joblib')} has no line {before.strip()!r}")
        text = text.replace(before, after)
    text = _SECONDS.sub(lambda found: str(int(found[0]) * times), text)
    (folder / "test_parallel.py").write_text(text, encoding="utf-8")
    shutil.copy(_HERE / "test_hydra_launcher.py", folder)
    (folder / "clusterfn.yml").write_text(_FILE.format(root=folder / "root"), encoding="utf-8")


def run(folder: Path, file: str, *words: str) -> None:
    """Run a suite, and print how many tests passed and which failed."""
    environ = {**os.environ, "CLUSTERFN_CONFIG": str(folder / "clusterfn.yml"), "CLUSTERFN_QUIET": "1"}
    options = ["-q", "-rA", "--tb=short", "--timeout=300", "-n", "3", "-p", "no:cacheprovider"]
    argv = [sys.executable, "-m", "pytest", *options, file, *words]
    with (folder / f"{file}.txt").open("w", encoding="utf-8") as output:
        subprocess.run(argv, cwd=folder, env=environ, stdout=output, stderr=subprocess.STDOUT, check=False)
    ends = _END.findall((folder / f"{file}.txt").read_text(encoding="utf-8", errors="replace"))
    passed = [test for kind, test in ends if kind in ("PASSED", "XFAIL", "XPASS")]
    failed = [test for kind, test in ends if kind in ("FAILED", "ERROR")]
    odd = [test for test in failed if not _CANNOT_HOLD.search(test)]
    print(f"{file}: {len(passed)} of {len(passed) + len(odd)} that can hold passed", flush=True)
    print("".join(f"  {test}{'' if test in odd else ' (cannot hold)'}\n" for test in failed), end="", flush=True)


def main() -> None:
    """Run both in the folder that is named; the second word says how much longer a busy machine may take."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    copy(folder, int(sys.argv[2]) if sys.argv[2:] else 1)
    run(folder, "test_parallel.py", "-k", "clusterfn or Clusterfn")
    run(folder, "test_hydra_launcher.py")


main()
