"""Where a job is: the stack of every thread of its Python processes, with the lines of the user's files.

Each process is asked in its turn by a signal, and faulthandler answers into a file. The worker has set that up, for its
forked children too. The job keeps running. Decides nothing.
"""

import json
import os
import re
import signal
import time

from ..layout import PAYLOAD, STACK, STACK_SIGNAL, STACKS, stack_answer
from . import process_tree, publish
from .text import masked
from .verdict import log_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .attempt import RunnableAttempt
    from .job import JobFolder

_SIGNAL = getattr(signal, STACK_SIGNAL)
_ANSWER_S = 2.0
# The supervisor does nothing else meanwhile.
_IN_ALL_S = 10.0
_QUIET_S = 0.1
_TICK_S = 0.01
_FRAME = re.compile(r'  File "(.+)", line (\d+) in ')
_TOKEN = re.compile(r"[0-9a-f]{16}\Z")
_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a disk or a device", "T": "stopped"}


class Stacks:
    """The stacks of one attempt's processes, for who asks for them, and for the verdict on a stalled job."""

    def __init__(self, job: "JobFolder", attempt: "RunnableAttempt", secrets: "list[str]") -> None:
        self._job = job
        self._file = attempt.path(STACKS)
        self._secrets = secrets

    def answer(self, pids: "list[int]") -> None:
        """Answer a request by a file in the job's folder."""
        request = self._job.path(STACK)
        try:
            with open(request, "rb") as file:
                token = file.read(64).decode("ascii", "replace")
            os.unlink(request)
        except OSError:
            # The request was withdrawn.
            return
        if not _TOKEN.match(token):
            return
        try:
            answer = "\n".join(self.lines(pids) + [""]).encode("utf-8", "surrogateescape")
            publish.replace(self._job.path(stack_answer(token)), answer, sync=False, mode=0o666)
        except OSError as error:
            # The request gets no answer, and the job must not end because of that.
            log_line("no stacks: %s" % error)

    def lines(self, pids: "list[int]") -> "list[str]":
        """Describe what each of these processes is doing, as lines without secrets."""
        found: "list[str]" = []
        sources = self._sources()
        until = time.monotonic() + _IN_ALL_S
        for pid in pids:
            wait_s = min(_ANSWER_S, until - time.monotonic())
            stack = self._ask(pid, wait_s) if wait_s > 0 and process_tree.catches(pid, _SIGNAL) else []
            readable = _readable(stack, self._job.spec["bridge"], sources)
            state, name = process_tree.state_of(pid), process_tree.name_of(pid)
            doing = _STATES.get(state, "in state " + state)
            found += ["%s:" % name] + readable if readable else ["%s: no stack of Python's; it is %s" % (name, doing)]
        return masked(found, self._secrets)

    def _ask(self, pid: int, wait_s: float) -> "list[str]":
        try:
            with open(self._file, "rb") as file:
                file.seek(0, os.SEEK_END)
                os.kill(pid, _SIGNAL)
                return _await(file.fileno(), time.monotonic() + wait_s).decode("utf-8", "replace").splitlines()
        except OSError:
            # The process ended meanwhile, or the function removed the file.
            return []

    def _sources(self) -> "dict[str, list[str]]":
        """Return the lines of the user's files that exist only where the call was made."""
        try:
            with open(self._job.path(PAYLOAD), "rb") as file:
                header = json.loads(file.readline().decode("utf-8"))
            return {str(name): text.splitlines() for name, text in header["sources"].items()}
        except (OSError, ValueError, LookupError, AttributeError):
            # The function can change the file.
            return {}


def _await(fd: int, until: float) -> bytes:
    """Read what is written from now on, until nothing more comes for a moment."""
    found, last = b"", time.monotonic()
    while time.monotonic() < (min(until, last + _QUIET_S) if found else until):
        more = os.read(fd, 65536)
        if more:
            found, last = found + more, time.monotonic()
        else:
            time.sleep(_TICK_S)
    return found


def _readable(stack: "list[str]", bridge: str, sources: "dict[str, list[str]]") -> "list[str]":
    """Leave out the frames of clusterfn itself, and add the text of each line."""
    shown = []
    for line in stack:
        frame = _FRAME.match(line)
        if frame and frame.group(1).startswith(bridge + "/"):
            continue
        shown.append("  " + line)
        text = _text(frame.group(1), int(frame.group(2)), sources) if frame else ""
        shown += ["      " + text] if text else []
    return shown


def _text(file: str, number: int, sources: "dict[str, list[str]]") -> str:
    if file not in sources:
        try:
            with open(file if os.path.isfile(file) else os.devnull, encoding="utf-8", errors="replace") as source:
                sources[file] = source.read().splitlines()
        except OSError:
            # This user may not read it, or it is gone meanwhile.
            sources[file] = []
    lines = sources[file]
    return lines[number - 1].strip() if number <= len(lines) else ""
