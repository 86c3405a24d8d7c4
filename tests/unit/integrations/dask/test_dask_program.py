"""What the program of dask's processes decides before it starts one: addresses, and what the environment lacks."""

from __future__ import annotations

import asyncio
import socket
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="dask is not installed")
from clusterfn.bridge.kernel import dask_program
from tests.waiting import WAIT_S

VISIBLE = "CUDA_VISIBLE_DEVICES"
ONE: dict[str, Any] = {"is_one_machine": True, "interface": ""}
NODES: dict[str, Any] = {"is_one_machine": False, "interface": ""}


def test_on_one_machine_nothing_but_that_machine_is_reached():
    assert dask_program.own_ip(ONE) == "127.0.0.1"
    assert dask_program.own_ip(ONE, "10.0.0.7") == "127.0.0.1"


def test_a_node_is_reached_by_the_address_of_its_name(monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.1.2.3")

    assert dask_program.own_ip(NODES) == "10.1.2.3"


@pytest.mark.parametrize("found", ["127.0.1.1", OSError()])
def test_a_name_that_no_other_node_could_use_is_not_taken(monkeypatch, found):
    def look_up(name):
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(socket, "gethostbyname", look_up)
    monkeypatch.setattr(dask_program, "get_ip", lambda *other: "10.9.9.9")

    assert dask_program.own_ip(NODES) == "10.9.9.9"


def test_a_worker_is_reached_the_way_that_it_reaches_the_scheduler(monkeypatch):
    monkeypatch.setattr(dask_program, "get_ip", lambda other: f"beside {other}")

    assert dask_program.own_ip(NODES, "10.0.0.7") == "beside 10.0.0.7"


def test_the_interface_that_the_user_names_is_taken():
    assert dask_program.own_ip({**NODES, "interface": "lo"}, "10.0.0.7") == "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "parts"), [("tls://10.0.0.7:4000", ("10.0.0.7", 4000)), ("tls://[fe80::1]:80", ("fe80::1", 80))]
)
def test_addresses_have_two_parts(address, parts):
    assert dask_program.ip_and_port(address) == parts


def shares(count, gpus):
    """The GPUs of each worker of a node."""
    settings = {"workers": {"count": count, "gpus": gpus}}
    return [dask_program.gpus_of(number, settings).get(VISIBLE) for number in range(count)]


@pytest.mark.parametrize(
    ("given", "gpus", "found"),
    [
        ("GPU-a,GPU-b,GPU-c,GPU-d", 2, ["GPU-a,GPU-b", "GPU-c,GPU-d"]),
        ("4,6", 1, ["4", "6"]),
        (None, 2, ["0,1", "2,3"]),
        ("", 0, [None, None]),
    ],
)
def test_each_worker_of_a_node_gets_gpus_of_its_own(monkeypatch, given, gpus, found):
    if given is None:
        monkeypatch.delenv(VISIBLE, raising=False)
    else:
        monkeypatch.setenv(VISIBLE, given)

    assert shares(2, gpus) == found


@pytest.mark.parametrize("given", ["", "3", "GPU-a,"])
def test_too_few_gpus_for_the_workers_are_an_error_and_no_shared_gpu(monkeypatch, given):
    monkeypatch.setenv(VISIBLE, given)

    with pytest.raises(RuntimeError, match="2 workers need 2 GPUs, and the job has fewer: CUDA_VISIBLE_DEVICES="):
        shares(2, 1)


def test_a_further_node_waits_until_the_scheduler_of_this_attempt_listens(monkeypatch, tmp_path):
    monkeypatch.setenv("CLUSTERFN_JOB", "7f3a/2")
    folder = Path(dask_program.shared_folder({"workers": {"job": str(tmp_path)}}))
    folder.mkdir(parents=True)
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(dask_program.await_address(str(folder))))
    waiting.start()
    dask_program.write_facts(str(folder), {"address": "tls://10.0.0.7:4000"})
    waiting.join(WAIT_S)

    assert folder == tmp_path / "attempts" / "2"
    assert found == ["tls://10.0.0.7:4000"]


def test_the_same_versions_fit_and_another_one_is_named():
    here = {name: metadata.version(name) for name in ("dask", "distributed")}

    assert dask_program.unfitness({"versions": here, "dashboard": 0}) == ""
    unfit = dask_program.unfitness({"versions": {**here, "distributed": "1.2"}, "dashboard": 0})
    assert unfit.startswith(f"distributed is {here['distributed']} in ")
    assert unfit.endswith("and 1.2 on your machine")


def test_a_worker_that_has_waited_for_longer_than_its_scheduler_lived_ends_at_once(capsys):
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]

    asyncio.run(dask_program.run_worker(f"tls://127.0.0.1:{port}", "w", 1, 0, ONE))

    assert "its block has ended" in capsys.readouterr().err
