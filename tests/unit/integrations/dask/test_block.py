"""A block of dask: its certificate, which admits who has its key, and what the program decides before it starts."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from importlib import metadata
from typing import Any

import pytest
from cryptography import x509

pytest.importorskip("distributed", reason="dask is not installed")

from clusterfn.bridge.kernel import dask_program
from clusterfn.integrations.dask.block import make_security


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Let two ends meet in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_side=False),
    ]
    for end in ends * 4:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    ends[1].write(b"x")
    assert ends[0].read(1) == b"x"


def strict(context: ssl.SSLContext) -> ssl.SSLContext:
    """As Python makes one from 3.13 on."""
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def contexts(client, server):
    return (
        strict(client.get_connection_args("client")["ssl_context"]),
        strict(server.get_listen_args("scheduler")["ssl_context"]),
    )


def test_who_has_the_key_is_admitted():
    security = make_security()

    shake_hands(*contexts(security, security))


def test_the_key_of_another_block_is_rejected():
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(*contexts(make_security(), make_security()))


def test_a_host_whose_clock_is_hours_behind_accepts_it():
    made = x509.load_pem_x509_certificate(make_security().tls_client_cert.encode())
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)

    assert make_naive(made.not_valid_before_utc) < now - datetime.timedelta(hours=12)


def make_naive(moment: datetime.datetime) -> datetime.datetime:
    return moment.replace(tzinfo=None)


ONE: dict[str, Any] = {"is_one_machine": True}
NODES: dict[str, Any] = {"is_one_machine": False}


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


@pytest.mark.parametrize(
    ("address", "parts"), [("tls://10.0.0.7:4000", ("10.0.0.7", 4000)), ("tls://[fe80::1]:80", ("fe80::1", 80))]
)
def test_addresses_have_two_parts(address, parts):
    assert dask_program.ip_and_port(address) == parts


def test_the_same_versions_fit_and_another_one_is_named():
    here = {name: metadata.version(name) for name in ("dask", "distributed")}

    assert dask_program.unfitness({"versions": here}) == ""
    unfit = dask_program.unfitness({"versions": {**here, "distributed": "1.2"}})
    assert unfit.startswith(f"distributed is {here['distributed']} in ")
    assert unfit.endswith("and 1.2 on your machine")


def test_a_worker_that_has_waited_for_longer_than_its_scheduler_lived_ends_at_once(capsys):
    with socket.socket() as silent:  # it keeps the port, and does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        asyncio.run(dask_program.run_worker(f"tls://127.0.0.1:{port}", "w", 1, 0, ONE))

    assert "its block has ended" in capsys.readouterr().err
