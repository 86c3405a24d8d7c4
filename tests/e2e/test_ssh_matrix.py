"""Each way by which people reach a host by SSH, and each in which it fails, in two tables, by paramiko and by ssh.

A decorated function is called with a clusterfn.yml, as a user does it. How ssh's configuration is read, and what is
said of each key, is tested in tests/unit and tests/contract.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from clusterfn import cluster, errors
from tests.e2e.conftest import MINOR
from tests.e2e.inside import host_of
from tests.waiting import WAIT_S

pytestmark = pytest.mark.lab
Describe = Callable[..., None]


@dataclasses.dataclass(frozen=True)
class Way:
    """A way that works.

    Attributes:
        alias: Where to, in the lab's ssh configuration.
        user: Whom the function finds itself to be.
        minor: Of the Python that is first there.
        by: The transports that can go it.
        file: The ssh configuration.
        through: The jump hosts, each with the account that is used there.
    """

    alias: str
    user: str = "cfbash"
    minor: int = 6
    by: tuple[str, ...] = ("paramiko", "openssh")
    file: str = "ssh_config"
    through: tuple[tuple[str, str], ...] = ()


WAYS = {
    "a jump host behind a jump host": Way(
        "jumped-twice", minor=8, through=(("tensor01", "cfsecond"), ("py36", "cfbash"))
    ),
    "Include, Match and ProxyJump in several files": Way(
        "inner", "cfsecond", minor=8, file="ssh_config.split", through=(("py37", "cfdash"),)
    ),
    "a certificate beside its key": Way("certificate-bash"),
    "a certificate apart from its key": Way("certificate-apart"),
    "ed25519 and nothing else": Way("ed25519only-bash"),
    "an authority for host keys": Way("authority", by=("openssh",)),
    "one session in each connection": Way("onesession-bash"),
    "one login at a time": Way("onestartup-bash"),
    # By paramiko these are rows of tests/faults.
    "tcsh": Way("py36-tcsh", "cftcsh", by=("openssh",)),
    "fish": Way("py36-fish", "cffish", by=("openssh",)),
    "a .bashrc that talks and reads": Way("py36-noisy", "cfnoisy", by=("openssh",)),
    "a home of odd characters": Way("py36-space", "cfspace", by=("openssh",)),
}


@pytest.fixture(scope="module")
def root(lab: Any) -> Iterator[str]:
    """A root for every account, as clusterfn.yml writes it."""
    name = f"e2e-ssh-{secrets.token_hex(4)}"
    yield f"~/{name}"
    for way in WAYS.values():
        shutil.rmtree(lab.home(way.user) / name, ignore_errors=True)


@pytest.fixture
def describe(lab: Any, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Describe:
    """Write a clusterfn.yml whose host `there` is an alias."""
    path = tmp_path / "clusterfn.yml"
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))

    def write(alias: str, transport: str, ssh_config: Path = lab.ssh_config) -> None:
        lines = [f"address: {alias}", f"transport: {transport}", f"ssh_config: {ssh_config}", "scheduler: bare"]
        lines += ["limits: {cores: 64}", f"root: {root}", f'environment: "python:{lab.python(MINOR)}"']
        path.write_text("hosts:\n  there:\n" + "".join(f"    {line}\n" for line in lines))

    return write


def there() -> Any:
    """This process's connection to the host `there`."""
    return host_of("there").connection


def logins(lab: Any, way: Way) -> list[int]:
    """How often each jump host has let in the account of this way so far, as its sshd has it."""
    logs = [(lab.root / "log" / f"sshd-{host}.log", f"Accepted publickey for {user} ") for host, user in way.through]
    return [log.read_bytes().count(line.encode()) for log, line in logs]


@pytest.fixture
def left_alone(describe: Describe) -> Iterator[None]:
    """The connection to `there` is closed after the test."""
    yield
    there().close()


@pytest.mark.usefixtures("left_alone")
@pytest.mark.parametrize(
    ("way", "transport"), [pytest.param(way, by, id=f"{name}, {by}") for name, way in WAYS.items() for by in way.by]
)
def test_a_call_returns_its_value(lab: Any, describe: Describe, way: Way, transport: str) -> None:
    describe(way.alias, transport, lab.client / way.file)
    before = logins(lab, way)

    assert cluster(host="there")(getpass.getuser)() == way.user

    assert all(now > then for now, then in zip(logins(lab, way), before))
    assert there().facts.version[1] == way.minor
    assert there().via == transport


# Of a script, and of this process by value: a module that imports pytest cannot travel.
MEET = """
import pathlib, time

def meet(folder, name, guests):
    place, deadline = pathlib.Path(folder).expanduser(), time.monotonic() + 140
    place.mkdir(parents=True, exist_ok=True)
    (place / name).touch()
    while len(list(place.iterdir())) < guests:
        if time.monotonic() > deadline:
            raise TimeoutError(name + " was alone")
        time.sleep(0.02)
    return name
"""
SECOND_PROCESS = f"""{MEET}
import json, sys
from clusterfn import cluster

if __name__ == "__main__":
    print(json.dumps(cluster(host="there")(meet)(sys.argv[1], "third", 3)))
"""


