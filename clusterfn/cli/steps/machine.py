"""The machine itself: its cards and their driver, and whether logind lets a job live when its user has left."""

from __future__ import annotations

from clusterfn.cli.steps.found import Failed, Found, Skipped, Warned
from clusterfn.hosts.survey import Cards

_MISMATCH = "version mismatch"
_RELOAD = (
    "the driver was updated while the old one runs: ask the administrator for a restart (`sudo reboot`), or, with "
    "nothing on the cards, `sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia`"
)
_HANGS = (
    "a card may have fallen off the bus: log in, see `nvidia-smi` and `sudo dmesg | grep -i xid`; it needs a restart"
)
_NO_DRIVER = "the driver is not loaded: ask the administrator for `sudo modprobe nvidia`; `dmesg` says why it is not"
_OTHER = "log in and run nvidia-smi; ask the administrator"


def gpus(found: Found) -> str:
    if found.host.scheduler == "slurm":
        raise Skipped("on the nodes, see scheduler")
    cards = found.site.cards
    if cards is None:
        raise Skipped("there is no nvidia-smi: gpus=0 only")
    if cards.trouble:
        raise Failed("nvidia-smi fails", _mend(found, cards.trouble), cards.trouble.splitlines())
    return _described(cards)


def _mend(found: Found, trouble: str) -> str:
    if "cards" in found.site.silent:
        return _HANGS
    if _MISMATCH in trouble:
        return _RELOAD
    return _NO_DRIVER if "communicate with the NVIDIA driver" in trouble else _OTHER


def _described(cards: Cards) -> str:
    kinds = "; ".join(dict.fromkeys(cards.names))
    capable = f", compute capability {', '.join(sorted(set(cards.capabilities)))}" if cards.capabilities else ""
    return f"{len(cards.names)} x {kinds}, {cards.memory_bytes // 2**20} MiB{capable}; driver {cards.driver}"


def lingering(found: Found) -> str:
    if found.host.scheduler == "slurm":
        raise Skipped("jobs run on the nodes")
    if found.site.lingering is False:
        user = found.session.connection.facts.user
        hint = (
            f"ask the administrator for `KillExcludeUsers={user}` or `KillUserProcesses=no` in /etc/systemd/logind.conf"
        )
        raise Warned("logind ends all your processes there when you log out, jobs too", hint)
    return "jobs live on when you log out" if found.site.lingering else "logind does not watch over what runs there"
