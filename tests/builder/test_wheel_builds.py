"""What has no wheel is built on the host, once: by pip, in an environment of its own, with the host's compiler."""

from __future__ import annotations

import hashlib
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.builder import toys
from tests.builder.host import Answer, Host, entry
from tests.lab.channel import Channel
from tests.processes import is_running
from tests.waiting import until

SETUP = "from setuptools import Extension, setup\n"
SETUP += "setup(name='quick', version='1.0', ext_modules=[Extension('quick', ['quick.c'])])\n"
QUICK = """
#include <Python.h>
static PyObject *two(PyObject *self, PyObject *none) { return PyLong_FromLong(2); }
static PyMethodDef methods[] = {{"two", two, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "quick", "", -1, methods};
PyMODINIT_FUNC PyInit_quick(void) { return PyModule_Create(&module); }
"""


@pytest.fixture
def tools(channel: Channel) -> list[dict[str, Any]]:
    """pip, setuptools and wheel, as a lock names them."""
    return [entry(path) for path in channel.build_tools[:3]]


@pytest.fixture
def short_pip(shelf: Path) -> list[dict[str, Any]]:
    """What builds a source distribution that is its own backend, where it does not matter what pip itself does."""
    return [toys.pip(shelf)]


def built(sdist: Path, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The wheel of a source distribution, as a plan names it."""
    name, version = sdist.name.removesuffix(".tar.gz").rsplit("-", 1)
    source = {
        "name": name, "version": version, "build": "", "manager": "pip", "file": sdist.name, "url": sdist.as_uri(),
        "sha256": hashlib.sha256(sdist.read_bytes()).hexdigest(),
    }  # fmt: skip
    key = hashlib.sha256(f"{source['sha256']}{[each['sha256'] for each in tools]}".encode()).hexdigest()
    file = f"{name}-{version}-built.whl"
    return {**source, "file": file, "url": "", "sha256": key, "source": source, "requires": list(tools)}


def stages(answer: Answer) -> set[str]:
    return {line["stage"] for line in answer.lines}


@pytest.mark.lab
def test_a_wheel_is_built_once_for_all_environments(host: Host, shelf: Path, python: dict[str, Any], tools):
    wheel = built(toys.sdist(shelf, "plain", toys.with_backend("plain")), tools)
    first = host.plan([python, wheel], verify=["plain"])
    second = host.plan([python, wheel, toys.module(shelf, "more")], verify=["plain", "more"])

    answer = host.build(first)

    assert answer.rc == 0, answer.last
    assert host.run(first, "python", "-c", "import plain; print(plain.NAME)") == "plain"
    assert "build" in stages(answer)
    assert not (host.prefix(first) / toys.SITE / "setuptools").exists()
    assert host.leftovers() == []
    assert "build" not in stages(host.build(second))


@pytest.mark.lab
@pytest.mark.skipif(shutil.which("cc") is None, reason="this machine has no compiler")
def test_an_extension_in_c_is_compiled_for_the_environments_python(
    host: Host, shelf: Path, python: dict[str, Any], tools
):
    sdist = toys.sdist(shelf, "quick", {"setup.py": SETUP, "quick.c": QUICK})
    plan = host.plan([python, built(sdist, tools)], verify=["quick"])

    answer = host.build(plan)

    assert answer.rc == 0, answer.last
    assert host.run(plan, "python", "-c", "import quick; print(quick.two())") == "2"


@pytest.mark.parametrize("end", ["pass", pytest.param("raise SystemExit(1)", marks=pytest.mark.long)])
def test_a_build_leaves_no_process_behind(host: Host, shelf: Path, python: dict[str, Any], short_pip, end: str):
    kept = shelf / "server"
    before = "import subprocess; server = subprocess.Popen(['sleep', '600'], stdout=-3, stderr=-3)\n"
    before += f"open({str(kept)!r}, 'w').write(str(server.pid))\n{end}"
    wheel = built(toys.sdist(shelf, "serves", toys.with_backend("serves", before)), short_pip)

    answer = host.build(host.plan([python, wheel]))

    assert answer.rc == (0 if end == "pass" else 1), answer.last
    assert not is_running(int(kept.read_text()))


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_builder_that_is_ended_leaves_no_process_behind(
    host: Host, shelf: Path, python: dict[str, Any], tools, number: int
):
    kept = shelf / "pids"
    before = "import subprocess, time; server = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    before += f"open({str(kept)!r}, 'w').write(f'{{os.getppid()}} {{os.getpid()}} {{server.pid}} whole')\n"
    before += "time.sleep(600)"
    wheel = built(toys.sdist(shelf, "serves", toys.with_backend("serves", before)), tools)
    running = host.start(host.plan([python, wheel]))
    *pids, _ = until(lambda: kept.exists() and "whole" in kept.read_text() and kept.read_text().split())

    running.process.send_signal(number)
    running.answer()

    until(lambda: not any(is_running(int(pid)) for pid in pids))


@pytest.mark.long
def test_a_source_distribution_that_was_sent_stays_for_other_environments_until_none_has_it(
    host: Host, shelf: Path, python: dict[str, Any], short_pip
):
    sdist = toys.sdist(shelf, "plain", toys.with_backend("plain"))
    first, second = built(sdist, short_pip), built(sdist, [*short_pip, toys.wheel(shelf, "helper", {"helper.py": b""})])
    for wheel in (first, second):
        wheel["source"]["url"] = ""
    (host.root / "blobs").mkdir(parents=True)
    sent = host.root / "blobs" / first["source"]["sha256"]
    shutil.copy(sdist, sent)
    plan, other = host.plan([python, first]), host.plan([python, second])

    assert host.build(plan).rc == 0
    assert not sent.exists()
    assert host.build(other).rc == 0

    kept = host.root / "pkgs" / first["source"]["sha256"]
    host.call("remove", str(host.root), plan["id"])
    assert kept.exists()
    host.call("remove", str(host.root), other["id"])
    assert not kept.exists()


def test_a_build_that_fails_shows_its_last_lines_its_log_and_what_to_do(
    host: Host, shelf: Path, python: dict[str, Any], short_pip
):
    before = "print('compiling')\nraise RuntimeError('fatal error: gsl.h: No such file or directory')"
    wheel = built(toys.sdist(shelf, "broken", toys.with_backend("broken", before)), short_pip)
    plan = host.plan([python, wheel])

    last = host.build(plan).last

    assert last["at"] == "build" and last["message"].startswith("broken 1.0 has no wheel, and building it on ")
    assert any("gsl.h" in line for line in last["evidence"])
    log = last["evidence"][-1].partition("all of it: ")[2]
    assert "compiling" in Path(log).read_text() and log.startswith(str(host.root))
    assert "the header gsl.h is missing" in last["hint"]
    assert host.leftovers() == [] and not host.prefix(plan).exists()


@pytest.mark.long
def test_the_hosts_modules_are_loaded_for_a_build(host: Host, shelf: Path, python: dict[str, Any], short_pip):
    before = "assert os.environ['COMPILER'] == 'icc'"
    wheel = built(toys.sdist(shelf, "loads", toys.with_backend("loads", before)), short_pip)

    assert host.build(host.plan([python, wheel], setup="export COMPILER=icc")).rc == 0

    refused = host.plan([python, wheel, toys.module(shelf, "more")], setup="echo no such module; exit 1")
    shutil.rmtree(host.root / "pkgs" / wheel["sha256"])
    last = host.build(refused).last
    assert last["at"] == "build" and "no such module" in last["evidence"]


def test_modules_bring_programs_to_a_build_and_no_packages_or_settings_of_pythons(
    host: Host, shelf: Path, python: dict[str, Any], short_pip
):
    before = "assert not [name for name in os.environ if name in ('PYTHONPATH', 'PIP_INDEX_URL', 'VIRTUAL_ENV')]\n"
    before += "assert os.environ['PATH'].split(':')[0] == os.environ['CONDA_PREFIX'] + '/bin', os.environ['PATH']\n"
    before += "assert os.environ['PIP_CONFIG_FILE'] == os.devnull and '/opt/old/bin' in os.environ['PATH']"
    wheel = built(toys.sdist(shelf, "clean", toys.with_backend("clean", before)), short_pip)
    (shelf / "pip").mkdir()
    (shelf / "pip" / "__main__.py").write_text("raise SystemExit('a pip of a module')")
    setup = f"export PYTHONPATH='{shelf}' PATH=/opt/old/bin:$PATH PIP_CONFIG_FILE=/opt/pip.conf PIP_INDEX_URL=x "
    setup += "VIRTUAL_ENV=/opt/old CONDA_PREFIX=/opt/old"

    answer = host.build(host.plan([python, wheel], setup=setup))

    assert answer.rc == 0, answer.last


def test_a_compiler_that_only_a_module_brings_is_found(host: Host, shelf: Path, python: dict[str, Any], short_pip):
    programs = shelf / "bin"
    programs.mkdir()
    (programs / "gcc").write_text("#!/bin/sh\n")
    (programs / "gcc").chmod(0o755)
    before = "assert os.environ['CC'] == 'gcc', os.environ['CC']"
    wheel = built(toys.sdist(shelf, "found", toys.with_backend("found", before)), short_pip)

    answer = host.build(host.plan([python, wheel], setup=f"export PATH='{programs}'"), CC="of-another-machine-cc")

    assert answer.rc == 0, answer.last


def test_what_is_missing_for_a_build_is_named_so_that_it_can_be_sent(
    host: Host, shelf: Path, python: dict[str, Any], short_pip
):
    wheel = built(toys.sdist(shelf, "plain", toys.with_backend("plain")), short_pip)
    wheel["source"]["url"] = ""
    answer = host.build(host.plan([python, wheel]))

    assert answer.last["need"] == [wheel["source"]["sha256"]]


def test_a_wheel_whose_files_a_file_system_has_purged_is_built_again(
    host: Host, shelf: Path, python: dict[str, Any], short_pip
):
    wheel = built(toys.sdist(shelf, "plain", toys.with_backend("plain")), short_pip)
    plan = host.plan([python, wheel], verify=["plain"])
    assert host.build(plan).rc == 0
    for folder in (host.root / "pkgs" / wheel["sha256"] / "files", host.prefix(plan) / toys.SITE):
        (folder / "plain.py").unlink()

    assert host.call("repair", str(host.root), plan["id"]).last["mended"]["relinked"] == 1
    assert host.run(plan, "python", "-c", "import plain; print(plain.NAME)") == "plain"
