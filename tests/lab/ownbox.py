"""A GPU box of a test's own: a host behind a cable with eight cards that nobody else has.

Its network and UTS namespaces are its own, so that names of abstract sockets, its hostname and hence its queue are
those of another machine; homes and processes are the lab's. Tests get one with `lab.own_gpubox()`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from . import cable
from .cable import Cable
from .gpubox import STATE_FILE, GpuBox
from .layout import HOST_BY_NAME, HOSTS


@dataclass(frozen=True)
class OwnBox:
    """One, with the cards of its nvidia-smi, and the hostname that `uname -n` says there."""

    cable: Cable
    cards: GpuBox
    hostname: str

    def alias(self, account: str) -> str:
        """Its `Host` in the lab's ssh_config for an account, `cfbash` say."""
        return f"{self.cable.name}-{account[2:]}"

    def uuids(self) -> list[str]:
        """Of its cards, in PCI order."""
        return [card["uuid"] for card in sorted(self.cards.read()["cards"], key=lambda card: str(card["bus_id"]))]


def _equip(name: str) -> GpuBox:
    """Eight cards with UUIDs of their own, and a program that tells of them."""
    box = GpuBox(HOSTS / name / "cards.json")
    box.reset()
    state = box.read()
    box.write({**state, "cards": [{**card, "uuid": f"GPU-{secrets.token_hex(16)}"} for card in state["cards"]]})
    played = (HOSTS / "tensor01" / "bin" / "nvidia-smi").read_text()
    program = cable.smi(HOST_BY_NAME[name])
    program.write_text(played.replace(str(STATE_FILE), str(box.path)))
    program.chmod(0o755)
    return box


@contextlib.contextmanager
def provided() -> Iterator[OwnBox]:
    """One for the length of a with block; all its processes end with it."""
    hostname = f"box-{secrets.token_hex(3)}"
    apart = ["/usr/bin/unshare", "--uts", "/bin/sh", "-c", 'hostname "$0" && exec "$@"', hostname]
    with cable.laid(apart) as laid:
        yield OwnBox(laid, _equip(laid.name), hostname)
