"""Which interpreter of a host an environment is built on, and the archive of python-build-standalone."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterfn.config.spec import EnvironmentSettings, Host
from clusterfn.environment import python_source, resolve, solver, standalone_python, uv
from clusterfn.environment.lock import EnvironmentLock, LockedPackage, Unsolved
from clusterfn.environment.project import PYPROJECT, ProjectFile
from clusterfn.environment.python_source import HOST, HostPython, PythonSource, choose
from clusterfn.errors import ConfigError, EnvironmentBuildError, LockError
from tests.unit.environment import shelf as shelves
from tests.unit.environment.shelf import HOST as LINUX
from tests.unit.environment.shelf import Shelf

HERE = f"linux-{platform.machine()}"
VERSION = ".".join(map(str, sys.version_info[:3]))
FOUND = HostPython("/usr/bin/python3.11", "3.11.4", "2.28", "cpython-311-x86_64-linux-gnu")
TOLD: dict[str, Any] = {
    "given": "python3.11", "path": "/usr/bin/python3.11", "version": [3, 11, 4], "release": True, "glibc": "2.28",
    "machine": "x86_64", "bits": 64, "implementation": "CPython", "abi": "cpython-311-x86_64-linux-gnu",
    "free_threaded": False, "copied": False,
}  # fmt: skip


def project(requires: str = ">=3.9") -> ProjectFile:
    return ProjectFile(PYPROJECT, Path("pyproject.toml"), requires_python=requires)


def said(**changes: Any) -> str:
    return "clusterfn python " + json.dumps({**TOLD, **changes})


def ask(source: PythonSource, requires: str = ">=3.9", minor: int = sys.version_info[1]) -> HostPython:
    """Ask the interpreters of this machine, as a host is asked."""
    argv = python_source.question(source, project(requires), (3, minor))
    printed = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    return choose(source, project(requires), HERE, printed, "tensor01")


def test_a_real_interpreter_describes_itself():
    found = ask(PythonSource(HOST, sys._base_executable))  # type: ignore[attr-defined]

    assert found.version == VERSION
    assert Path(found.path).exists() and "cpython" in found.abi
    assert found.glibc == platform.libc_ver()[1]


def test_a_venv_leads_to_the_interpreter_that_it_is_made_from(tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--copies", str(tmp_path / "c")], check=True)

    assert not ask(PythonSource(HOST, str(tmp_path / "v/bin/python"))).path.startswith(str(tmp_path))
    with pytest.raises(EnvironmentBuildError) as caught:
        ask(PythonSource(HOST, str(tmp_path / "c/bin/python")))
    assert "a venv with a copy of its interpreter" in caught.value.evidence[0]


def test_without_a_path_the_one_nearest_to_the_callers_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def program(name: str, minor: int) -> None:
        line = said(given=name, path=f"/x/{name}", version=[3, minor, 1], machine=platform.machine())
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{line}'\n")
        (tmp_path / name).chmod(0o755)

    program("python3.10", 10)
    program("python3", 12)
    program("python3.12", 12)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(python_source, "OLDEST", (3, 9))

    argv = python_source.question(PythonSource(HOST), project("<3.13"), (3, 11))
    assert argv[5:] == ["python3.11", "python3.12", "python3.10", "python3.9", "python3"]
    assert ask(PythonSource(HOST), "==3.12.*", 11).path == "/x/python3.12"
    assert ask(PythonSource(HOST), "==3.10.*", 11).path == "/x/python3.10"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": [3, 11, 2]}, "python3.11 is Python 3.11.2, and pyproject.toml requires >=3.11.4"),
        ({"version": [3, 12, 1], "release": False}, "python3.11 is a test version of Python 3.12.1"),
        ({"version": [3, 6, 8]}, "python3.11 is Python 3.6.8, and a function needs 3.9 or newer"),
        ({"machine": "i686", "bits": 32}, "python3.11 is a 32-bit program of i686, and wheels are chosen for x86_64"),
        ({"glibc": ""}, "python3.11 does not use glibc"),
        ({"implementation": "PyPy"}, "python3.11 is PyPy, and wheels are for CPython"),
        ({"free_threaded": True}, "python3.11 is built without the GIL"),
    ],
)
def test_an_interpreter_that_does_not_fit_is_refused_with_the_reason(changes: dict[str, Any], why: str):
    with pytest.raises(EnvironmentBuildError) as caught:
        choose(PythonSource(HOST), project(">=3.11.4"), "linux-x86_64", said(**changes), "tensor01")

    assert caught.value.message == "tensor01 has no Python for pyproject.toml"
    assert caught.value.evidence[0].startswith(why)
    assert "env_python: standalone" in (caught.value.hint or "")


def test_one_that_fits_is_taken_after_others_that_do_not():
    printed = "\n".join([said(version=[3, 8, 1]), "noise", said(), said(version=[3, 12, 0])])

    assert choose(PythonSource(HOST), project(), "linux-x86_64", printed, "tensor01") == FOUND


@pytest.mark.parametrize("content", [None, "#!/bin/sh\necho broken >&2; exit 3\n"])
def test_a_path_that_leads_to_no_interpreter_is_refused(tmp_path: Path, content: str | None):
    path = tmp_path / "python3.11"
    if content:
        path.write_text(content)
        path.chmod(0o755)

    with pytest.raises(EnvironmentBuildError) as caught:
        ask(PythonSource(HOST, str(path)))

    assert caught.value.message == f"tensor01 cannot use the Python {path} for pyproject.toml"
    expected = [f"{path} cannot be executed"] if content is None else ["broken", f"{path} ended with exit status 3"]
    assert list(caught.value.evidence) == expected


def test_the_brackets_name_the_source(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    shelf.pyproject("", "[project.optional-dependencies]\ngpu = []\n")
    shelf.write("toy\n", "requirements.txt")
    shelf.write("dependencies: [python]\n", "environment.yml")
    monkeypatch.chdir(shelf.project)

    named = resolve.read_specification("pyproject.toml[gpu, python:/usr/bin/python3.11]", ())
    assert named.title == "pyproject.toml[gpu,python:/usr/bin/python3.11]"
    assert named.python == PythonSource(HOST, "/usr/bin/python3.11")
    assert named.project is not None and named.project.extras == ("gpu",)
    assert resolve.read_specification("requirements.txt[python:standalone]", ()).python.kind == "standalone"
    for text, why in [
        ("environment.yml[python:host]", "says itself which Python"),
        ("pyproject.toml[python:3.11]", "does not say where Python"),
        ("pyproject.toml[python:host,python:standalone]", "two sources"),
    ]:
        with pytest.raises(ConfigError, match=why):
            resolve.read_specification(text, ())


def on_host(shelf: Shelf, found: HostPython = FOUND) -> resolve.LockedEnvironment:
    """The project, locked for a host with that interpreter and a newer glibc of its own."""
    spec = replace(shelf.read(), python=PythonSource(HOST, found=found))
    facts = {"platform": "linux-x86_64", "glibc": "2.36", "root": "/root"}
    host = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2", making=EnvironmentSettings(python="host"))
    return resolve.resolve_environment(spec, host, facts, None, (3, 12), shelf.said.append)


def test_the_lock_is_for_the_hosts_version_and_glibc_and_asks_no_mirror(shelf: Shelf):
    shelf.wheel("toy", "1.0", "cp311-cp311-manylinux_2_17_x86_64")
    shelf.wheel("toy", "2.0", "cp311-cp311-manylinux_2_31_x86_64")
    shelf.wheel("early")
    shelf.pyproject('"toy", "early; python_full_version < \'3.11.5\'"')

    made = on_host(shelf)

    assert shelf.pythons == []
    assert made.lock.path.name == "pyproject-host-python-3.11.4.conda-lock.yml"
    assert {(each.manager, each.name, each.version) for each in made.lock.packages} == {
        ("host", "python", "3.11.4"), ("pip", "toy", "1.0"), ("pip", "early", "1.0")
    }  # fmt: skip
    assert [each.name for each in made.lock.archives("linux-64")] == ["early", "toy"]
    assert made.interpreter.version == (3, 11)
    assert made.interpreter.activation["set"] == {"VIRTUAL_ENV": made.prefix}
    assert "Python 3.11.4 is the host's own: /usr/bin/python3.11 (glibc 2.28)" in shelf.said
    shelf.said.clear()
    assert on_host(shelf) == made
    assert shelf.said == []


@pytest.mark.parametrize("change", [{"version": "3.11.5"}, {"path": "/opt/python3.11"}, {"abi": "cpython-311d"}])
def test_another_interpreter_makes_another_environment(shelf: Shelf, change: dict[str, str]):
    shelf.wheel("toy")
    shelf.pyproject('"toy"')

    assert on_host(shelf).id != on_host(shelf, replace(FOUND, **change)).id


def test_a_lock_of_another_source_is_not_used(shelf: Shelf):
    shelf.wheel("toy")
    shelf.pyproject('"toy"')
    shelf.lock()
    spec = shelf.read()
    wanted = replace(spec, python=PythonSource(HOST, found=FOUND))

    assert solver.existing_lock(spec, shelves.HOST)[1] == ""
    assert solver.existing_lock(replace(spec, python=PythonSource("standalone")), shelves.HOST)[1] == ""
    solver.lock_path(wanted, shelves.HOST).write_bytes(solver.lock_path(spec, shelves.HOST).read_bytes())
    assert solver.existing_lock(wanted, shelves.HOST)[1]


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
    return solver.lock_for(spec, LINUX, shelf.said.append)


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
