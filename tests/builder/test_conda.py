"""The host's own conda makes environments: a real one of 2017, for an ordinary user of an old host without network."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.host import clean_environ
from tests.builder import toys
from tests.builder.host import Host, entry
from tests.lab import Lab, conda36
from tests.lab.channel import Channel
from tests.waiting import until

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def conda(lab: Lab) -> str:
    """conda 4.3.16."""
    return str(conda36.provide())


@pytest.fixture
def host(ordinary_host: Callable[[str], Host]) -> Host:
    return ordinary_host("3.6")


@pytest.fixture
def python(lab: Lab, host: Host) -> dict[str, Any]:
    """A Python 3.9 of a few hundred bytes: tests/e2e/test_installer.py has this conda make a real one."""
    return toys.python_by_script(host.root.parent / "shelf", lab.python("3.9"), "3.9")


def fake(host: Host, script: str) -> str:
    """A conda that does as told."""
    path = host.root.parent / "conda"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


IMPORTED = """
import sys, json, greeter, mine, importlib.metadata as found
names = sorted(each.metadata["Name"] for each in found.distributions())
print(json.dumps([sys.prefix[-8:], mine.NAME, names]))
"""


def test_it_makes_the_same_as_we_do(host: Host, channel: Channel, conda: str, python: dict[str, Any]):
    names = ["greeter-*.conda", "textprefix-*", "binprefix-*.conda", "postlink-*.tar.bz2", "python_abi-3.9-*.conda"]
    wheel = toys.wheel(host.root.parent / "shelf", "mine", {"mine.py": b"NAME = 'mine'\n"})
    wanted = [python, *(entry(channel.archives(name)[0]) for name in names), wheel]
    ours = host.plan(wanted, python=[3, 9], verify=["greeter"], id="envours0")
    theirs = host.plan(wanted, python=[3, 9], verify=["greeter"], id="envconda", installer=conda)

    answers = [host.build(plan) for plan in (ours, theirs)]

    assert [answer.rc for answer in answers] == [0, 0], [answer.last for answer in answers]
    assert {"stage": "conda", "done": 0, "of": 1, "text": "conda 4.3.16"} in answers[1].lines
    assert list((host.prefix(theirs) / "lib/python3.9/__pycache__").glob("toy.*.pyc")), "compiled before a job runs"
    told = [host.run(plan, "python", "-c", IMPORTED).split(",", 1) for plan in (ours, theirs)]
    assert told[0][1] == told[1][1]
    prefix = host.prefix(theirs)
    history = (prefix / "conda-meta" / "history").read_text()
    assert f"{conda} create -y --offline -p {prefix} " in history
    assert host.run(theirs, "greet") == f"hello from {prefix}"
    assert host.run(theirs, "textprefix") == f"{prefix}/share/textprefix"
    assert f"TOY{prefix}/share/binprefix\0".encode() in (prefix / "share/binprefix/blob.bin").read_bytes()
    assert (prefix / "share/postlink/done.txt").read_text() == "postlink 1.0\n"
    assert host.leftovers() == []
    assert host.build(theirs).last["reused"]


def test_what_it_is_too_old_for_our_linker_adds(host: Host, channel: Channel, conda: str, lab: Lab):
    """Before 4.11 conda takes the first three letters of 3.11 for its minor version."""
    python = toys.python_by_script(host.root.parent / "shelf", lab.python("3.11"), "3.11")
    names = ["greeter-*.conda", "python_abi-3.11-*.tar.bz2"]
    wanted = [python, *(entry(channel.archives(name)[0]) for name in names)]
    plan = host.plan(wanted, python=[3, 11], verify=["greeter"], installer=conda)

    answer = host.build(plan)

    assert answer.rc == 0, answer.last
    assert host.run(plan, "greet") == f"hello from {host.prefix(plan)}"
    assert [path.name for path in host.prefix(plan).glob("lib/python*")] == ["python3.11"]


def test_we_check_what_it_takes_unchecked(
    host: Host, channel: Channel, conda: str, tmp_path: Path, python: dict[str, Any]
):
    damaged = host.root.parent / channel.archives("python_abi-3.9-*.tar.bz2")[0].name
    shutil.copy(channel.archives("python_abi-3.11-*.tar.bz2")[0], damaged)  # whole, but another
    listed = tmp_path / "explicit.txt"
    listed.write_text(f"@EXPLICIT\n{damaged.as_uri()}#{hashlib.md5(b'another').hexdigest()}\n")
    alone = [conda, "create", "-y", "--offline", "-p", str(tmp_path / "alone"), "--file", str(listed)]
    env = clean_environ(CONDA_PKGS_DIRS=str(tmp_path / "packages"))
    assert subprocess.run(alone, env=env, capture_output=True).returncode == 0, "it would be taken"
    wrong = {**entry(damaged), "sha256": hashlib.sha256(b"another").hexdigest()}

    answer = host.build(host.plan([python, wrong], python=[3, 9], installer=conda))

    assert answer.rc == 1
    assert answer.last["message"].startswith("python_abi 3.9 is damaged")
    assert "conda" not in [line["stage"] for line in answer.lines]
    assert not list((host.root / "envs").iterdir())


SAID = {
    "too old": ("echo conda 4.2.9", "is conda 4.2.9, and needs to be 4.3 or newer"),
    "fails": ('[ "$1" = --version ] && echo conda 4.9.2 && exit\necho no space; exit 3', "it ended with status 3"),
    "leaves out": ('[ "$1" = --version ] && echo mamba 2.3.0 && exit\nmkdir "$5"', "mamba 2.3.0 left out python"),
    "speaks not": ("echo broken >&2; exit 1", "does not say its version"),
}


@pytest.mark.parametrize("script, message", SAID.values(), ids=SAID)
def test_a_conda_that_does_not_do_is_named(host: Host, python: dict[str, Any], script: str, message: str):
    plan = host.plan([python], python=[3, 9], installer=fake(host, script))

    answer = host.build(plan)

    assert answer.rc == 1
    assert message in answer.last["message"]
    assert answer.last["at"] == "conda" and "installer: clusterfn" in answer.last["hint"]
    assert host.leftovers() == [] and not list((host.root / "envs").iterdir())


def test_no_conda_at_all(host: Host, python: dict[str, Any]):
    plan = host.plan([python], python=[3, 9], installer="conda")

    answer = host.build(plan, HOME="/nowhere")

    assert answer.last["message"] == "there is no conda on this host"
    assert "installer: /opt/conda/bin/conda" in answer.last["hint"]


@pytest.mark.long
def test_one_that_is_killed_half_way_leaves_nothing_that_counts(host: Host, conda: str, python: dict[str, Any]):
    script = '[ "$1" = --version ] && echo conda 4.9.2 && exit\nmkdir -p "$5/bin"; exec sleep 100'
    plan = host.plan([python], python=[3, 9])
    running = host.start({**plan, "installer": fake(host, script)})
    until(lambda: (host.prefix(plan) / "bin").exists())
    running.process.kill()
    running.process.wait()
    assert not (host.prefix(plan) / "READY").exists()

    another = {**plan, "id": "another0", "installer": conda}
    answer = host.build(another)

    assert answer.rc == 0, answer.last
    assert host.leftovers() == [] and not host.prefix(plan).exists()
    assert host.run(another, "python", "-c", "print(1)") == "1"
    assert host.build({**plan, "installer": conda}).rc == 0
