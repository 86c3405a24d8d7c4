"""From how the worker ended to a verdict: what it reported, or what its silence means. Pure but for a look at the disk.

Called by `run`.
"""

import os
import signal

from ...layout import DISK, EXITED, MEMORY, RAISED, RETURNED, SIGNAL
from .syscalls import describe_signal
from .text import size
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_STAGES = {"returned": "result", "raised": "function", "result": "result", "disk": "result", "payload": "load"}
_OOM_WORDS = (b"oom-kill", b"exceeded memory limit", b"Out Of Memory", b"OUT_OF_MEMORY")
_NEAR = 0.9


def reported(done: "dict[str, Any]") -> Verdict:
    """What the worker's last line means."""
    kind = done["done"]
    facts: "dict[str, Any]" = {name: done.get(name) for name in ("exception", "hint")}
    facts["stage"] = done.get("stage") or _STAGES.get(kind, "environment")
    if kind in (RETURNED, RAISED) and done.get("size") is not None:
        facts["value"] = {"size": done["size"], "crc": done["crc"]}
    if kind == DISK:
        facts["hint"] = "make room on the host, or let cwd= or root: point to another file system"
    return Verdict(kind, done.get("message") or "", **facts)


def too_much_memory(used: int, limit: int) -> Verdict:
    """The tree used more than it asked for."""
    return Verdict(
        MEMORY,
        "the job used %s of memory and asked for %s" % (size(used), size(limit)),
        hint="ask for more, for example memory=%r" % ("%dGB" % (used * 3 // 2 // 2**30 + 1)),
    )


def silent(status: int, stage: str, peak: int, limit: "Optional[int]", oom: "Optional[str]") -> Verdict:
    """The worker's process ended without a last word.

    Args:
        status: From wait.
        stage: The last one that it reported.
        peak: Bytes of memory that the tree was seen to use.
        limit: Bytes that it asked for.
        oom: What points to the out-of-memory killer, in words.
    """
    if not os.WIFSIGNALED(status):
        return _exited(os.WEXITSTATUS(status), stage)
    number = os.WTERMSIG(status)
    if number == signal.SIGKILL and oom is None and limit and peak >= _NEAR * limit:
        oom = "it was killed while it used %s" % size(peak)
    if number == signal.SIGKILL and oom:
        return _ended_for_memory(peak, limit, oom, stage)
    return Verdict(
        SIGNAL,
        "the process that ran the function was ended by %s" % describe_signal(number),
        signal=describe_signal(number), stage=stage, hint=_signal_hint(number),
    )  # fmt: skip


def _exited(code: int, stage: str) -> Verdict:
    return Verdict(
        EXITED,
        "the process that ran the function ended by itself with exit code %d, without returning or raising" % code,
        code=code, stage=stage,
        hint="look for os._exit or a library that ends the process in the last lines of the output",
    )  # fmt: skip


def _ended_for_memory(peak: int, limit: "Optional[int]", oom: str, stage: str) -> Verdict:
    asked = "asked for %s" % size(limit) if limit else "did not say how much it needs"
    return Verdict(
        MEMORY,
        "the function's process was killed for memory: the job used up to %s and %s; %s" % (size(peak), asked, oom),
        signal="SIGKILL", stage=stage, hint="ask for more memory, or use less at a time",
    )  # fmt: skip


def _signal_hint(number: int) -> str:
    if number == signal.SIGKILL:
        return "clusterfn did not send it, and nothing points to a lack of memory: ask who may kill processes there"
    if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        return "a compiled library crashed: the stack in the last lines of the output names the call"
    return "somebody or something on the machine sent it"


def scheduler_saw_oom(log: bytes) -> "Optional[str]":
    """Whether slurmstepd's lines in scheduler.log speak of memory: evidence next to a SIGKILL, never proof alone."""
    for line in log.split(b"\n"):
        if any(word in line for word in _OOM_WORDS):
            return "the scheduler said: " + line.decode("utf-8", "replace").strip()[:300]
    return None


def disk_is_full(path: str) -> bool:
    """Whether the file system that holds `path` has no block or no inode left for us."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return False
    return facts.f_bavail == 0 or (facts.f_files > 0 and facts.f_favail == 0)
