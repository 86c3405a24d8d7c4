"""The archive of python-build-standalone: which one uv names, where its hash is from, and when it is taken unasked."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterfn.environment import solver, standalone_python, uv
from clusterfn.environment.lock import EnvironmentLock, LockedPackage, Unsolved
from clusterfn.environment.python_source import PythonSource
from clusterfn.errors import LockError
from tests.unit.environment.shelf import HOST, Shelf

CONTENT = b"an archive"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FIND_PYTHON, WITH_HASH = standalone_python.find_python, standalone_python.with_hash  # the shelf replaces them


@pytest.fixture
def mirror(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a mirror that has an archive for Python 3.11, and no hashes; the archive."""
    folder = tmp_path / "a mirror"
    monkeypatch.setattr(standalone_python, "find_python", FIND_PYTHON)
    monkeypatch.setattr(standalone_python, "with_hash", WITH_HASH)
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", folder.as_uri())
    argv = [uv.find_uv(), "python", "list", "cpython-3.11-linux-x86_64-gnu", "--only-downloads", "--offline"]
    known = json.loads(subprocess.run([*argv, "--output-format", "json"], capture_output=True, check=True).stdout)
    release, name = known[0]["url"].replace("%2B", "+").split("/")[-2:]
    (folder / release).mkdir(parents=True)
    (folder / release / name).write_bytes(CONTENT)
    return folder / release / name


def find(shelf: Shelf, minor: str = "3.11", platform: str = "linux-64") -> LockedPackage:
    return WITH_HASH(FIND_PYTHON(minor, platform, shelf.project), shelf.said.append)


def locked_with(shelf: Shelf, kind: str) -> EnvironmentLock:
    spec = replace(shelf.read(), python=PythonSource(kind))
    return solver.lock_for(spec, HOST, shelf.said.append)


def test_a_mirror_without_hashes_is_downloaded_once_to_compute_one(shelf: Shelf, mirror: Path):
    found = find(shelf)

    assert (found.name, found.manager, found.sha256, found.file) == ("python", "standalone", SHA256, mirror.name)
    assert found.version.startswith("3.11.") and "install_only" in found.file
    assert [line for line in shelf.said if "there is no SHA256SUMS beside" in line]
    assert shelf.said[-1].startswith(f"Python {found.version} comes from python-build-standalone: file://")


def test_the_hash_beside_the_archive_is_taken_and_nothing_is_downloaded(shelf: Shelf, mirror: Path):
    mirror.with_name("SHA256SUMS").write_text(f"{'0' * 64}  other.tar.gz\n{'ab' * 32} *{mirror.name}\n")
    mirror.unlink()

    assert find(shelf).sha256 == "ab" * 32


def test_a_mirror_that_does_not_answer_is_named(shelf: Shelf, mirror: Path):
    mirror.unlink()

    with pytest.raises(LockError, match="cannot be fetched from python-build-standalone") as caught:
        find(shelf)

    assert mirror.parent.name in caught.value.evidence[0]
    assert "UV_PYTHON_INSTALL_MIRROR" in (caught.value.hint or "") and "[python:host]" in (caught.value.hint or "")


@pytest.mark.parametrize(("minor", "platform"), [("3.5", "linux-64"), ("3.11", "linux-ppc64le")])
def test_a_python_that_it_does_not_have_is_no_solution(shelf: Shelf, minor: str, platform: str):
    with pytest.raises(Unsolved):
        find(shelf, minor, platform)


def test_where_it_is_asked_for_its_lock_has_its_archive(shelf: Shelf, mirror: Path):
    shelf.wheel("toy")
    shelf.pyproject('"toy"')

    lock = locked_with(shelf, "standalone")

    assert lock.path.name == "pyproject.conda-lock.yml"
    python = lock.python_package("linux-64")
    assert (python.manager, python.sha256) == ("standalone", SHA256)
    assert [each.manager for each in lock.archives("linux-64")] == ["standalone", "pip"]
    assert locked_with(shelf, "standalone") == lock


def test_it_is_taken_unasked_and_kept(shelf: Shelf, mirror: Path):
    shelf.wheel("toy")
    shelf.pyproject('"toy"')

    lock = shelf.lock()

    assert lock == locked_with(shelf, "standalone")
    shelf.wheel("more")
    shelf.pyproject('"toy", "more"')
    mirror.unlink()
    assert shelf.lock().python_package("linux-64") == lock.python_package("linux-64")
