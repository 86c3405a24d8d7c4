"""The system's ssh as the way to a host: its refusals in our words, ControlMaster, jump hosts, lost sessions."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn import AuthenticationError, HostError, HostKeyError, Unreachable
from tests.contract.conftest import Connect
from tests.processes import everyone, group_of
from tests.programs import main
from tests.waiting import WAIT_S, until

pytestmark = pytest.mark.lab


@pytest.fixture
def by_ssh(configured: Any) -> Any:
    """A host by openssh, with lines of its own in front of the lab's ssh_config."""
    return lambda alias, lines="": configured(alias, lines)._replace(transport="openssh")


def test_the_key_that_was_shown_and_the_one_remembered_are_named(by_ssh: Any, lab: Any, connect_to: Connect) -> None:
    with pytest.raises(HostKeyError) as caught:
        connect_to(by_ssh("changed-key"))

    shown, remembered = caught.value.evidence
    assert shown.startswith("shown now:  ssh-ed25519 SHA256:")
    assert remembered.endswith(f"at {lab.client}/known_hosts.changed:1")
    assert "clusterfn trust changed-key --replace" in (caught.value.hint or "")


def test_no_is_not_followed_for_an_unknown_key(by_ssh: Any, connect_to: Connect) -> None:
    with pytest.raises(HostKeyError, match="is unknown"):
        connect_to(by_ssh("unknown-key", "Host unknown-key\nStrictHostKeyChecking no"))


def test_an_sshd_with_no_common_cipher_is_named(by_ssh: Any, connect_to: Connect) -> None:
    with pytest.raises(HostError, match="127.0.0.1:22026 and the ssh of this machine have no algorithm in common"):
        connect_to(by_ssh("chacha-bash", "Host chacha-bash\nCiphers aes128-ctr"))


def test_a_quiet_configuration_does_not_hide_what_failed(by_ssh: Any, connect_to: Connect) -> None:
    connect_to(by_ssh("py38-bash", "LogLevel QUIET"))

    with pytest.raises(AuthenticationError, match="did not let cfbash in"):
        connect_to(by_ssh("wrong-user-key", "LogLevel QUIET"))


def test_the_key_of_a_jump_host_is_checked_too(by_ssh: Any, connect_to: Connect) -> None:
    with pytest.raises(HostKeyError, match=r"The host key of py38-bash \(127.0.0.1:22006\) is unknown"):
        connect_to(by_ssh("py38-bash", "Host py38-bash\nProxyJump unknown-key"))


def test_a_jump_host_that_cannot_reach_the_next_is_reported(by_ssh: Any, connect_to: Connect) -> None:
    with pytest.raises(Unreachable, match="rejected the next step"):
        connect_to(by_ssh("refused", "Host refused\nProxyJump py36-dash"))


def test_tunnels_of_the_user_are_left_alone(by_ssh: Any, connect_to: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        tunnel = f"LocalForward {taken.getsockname()[1]} localhost:1\nExitOnForwardFailure yes\nRemoteCommand top"

        connect_to(by_ssh("py38-bash", f"Host py38-bash\n{tunnel}"))


@pytest.fixture
def master(by_ssh: Any, ssh_folder: Path) -> Iterator[Any]:
    """A host whose own login fails, and to which a ControlMaster is open."""
    line = f"Host py38-bash\nControlPath {ssh_folder}/c"
    ssh = ["ssh", "-F", str(by_ssh("py38-bash", line).ssh_config)]
    subprocess.run([*ssh, "-fNM", "py38-bash"], check=True, timeout=WAIT_S, stdin=subprocess.DEVNULL)
    yield lambda: by_ssh("py38-bash", f"{line}\nUser cfnologin")
    subprocess.run([*ssh, "-O", "exit", "py38-bash"], check=False, timeout=WAIT_S, stderr=subprocess.DEVNULL)


def test_an_open_master_is_used_and_stays_open(master: Any, connect_to: Connect) -> None:
    there = connect_to(master())
    there.ping().result(WAIT_S)
    there.close()

    assert there.facts.user == "cfbash"
    connect_to(master()).ping().result(WAIT_S)


def test_check_says_by_what(by_ssh: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    host = by_ssh("chacha-bash")
    (tmp_path / "clusterfn.yml").write_text(
        f"hosts:\n  chacha-bash: {{scheduler: bare, ssh_config: {host.ssh_config}}}\n"
    )
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))

    main(["check", "--no-job", "chacha-bash"])

    assert re.search(r"PASS  connection .* s, by openssh\n", capsys.readouterr().out)


def test_a_session_that_is_cut_off_tells_why(by_ssh: Any, open_to: Any) -> None:
    stream = open_to(by_ssh("py38-bash"), "echo $PPID; exec cat")
    os.kill(int(stream.read(100)), signal.SIGKILL)

    assert stream.read(100) == b""
    assert stream.cause() == "the connection was lost: Connection to 127.0.0.1 closed by remote host."


@pytest.mark.long
def test_a_session_that_goes_silent_is_noticed(by_ssh: Any, open_to: Any) -> None:
    stream = open_to(by_ssh("py38-bash"), "echo $PPID; exec cat")
    session = int(stream.read(100))
    os.kill(session, signal.SIGSTOP)
    began = time.monotonic()
    try:
        assert stream.read(100) == b""
    finally:
        os.kill(session, signal.SIGKILL)

    assert 40 < time.monotonic() - began < 120
    assert "not responding" in (stream.cause() or "")


def test_nothing_is_left_when_a_stream_is_closed(by_ssh: Any, open_to: Any) -> None:
    stream = open_to(by_ssh("jumped"), "exec cat")
    pid = stream.process.pid

    stream.close()

    until(lambda: pid not in map(group_of, everyone()))
