"""The program that joins its stdin and stdout to the socket of a kernel's holder, under the host's Python."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge.host import Bench
from tests.waiting import WAIT_S


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        sock.listen()
        sock.settimeout(WAIT_S)
        yield sock


def attach(bench: Bench, path: Path) -> subprocess.Popen[bytes]:
    argv = [bench.host, "-I", "-S", str(bench.bridge / "_clusterfn" / "bridge" / "kernel" / "attach.py"), str(path)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_bytes_travel_both_ways_until_the_holder_closes(bench: Bench, listener: socket.socket, tmp_path: Path):
    sent = os.urandom(2_000_000)
    attached = attach(bench, tmp_path / "s")
    holder, _ = listener.accept()
    with holder:
        holder.settimeout(WAIT_S)
        assert attached.stdin is not None
        attached.stdin.write(b"hello")
        attached.stdin.flush()
        assert holder.recv(100) == b"hello"
        sending = threading.Thread(target=lambda: (holder.sendall(sent), holder.shutdown(socket.SHUT_WR)))
        sending.start()
        assert attached.stdout is not None
        assert attached.stdout.read() == sent
        assert attached.wait(WAIT_S) == 0
        sending.join()
    attached.communicate()


def test_it_ends_when_its_input_does(bench: Bench, listener: socket.socket, tmp_path: Path):
    attached = attach(bench, tmp_path / "s")
    holder, _ = listener.accept()
    with holder:
        holder.settimeout(WAIT_S)
        assert attached.communicate(timeout=WAIT_S) == (b"", b"")
        assert holder.recv(1) == b""
    assert attached.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it acts for another user")
def test_a_process_of_another_user_hears_nothing_even_if_it_owns_the_file(bench: Bench, tmp_path: Path):
    code = "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.setuid(65534); "
    code += "s.listen(); print(flush=True); print(s.accept()[0].recv(9))"
    argv = [sys.executable, "-c", code, str(tmp_path / "s")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None and stranger.stdout.readline() == b"\n"
        _, said = attach(bench, tmp_path / "s").communicate(b"a payload", timeout=WAIT_S)

        assert b"a process of another user listens there" in said
        assert stranger.stdout.read() == b"b''\n"


def test_a_socket_at_which_nothing_listens_is_unavailable(bench: Bench, tmp_path: Path):
    attached = attach(bench, tmp_path / "s")

    _, said = attached.communicate(timeout=WAIT_S)

    assert attached.returncode == os.EX_UNAVAILABLE
    assert b"No such file" in said
