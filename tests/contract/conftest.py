"""Hosts for the contract suites: this machine under each Python that can be found, and the lab."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn.config.spec import Host
from clusterfn.hosts.connection import HostConnection, connect
from clusterfn.hosts.transports import Stream, held_connections, shared_login, transport_for
from tests.interpreters import interpreter
from tests.processes import parent_of
from tests.waiting import WAIT_S

Break = Callable[[], None]
Connect = Callable[..., HostConnection]
Counted = Callable[[], int]
WAYS = ["paramiko", "openssh"]
ODD = ["a b", "$HOME", "`id`", "it's", "", "-n", "*", "line\nbreak", "ü", "!", "\\", '"', "%j"]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def find_python(minor: int) -> str:
    """An interpreter of this machine; the test is skipped if there is none."""
    path = interpreter(f"3.{minor}")
    if path is None:
        pytest.skip(f"no Python 3.{minor} on this machine")
    return path


@pytest.fixture
def connect_to() -> Iterator[Connect]:
    """`connect` whose connections are closed after the test."""
    opened: list[HostConnection] = []

    def open_one(host: Host, **more: Any) -> HostConnection:
        opened.append(connect(host, **more))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def local_host(tmp_path: Path) -> Host:
    """This machine, with a root of its own."""
    return Host("here", "", "local", "clusterfn.yml:1", root=str(tmp_path / "root"))


@pytest.fixture(
    params=[6, *(pytest.param(minor, marks=pytest.mark.long) for minor in range(7, 14))],
    ids=lambda minor: f"py3{minor}",
)
def here(request: pytest.FixtureRequest, connect_to: Connect, tmp_path: Path) -> HostConnection:
    """This machine with an agent under the oldest Python; in test-long under each newer one too."""
    root = str(tmp_path / "root")
    return connect_to(Host("here", "", "local", "clusterfn.yml:1", root=root, python=find_python(request.param)))


@pytest.fixture
def lab_host(lab: Any) -> Callable[[str], Host]:
    """A host of the lab by its ssh alias."""

    def make(alias: str, root: str = "~/.clusterfn") -> Host:
        return Host(alias, alias, "bare", "clusterfn.yml:1", ssh_config=str(lab.ssh_config), root=root)

    return make


@pytest.fixture
def ssh_folder() -> Iterator[Path]:
    """For an ssh_config: the ssh that OpenSSH starts for a ProxyJump gets the path of -F without quotes."""
    folder = Path(tempfile.mkdtemp(prefix="cf-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # a master that ends just now removes its own socket


@pytest.fixture
def configured(lab: Any, ssh_folder: Path) -> Callable[..., Host]:
    """A host with lines of its own in front of the lab's ssh_config."""

    def make(alias: str, lines: str) -> Host:
        path = ssh_folder / "ssh_config"
        path.write_text(f"{lines}\nMatch all\n{Path(lab.ssh_config).read_text()}")
        return Host(alias, alias, "bare", "clusterfn.yml:1", ssh_config=str(path))

    return make


@pytest.fixture
def open_to() -> Iterator[Callable[..., Stream]]:
    """A stream to a command on a host, closed after the test."""
    opened: list[Stream] = []

    def open_one(host: Host, command: str, *person: Any) -> Stream:
        opened.append(transport_for(host).open(command, *person))
        return opened[-1]

    yield open_one
    for stream in opened:
        stream.close()


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def kill_agent(there: HostConnection) -> None:
    with contextlib.suppress(ProcessLookupError):  # broken already, and not yet seen
        os.kill(there.facts.pid, signal.SIGKILL)


def kill_session(there: HostConnection) -> None:
    """The sshd process that carries this connection, found from the agent upwards."""
    pid = there.facts.pid
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        while name(pid) != "sshd":
            pid = parent_of(pid)
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["local", pytest.param("session", marks=pytest.mark.lab)])
def there(request: pytest.FixtureRequest, connect_to: Connect, local_host: Host) -> HostConnection:
    """A connection with `request.param` to be killed by `broken`."""
    if request.param == "local":
        return connect_to(local_host)
    return connect_to(request.getfixturevalue("lab_host")("py36-bash"))


@pytest.fixture
def broken(request: pytest.FixtureRequest, there: HostConnection) -> Break:
    """Breaks the connection: kills the agent here, or the sshd of a session there, by pid."""
    kind = request.node.callspec.params["there"]
    return lambda: kill_session(there) if kind == "session" else kill_agent(there)


@pytest.fixture
def folder(there: HostConnection) -> Iterator[str]:
    """A folder on the host, removed after the test."""
    path = f"{there.facts.root}/test-{os.getpid()}-{os.urandom(4).hex()}"
    there.run(["mkdir", "-p", path]).result(WAIT_S)
    yield path
    there.run(["rm", "-rf", path]).result(WAIT_S)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of this test's own for what is held; nothing is held after it."""
    folder = Path(tempfile.mkdtemp(prefix="cf-", dir="/tmp"))
    monkeypatch.setenv("CLUSTERFN_RUNTIME", str(folder))
    for name in ("CHECK_S", "GONE_S"):  # what holds a connection may stand still for seconds on a busy machine
        monkeypatch.setattr(f"clusterfn.hosts.transports.shared_login.{name}", 60.0)
    yield folder
    for each in list(held_connections.all_records()):
        shared_login.end(each)
    shutil.rmtree(folder, ignore_errors=True)  # a keeper that ends just now removes its own address


@pytest.fixture
def totp(configured: Callable[..., Host]) -> Callable[..., Host]:
    """A host that wants a code besides the key, with lines of its own in front of the lab's ssh_config."""

    def make(transport: str = "auto", lines: str = "", alias: str = "totp-second") -> Host:
        return configured(alias, lines)._replace(transport=transport)

    return make


@pytest.fixture
def prompts(lab: Any) -> Counted:
    """How often the server has asked this account for a code since the test began; other tests use other accounts."""
    before = lab.totp.prompts("cfsecond")
    return lambda: lab.totp.prompts("cfsecond") - before


class Person:
    """Gives this answer to every question, and remembers them."""

    def __init__(self, answer: Callable[[], str]) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, question: object) -> str:
        self.asked.append(str(question))
        return self.answer()


@pytest.fixture
def person(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Person:
    """Somebody at this process who knows the code."""
    somebody = Person(lab.totp.code)
    monkeypatch.setattr("clusterfn.hosts.transports.prompts.person", lambda: somebody)
    return somebody
