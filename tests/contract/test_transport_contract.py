"""What every transport keeps: bytes both ways as they are, an end that is seen, and a cause for it."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusterfn.config.spec import Host
from clusterfn.hosts.transports import Stream, shared_login, transport_for
from tests.fakes.transport import FakeTransport, Far
from tests.waiting import until

Open = Callable[[str], Stream]
BY_SSH = ["paramiko", "openssh"]
HELD = "held"
TRANSPORTS = ["fake", "local", *(pytest.param(kind, marks=pytest.mark.lab) for kind in [*BY_SSH, HELD])]


def play(command: str, far: Far) -> int:
    """The commands of this suite, as a plain function."""
    if command == "cat":
        while data := far.read(65536):
            far.write(data)
    if command.startswith("echo"):
        far.errors = "it hurts"
        far.write(b"said\n")
    return 7 if command.endswith("exit 7") else 0


@pytest.fixture
def held_host(lab_host: Callable[[str], Host], monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host to which a connection is held for the length of the test."""
    folder = tempfile.mkdtemp(prefix="cf-", dir="/tmp")
    monkeypatch.setenv("CLUSTERFN_RUNTIME", folder)
    for name in ("CHECK_S", "GONE_S"):
        monkeypatch.setattr(f"clusterfn.hosts.transports.shared_login.{name}", 60.0)
    host = lab_host("py36-bash")
    shared_login.log_in(host, None)
    yield host
    assert shared_login.log_out(host)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=TRANSPORTS)
def open_stream(request: pytest.FixtureRequest, local_host: Any) -> Any:
    """`Transport.open` of each implementation; what it opened is closed."""
    opened: list[Stream] = []
    make = {"fake": lambda: FakeTransport(play), "local": lambda: transport_for(local_host)}
    if request.param in BY_SSH:
        host = request.getfixturevalue("lab_host")("py36-bash")._replace(transport=request.param)
        make[request.param] = lambda: transport_for(host)
    if request.param == HELD:
        by_login = request.getfixturevalue("held_host")
        make[request.param] = lambda: transport_for(by_login)
    transport = make[request.param]()

    def open_one(command: str) -> Stream:
        opened.append(transport.open(command))
        return opened[-1]

    yield open_one
    for stream in opened:
        stream.close()
    assert not (opened and request.param == HELD) or "clusterfn login" in transport.via


def read_all(stream: Stream) -> bytes:
    return b"".join(iter(lambda: stream.read(65536), b""))


def test_twenty_megabytes_come_back_as_they_went(open_stream: Open) -> None:
    stream = open_stream("cat")
    data = os.urandom(2**20) * 20
    writer = threading.Thread(target=stream.write, args=(data,))
    writer.start()

    digest, size = hashlib.sha256(), 0
    while size < len(data):
        piece = stream.read(65536)
        assert piece
        digest.update(piece)
        size += len(piece)
    writer.join()

    assert digest.digest() == hashlib.sha256(data).digest()


def test_the_end_of_the_command_is_the_end_of_the_stream_and_has_a_cause(open_stream: Open) -> None:
    stream = open_stream("echo said; echo it hurts >&2; exit 7")

    assert read_all(stream) == b"said\n"
    assert stream.cause() == "it ended with exit status 7"
    assert until(stream.stderr).strip() == "it hurts"


def test_close_ends_a_blocked_read_and_has_no_cause(open_stream: Open) -> None:
    stream = open_stream("cat")
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.append(stream.read(1)))
    reader.start()

    stream.close()
    reader.join(150)

    assert (reader.is_alive(), seen, stream.cause()) == (False, [b""], None)


def test_close_may_be_called_again(open_stream: Open) -> None:
    stream = open_stream("cat")

    stream.close()
    stream.close()

    assert stream.read(1) == b""


def test_writing_to_an_ended_stream_is_an_oserror(open_stream: Open) -> None:
    stream = open_stream("exit 7")
    read_all(stream)
    stream.cause()

    with pytest.raises(OSError):
        for _ in range(100):
            stream.write(b"x" * 65536)


@pytest.mark.lab
@pytest.mark.parametrize("kind", BY_SSH)
def test_a_command_that_a_signal_ends_has_that_cause(lab_host: Any, kind: str) -> None:
    stream = transport_for(lab_host("py36-bash")._replace(transport=kind)).open("echo it hurts >&2; kill -9 $$")

    assert read_all(stream) == b""
    assert stream.cause() == "it was ended by a signal"
    assert stream.stderr() == "it hurts\n"
    stream.close()


def test_the_local_shell_is_sh(local_host: Any) -> None:
    stream = transport_for(local_host).open(shlex.join(["printf", "%s", "it's"]))

    assert read_all(stream) == b"it's"
    stream.close()
