"""The way to a host by SSH: what is refused, in which words; jump hosts and proxies; a network that goes silent."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn import AuthenticationError, ConfigError, HostKeyError
from tests.contract.conftest import WAYS, Connect
from tests.waiting import WAIT_S, until

pytestmark = pytest.mark.lab


def test_a_changed_host_key_shows_both_fingerprints_and_the_line(lab_host: Any, lab: Any, connect_to: Connect) -> None:
    with pytest.raises(HostKeyError, match="has changed") as caught:
        connect_to(lab_host("changed-key"))

    shown, remembered = caught.value.evidence
    assert shown.startswith("shown now:  ssh-ed25519 SHA256:")
    assert remembered.startswith("remembered: ssh-ed25519 SHA256:")
    assert shown.split()[3] != remembered.split()[2]
    assert remembered.endswith(f"at {lab.client}/known_hosts.changed:1")
    assert "ssh-keygen -R '[127.0.0.1]:22006'" in (caught.value.hint or "")


def test_hashed_names_in_known_hosts_are_understood(
    configured: Any, lab: Any, tmp_path: Path, connect_to: Connect
) -> None:
    hashed = tmp_path / "known_hosts"
    hashed.write_text((lab.client / "known_hosts").read_text())
    os.system(f"ssh-keygen -q -H -f '{hashed}' 2>/dev/null")
    assert "|1|" in hashed.read_text()

    connect_to(configured("py36-bash", f'UserKnownHostsFile "{hashed}"'))


def test_a_refused_key_is_named_with_what_the_host_allows(lab_host: Any, lab: Any, connect_to: Connect) -> None:
    with pytest.raises(AuthenticationError, match="127.0.0.1:22006 did not let cfbash in") as caught:
        connect_to(lab_host("wrong-user-key"))

    tried, allowed = caught.value.evidence
    assert tried.startswith(f"tried {lab.client}/id_wrong ") and tried.endswith(": refused")
    assert allowed == "the host allows: publickey"


@pytest.fixture
def busy(configured: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    """Makes the host py36-bash behind an sshd that drops the first connections, as with MaxStartups."""
    monkeypatch.setattr("clusterfn.hosts.transports.base.PAUSES_S", (0.01, 0.02, 6.0))
    opened: list[BusySshd] = []

    def make(drops: int) -> tuple[Any, BusySshd]:
        opened.append(BusySshd(drops))
        lines = f"Host py36-bash\nPort {opened[-1].port}\nHostKeyAlias [127.0.0.1]:22006\n"
        return configured("py36-bash", lines), opened[-1]

    yield make
    for sshd in opened:
        sshd.close()


class BusySshd:
    """Hangs up on the first connections without a word; those after them go on to the lab's sshd."""

    def __init__(self, drops: int) -> None:
        self._drops = drops
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port = self._sockets[0].getsockname()[1]
        self.came = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._sockets[0].accept()
                self.came += 1
                if self.came <= self._drops:
                    client.close()
                else:
                    self._pass_on(client, socket.create_connection(("127.0.0.1", 22006)))

    def _pass_on(self, client: socket.socket, sshd: socket.socket) -> None:
        self._sockets += [client, sshd]
        for source, sink in ((client, sshd), (sshd, client)):
            threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


Busy = Callable[[int], "tuple[Any, BusySshd]"]


@pytest.mark.parametrize("way", WAYS)
def test_an_sshd_that_hangs_up_at_once_is_asked_again(busy: Busy, connect_to: Connect, way: str) -> None:
    host, sshd = busy(2)

    connect_to(host._replace(transport=way)).ping().result(WAIT_S)

    assert sshd.came == 3


def test_the_key_of_a_host_behind_a_jump_host_is_checked_too(configured: Any, connect_to: Connect) -> None:
    for alias, said in (("unknown-key", "is unknown"), ("changed-key", "has changed")):
        with pytest.raises(HostKeyError, match=f"The host key of {alias} .* {said}"):
            connect_to(configured(alias, f"Host {alias}\nProxyJump py36-dash"))


@pytest.mark.parametrize("way", WAYS)
def test_a_proxy_command_is_gone_through(configured: Any, connect_to: Connect, lab: Any, way: str) -> None:
    line = f"Host py38-bash\nProxyCommand ssh -F {lab.ssh_config} -W %h:%p py36-bash"

    assert connect_to(configured("py38-bash", line)._replace(transport=way)).facts.version[:2] == (3, 8)


def test_what_paramiko_does_not_do_is_refused_by_name(configured: Any, connect_to: Connect) -> None:
    host = configured("py36-bash", "Host py36-bash\nKnownHostsCommand /bin/true")._replace(transport="paramiko")

    with pytest.raises(ConfigError, match="asks for knownhostscommand"):
        connect_to(host)


def test_a_warm_question_costs_one_round_trip(lab_host: Any, connect_to: Connect, record_property: Any) -> None:
    there = connect_to(lab_host("py36-bash"))
    times = []
    for _ in range(200):
        began = time.monotonic()
        there.ping().result(WAIT_S)
        times.append(time.monotonic() - began)

    times.sort()
    record_property("ping_median_ms", 1000 * times[100])
    # Not the median: others take their turns on a busy machine. Nagle would add 40 ms to each.
    assert times[20] < 0.02


def test_closed_connections_leave_no_thread(lab_host: Any, open_to: Any) -> None:
    before = threading.active_count()
    for _ in range(5):
        open_to(lab_host("py36-bash"), "cat").close()

    until(lambda: threading.active_count() <= before)
