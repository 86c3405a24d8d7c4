"""How much a job's cards are used while it runs: one nvidia-smi at a time, never waited for, given up when it hangs.

A job has its cards to itself, so what is in use on a card is the job's. What cannot be known stays None; where there
is no nvidia-smi nothing is said of it. Reads only.
"""

import os
import signal
import time

from .text import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, Optional

_FIRST_S = 1.0
_EVERY_S = 5.0
_PATIENCE_S = 10.0
_MOST = 1 << 16  # of an answer: a line for each card is far less
_FIELDS = "uuid,name,memory.used,utilization.gpu"
_UUIDS = ("GPU-", "MIG-")
_MIB = 2**20

_askers: "set[int]" = set()  # children of this process that are none of the job's
_hung: "list[str]" = []  # after that it is not asked again, for no item of a group


class GpuSamples:
    """What was seen of one card."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.name: "Optional[str]" = None
        self._peak: "Optional[int]" = None
        self._uses: "list[int]" = []

    def see(self, name: str, used_mib: str, use: str) -> None:
        """One sample, as nvidia-smi writes it; a number that the driver does not know is "[N/A]"."""
        self.name = name
        used, percent = number(used_mib), number(use)
        if used is not None:
            self._peak = max(self._peak or 0, used * _MIB)
        if percent is not None:
            self._uses.append(percent)

    def as_dict(self) -> "dict[str, Any]":
        """As outcome.json has it."""
        uses = self._uses
        return {
            "uuid": self.uuid,
            "name": self.name,
            "peak_memory_bytes": self._peak,
            "peak_use_percent": max(uses) if uses else None,
            "mean_use_percent": round(sum(uses) / float(len(uses)), 1) if uses else None,
        }


class Gauge:
    """Looks at the cards of one attempt every few seconds.

    Args:
        names: UUIDs, or what else `nvidia-smi -i` takes; empty: nothing is ever asked.
        notes: Where it says that it gave up.
    """

    def __init__(self, names: "list[str]", notes: "list[str]") -> None:
        self._names = names
        self._notes = notes
        self._cards = {name: GpuSamples(name) for name in names if name.startswith(_UUIDS)}
        self._asking: "Optional[subprocess.Popen[bytes]]" = None
        self._answer = b""
        self._next = time.monotonic() + _FIRST_S
        self._until = 0.0
        self._given_up = not names or bool(_hung)

    def look(self) -> None:
        """Take what has been answered, and ask when it is time. Returns at once."""
        if self._asking is not None:
            self._listen(self._asking)
        elif not self._given_up and time.monotonic() >= self._next:
            self._ask()

    def close(self) -> None:
        """Ask no more; a process that still asks is killed, and not waited for."""
        self._given_up = True
        if self._asking is not None:
            self._leave(self._asking)

    def usage(self) -> "Optional[list[dict[str, Any]]]":
        """A dict for each card; None if it is not known which they are."""
        if self._asking is not None:
            self._listen(self._asking)
        if self._names and not self._cards:
            return None
        return [card.as_dict() for card in self._cards.values()]

    def _ask(self) -> None:
        import subprocess  # here: most jobs have no cards

        self._next = time.monotonic() + _EVERY_S
        argv = ["nvidia-smi", "--query-gpu=" + _FIELDS, "--format=csv,noheader,nounits", "-i", ",".join(self._names)]
        try:
            asking = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )  # fmt: skip
        except OSError:  # there is none, as on many nodes that have cards
            self._given_up = True
            return
        _askers.add(asking.pid)
        self._asking, self._answer = asking, b""
        self._until = time.monotonic() + _PATIENCE_S
        os.set_blocking(_out_of(asking), False)

    def _listen(self, asking: "subprocess.Popen[bytes]") -> None:
        more = True
        while more and len(self._answer) < _MOST:
            try:
                data = os.read(_out_of(asking), _MOST)
            except BlockingIOError:
                if time.monotonic() >= self._until:
                    _hung.append("hung")
                    self._give_up("did not answer within %d s" % _PATIENCE_S)
                return
            self._answer += data
            more = bool(data)
        self._leave(asking)
        text = self._answer.decode("utf-8", "replace")
        if not self._understand(text):
            said = text.strip().split("\n")[0][:200]
            self._give_up("answered what is not a table of cards: %s" % (said or "nothing"))

    def _leave(self, asking: "subprocess.Popen[bytes]") -> None:
        """Let go of it: it is collected when it is dead, which one that hangs in the driver may never be."""
        self._asking = None
        if asking.stdout is not None:
            asking.stdout.close()
        asking.returncode = 0  # so that subprocess neither waits for it nor complains
        if asking.pid in _askers:
            os.kill(asking.pid, signal.SIGKILL)

    def _give_up(self, why: str) -> None:
        self._notes.append("the use of the cards was not measured to the end: nvidia-smi %s" % why)
        self.close()

    def _understand(self, answer: str) -> bool:
        """Whether it spoke of at least one card."""
        rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()]
        good = [row for row in rows if len(row) == 4 and row[0].startswith(_UUIDS)]
        for uuid, name, used, use in good:
            self._cards.setdefault(uuid, GpuSamples(uuid)).see(name, used, use)
        return bool(good)


def _out_of(asking: "subprocess.Popen[bytes]") -> int:
    if asking.stdout is None:
        raise AssertionError("it was started with a pipe")
    return asking.stdout.fileno()


def without_askers(pids: "list[int]") -> "list[int]":
    """Those of the processes that are the job's own."""
    return [pid for pid in pids if pid not in _askers]


def reaped(pid: int) -> bool:
    """Whether a dead child is one that asked; it may be forgotten now."""
    if pid not in _askers:
        return False
    _askers.remove(pid)
    return True


def names_of(cards: "Optional[list[str]]", wanted: int, env: "dict[str, str]") -> "list[str]":
    """What to ask nvidia-smi about.

    Args:
        cards: UUIDs of leased cards; None where a scheduler hands them out.
        wanted: How many the job asked for.
        env: The worker's variables.
    """
    if not wanted:
        return []
    if cards is not None:
        return cards
    told = env.get("CUDA_VISIBLE_DEVICES") or env.get("SLURM_JOB_GPUS") or ""
    return [name.strip() for name in told.split(",") if name.strip()]
