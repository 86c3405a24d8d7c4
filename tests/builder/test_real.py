"""A real Python with numpy and pip from the lab's channel, built by an ordinary user of an old host without network."""

from __future__ import annotations

import json
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bridge.host import clean_environ, layout_bridge
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
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        str(tmp_path),
    ]
    tags = ["--python-version", "36", "--implementation", "cp", "--platform", "manylinux2014_x86_64"]
    subprocess.run([*download, *tags, "zstandard==0.20.0"], check=True, env=clean_environ())
    host = Host(tmp_path / "root", layout_bridge(tmp_path / "bridge"), str(lab.python("3.6")))
    greeter = entry(channel.archives("greeter-*.conda")[0])
    plan = host.plan([toys.python(tmp_path), greeter])

    without = host.build(plan, PATH="/nowhere")
    wheel = entry(next(tmp_path.glob("zstandard*.whl")))

    assert without.rc == 1 and "cannot read zstd" in without.last["message"]
    assert "Python 3.6" in without.last["hint"]
    assert host.build({**plan, "zstd": wheel}, PATH="/nowhere").rc == 0


@pytest.mark.long
def test_real_torch_and_a_second_environment_that_shares_it(lab: Lab, channel: Channel, tmp_path: Path):
    """Prints the seconds and the bytes of both."""
    download = [sys.executable, "-m", "pip", "download", "-q", "-d", str(tmp_path), "--only-binary", ":all:"]
    tags = ["--python-version", "311", "--implementation", "cp", "--platform", "manylinux_2_28_x86_64"]
    tags += ["--platform", "manylinux2014_x86_64"]
    done = subprocess.run([*download, *tags, "torch==2.13.0"], capture_output=True, text=True, env=clean_environ())
    if done.returncode:
        pytest.skip(f"pip finds no torch here: {done.stderr[-200:]}")
    host = Host(tmp_path / "root", layout_bridge(tmp_path / "bridge"), str(lab.python("3.6")))
    conda = ("python-3.11.7-*.conda", "numpy-2.1.3-py311*.conda", "pip-*.tar.bz2")
    wanted = [entry(channel.archives(name)[0]) for name in conda] + [entry(path) for path in tmp_path.glob("*.whl")]
    wanted = [each for each in wanted if not each["name"].startswith("nvidia")]
    first = host.plan(wanted, python=[3, 11], verify=["torch"])
    second = host.plan([*wanted, entry(channel.archives("tqdm-*.conda")[0])], python=[3, 11], verify=["torch"])

    told = [host.build(first)]
    used = disk_bytes(host.root)
    told.append(host.build(second))

    assert [each.rc for each in told] == [0, 0], told[0].last
    added = disk_bytes(host.root) - used
    for each in told:
        print(each.last["ready"]["seconds"], each.last["ready"]["files"], each.last["ready"]["bytes"])
    print(f"first {used} bytes on disk, second {added} more")
    assert added < used / 20
    code = "import torch; print(torch.__version__, (torch.ones(2) * torch.tensor([4., 6.])).tolist())"
    assert host.run(second, "python", "-c", code).endswith("[4.0, 6.0]")


def disk_bytes(folder: Path) -> int:
    """What a tree takes, each file counted once."""
    out = subprocess.run(
        ["du", "-s", "--block-size=1", str(folder)], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    return int(out.split()[0])
