"""What clusterfn prints: sentences, one line that is replaced, and output of jobs.

Everything of ours passes here, apart from the tables of the command line: quiet mode and the user's logger decide here.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from typing import IO, Any, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import in_one_line, printable
from clusterfn.config import notes
from clusterfn.config.notes import NOTES, CallNote
from clusterfn.config.units import is_on
from clusterfn.display import live
from clusterfn.display.live import CellLines, Progress, TerminalLines
from clusterfn.hosts import spoken_wait

_log = logging.getLogger("clusterfn")
# Control characters, and those that hide or reorder text. A terminal would obey them.
_OBEYED = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_QUIET = "CLUSTERFN_QUIET"
# Where lines stay on the screen, other words come no more often than this, and other numbers first after the second
# time, which doubles with each of them, up to the third.
_WORDS_S, _NUMBERS_S, _NUMBERS_MOST_S = 4.0, 30.0, 3600.0
# Less work than this says nothing about the rest.
_SURE_S = 1.0
_said: set[tuple[str, str]] = set()
S = TypeVar("S", bound="Status")
STREAMS = (layout.STDOUT, layout.STDERR)
_terminal = TerminalLines()
_shown_also: list[Callable[[str], object]] = []


class Status:
    """One line that says how something goes: replaced where `can_redraw`, elsewhere printed when it says something new.

    Used as a context, it takes its line away at the end.

    Args:
        clock: Seconds that never go back.
        began: Since when it goes; where lines stay, nothing is said in the first seconds. None for now.

    Attributes:
        works_from: When work was first seen, and how much was done then; None to begin again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, began: float | None = None) -> None:
        self.clock = clock
        self.began = clock() if began is None else began
        self._shown: tuple[str, Progress] = ("", None)
        self._told: set[str] = set()
        self._next_words = self.next_numbers = self.began + spoken_wait.REASON_AFTER_S
        self._gap_s = _NUMBERS_S
        self.works_from: tuple[float, int] | None = None

    def show(self, line: str, progress: Progress = None, words: str | None = None) -> None:
        """Show what it is now; "" for nothing.

        Args:
            line: The text.
            progress: How much is done of how much, as a bar before the text.
            words: What of the text is something new; None for all but its numbers, such as a clock's.
        """
        if can_redraw():
            if (line, progress) != self._shown:
                self._shown = line, progress
                redraw(line, progress)
        elif line:
            self._say(line, "".join(sign for sign in line if not sign.isdigit()) if words is None else words)

    def _say(self, line: str, words: str) -> None:
        now = self.clock()
        is_new = words not in self._told
        if now >= (self._next_words if is_new else self.next_numbers):
            self._told.add(words)
            self._gap_s = self._gap_s if is_new else min(2 * self._gap_s, _NUMBERS_MOST_S)
            self._next_words = now + _WORDS_S
            self.say(f"clusterfn: {line}")

    def say(self, line: str) -> None:
        """Print a line that stays everywhere, which also counts as one about the numbers."""
        self.next_numbers = self.clock() + self._gap_s
        say(f"{line}\n")

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def times(self, done: int, total: int, works: bool = True) -> str:
        """Return such as "00:12 elapsed, 00:20 left"; without the second while that cannot be said.

        What is left is measured from the moment at which work was first seen: waiting in a queue is none.

        Args:
            done, total: How much is done, of how much.
            works: Whether anything has begun.
        """
        now = self.clock()
        elapsed = f"{as_clock(now - self.began)} elapsed"
        if self.works_from is None and (works or done):
            self.works_from = (now, done)
        since, before = self.works_from or (now, done)
        if done <= before or done >= total or now - since < _SURE_S:
            return elapsed
        return f"{elapsed}, {as_clock((now - since) / (done - before) * (total - done))} left"


