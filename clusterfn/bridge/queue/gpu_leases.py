"""Which GPUs a job gets, and holding them: as many as it asks for, and none that a process without a lease uses.

`machine.RemainingResources` says which GPUs are left for a job; it gets the first of them in PCI order. `GpuCache`
keeps what nvidia-smi says for the spooler.
"""

import contextlib
import json
import os
import time

from ..layout import GPUS_SEEN
from ..supervisor import gpus, publish
from ..supervisor.eligible_gpus import GpuInfo
from ..supervisor.verdict import AttemptEnded
from . import lease_names, machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Sequence

    from .lease import Lease, Leases

_UNLEASED_S = 4.0
_SEEN_NS = 5 * 10**9


class TooFew(Exception):
    """Other jobs or processes have the GPUs."""


def hold_gpus(leases: "Leases", left: "Iterable[str]", count: int) -> "dict[str, Lease]":
    """Hold `count` of the GPUs that are left for a job; hold none and raise TooFew if others took them meanwhile."""
    held: "dict[str, Lease]" = {}
    for uuid in left:
        if len(held) == count:
            break
        lease = leases.hold(lease_names.gpu(uuid))
        if lease is not None:
            held[uuid] = lease
    # A part of the GPUs would be of no use to this job, but it may be enough for another.
    if len(held) < count:
        release_gpus(held)
        raise TooFew
    return held


def replace_used_gpus(leases: "Leases", held: "dict[str, Lease]", every: "Sequence[str]") -> "dict[str, Lease]":
    """Replace held GPUs that a process without a lease uses by others of `every`; return all in PCI order.

    Such processes are looked for after a GPU is held: one may have come at any time before.

    Raises:
        TooFew: There are not as many; none is held then.
        AttemptEnded: nvidia-smi fails; none is held then.
    """
    count = len(held)
    unleased: "set[str]" = set()
    try:
        while True:
            users = gpus.used_by_others(held)
            unleased.update(users)
            if not users:
                return {uuid: held[uuid] for uuid in every if uuid in held}
            release_gpus({uuid: held.pop(uuid) for uuid in users})
            held.update(hold_gpus(leases, [uuid for uuid in every if uuid not in unleased], count - len(held)))
    except BaseException:  # no other process releases these leases when a signal handler raises here
        release_gpus(held)
        raise


def release_gpus(held: "dict[str, Lease]") -> None:
    """Release them, as far as this process is concerned."""
    for lease in held.values():
        lease.close()
    held.clear()


def keep_seen(root: str, there: "list[GpuInfo]") -> None:
    """Keep what nvidia-smi has just said of the GPUs, so that the job that is sent next need not ask the same."""
    with contextlib.suppress(OSError):
        seen = json.dumps([machine.now_ns(), there]).encode()
        publish.replace(os.path.join(machine.folder(root), GPUS_SEEN), seen, sync=False)


def take_seen(root: str) -> "list[GpuInfo]":
    """Return what `keep_seen` has kept a moment ago, and keep it no longer; nothing if there is none."""
    folder = machine.folder(root)
    try:
        at_ns, there = json.loads((publish.read(folder, GPUS_SEEN) or b"[-1, []]").decode())
        os.unlink(os.path.join(folder, GPUS_SEEN))
        return [GpuInfo(*gpu) for gpu in there] if 0 <= machine.now_ns() - at_ns < _SEEN_NS else []
    except (OSError, ValueError, TypeError):
        return []


class GpuCache:
    """What nvidia-smi says, asked once for all jobs that wait. If it fails, the job that starts reports it."""

    def __init__(self) -> None:
        self.gpus: "list[GpuInfo]" = []
        self._used: "dict[str, str]" = {}
        self._due = 0.0

    def of(self, kind: machine.Kind) -> "list[str]":
        """List the GPUs of a kind; none if that is unknown."""
        return machine.gpus_of_kind(kind, self.gpus)

    def unleased(self, is_needed: bool, held: "set[str]") -> "dict[str, str]":
        """Return who uses a GPU that is not held."""
        if is_needed and time.monotonic() > self._due:
            try:
                self.gpus = gpus.list_gpus()
                self._used = gpus.used_by_others(gpu.uuid for gpu in self.gpus)
            except AttemptEnded:
                self._used = {}
            self._due = time.monotonic() + _UNLEASED_S
        return {gpu: who for gpu, who in self._used.items() if gpu not in held}

    def let_go(self, name: str) -> None:
        """Forget who uses a GPU whose holder has ended; a job that takes it looks again."""
        self._used.pop(name[len(lease_names.GPU) :], None)

    def refresh(self) -> None:
        """Ask nvidia-smi again at the next turn."""
        self._due = 0.0
