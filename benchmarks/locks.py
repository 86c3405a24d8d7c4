"""What locking a requirements.txt costs beside `uv pip compile` of it: `python -m benchmarks.locks [TURNS]`.

Both run in processes of their own, in turns, with uv's cache filled; the host has a Python, so that no channel is
asked. The report goes to benchmarks/results.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.place import SCRIPTS
from benchmarks.report import aligned, keep
from clusterfn.environment import uv

HUNDRED = """
aiohttp alembic anyio attrs beautifulsoup4 black bleach blinker build cachetools celery certifi cffi
charset-normalizer click cloudpickle colorama coverage cryptography cython dask decorator deepdiff dill
distlib django dnspython docutils fastapi filelock flask fonttools fsspec gitpython google-auth graphviz
greenlet gunicorn h5py httpx hypothesis idna imageio ipython isort jinja2 joblib jsonschema kiwisolver lxml
markdown marshmallow matplotlib mypy networkx nltk numba numpy openpyxl orjson packaging pandas pillow
platformdirs plotly pluggy polars prompt-toolkit protobuf psutil pyarrow pycparser pydantic pygments pyjwt
pymongo pytest python-dateutil pytz pyyaml redis regex requests rich scikit-image scikit-learn scipy seaborn
setuptools shapely six sqlalchemy starlette sympy tabulate tenacity tornado tqdm typer urllib3 uvicorn
websockets werkzeug xarray
"""
HEADERS = ("packages named", "locked", "uv pip compile", "new lock", "ratio", "nothing changed")
_TURNS = 7


def main(words: Sequence[str]) -> None:
    """Measure, print, and keep the report."""
    turns = int(words[0]) if words else _TURNS
    load = os.getloadavg()[0]
    found = aligned(HEADERS, [_row(count, turns) for count in (25, 100)])
    text = f"{found}\n\nMedians of {turns} turns, whole processes; load of the machine before: {load:.1f}.\n"
    print(f"{text}\n{keep('locks-', 'Locks of a requirements.txt', text)}")


def _row(count: int, turns: int) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "requirements.txt").write_text("\n".join(HUNDRED.split()[:count]) + "\n")
        argv = [uv.find_uv(), "pip", "compile", "requirements.txt", "--format", "pylock.toml", "--quiet",
                "-o", "pylock.uv.toml", "--python-platform", "x86_64-manylinux_2_28", "--python-version", "3.11.7",
                "--python", sys.executable]  # fmt: skip
        by_uv, new, same, packages = [], [], [], ""
        for turn in range(turns + 1):
            for path in folder.glob("*lock*"):
                path.unlink()
            began = time.perf_counter()
            subprocess.run(argv, cwd=folder, check=True)
            took = time.perf_counter() - began
            first, packages = _locked(folder)
            again, _ = _locked(folder)
            if turn:  # the first fills the cache
                by_uv.append(took)
                new.append(first)
                same.append(again)
    middle = [statistics.median(each) for each in (by_uv, new, same)]
    seconds = [f"{each:.2f} s" for each in middle]
    return (str(count), packages, *seconds[:2], f"{middle[1] / middle[0]:.2f}", seconds[2])


def _locked(folder: Path) -> tuple[float, str]:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "lock.py")], cwd=folder, check=True, capture_output=True, text=True
    )
    return time.perf_counter() - began, done.stdout.split()[1]


if __name__ == "__main__":
    main(sys.argv[1:])
