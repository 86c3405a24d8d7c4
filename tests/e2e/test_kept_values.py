"""keep=True: the value stays on the host, other calls take it there, and it comes when `result()` asks for it."""

from __future__ import annotations

import asyncio
import os
import pickle
from pathlib import Path

import pytest

import clusterfn
from clusterfn import ConfigError, cluster
from tests.e2e.conftest import MINOR
from tests.lab.network import DelayProxy
from tests.waiting import stays, until

MB = 1 << 20


def make(size):
    return bytearray(os.urandom(size))  # which a slow link cannot compress: these tests count bytes


def size_of(data):
    return len(data)


def grow(data):
    return data + bytearray(MB)


class Table:
    """Pickled with its buffer apart, as arrays and tensors are."""

    def __init__(self, data):
        self.data = data

    def __reduce_ex__(self, protocol):
        return Table, (pickle.PickleBuffer(self.data),)


def make_table(size):
    return Table(bytearray(size))


def how_it_is_held(table):
    """Whether the data are mapped from the file of the job that made them, and can be changed."""
    import ctypes

    view = memoryview(table.data)
    address = ctypes.addressof((ctypes.c_char * len(view)).from_buffer(view))
    view[0] = 7
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    (file,) = [
        words[-1] for words in maps if int(words[0].split("-")[0], 16) <= address < int(words[0].split("-")[1], 16)
    ]
    return file.endswith("value.pkl"), view[0]


def fail(x):
    raise KeyError(f"no {x}")


def wait_for(path):
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.05)


for each in (make, make_table, Table, size_of, grow, how_it_is_held, fail, wait_for):
    each.__module__ = "__main__"


def bytes_read() -> int:
    """What this process has read from files and pipes."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_kept_value_comes_when_it_is_asked_for_and_once(here):
    job = cluster(keep=True)(make).submit(30 * MB)
    until(job.done)
    before = bytes_read()
    assert job.status == "RETURNED (its value is on here)"
    assert cluster(size_of).submit(job).result(150) == 30 * MB
    assert bytes_read() - before < 5 * MB

    value = job.result()

    assert len(value) == 30 * MB
    assert bytes_read() - before >= 30 * MB
    assert job.result() is value and job.status == "RETURNED"


def test_a_large_value_is_mapped_where_it_is_used_and_stays_as_it_is(here):
    job = cluster(keep=True)(make_table).submit(8 * MB)

    assert cluster(how_it_is_held).submit(job).result(150) == (True, 7)
    assert bytes(job.result().data) == bytes(8 * MB)


def test_a_plain_call_returns_the_value_all_the_same(here):
    assert cluster(keep=True)(size_of)(b"four") == 4
    with pytest.raises(KeyError, match="no 3"):
        cluster(keep=True)(fail).submit(3).result(150)


def test_a_kept_value_can_be_awaited_and_one_that_does_not_come_raises(here):
    async def both():
        first, second = (cluster(keep=True, max_result=most)(make).submit(MB) for most in ("2MB", "1kB"))
        return await asyncio.gather(first, second, return_exceptions=True)

    first, second = asyncio.run(both())
    assert (len(first), type(second)) == (MB, clusterfn.ResultTooLarge)


def test_giving_up_waiting_for_a_kept_value_frees_the_loop(here, tmp_path):
    job = cluster(keep=True)(wait_for).submit(str(tmp_path / "go"))

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(job, 1))

    assert not job.done()
    (tmp_path / "go").touch()
    assert job.result(150) is None


def test_attach_leaves_the_value_where_it_is(here):
    job = cluster(keep=True)(make).submit(30 * MB)
    until(job.done)
    before = bytes_read()

    attached = clusterfn.attach(job.id)
    until(attached.done)

    assert cluster(size_of).submit(attached).result(150) == 30 * MB
    assert bytes_read() - before < 5 * MB
    assert len(attached.result()) == 30 * MB


def test_where_a_value_cannot_be_kept_keep_is_rejected_before_anything_is_sent(here):
    with pytest.raises(ConfigError, match="keep=True cannot be used with map"):
        cluster(keep=True)(size_of).map([b""])
    with pytest.raises(ConfigError, match="keep='yes' is neither True nor False"):
        cluster(keep="yes")
    with pytest.raises(ConfigError, match="the function asks for keep=True, which only a whole job can have"):
        clusterfn.Session("here").call(cluster(keep=True)(size_of), b"")
    assert not (here / "jobs").exists() or not list((here / "jobs").iterdir())


@pytest.mark.lab
def test_a_value_goes_through_three_jobs_without_passing_this_machine(hosts, lab, tmp_path, monkeypatch):
    host, size = "tensor01", 20 * MB
    port = lab.host(host).port
    with DelayProxy(0, port) as wire:
        config = tmp_path / "ssh_config"
        way = f"Host {host}\n    Port {wire.port}\n    HostKeyAlias [127.0.0.1]:{port}\n\n"
        config.write_text(way + lab.ssh_config.read_text())
        path = hosts.describe(lab, tmp_path / "clusterfn.yml", lab.python(MINOR), names=(host,))
        path.write_text(path.read_text().replace(str(lab.ssh_config), str(config)))
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
        assert cluster(size_of)(b"") == 0  # clusterfn itself is on the host now
        before = wire.bytes_up + wire.bytes_down
        assert before

        first = cluster(keep=True, memory="1GB")(make).submit(size)
        second = cluster(keep=True, memory="1GB")(grow).submit(first)
        third = cluster(memory="1GB")(size_of).submit(second)
        assert third.result(150) == size + MB
        assert cluster(memory="1GB")(size_of).submit(second).result(150) == size + MB

        stays(lambda: wire.bytes_up + wire.bytes_down - before < MB, 0.2)
