"""A lock file as it is read: its packages, its id, what it says when it is damaged, and when it does for a host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterfn import LockError
from clusterfn.environment import lock as locks
from clusterfn.environment import solver
from clusterfn.environment.conda_solver import SolveTarget, find_interpreter, virtual_packages
from clusterfn.environment.packages import from_packages
from clusterfn.environment.solver import lock_path, why_lock_unusable
from clusterfn.environment.specification import Specification

HEAD = """\
version: 1
metadata:
  content_hash: {linux-64: abc}
  channels: [{url: conda-forge, used_env_vars: []}]
  platforms: [linux-64]
  sources: [environment.yml]
  custom_metadata: {clusterfn_input: %s, clusterfn_virtual_packages_linux-64: "__cuda=11.8;__glibc=2.28"}
package:
"""
PYTHON = """\
- {name: python, version: 3.11.7, manager: conda, platform: linux-64, dependencies: {}, category: main, optional: false,
   url: "https://conda.example/conda-forge/linux-64/python-3.11.7-h0_1_cpython.conda", hash: {md5: aa, sha256: HASH}}
""".replace("HASH", "b" * 64)
WHEEL = """\
- {name: torch, version: 2.13.0+cpu, manager: pip, platform: linux-64, dependencies: {}, category: main,
   optional: false, url: "file:///opt/wheels/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl", hash: {sha256: HASH}}
