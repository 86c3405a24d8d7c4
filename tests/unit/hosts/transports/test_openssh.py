"""The ssh that is run: how it is asked, when its session is open, and how it is given up. A stub plays ssh."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, Unreachable
from clusterfn.hosts.transports import base, openssh, ssh_config, transport_for, trust
from clusterfn.hosts.transports.openssh import OpensshTransport
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stub is a shell script")
HOST = Host("lab8", "lab8", "bare", "clusterfn.yml:3", transport="openssh")
SSH = """#!/bin/sh
case " $* " in
    *" -G "*) cat "$STUB/resolved"; exit 0 ;;
esac
printf '%s\\n' "$@" > "$STUB/argv"
env > "$STUB/env"
echo came >> "$STUB/came"
. "$STUB/play"
"""
OPENS = "echo 'debug1: Sending command: x' >&2\n"


@dataclass
class Stub:
    """An ssh of our own in PATH: what it resolves, and what it does when it is to connect, as lines of sh."""

    folder: Path

    def __call__(self, play: str = OPENS, *, resolved: str = "") -> Stub:
        (self.folder / "play").write_text(play)
        (self.folder / "resolved").write_text(f"hostname 10.0.0.8\nport 22\nuser me\n{resolved}")
        return self

    @property
    def argv(self) -> list[str]:
        return (self.folder / "argv").read_text().splitlines()

    @property
    def came(self) -> int:
        return len((self.folder / "came").read_text().splitlines())

    def program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o700)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    stub = Stub(tmp_path)
    stub.program("ssh", SSH)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("STUB", str(tmp_path))
    monkeypatch.setattr(base, "PAUSES_S", (0.01, 0.01, 0.5))
    monkeypatch.setattr(openssh, "LOOK_S", 10.0)  # for the last words of an ssh that has ended
    return stub()


def test_ssh_is_asked_for_a_plain_stream(ssh: Stub) -> None:
    OpensshTransport(HOST).open("echo it's").close()

    assert ssh.argv[:3] == ["-T", "-x", "-v"]
    assert ssh.argv[-3:] == ["--", "lab8", "echo it's"]
    assert {"-oBatchMode=yes", "-oControlMaster=no"} <= {*ssh.argv}
    assert {"-oServerAliveInterval=15", "-oServerAliveCountMax=3"} <= {*ssh.argv}
    assert "SSH_ASKPASS_REQUIRE=never" in (ssh.folder / "env").read_text()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="asks the system's ssh what it would do")
@pytest.mark.parametrize("way", ["a call", "a master", "trust"])
def test_the_users_agent_is_never_forwarded(tmp_path: Path, way: str) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  ForwardAgent yes\n  ForwardX11 yes\n  LocalForward 8080 localhost:80\n")
    settings = ssh_config.resolve(HOST._replace(ssh_config=str(config)))
    words = {
        "a call": lambda: openssh.argv(settings, "true"),
        "a master": lambda: openssh.line(settings, ["ControlMaster=yes", "ControlPath=/x"], "true", asks=True),
        "trust": lambda: [
            "ssh", *trust.fetch_options(settings, tmp_path / "known", ("ssh-ed25519",)), "-F", str(config), "lab8",
        ],
    }[way]()  # fmt: skip
    ran = subprocess.run([words[0], "-G", *words[1:]], capture_output=True, text=True, check=True)

    assert {"forwardagent no", "forwardx11 no", "clearallforwardings yes"} <= {*ran.stdout.splitlines()}


@pytest.mark.parametrize(
    ("resolved", "option"),
    [
        ("stricthostkeychecking false", ["-oStrictHostKeyChecking=yes"]),
        ("stricthostkeychecking accept-new", []),
        ("stricthostkeychecking ask", []),
        ("remotecommand tmux", ["-oremotecommand=none"]),
        ("sessiontype none", ["-osessiontype=default"]),
        ("compression yes", ["-oCompression=yes"]),
        ("compression no", []),
        ("sessiontype default", []),
    ],
)
def test_what_would_be_unsafe_or_no_stream_is_said_otherwise(ssh: Stub, resolved: str, option: list[str]) -> None:
    ssh(resolved=resolved)

    OpensshTransport(HOST).open("true").close()

    word = f"-o{resolved.split()[0]}="
    assert [each for each in ssh.argv if each.lower().startswith(word)] == option


@pytest.mark.parametrize(
    "line, said",
    [
        ("Sending command: x", "mine\n"),
        # A shared master writes what the command says, before ssh itself comes to say that the session is open.
        ("mux_client_request_session: master session id: 2", "first\nmine\n"),
    ],
)
def test_the_session_is_open_when_ssh_says_so(ssh: Stub, line: str, said: str) -> None:
    ssh(f"echo 'debug1: x' >&2; echo first >&2; echo 'debug1: {line}' >&2; echo mine >&2; exec cat")
    stream = OpensshTransport(HOST).open("cat")

    stream.write(b"there and back")

    assert stream.read(99) == b"there and back"
    stream.close()
    assert stream.stderr() == said


def test_an_ssh_that_opens_nothing_is_ended(ssh: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    def patience_s(settings: object) -> float:
        until((ssh.folder / "spoken").exists)  # a busy machine starts it slowly
        return 2.0

    monkeypatch.setattr(openssh, "LOOK_S", 0.25)
    monkeypatch.setattr(openssh, "patience_s", patience_s)
    ssh("echo 'Confirm user presence for key ED25519-SK' >&2; touch \"$STUB/spoken\"; exec sleep 600")
    began = time.monotonic()

    with pytest.raises(Unreachable, match="ssh has opened no session on 10.0.0.8:22: not within 2 s") as caught:
        OpensshTransport(HOST).open("cat")

    assert caught.value.evidence == ("Confirm user presence for key ED25519-SK",)
    assert time.monotonic() - began < 150


def test_a_busy_sshd_is_asked_again(ssh: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    # no try takes long, however slow we are
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep))
    ssh("echo 'kex_exchange_identification: Connection closed by remote host' >&2; exit 255")

    with pytest.raises(Unreachable, match="closed the connection at once"):
        OpensshTransport(HOST).open("cat")

    assert ssh.came == 4


def test_a_child_that_holds_the_pipes_holds_nothing_up(ssh: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openssh, "LOOK_S", 1.0)
    monkeypatch.setattr(openssh, "patience_s", lambda settings: 600.0)  # else it ends any wait after 45 s
    ssh("sleep 600 & echo 'ssh: connect to host 10.0.0.8 port 22: Connection refused' >&2; exit 255")
    began = time.monotonic()

    with pytest.raises(Unreachable, match="refused the connection"):
        OpensshTransport(HOST).open("cat")

    assert time.monotonic() - began < 150


def test_without_ssh_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="needs an ssh, and this machine has none"):
        transport_for(HOST).open("cat")


@pytest.mark.parametrize(("transport", "has_ssh", "via"), [
    ("auto", True, "openssh"), ("auto", False, "paramiko"), ("paramiko", True, "paramiko"),
])  # fmt: skip
def test_auto_is_the_systems_ssh_and_paramiko_where_there_is_none(
    ssh: Stub, transport: str, has_ssh: bool, via: str, monkeypatch: pytest.MonkeyPatch,
    opened: Callable[[], list[str]],
) -> None:  # fmt: skip
    if not has_ssh:
        monkeypatch.setenv("PATH", "/nowhere")
    way = transport_for(HOST._replace(transport=transport))

    stream = way.open("true")
    if via == "openssh":
        stream.close()

    assert (way.via, opened()) == (via, ["paramiko"] if via == "paramiko" else [])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What was opened by paramiko, which connects nowhere here."""
    from clusterfn.hosts.transports.paramiko import ParamikoTransport

    seen: list[str] = []
    monkeypatch.setattr(ParamikoTransport, "open", lambda self, command, asker=None: seen.append("paramiko"))
    return lambda: seen
