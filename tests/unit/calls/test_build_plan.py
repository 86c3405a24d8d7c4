"""How an environment gets to a host: what plan.json says of wheels to build, and what is said of a download.

A source distribution is the wheel that is built from it, under a hash of all that the build sees.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.builder.plan import parse_package
from clusterfn.calls import environment_upload
from clusterfn.config.spec import Host
from clusterfn.environment import build_plan, download
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.python_source import HostPython
from clusterfn.environment.resolve import LockedEnvironment
from clusterfn.errors import HostError
from clusterfn.hosts import environment_builder
from clusterfn.scheduler.job_script import modules_setup

HOST = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")
PYTHON = LockedPackage("python", "3.11.7", "conda", "u/python-3.11.7-h0_0.conda", "a" * 64, "linux-64")
TOOL = LockedPackage("setuptools", "84.0", "pip", "u/setuptools-84.0-py3-none-any.whl", "b" * 64, "linux-64")
TOY = LockedPackage("toy", "1.0", "pip", "u/toy-1.0.tar.gz", "c" * 64, "linux-64", (TOOL,))
OTHER = LockedPackage("six", "1.17", "pip", "u/six-1.17-py3-none-any.whl", "d" * 64, "linux-64")


def locked(*packages: LockedPackage, host: Host = HOST, **more: Any) -> LockedEnvironment:
    lock = EnvironmentLock(Path("e.conda-lock.yml"), packages, ("linux-64",))
    return LockedEnvironment("requirements.txt", lock, "linux-64", "/data/envs", host, **more)


def planned(toy: LockedPackage = TOY, *others: LockedPackage, setup: str = "", **more: Any) -> dict[str, Any]:
    made = locked(toy, *(others or (PYTHON,)), **more)
    return build_plan.planned_package(toy, made, setup)


def test_the_builder_reads_the_source_and_what_builds_it():
    plan = build_plan.EnvironmentPlan({"packages": [planned()]}, {})
    (package,) = json.loads(plan.completed(fetch=True, sizes={TOY.sha256: 7}))["packages"]
    found = parse_package(package)

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
def test_an_environment_with_a_wheel_that_is_built_is_another_where_the_build_sees_something_else(lines, glibc):
    other = HOST._replace(**lines)

    for wheel, is_same in ((TOY, False), (OTHER, True)):
        here, there = locked(PYTHON, wheel, glibc="2.28"), locked(PYTHON, wheel, host=other, glibc=glibc)
        assert (here.id == there.id) == is_same


def package(name: str, url: str = "") -> LockedPackage:
    return LockedPackage(name, "1", "pip", url or f"{name}.whl", name * 8, "linux-64")


def said(theirs: list[LockedPackage], ours: list[LockedPackage], sizes: dict[str, int]) -> list[str]:
    lines: list[str] = []
    known = {**{name * 8: size for name, size in sizes.items()}, **download.download_sizes(ours)}
    build_plan.tell_download(locked(*theirs, *ours), theirs, ours, known, lines.append)
    return lines


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_the_host_fetches_is_reported_with_its_size_if_it_is_large():
    torch, cuda = package("torch"), package("cublas")

    assert said([torch, cuda], [], {"torch": 900_000_000, "cublas": 600_000_000})[1:] == [
        "requirements.txt: 1.4 GB for /data/envs on tensor01: tensor01 fetches 1.4 GB"
    ]
    assert len(said([torch], [], {"torch": 900_000_000})) == 1


def test_what_this_machine_sends_counts_too_and_what_is_unknown_is_reported(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(build_plan, "MUCH", 1000)
    wheel = tmp_path / "own.whl"
    wheel.write_bytes(b"x" * 800)
    own, unknown = package("own", wheel.as_uri()), package("gone", (tmp_path / "gone.whl").as_uri())

    line = said([package("torch")], [own, unknown], {"torch": 700})[1]

    assert line.startswith("requirements.txt: at least 1.5 KB for /data/envs on tensor01: tensor01 fetches 700 bytes")
    assert len(said([package("torch")], [own], {"torch": 100})) == 1


@pytest.mark.parametrize(
    "answer", [{"stage": "none"}, {"missing": ["of no package"], "unreachable": [], "sizes": {}}, {"missing": 3}]
)
def test_a_host_that_lacks_what_nobody_named_is_reported_as_such(answer: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment_builder, "run_builder", lambda *_, **__: [answer])
    facts = SimpleNamespace(version=(3, 11), platform="linux-x86_64")
    session: Any = SimpleNamespace(settings=HOST, connection=SimpleNamespace(facts=facts))

    with pytest.raises(HostError, match="tensor01 sent which archives it lacks in a form"):
        environment_upload.upload_missing(session, locked(PYTHON, package("torch")), environment_upload.BuildDisplay())
