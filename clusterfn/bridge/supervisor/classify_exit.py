"""Turn how the worker ended into a verdict: what it reported, or what its silence means.

It reads only the disk, and leaves nothing there. The texts of OutOfMemory and TimeLimit are here for all who find such
an end: the supervisor, `conclude` and each scheduler's module, which gets the message and the hint. A limit that only
one scheduler has is described in its own module.
"""

import contextlib
import errno
import json
import os
import signal

from ..layout import DISK, EXITED, LOST, MEMORY, OUTCOME, RAISED, RETURNED, SIGNAL, TIME
from .text import format_duration, format_size
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_STAGES = {
    "returned": "result", "raised": "function", "result": "result", "disk": "result", "payload": "load",
    "dependency": "load", "command": "function",
}  # fmt: skip
_NEAR = 0.9
_LAST_WORDS = frozenset(["returned", "raised", "command", "result", "payload", "environment", "disk", "dependency"])
_WORDS = {
    "done": str, "note": str, "stage": str, "message": str, "hint": str, "path": str, "exception": dict, "usage": dict,
    "transient": dict, "cause": dict, "size": int, "crc": int, "heeded": bool,
    "loaded": list, "peak": int, "code": int, "signal": str,
}  # fmt: skip
_PASSED_ON = ("exception", "hint", "transient", "cause", "code", "signal")
_NEVER_NONE = ("done", "note", "stage")
_MORE_MEMORY = 'ask for more: memory="..."; or use less at a time'
_MORE_TIME = 'ask for more: time="..."'
CALL_AGAIN = 'call again; with requeue=["%s"], or retries= in a map, the scheduler does so by itself'


def classify_report(done: "dict[str, Any]") -> Verdict:
    """Make a verdict of the worker's last line."""
    kind = done["done"]
    passed_on: "dict[str, Any]" = {name: done.get(name) for name in _PASSED_ON}
    has_value = kind in (RETURNED, RAISED, DISK) and done.get("size") is not None
    value = {"size": done["size"], "crc": done["crc"]} if has_value else None
    stage = done.get("stage") or _STAGES.get(kind, "environment")
    found = Verdict(kind, done.get("message") or "", stage=stage, value=value, **passed_on)
    if kind == DISK:
        hint = found.hint or "make room on the host, or let cwd= or root: point to another file system"
        return found.replace(hint=hint)
    return found


def parse_report_line(line: bytes) -> "dict[str, Any]":
    """A line of the report; empty if the worker cannot have written it.

    The function's own code can reach the pipe, and must not be able to bring the supervisor down.
    """
    try:
        said = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict) or _is_deeper(said, 4):
        return {}
    for name, wanted in _WORDS.items():
        left_out = name not in said or (said[name] is None and name not in _NEVER_NONE)
        if not left_out and not isinstance(said[name], wanted):
            return {}
    usage = said.get("usage") or {}
    if "done" in said and not (said["done"] in _LAST_WORDS and isinstance(usage.get("cpu_s", 0.0), (int, float))):
        return {}
    if said.get("size") is not None and said.get("crc") is None:
        return {}
    return said


def _is_deeper(value: "Any", levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in inner)