def agrees(question: str, who: str) -> bool:
    """Ask the person at this terminal or notebook for yes or no; false where no person can answer.

    Args:
        question: What to ask.
        who: The host that it is about.
    """
    # Few calls ask a question.
    from clusterfn.hosts.transports import prompts

    ask = prompts.person()
    with contextlib.suppress(prompts.NotAnswered):
        words = prompts.LoginQuestion(f"{question} [y/N] ", who, secret=False)
        return ask is not None and ask(words).strip().lower() in ("y", "yes")
    return False


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether the stream is a terminal that can redraw a line."""
    return stream is not None and hasattr(stream, "isatty") and stream.isatty() and os.environ.get("TERM") != "dumb"


def is_notebook() -> bool:
    """Whether our lines go below the present cell of a notebook, which would show stderr as an error, in red."""
    return type(sys.stderr).__module__ == "ipykernel.iostream" and not is_logged()


def _lines() -> TerminalLines | CellLines:
    return live.of_present_cell() if is_notebook() else _terminal


def interrupt() -> str:
    """Return what interrupts a call: "Ctrl-C", and in a notebook its stop button."""
    return "the stop button" if is_notebook() else "Ctrl-C"


def can_redraw() -> bool:
    """Whether a line of ours can be replaced: on a terminal, and in a notebook."""
    return not is_logged() and (is_terminal(sys.stderr) or is_notebook())


def is_shown(level: int) -> bool:
    """Whether texts of this level are shown: of the module `logging`, INFO for progress, WARNING for what went wrong.

    $CLUSTERFN_QUIET, or else `quiet:` in clusterfn.yml, hides progress. So does a level of the logger "clusterfn".
    """
    value = os.environ.get(_QUIET)
    hidden = notes.is_quiet if value is None else is_on(value)
    least = max(_log.level, logging.WARNING if hidden else logging.NOTSET)
    return level >= least and level > _log.manager.disable


def is_logged() -> bool:
    """Whether the user has given the logger "clusterfn" a handler, which gets our texts instead of stderr."""
    return any(not isinstance(handler, logging.NullHandler) for handler in _log.handlers)


def say(text: str, level: int = logging.INFO) -> None:
    """Print a text of ours without control sequences that a host or another user may have put into it."""
    if not is_shown(level):
        return
    text = printable(text)
    for show in _shown_also if text.strip() else ():
        show(text.strip().removeprefix("clusterfn: "))
    if is_logged():
        if text.strip():
            _log.log(level, "%s", text.strip().removeprefix("clusterfn: "))
    else:
        _lines().say(text)


def show_also(show: Callable[[str], object]) -> None:
    """Set what gets each of our texts too, without "clusterfn: "."""
    _shown_also[:] = [show]


def tell(sentence: str) -> None:
    """Print a sentence about progress."""
    say(f"clusterfn: {sentence}\n")


def warn(sentence: str) -> None:
    """Print a sentence about what went wrong or deserves attention, in quiet mode too."""
    say(f"clusterfn: {sentence}\n", logging.WARNING)


spoken_wait.speak_by(tell)


def is_new(kind: str, about: str) -> bool:
    """Whether this process has said nothing of that kind about it; from then on it has."""
    is_first = (kind, about) not in _said
    _said.add((kind, about))
    return is_first


def note(finding: CallNote) -> None:
    """Say a note on a call, unless it has been said, or clusterfn.yml hides it."""
    if finding.id not in notes.hidden and is_new(finding.id, finding.about):
        (tell if NOTES[finding.id].is_progress else warn)(finding.text)


def redraw(line: str, progress: Progress = None) -> None:
    """Replace the present line of the terminal, where the cursor stays in it, or below a notebook's cell.

    Args:
        line: The text; "" takes it away, so that output starts at the left.
        progress: How much is done of how much, as a bar before the text.
    """
    if is_shown(logging.INFO) and not is_logged():
        _lines().show(in_one_line(line), progress)


def as_json(value: Any) -> str:
    """Words in their own letters; in JSON's strings, only what a terminal obeys must also be escaped."""
    return _OBEYED.sub(lambda sign: f"\\u{ord(sign[0]):04x}", json.dumps(value, ensure_ascii=False))


def as_clock(seconds: float) -> str:
    """Format a duration as a clock does.

    Example:
        >>> as_clock(12), as_clock(3723)
        ('00:12', '1:02:03')
    """
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"


class OutputWriter:
    """Prints what one job prints: its stdout to stdout, and its stderr to stderr."""

    def __init__(self) -> None:
        # A piece of output may end in the middle of a character.
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in STREAMS}
        self._is_within_a_line = False

    def write(self, stream: str, data: bytes) -> None:
        """Print more of a stream."""
        text = self._decoders[stream].decode(data)
        self._is_within_a_line = not text.endswith("\n")
        live.write(sys.stdout if stream == layout.STDOUT else sys.stderr, text)

    def end_line(self) -> None:
        """Begin a new line for a text of ours if the job has not ended its own; a notebook has a place for each."""
        if self._is_within_a_line and not is_notebook():
            say("\n")
            self._is_within_a_line = False
