"""Large values and many files over a long line and a broken one: all of it arrives, and little of it twice."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterfn import Directory, cluster
from tests.e2e.conftest import MINOR
from tests.lab import DelayProxy
from tests.waiting import WAIT_S

pytestmark = pytest.mark.lab
MB = 1 << 20
TRANSPORTS = ("paramiko", "openssh")
ON_ONE = pytest.mark.parametrize("transport", ["paramiko", pytest.param("openssh", marks=pytest.mark.long)])
FAR = pytest.mark.parametrize("far", [300], indirect=True)  # a slow machine is busy for several of the usual trips


class BreakingProxy(DelayProxy):
    """Cuts in the thread that reads from the line: on a busy machine, another might come after all has passed."""

    breaks_at = ("", 0)  # a counter, and the value above which it cuts once

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == self.breaks_at[0] and value > self.breaks_at[1]:
            self.breaks_at = ("", 0)
            self.cut()


@dataclass
class Far:
    """Two names of one host behind a proxy that delays."""

    proxy: BreakingProxy

    def cut_when(self, counter: str, size: int) -> None:
        """Break the connection once so many more bytes have passed."""
        self.proxy.breaks_at = counter, getattr(self.proxy, counter) + size


@pytest.fixture(params=[50, pytest.param(150, marks=pytest.mark.long)], ids=lambda delay: f"{delay}ms")
def far(request: Any, lab: Any, lab_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    line = BreakingProxy(0, lab.host("py36-bash").port, request.param / 2000)
    with behind(line, lab, lab_root, tmp_path, monkeypatch) as there:
        yield there


@contextlib.contextmanager
def behind(
    line: BreakingProxy, lab: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str = ""
) -> Iterator[Far]:  # fmt: skip
    """The host behind this proxy, under a name for each transport, and with further keys."""
    with line as proxy:
        key = f"[127.0.0.1]:{lab.host('py36-bash').port}"
        ssh_config = tmp_path / "ssh_config"
        ours = f"Host py36-bash\n    Port {proxy.port}\n    HostKeyAlias {key}\n\n"
        ssh_config.write_text(ours + lab.ssh_config.read_text())
        hosts = "".join(
            f"  {name}:\n    address: py36-bash\n    ssh_config: {ssh_config}\n"
            f"    scheduler: bare\n    limits: {{cores: 64}}\n"
            f'    root: ~/{root.name}\n    environment: "python:{lab.python(MINOR)}"\n    transport: {name}\n{keys}'
            for name in TRANSPORTS
        )
        (tmp_path / "clusterfn.yml").write_text(f"hosts:\n{hosts}")
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
        yield Far(line)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_argument_continues_after_a_cut(far: Far, transport: str) -> None:
    size, length = cluster(host=transport)(len), 24 * MB
    assert size(b"") == 0
    data, before, connected = os.urandom(length), far.proxy.bytes_up, far.proxy.accepted

    far.cut_when("bytes_up", 10 * MB)
    assert size(data) == length
    assert far.proxy.accepted > connected

    # What was on its way at the cut is sent again; the rest is not.
    assert far.proxy.bytes_up - before < length + 8 * MB


@ON_ONE
def test_a_result_continues_after_a_cut(far: Far, transport: str) -> None:
    echo, data = cluster(host=transport)(lambda data: bytes(data)), os.urandom(48 * MB)
    assert echo(data) == data
    before, connected = far.proxy.bytes_down, far.proxy.accepted

    far.cut_when("bytes_down", 34 * MB)
    assert echo(data) == data
    assert far.proxy.accepted > connected

    # What was on its way at the cut is sent again. All of it again would be at least 82 MB.
    assert far.proxy.bytes_down - before < len(data) + 18 * MB


@ON_ONE
@FAR
def test_an_argument_that_is_there_takes_two_round_trips_at_most(far: Far, transport: str) -> None:
    size, data = cluster(host=transport)(len), os.urandom(3 * MB)
    assert size(data) == len(data)
    trips, up = far.proxy.round_trips, far.proxy.bytes_up

    assert size(data) == len(data)

    assert far.proxy.bytes_up - up < MB
    assert far.proxy.round_trips - trips <= 3  # one more is that of what follows unasked


@ON_ONE
@FAR
def test_many_small_files_do_not_wait_for_each_other(far: Far, transport: str, tmp_path: Path) -> None:
    count = 900

    @cluster(host=transport)
    def copy(folder: Path) -> int:
        names = sorted(path.name for path in folder.iterdir())
        for name in names:
            Path(name).write_bytes(folder.joinpath(name).read_bytes())
        return len(names)

    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(count):
        folder.joinpath(f"{number}.txt").write_bytes(f"{number}\n".encode() * 20)
    job = copy.submit(Directory(folder))
    assert job.result(WAIT_S) == count
    trips = far.proxy.round_trips

    found = job.download("*.txt", to=tmp_path / "back")

    assert far.proxy.round_trips - trips < 25  # 28 if they came by 32 at a time
    assert {path.name: path.read_bytes() for path in found} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("compress", [True, False])
def test_ssh_compresses_if_the_host_says_so(
    lab: Any, lab_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str, compress: bool
) -> None:  # fmt: skip
    text = b"".join(b"%08d,%08d\n" % (number, number * 7) for number in range(3 * MB // 18))
    line = BreakingProxy(0, lab.host("py36-bash").port)
    with behind(line, lab, lab_root, tmp_path, monkeypatch, f"    compress: {compress}\n") as far:
        echo = cluster(host=transport)(lambda data: bytes(data))
        assert echo(b"") == b""
        up, down = far.proxy.bytes_up, far.proxy.bytes_down

        assert echo(text) == text

        assert (far.proxy.bytes_up - up < 0.7 * len(text)) == compress
        assert (far.proxy.bytes_down - down < 0.7 * len(text)) == compress