@pytest.mark.fault("29")
@pytest.mark.usefixtures("left_alone")
@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
def test_with_one_session_for_each_connection_calls_of_two_processes_run_at_once(
    lab: Any, describe: Describe, root: str, run_script: Callable[..., Any], transport: str
) -> None:
    describe("onesession-bash", transport)
    folder = f"{root}/meeting-{transport}"
    scope: dict[str, Any] = {}
    exec(MEET, scope)
    here = [cluster(host="there")(scope["meet"]).submit(folder, name, 3) for name in ("first", "second")]

    assert run_script(SECOND_PROCESS, folder) == "third"
    assert [job.result(timeout=WAIT_S) for job in here] == ["first", "second"]


def as_it_is(lab: Any, alias: str) -> AbstractContextManager[object]:
    return nullcontext(alias)


def taken(lab: Any, alias: str) -> AbstractContextManager[object]:
    """The one login that may be under way is somebody else's."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        theirs = socket.create_connection(("127.0.0.1", lab.host(alias).port), timeout=WAIT_S)
        # sshd drops this one too while it still counts the login of the test before
        with contextlib.suppress(ConnectionError):
            if theirs.recv(4) == b"SSH-":
                return theirs
        theirs.close()
    raise TimeoutError(f"{alias} let nobody log in for {WAIT_S} s")


@contextlib.contextmanager
def stopped(lab: Any, _: str) -> Iterator[str]:
    """The alias of a host whose sshd was stopped: the kernel takes connections for it."""
    with lab.cable() as cable:
        cable.pause()
        yield cable.alias


@contextlib.contextmanager
def pulled(lab: Any, _: str) -> Iterator[str]:
    """The alias of a host whose cable was pulled."""
    with lab.cable() as cable:
        cable.down()
        yield cable.alias


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A way that cannot work.

    Attributes:
        alias: Where to; "" if the circumstances say so.
        kind: The class of the error, and no subclass.
        message: How it begins, a regular expression.
        hint: A part of what it says to do.
        given: The circumstances.
    """

    alias: str
    kind: type[errors.HostError]
    message: str
    hint: str
    given: Callable[[Any, str], AbstractContextManager[object]] = as_it_is


PLACE = r"[\d.]+:\d+"
NOT_IN = f"{PLACE} did not let cfbash in"
LATE = f"{PLACE} (did not answer within 1 s|cannot be reached)"
MUTE = f"{PLACE} accepted the connection, but did not answer within 1 s"
NO_MORE = f"{PLACE} let cfbash in but rejected the next step"
CHANGED = "The host key .* has changed"
NOT_SIGNED = "The host key .* is unknown"
REFUSALS = {
    "an unknown name": Refusal("no-such-name", errors.Unreachable, "The name .* cannot be resolved", "or VPN"),
    "no listener": Refusal("refused", errors.Unreachable, f"{PLACE} refused the connection", "its port is 22099"),
    "a stopped sshd": Refusal("", errors.Unreachable, MUTE, "its sshd may be stopped or overloaded", stopped),
    "a pulled cable": Refusal("", errors.Unreachable, LATE, "check your network and VPN", pulled),
    "MaxStartups": Refusal(
        "onestartup-bash", errors.Unreachable, f"{PLACE} closed the connection at once", "(MaxStartups)", taken
    ),
    "MaxSessions": Refusal("nosession-bash", errors.Unreachable, NO_MORE, "MaxSessions"),
    "an unknown host key": Refusal("unknown-key", errors.HostKeyError, "The host key .* is unknown", "clusterfn trust"),
    "a changed host key": Refusal("changed-key", errors.HostKeyError, CHANGED, "clusterfn trust there --replace"),
    "an authority of others": Refusal("unknown-authority", errors.HostKeyError, NOT_SIGNED, "clusterfn trust there"),
    "an unknown key": Refusal("wrong-user-key", errors.AuthenticationError, NOT_IN, "IdentityFile"),
    "a key without certificate": Refusal("unsigned", errors.AuthenticationError, NOT_IN, "ssh-add"),
    "a certificate that is over": Refusal("expired-certificate", errors.AuthenticationError, NOT_IN, "ssh-add"),
    "a key of another kind": Refusal("ecdsa-key", errors.AuthenticationError, NOT_IN, "IdentityFile"),
    "no login shell": Refusal("py36-nologin", errors.HostError, "The account on there has no login shell", "account"),
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, lab: Any, tmp_path: Path) -> Path:
    """An ssh configuration by which cables are given up soon, and transports that ask a busy sshd again at once."""
    monkeypatch.setattr("clusterfn.hosts.transports.base.PAUSES_S", (0.01,))
    path = tmp_path / "ssh_config"
    path.write_text(f"Host cable*\nConnectTimeout 1\nMatch all\n{lab.ssh_config.read_text()}")
    return path


@pytest.mark.fault("29 47 48")
@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_work_says_what_and_what_to_do(
    lab: Any, describe: Describe, impatient: Path, refusal: Refusal, transport: str
) -> None:
    with refusal.given(lab, refusal.alias) as alias:
        describe(refusal.alias or alias, transport, impatient)

        with pytest.raises(refusal.kind, match=f"^{refusal.message}") as caught:
            cluster(host="there")(getpass.getuser)()

    assert type(caught.value) is refusal.kind
    assert refusal.hint in (caught.value.hint or "")
    assert caught.value.evidence
    assert caught.value.retryable is (refusal.kind is errors.Unreachable)
