"""The certificate of a block: it admits who has its key, under Python's strictest rules, though clocks differ."""

from __future__ import annotations

import datetime
import ssl

import pytest

pytest.importorskip("distributed", reason="dask is not installed")
from cryptography import x509

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