""".replace("HASH", "c" * 64)
SPEC = from_packages(["python"])
HOST = SolveTarget("linux-64", "2.28", "11.8", "3.11")


def parsed(text: str) -> locks.EnvironmentLock:
    return locks.parse_lock(text.encode(), Path("x.conda-lock.yml"))


def lock(*packages: str) -> locks.EnvironmentLock:
    return parsed(HEAD % SPEC.input_hash + "".join(packages))


def test_packages_are_read_with_file_build_and_hashes():
    conda, wheel = lock(PYTHON, WHEEL).on("linux-64")

    assert (conda.file, conda.build, conda.sha256) == ("python-3.11.7-h0_1_cpython.conda", "h0_1_cpython", "b" * 64)
    assert (wheel.file, wheel.build, wheel.sha256) == ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "", "c" * 64)
    assert lock(PYTHON).python("linux-64") == (3, 11)


def test_the_id_is_of_the_content_alone():
    mirrored = PYTHON.replace("https://conda.example/", "https://mirror.example/")

    assert lock(PYTHON, WHEEL).id("linux-64") == lock(WHEEL, mirrored).id("linux-64")
    for other in (PYTHON.replace("bb", "dd"), PYTHON.replace("3.11.7", "3.11.8"), PYTHON.replace("_cpython", "_2")):
        assert lock(other).id("linux-64") != lock(PYTHON).id("linux-64")
    assert lock(PYTHON).id("linux-64") != lock(PYTHON).id("linux-aarch64")


def test_packages_for_development_are_left_out():
    assert len(lock(PYTHON, WHEEL.replace("category: main", "category: dev")).packages) == 1


BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(9))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB + "version: *a8", 'x.conda-lock.yml:2: "*a0": aliases are not supported'),
        ("version: [a, b]", "is not a conda-lock file: TypeError('expected a string, found a list')"),
        ("version: !!float x", "tags are not supported"),
        ("version: !!python/object/apply:os.system [false]", "tags are not supported"),
        ("version: 2020-13-45", "has version 2020-13-45 of conda-lock's format"),
        ("version: " + "9" * 10**6, "has version " + "9" * 100 + " of conda-lock's format"),
        ("[" * 10**6, "nested too deeply"),
        (HEAD % "x" + PYTHON.replace("3.11.7,", "[3],"), "expected a string, found a list"),
        (HEAD % "x" + PYTHON.replace('"https://conda', '"https://[conda'), "is not a conda-lock file"),
    ],
)
def test_a_lock_that_would_fill_the_memory_or_make_objects_is_refused_with_a_short_message(text, message):
    with pytest.raises(LockError) as caught:
        parsed(text)
    assert message in caught.value.message and len(caught.value.message) < 300


def test_a_version_is_the_text_that_was_written():
    assert lock(PYTHON.replace("3.11.7,", "3.10,")).python("linux-64") == (3, 10)


@pytest.mark.parametrize("version", ["3", "3.²", "3." + "1" * 5000, "x.y"])
def test_what_is_no_version_of_python_is_refused(version):
    with pytest.raises(LockError, match="is not a version of Python"):
        lock(PYTHON.replace("3.11.7,", f"'{version}',")).python("linux-64")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<<<<<<< HEAD\nversion: 1\n=======\n>>>>>>> other\n", "markers of an unfinished merge"),
        ("version: [", "it is not YAML"),
        ("version: 3", "has version 3 of conda-lock's format"),
        ("version: 1\nmetadata: {}\npackage: []", "is not a conda-lock file: KeyError('platforms')"),
        (HEAD % "x" + PYTHON.replace("sha256", "sha1"), "python 3.11.7 has no SHA-256"),
        (
            HEAD.replace("clusterfn_input: %s, ", "") + WHEEL.replace(".whl", ".tar.gz"),
            "torch 2.13.0+cpu is only available as source",
        ),
        (HEAD % "x" + PYTHON.replace("b" * 64, "1" * 63), "has '" + "1" * 63 + "' for a SHA-256"),
        (HEAD % "x" + WHEEL.replace("name: torch", "name: ../x"), "../x 2.13.0+cpu is not a package"),
        (HEAD % "x" + PYTHON + PYTHON.replace("3.11.7", "3.12.1"), "has python twice for linux-64: 3.11.7 and 3.12.1"),
    ],
)  # fmt: skip
def test_a_damaged_lock_says_what_is_wrong_and_what_to_do(text: str, message: str):
    with pytest.raises(LockError) as caught:
        parsed(text)

    assert message in caught.value.message
    assert caught.value.hint


def test_a_lock_without_python_says_so():
    with pytest.raises(LockError, match="has no python for linux-64"):
        lock(WHEEL).python("linux-64")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (HOST, ""),
        (replace(HOST, glibc="2.39", cuda="13.0", python="3.13"), ""),
        (replace(HOST, cuda=None, glibc=""), ""),
        (replace(HOST, glibc="2.9"), "x.conda-lock.yml was solved for glibc 2.28, and the host has 2.9"),
        (replace(HOST, cuda="11.4"), "x.conda-lock.yml was solved for CUDA 11.8, and the host has CUDA 11.4"),
        (replace(HOST, platform="linux-aarch64"), "x.conda-lock.yml has nothing for linux-aarch64"),
    ],
)
def test_why_a_lock_does_not_do(target: SolveTarget, reason: str):
    assert why_lock_unusable(lock(PYTHON), SPEC, target) == reason


def test_a_changed_specification_is_a_reason():
    assert (
        why_lock_unusable(lock(PYTHON), from_packages(["python", "six"]), HOST)
        == 'packages=["python", "six"] has changed'
    )


def test_a_lock_for_no_gpu_does_not_do_where_there_is_one():
    bare = parsed((HEAD % SPEC.input_hash).replace("__cuda=11.8;", "") + PYTHON)

    assert why_lock_unusable(bare, SPEC, HOST) == "x.conda-lock.yml was solved for no GPU, and the host has CUDA 11.8"


def test_where_a_lock_is():
    beside = Specification("environment.yaml", file=Path("/p/environment.yaml"))

    assert lock_path(beside, HOST) == Path("/p/environment.conda-lock.yml")
    assert lock_path(SPEC, HOST).parent.parts[-2:] == ("clusterfn", "locks")
    assert lock_path(SPEC, HOST) != lock_path(SPEC, replace(HOST, python="3.12"))


def test_glibc_is_supposed_to_be_the_oldest_where_it_is_unknown():
    assert virtual_packages(replace(HOST, glibc=""))["__glibc"] == "2.17"
    assert virtual_packages(replace(HOST, platform="linux-aarch64"))["__archspec"] == "1 aarch64"
    assert "__cuda" not in virtual_packages(replace(HOST, cuda=None))


def test_what_other_tools_read_of_a_package_is_written_as_it_was_read():
    before = lock(PYTHON.replace("dependencies: {}", "dependencies: {openssl: '>=3'}"), WHEEL)

    data = solver.lock_content(before.packages, HOST, None, SPEC)
    after = locks.parse_lock(data, before.path)

    assert after.packages == before.packages
    python = after.python_package("linux-64")
    assert (dict(python.dependencies), python.md5) == ({"openssl": ">=3"}, "aa")
    assert (after.input_hash, after.virtual_packages("linux-64")) == (SPEC.input_hash, virtual_packages(HOST))


def test_differences_are_reported_in_a_line():
    before = lock(PYTHON, WHEEL)
    after = lock(PYTHON.replace("h0_1", "h0_2"), WHEEL.replace("name: torch", "name: jax"))

    assert solver.differences(before, before, "linux-64") == "the packages are the same"
    told = solver.differences(before, after, "linux-64")
    assert told == "python 3.11.7 h0_1_cpython -> h0_2_cpython; new: jax; gone: torch"


def test_many_differences_are_counted_and_named_where_all_details_are_wanted():
    many = [WHEEL.replace("name: torch", f"name: new{number}") for number in range(9)]
    before, after = lock(PYTHON, WHEEL), lock(PYTHON.replace("h0_1", "h0_2"), *many)

    assert solver.differences(before, after, "linux-64") == "1 changed, 9 new, 1 gone"
    told = solver.differences(before, after, "linux-64", named=True)
    assert "h0_1_cpython -> h0_2_cpython; new: new0, new1" in told and told.endswith("; gone: torch")


def test_a_lock_that_cannot_be_written_leaves_nothing(tmp_path: Path):
    (tmp_path / "target.yml").mkdir()

    with pytest.raises(LockError, match="the lock cannot be written"):
        solver.write_lock(tmp_path / "target.yml", b"x")

    assert [path.name for path in tmp_path.iterdir()] == ["target.yml"]


def test_without_py_rattler_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(LockError, match="this Python has no py-rattler") as caught:
        find_interpreter()

    assert "pip install 'py-rattler" in (caught.value.hint or "")


def test_what_an_old_conda_lock_supposed_of_hosts_is_no_package():
    row = (
        "- {name: __osx, version: '11.0', manager: conda, platform: osx-64, dependencies: {}, category: main,\n"
        "   url: 'file:///tmp/osx-64/__osx-11.0-0.tar.bz2', hash: {md5: aa, sha256: null}}\n"
    )
    text = f"version: 1\nmetadata: {{platforms: [osx-64], channels: [], sources: []}}\npackage:\n{row}"

    assert parsed(text).packages == ()
