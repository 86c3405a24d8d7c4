"""Hosts with a cable that can be pulled: an sshd in a network namespace of its own, at the far end of a veth pair.

Tests get one with `lab.cable()`. A cable is held by a lock that the kernel lets go when its holder dies: what a crashed
test has left is removed by the next one that takes the cable, and by `down`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.processes import connections

from . import hosts
from .layout import CABLE_LIST, HOSTS, SSHD, Host
from .processes import LabError, Record, held_if_free, is_alive, run, send, start

FAR_END = "eth0"
PATIENCE_S = 120.0  # others' tests give theirs back


def namespace(host: Host) -> str:
    return f"clusterfn-lab-{host.name}"


def near_end(host: Host) -> str:
    return f"cf-{host.name}"


def smi(host: Host) -> Path:
    """Where its nvidia-smi lies while it is somebody's GPU box (ownbox.py)."""
    return HOSTS / host.name / "bin" / "nvidia-smi"


def is_laid(host: Host) -> bool:
    """Its namespace is there, in use or left by a crash."""
    return Path("/run/netns", namespace(host)).exists()


class Cable:
    """One host behind a cable. Attributes: name (`cable1`), alias (its `Host` in the lab's ssh_config), address."""

    def __init__(self, host: Host, record: Record) -> None:
        self.name = host.name
        self.alias = f"{host.name}-bash"
        self.address = host.address
        self._host = host
        self._record = record

    def down(self) -> None:
        """Pull it: both ends keep their sockets, nothing is delivered, and nobody is told."""
        run(["ip", "-n", namespace(self._host), "link", "set", FAR_END, "down"])

    def up(self) -> None:
        """Plug it in again: TCP goes on where it was."""
        run(["ip", "-n", namespace(self._host), "link", "set", FAR_END, "up"])

    def connections(self, pid: int | None = None) -> int:
        """TCP connections from here, of one process, to the host that are established as far as this machine knows.

        A client of an earlier test may still live, and come back to whoever has its host's address now.
        """
        lines = run(["ss", "-Htnp", "state", "established", "dst", self.address]).splitlines()
        return sum(pid is None or f"pid={pid}," in line for line in lines)

    def cut(self) -> None:
        """Destroy this machine's end of every connection to the host (`ss -K`)."""
        run(["ss", "-K", "dst", self.address])

    def pids(self) -> list[int]:
        """Every process that the host runs: its sshd, the sessions, what they started."""
        return pids(self._host)

    def names(self) -> set[str]:
        """The abstract unix sockets that are bound there now, without the leading NUL."""
        lines = Path(f"/proc/{self._record.pid}/net/unix").read_text().splitlines()[1:]
        return {words[7][1:] for line in lines if len(words := line.split()) > 7 and words[7].startswith("@")}

    def pause(self) -> None:
        """SIGSTOP to its sshd: connections are taken by the kernel and nothing answers. Open sessions go on."""
        send(self._record, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        send(self._record, signal.SIGCONT)

    def end(self) -> None:
        """kill -9 of all that runs there, the sshd too."""
        end_processes(self._host)

    def is_alive(self) -> bool:
        """Its sshd runs."""
        return is_alive(self._record)


def pids(host: Host) -> list[int]:
    return [int(word) for word in run(["ip", "netns", "pids", namespace(host)]).split()]


def end_processes(host: Host) -> None:
    """Kill what runs in the namespace, and what that starts meanwhile."""
    deadline = time.monotonic() + 60
    while found := pids(host):
        if time.monotonic() > deadline:
            raise LabError(f"processes of {host.name} cannot be killed: {found}")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove(host: Host) -> None:
    """Everything of a cable, whether it was laid whole or not."""
    run(["ss", "-K", "dst", host.address])  # or they would count as established to whoever has the address next
    # One end takes the other with it at once; a namespace that ends takes its own at a moment that the kernel chooses.
    subprocess.run(["ip", "link", "delete", near_end(host)], capture_output=True, check=False)
    if is_laid(host):
        end_processes(host)
        run(["ip", "netns", "delete", namespace(host)])
    smi(host).unlink(missing_ok=True)


def near_address(host: Host) -> str:
    """This machine's address on the cable: the one before the host's."""
    network, _, last = host.address.rpartition(".")
    return f"{network}.{int(last) - 1}"


def lay(host: Host, apart: Sequence[str]) -> Record:
    """Namespace, veth pair, addresses, and an sshd that answers at the far end; `apart` as for `laid`."""
    inside = ["ip", "-n", namespace(host)]
    run(["ip", "netns", "add", namespace(host)])
    run(["ip", "link", "add", near_end(host), "type", "veth", "peer", "name", FAR_END, "netns", namespace(host)])
    run([*inside, "address", "add", f"{host.address}/30", "dev", FAR_END])
    run([*inside, "link", "set", "lo", "up"])
    run([*inside, "link", "set", FAR_END, "up"])
    run(["ip", "address", "add", f"{near_address(host)}/30", "dev", near_end(host)])
    run(["ip", "link", "set", near_end(host), "up"])
    enter = ["/usr/bin/nsenter", f"--net=/run/netns/{namespace(host)}"]
    record = start(Record(f"sshd-{host.name}", [*enter, *apart, *hosts.sshd_argv(host)]))
    hosts.wait_for(host)
    return record


@contextlib.contextmanager
def free_host() -> Iterator[Host]:
    """One of the cables that nobody holds, held. Raises: LabError if all are in use all the time."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for host in CABLE_LIST:
            with held_if_free(SSHD / f"{host.name}.lock") as free:
                if free:
                    yield host
                    return
        time.sleep(0.5)
    raise LabError(f"all {len(CABLE_LIST)} cables are in use")


@contextlib.contextmanager
def laid(apart: Sequence[str] = ()) -> Iterator[Cable]:
    """A host of one's own for the length of a with block; all its processes end with it.

    `apart` are words before its sshd's, such as run it in further namespaces.
    """
    with free_host() as host:
        remove(host)
        try:
            yield Cable(host, lay(host, apart))
        finally:
            for each in connections():
                if str(each.host.address).startswith(f"{host.name}-"):
                    each.close()  # or it would try to reach the host during later tests
            remove(host)
