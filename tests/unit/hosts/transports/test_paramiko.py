"""paramiko's stream and its errors, without a network."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from clusterfn.hosts.transports.paramiko import LOG, ParamikoStream


class BrokenChannel:
    """As paramiko's when the connection dies in the middle of a call: EOFError, which is no OSError."""

    status_event = threading.Event()

    def recv_stderr_ready(self) -> bool:
        return False

    def recv(self, size: int) -> bytes:
        raise EOFError

    def sendall(self, data: bytes) -> None:
        raise EOFError


def test_a_read_that_breaks_is_the_end() -> None:
    assert ParamikoStream(BrokenChannel(), []).read(1) == b""  # type: ignore[arg-type]


def test_a_write_that_breaks_is_an_oserror() -> None:
    with pytest.raises(OSError, match="the connection was lost"):
        ParamikoStream(BrokenChannel(), []).write(b"x")  # type: ignore[arg-type]


def test_importing_host_does_not_import_paramiko() -> None:
    program = "import sys, clusterfn.hosts.connection; print('paramiko' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "False"


def test_what_paramiko_tells_of_a_login_is_not_in_the_log_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    logging.getLogger(LOG).info("Connected (version 2.0, client OpenSSH_9.2p1)")
    logging.getLogger(LOG).warning("the key is refused")

    assert [record.getMessage() for record in caplog.records] == ["the key is refused"]
