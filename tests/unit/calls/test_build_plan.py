"""plan.json: a source distribution is the wheel that is built from it, under a hash of all that the build sees."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.builder.plan import parse_package
from clusterfn.calls.environment_upload import planned_package
from clusterfn.config.spec import Host
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.python_source import HostPython
from clusterfn.environment.resolve import LockedEnvironment
from clusterfn.scheduler.job_script import modules_setup

HOST = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")
PYTHON = LockedPackage("python", "3.11.7", "conda", "u/python-3.11.7-h0_0.conda", "a" * 64, "linux-64")
TOOL = LockedPackage("setuptools", "84.0", "pip", "u/setuptools-84.0-py3-none-any.whl", "b" * 64, "linux-64")
TOY = LockedPackage("toy", "1.0", "pip", "u/toy-1.0.tar.gz", "c" * 64, "linux-64", (TOOL,))
OTHER = LockedPackage("six", "1.17", "pip", "u/six-1.17-py3-none-any.whl", "d" * 64, "linux-64")


def planned(toy: LockedPackage = TOY, *others: LockedPackage, setup: str = "", **more: Any) -> dict[str, Any]:
    lock = EnvironmentLock(Path("lock"), (toy, *(others or (PYTHON,))), ("linux-64",))
    made = LockedEnvironment("requirements.txt", lock, "linux-64", "/data/envs", HOST, **more)
    return planned_package(toy, made, setup, {toy.sha256: 7})


def test_the_builder_reads_the_source_and_what_builds_it():
    found = parse_package(planned())

    assert (found.name, found.kind, found.url) == ("toy", ".whl", "")
    assert found.source is not None
    assert [(each.file, each.sha256, each.size) for each in found.archives] == [
        ("toy-1.0.tar.gz", "c" * 64, 7), ("setuptools-84.0-py3-none-any.whl", "b" * 64, 0),
    ]  # fmt: skip


def test_other_wheels_of_the_environment_do_not_change_the_wheel():
    assert planned(TOY, PYTHON, OTHER)["sha256"] == planned()["sha256"]


@pytest.mark.parametrize(
    "other",
    [
        lambda: planned(replace(TOY, sha256="e" * 64)),
        lambda: planned(replace(TOY, builds_with=(replace(TOOL, sha256="e" * 64),))),
        lambda: planned(TOY, replace(PYTHON, sha256="e" * 64)),
        lambda: planned(setup="load_module gcc"),
        lambda: planned(glibc="2.17"),
        lambda: planned(base=HostPython("/usr/bin/python3.11", "3.11.4", "2.28", "cpython-311")),
    ],
)
def test_whatever_the_build_sees_makes_another_wheel(other: Any):
    assert other()["sha256"] != planned()["sha256"]


def test_the_hosts_own_lines_and_modules_come_before_a_build():
    setup = modules_setup(HOST._replace(setup=("export COMPILER=icc",), modules=()))
    argv = ["/bin/sh", "-c", setup + '\nexec "$@"', "sh", "printenv", "COMPILER"]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert ran.stdout == "icc\n", ran.stderr
    assert "load_module gcc/12" in modules_setup(HOST._replace(modules=("gcc/12",)))
    assert modules_setup(HOST) == ""


@pytest.mark.parametrize(
    ("lines", "glibc"), [({"modules": ("gcc/13",)}, "2.28"), ({"setup": ("export CC=icc",)}, "2.28"), ({}, "2.17")]
)
def test_an_environment_with_a_wheel_that_is_built_is_another_where_the_build_sees_something_else(
    lines: dict[str, Any], glibc: str
):
    def name(*packages: LockedPackage, host: Host = HOST, glibc: str = "2.28") -> str:
        lock = EnvironmentLock(Path("lock"), packages, ("linux-64",))
        return LockedEnvironment("requirements.txt", lock, "linux-64", "/data/envs", host, glibc=glibc).id

    other = HOST._replace(**lines)

    assert name(PYTHON, TOY) != name(PYTHON, TOY, host=other, glibc=glibc)
    assert name(PYTHON, OTHER) == name(PYTHON, OTHER, host=other, glibc=glibc)
