"""Byte code that a full disk has cut: whatever runs clusterfn's own code takes it for missing, and writes none."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn.bridge.builder import link, progress
from clusterfn.hosts import bridge_bundle
from tests.interpreters import interpreter

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs run on Unix")
GUARD = Path(link.__file__).parents[1] / "agent" / "byte_code.py"
IMPORT = f"""
exec(open({str(GUARD)!r}).read(), {{}})
import sys
sys.path[:0] = sys.argv[1:]
import mine
print(mine.LAST)
"""
BETWEEN = pytest.mark.long
OLD_AND_NEW = pytest.mark.parametrize("python", ["3.6", pytest.param("3.11", marks=BETWEEN), "3.13"])


def run(python: str, *words: object, limit: str = "unlimited") -> subprocess.CompletedProcess[str]:
    """Run a program; a limit in KB cuts each file that it writes, as a full disk does."""
    found = interpreter(python) or pytest.skip(f"Python {python} is not installed here")
    argv = ["/bin/sh", "-c", f'ulimit -f {limit}; exec "$@"', "sh", found, "-I", "-S", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def bridge(root: Path) -> Path:
    for name, data in bridge_bundle.bridge().files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


PROGRAMS = [("supervise.py", "list"), ("build.py", "list"), ("worker.py",), ("call.py",)]


# The first two run in the host's own Python.
@pytest.mark.parametrize(
    ("python", "programs"),
    [("3.6", PROGRAMS[:2]), pytest.param("3.11", PROGRAMS[2:], marks=BETWEEN), ("3.13", PROGRAMS)],
)
def test_each_program_of_the_bridge_runs_from_byte_code_of_any_length(python, programs, tmp_path):
    root = bridge(tmp_path / "bridge")
    for name, *words in programs:
        usual = run(python, root / name, *words, tmp_path)
        for path, share in zip(sorted(root.rglob("*.pyc")), itertools.cycle((0.0, 0.01, 0.3, 0.999))):
            os.truncate(path, int(path.stat().st_size * share))

        found = run(python, root / name, *words, tmp_path)

        assert (found.returncode, found.stderr) == (usual.returncode, usual.stderr)


@OLD_AND_NEW
def test_a_module_of_the_user_is_neither_read_from_cut_byte_code_nor_written_as_such(python: str, tmp_path):
    source = tmp_path / "mine.py"
    source.write_text("".join(f"v{number} = {number} + 0.5\n" for number in range(2000)) + "LAST = v1999\n")
    on_full_disk = run(python, "-c", IMPORT, tmp_path, limit="8")
    assert (on_full_disk.stdout, list(tmp_path.rglob("*.pyc"))) == ("1999.5\n", [])
    run(python, "-c", IMPORT, tmp_path)
    (made,) = tmp_path.rglob("*.pyc")
    whole = made.read_bytes()
    for length in (0, 8, 17, len(whole) // 2, len(whole) - 1):
        made.write_bytes(whole[:length])
        assert run(python, "-c", IMPORT, tmp_path).stdout == "1999.5\n"
    run(python, "-c", IMPORT, tmp_path)
    assert made.read_bytes() == whole


def test_an_environment_gets_no_cut_byte_code(tmp_path):
    layout = link.Layout(str(tmp_path), sys.version_info[:2], None)
    source = link.TargetFile(f"{layout.library}/mine.py", link.WRITE, "")
    (tmp_path / source.path).parent.mkdir(parents=True)
    (tmp_path / source.path).write_text("".join(f"v{number} = {number} + 0.5\n" for number in range(2000)))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -f 8\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    layout.python = str(python)
    layout.add(source)

    with pytest.raises(progress.BuildFailed, match="cannot compile") as failed:
        link.compile_missing(layout)

    assert "No space left on device" in str(failed.value.evidence)
    assert list(tmp_path.rglob("*.pyc")) == []
