"""The texts of OutOfMemory and TimeLimit. The supervisor, `conclude` and each scheduler's module take them from here.

Each function returns the message and the hint. A limit that only one scheduler has is described in its own module.
"""

from .text import format_duration, format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_MORE_MEMORY = 'ask for more: memory="..."; or use less at a time'
_MORE_TIME = 'ask for more: time="..."'

# -- OutOfMemory


def too_much_memory(used: int, asked: int) -> "tuple[str, str]":
    """Return what to say of a job whose processes use more than it asked for, both in bytes."""
    message = "the job used %s of memory and asked for %s" % (format_size(used), format_size(asked))
    return message, "ask for more, for example memory=%r" % ("%dGB" % (used * 3 // 2 // 2**30 + 1))


def process_killed_for_memory(peak: int, asked: "Optional[int]", proof: str) -> "tuple[str, str]":
    """Return what to say where SIGKILL has ended the function's process, and `proof` says that this was for memory."""
    wanted = "asked for %s" % format_size(asked) if asked else "did not say how much it needs"
    message = "the function's process was killed for memory: the job used up to %s and %s; %s"
    return message % (format_size(peak), wanted, proof), _MORE_MEMORY


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


# -- TimeLimit


def too_long(limit_s: float) -> "tuple[str, str]":
    """Return what to say of a job that runs longer than this."""
    hint = "ask for more, for example time=%r" % ("%dmin" % max(1, round(limit_s / 30.0)))
    return "the job ran longer than the %s it had" % format_duration(limit_s), hint


def ended_for_time(scheduler: str, limit: str) -> "tuple[str, str]":
    """Return what to say where a scheduler has ended the job at its limit."""
    return "%s ended the job at its %s" % (scheduler, limit), _MORE_TIME


def ended_by_queue() -> "tuple[str, str]":
    """Return what to say where the job had no limit of its own."""
    return "its queue's time limit ended the job", _MORE_TIME
