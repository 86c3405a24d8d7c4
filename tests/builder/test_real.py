"""A real Python with numpy and pip from the lab's channel, built by an ordinary user of an old host without network."""

from __future__ import annotations

import json
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bridge.layout import layout_bridge
from tests.builder import toys
from tests.builder.conftest import USER
from tests.builder.host import Host, entry
from tests.lab import Lab
from tests.lab.channel import Channel

pytestmark = pytest.mark.lab


@pytest.fixture(params=["3.6", pytest.param("3.11", marks=pytest.mark.long)])
def host(ordinary_host: Callable[[str], Host], request: pytest.FixtureRequest) -> Host:
    return ordinary_host(request.param)


def test_a_function_could_run_in_it(host: Host, channel: Channel):
    names = [
        "python-3.11.7-*.conda", "numpy-2.1.3-py311*.conda", "pip-*.tar.bz2", "greeter-*.conda", "binprefix-*.tar.bz2",
        "textprefix-*", "postlink-*.conda", "python_abi-3.11-*.conda",
    ]  # fmt: skip
    wanted = [entry(channel.archives(name)[0]) for name in names]
    plan = host.plan(wanted, python=[3, 11], verify=["numpy", "greeter"])

    answer = host.build(plan)

    assert answer.rc == 0, answer
    prefix = host.prefix(plan)
    ready = answer.last["ready"]
    assert (ready["python"], ready["modules"]["numpy"]) == ("3.11.7", "2.1.3")
    assert host.run(plan, "pip", "--version").startswith("pip ") and str(prefix) in host.run(plan, "pip", "--version")
    assert {"numpy", "pip"} <= {each["name"] for each in json.loads(host.run(plan, "pip", "list", "--format=json"))}
    assert host.run(plan, "greet") == f"hello from {prefix}"
    assert host.run(plan, "textprefix") == f"{prefix}/share/textprefix"
    assert f"TOY{prefix}/share/binprefix\0".encode() in (prefix / "share/binprefix/blob.bin").read_bytes()
    before = set(prefix.rglob("*.pyc"))
    code = "import asyncio, sqlite3, email.mime.text, concurrent.futures.thread, numpy; print(numpy.ones(3).sum())"
    assert host.run(plan, "python", "-c", code) == "3.0"
    assert set(prefix.rglob("*.pyc")) == before, "a start writes byte code"
    assert host.leftovers() == []
    assert prefix.stat().st_uid == pwd.getpwnam(USER).pw_uid
    assert host.build(plan).last["reused"]


@pytest.mark.long
def test_zstd_from_a_wheel_where_the_host_has_none(lab: Lab, channel: Channel, tmp_path: Path):
    """Python 3.6 with nothing in PATH reads .conda by the wheel that the plan names."""
    host = Host(tmp_path / "root", layout_bridge(tmp_path / "bridge"), str(lab.python("3.6")))
    greeter = entry(channel.archives("greeter-*.conda")[0])
    plan = host.plan([toys.python(tmp_path), greeter])

    without = host.build(plan, PATH="/nowhere")
    wheel = entry(channel.build_tools[3])

    assert without.rc == 1 and "cannot read zstd" in without.last["message"]
    assert "Python 3.6" in without.last["hint"]
    assert host.build({**plan, "zstd": wheel}, PATH="/nowhere").rc == 0