def too_much_memory(used: int, limit: int) -> Verdict:
    message = "the job used %s of memory and asked for %s" % (format_size(used), format_size(limit))
    hint = "ask for more, for example memory=%r" % ("%dGB" % (used * 3 // 2 // 2**30 + 1))
    return Verdict(MEMORY, message, hint=hint)


def too_long(limit_s: float) -> Verdict:
    hint = "ask for more, for example time=%r" % ("%dmin" % max(1, round(limit_s / 30.0)))
    return Verdict(TIME, "the job ran longer than the %s it had" % format_duration(limit_s), hint=hint)


def classify_silence(
    status: int, stage: str, peak: int, limit: "Optional[int]", oom: "Optional[str]", limit_hit: str = ""
) -> Verdict:
    """The worker's process ended without a last word.

    Args:
        status: From wait.
        stage: The last one that it reported.
        peak: Bytes of memory that the tree was seen to use.
        limit: Bytes that it asked for.
        oom: What points to the out-of-memory killer, in words.
        limit_hit: The limit of the kernel's that ended it, in words.
    """
    if not os.WIFSIGNALED(status):
        code = os.WEXITSTATUS(status)
        how = "ended by itself with exit code %d, without returning or raising" % code
        hint = "look for os._exit or a library that ends the process in the last lines of the output"
        return Verdict(EXITED, "the process that ran the function " + how, code=code, stage=stage, hint=hint)
    number = os.WTERMSIG(status)
    name = describe_signal(number)
    kind = SIGNAL
    message, hint = "the process that ran the function was ended by %s" % name, _signal_hint(number)
    if number == signal.SIGKILL and oom is None and limit and peak >= _NEAR * limit:
        oom = "it was killed while it used %s" % format_size(peak)
    if limit_hit:
        message += ": it had reached %s" % limit_hit
        hint = "find `ulimit` in the shell's start-up files on the host, or ask its administrator for a higher limit"
    elif number == signal.SIGKILL and oom:
        asked = "asked for %s" % format_size(limit) if limit else "did not say how much it needs"
        message = "the function's process was killed for memory: the job used up to %s and %s; %s"
        kind, message, hint = MEMORY, message % (format_size(peak), asked, oom), _MORE_MEMORY
    return Verdict(kind, message, signal=name, stage=stage, hint=hint)


def lost_supervisor(status: str) -> Verdict:
    """Describe the death of a supervisor by its exit status, as the shell reports it."""
    code = int(status)
    how = "was ended by %s" % describe_signal(code - 128) if code > 128 else "ended by itself with exit code %d" % code
    message = "the supervisor of the job %s; what the function had done by then is not known" % how
    return Verdict(
        LOST, message, hint="call again; if it happens again, ask who or what ends processes on that machine"
    )


def _signal_hint(number: int) -> str:
    if number == signal.SIGKILL:
        return (
            "clusterfn did not send it, and nothing points to a lack of memory: read the last lines of the output, "
            "then ask the host's administrator"
        )
    if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        return "a compiled library crashed: the stack in the last lines of the output names the call"
    return "a person or a program on the machine sent it"


def disk_is_full(path: str) -> bool:
    """Whether the file system that holds `path` has no block or no inode left for us."""
    # This import is late, because few jobs die without a word.
    from ..agent.files import disk_left

    return 0 in disk_left(os.path.join(path, OUTCOME)).values()


def describe_exit(status: int) -> str:
    """Return how a process has ended, by its status from wait."""
    if os.WIFSIGNALED(status):
        return "was killed by %s" % describe_signal(os.WTERMSIG(status))
    return "exited with status %d" % os.WEXITSTATUS(status)


def quota_is_used_up(folder: str) -> bool:
    """Whether our quota leaves less than a megabyte: statvfs does not tell, so one is written, and removed."""
    path = os.path.join(folder, ".quota-%s" % os.urandom(8).hex())
    try:
        with open(path, "wb", 0) as file:
            for _ in range(16):
                file.write(b"\0" * 65536)
            # Before that, NFS does not report a full quota either.
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno == errno.EDQUOT
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return False


def describe_signal(number: int) -> str:
    """Return the signal's name, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def job_killed_for_memory(proof: str) -> "tuple[str, str]":
    """Return what to say where the job's supervisor was killed too."""
    return "the job was killed for memory: %s" % proof, _MORE_MEMORY


def ended_for_memory(scheduler: str, limit: str = "it asked for") -> "tuple[str, str]":
    """Return what to say where a scheduler has ended the job, which used more than this."""
    return "%s ended the job for using more memory than %s" % (scheduler, limit), _MORE_MEMORY


def ended_for_memory_or_time(scheduler: str, limit: str) -> "tuple[str, str]":
    """Return what to say where a scheduler does not tell this limit of memory from the time limit of a queue."""
    message = "%s ended the job at a limit: of its memory (%s), or of the time that its queue gives"
    return message % (scheduler, limit), _MORE_MEMORY + '; or time="..."'


def ended_for_time(scheduler: str, limit: str) -> "tuple[str, str]":
    """Return what to say where a scheduler has ended the job at its limit."""
    return "%s ended the job at its %s" % (scheduler, limit), _MORE_TIME


def ended_by_queue() -> "tuple[str, str]":
    """Return what to say where the job had no limit of its own."""
    return "its queue's time limit ended the job", _MORE_TIME
