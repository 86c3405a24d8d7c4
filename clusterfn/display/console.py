"""What clusterfn prints: sentences, one line that is redrawn on a terminal and in a notebook, and output of jobs.

The only module that writes to a terminal, apart from the tables of the command line. tqdm draws the bar of the line: it
knows where other bars of the program are. It is optional, and the text next to the bar is the same without it.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, Optional, TextIO

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import in_one_line, printable, shortened
from clusterfn.config import quiet
from clusterfn.config.notes import NOTES, Finding
from clusterfn.config.units import is_on
from clusterfn.hosts import spoken_wait

if TYPE_CHECKING:
    from clusterfn.display.cell_status import CellStatus

_log = logging.getLogger("clusterfn")
_QUIET = "CLUSTERFN_QUIET"
_BAR_FORMAT = "{percentage:3.0f}%|{bar}| {desc}"
# Where lines stay on the screen, a line that differs only in its numbers is printed no more often than this.
_NUMBERS_EVERY_S = 600.0


# How much is done, of how much, and how much of it failed.
Progress = Optional[tuple[int, ...]]
# Less work than this says nothing about the rest.
_SURE_S = 1.0
_said: set[tuple[str, str]] = set()
STREAMS = (layout.STDOUT, layout.STDERR)


class TerminalLine:
    """The line of a terminal that is redrawn, with a bar if there is one; sentences appear above it.

    Its methods are those of a notebook's `CellStatus`.
    """

    def __init__(self) -> None:
        self._stream: TextIO | None = None
        self._line = ""
        self._bar: ProgressBar | None = None
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        """Print a text above the line; a newline alone leaves the line on the screen and begins another one."""
        with self._lock:
            self._follow_stderr()
            if text == "\n" and self._bar is not None:
                self._close_bar(leave=True)
            elif self._bar is not None:
                with self._bar.set_aside():
                    write(self._stream, text)
            elif self._line and text != "\n":
                write(self._stream, f"\r\x1b[K{text}")
                if text.endswith("\n"):
                    write(self._stream, self._line)
            else:
                self._line = ""
                write(self._stream, text)

    def redraw(self, line: str, progress: Progress = None) -> None:
        """Replace the line, with a bar before it if `progress` says how much is done of how much; "" removes it."""
        with self._lock:
            self._follow_stderr()
            if line and progress and self._draw_bar(in_one_line(line), *progress[:2]):
                self._line = ""
                return
            if self._bar is not None:
                self._close_bar(leave=False)
            self._line = fitting(line)
            write(self._stream, f"\r\x1b[K{self._line}")

    def _draw_bar(self, line: str, done: int, total: int) -> bool:
        """Draw the bar; return whether there is one, which needs tqdm."""
        if self._stream is None or total <= 0:
            return False
        line = _encodable(line, self._stream)
        if self._bar is not None:
            self._bar.draw(line, done, total, columns())
        else:
            self._bar = open_bar(self._stream, line, done, total, columns())
        return self._bar is not None

    def _close_bar(self, *, leave: bool) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close(leave=leave)

    def _follow_stderr(self) -> None:
        """Forget the line if stderr is another stream by now, as after redirect_stderr."""
        if self._stream is not sys.stderr:
            self._close_bar(leave=True)
            self._stream, self._line = sys.stderr, ""


_terminal = TerminalLine()
_shown_also: list[Callable[[str], object]] = []


class ProgressBar:
    """One bar of tqdm: `bar` with `line` next to it."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def draw(self, line: str, done: int, total: int, columns: int) -> None:
        """Redraw it in so many columns."""
        bar = self._bar
        # The fields are set directly, because the methods of tqdm redraw at intervals of their own.
        bar.desc, bar.n, bar.total, bar.ncols = line, min(done, total), total, columns
        bar.refresh()

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """Remove it while a text is printed, and draw it again below."""
        with self._bar.external_write_mode(file=self._bar.fp):
            yield

    def close(self, *, leave: bool) -> None:
        """Remove it, or leave it on the screen as it is and begin another line."""
        self._bar.leave = leave
        self._bar.close()


def open_bar(stream: TextIO, line: str, done: int, total: int, columns: int) -> ProgressBar | None:
    """Draw a bar on a terminal; return None if tqdm is not installed."""
    try:
        # Few programs draw a bar.
        from tqdm import tqdm
    except ImportError:
        return None
    # Each change is drawn at once, so tqdm needs no thread of its own to watch the bar.
    unwatched = type("Bar", (tqdm,), {"monitor_interval": 0})
    now = min(done, total)
    bar = unwatched(desc=line, initial=now, total=total, file=stream, ncols=columns, bar_format=_BAR_FORMAT)
    return ProgressBar(bar)


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


class StatusLine:
    """One line of ours: redrawn where `can_redraw`, elsewhere printed again when it changes."""

    def __init__(self) -> None:
        self.line = ""
        self._reason, self._reason_at = "", float("-inf")

    def redraw(self, line: str, progress: Progress = None) -> None:
        """Replace the line where `can_redraw`; "" takes it away, so that output starts at the left."""
        if line != self.line:
            redraw(line, progress)
            self.line = line

    def show_line(self, line: str) -> None:
        """Redraw the line, or print it where lines stay, unless it is the last one."""
        if can_redraw():
            self.redraw(line)
        else:
            self.say_if_changed(line)

    def say_if_changed(self, line: str) -> None:
        """Print the line where lines stay, unless it is the last one."""
        if line != self.line:
            self.line = line
            say(f"{line}\n")

    def say_reason(self, line: str, now: float) -> None:
        """Print why something waits where lines stay: of changed numbers, such as an expected start, only now and then.

        Args:
            line: The text.
            now: By a clock that never goes back.
        """
        other_words = without_digits(line) != without_digits(self._reason)
        if other_words or (line != self._reason and now >= self._reason_at + _NUMBERS_EVERY_S):
            self._reason, self._reason_at = line, now
            say(f"{line}\n")

    def close(self) -> None:
        """Leave the line as it is, and begin another one."""
        if self.line:
            self.line = ""
            say("\n")


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether the stream is a terminal that can redraw a line."""
    return stream is not None and hasattr(stream, "isatty") and stream.isatty() and os.environ.get("TERM") != "dumb"


def cell_status() -> CellStatus | None:
    """Return what shows our lines below the present cell of a notebook; None elsewhere, and where stderr is captured.

    Nothing of ours goes to stderr there, which a notebook shows as an error, in red.
    """
    if type(sys.stderr).__module__ != "ipykernel.iostream" or is_logged():
        return None
    # The module needs IPython, which a kernel has already loaded.
    from clusterfn.display import cell_status as notebook

    return notebook.of_present_cell()


def interrupt() -> str:
    """Return what interrupts a call: "Ctrl-C", and in a notebook its stop button."""
    return "Ctrl-C" if cell_status() is None else "the stop button"


def can_redraw() -> bool:
    """Whether a line of ours can be replaced: on a terminal, and in a notebook."""
    return not is_logged() and (is_terminal(sys.stderr) or cell_status() is not None)


def is_shown(level: int) -> bool:
    """Whether texts of this level are shown: of the module `logging`, INFO for progress, WARNING for what went wrong.

    $CLUSTERFN_QUIET, or else `quiet:` in clusterfn.yml, hides progress. So does a level of the logger "clusterfn".
    """
    value = os.environ.get(_QUIET)
    hidden = quiet.in_file if value is None else is_on(value)
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
        (cell_status() or _terminal).say(text)


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


def note(finding: Finding) -> None:
    """Say a note on a call, unless it has been said, or clusterfn.yml hides it."""
    if finding.id not in quiet.hidden_notes and is_new(finding.id, finding.about):
        (tell if NOTES[finding.id].is_progress else warn)(finding.text)


def redraw(line: str, progress: Progress = None) -> None:
    """Replace the present line of the terminal, where the cursor stays in it, or below a notebook's cell.

    Args:
        line: The text.
        progress: How much is done of how much, and perhaps how much of it failed, as a bar before the text.
    """
    if is_shown(logging.INFO) and not is_logged():
        (cell_status() or _terminal).redraw(in_one_line(line), progress)


def fitting(line: str) -> str:
    """Return a line cut to the terminal's width, with "…" at the end if it was longer."""
    return shortened(in_one_line(line), columns())


def without_digits(text: str) -> str:
    """Return what a text says when its numbers, such as a clock's, do not count."""
    return "".join(sign for sign in text if not sign.isdigit())


def as_clock(seconds: float) -> str:
    """Format a duration as a clock does.

    Example:
        >>> as_clock(12), as_clock(3723)
        ('00:12', '1:02:03')
    """
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"


def columns() -> int:
    """Return how many columns a line may have: one less than the terminal, as some terminals wrap a full line."""
    seen = 0
    # shutil obeys COLUMNS. Without it, shutil asks stdout, which may be a file.
    if not os.environ.get("COLUMNS"):
        # stderr may be no terminal, or have no file number.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            seen = os.get_terminal_size(sys.stderr.fileno()).columns
    return (seen or shutil.get_terminal_size().columns) - 1


def write(stream: TextIO | None, text: str) -> None:
    """Print; escape characters that the stream cannot encode."""
    if stream is None:
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        # Some terminals and files take ASCII only, and a progress text must not end the program.
        stream.write(_encodable(text, stream))
    stream.flush()


def _encodable(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


class Pace:
    """Measures from the moment at which work was first seen, so that waiting in a queue does not count.

    Args:
        clock: Seconds that never go back.
        began: Since when the elapsed time is counted.
    """

    def __init__(self, clock: Callable[[], float], began: float) -> None:
        self._clock = clock
        self._began = began
        self._from: tuple[float, int] | None = None

    def elapsed(self) -> str:
        """Return such as "00:12 elapsed"."""
        return f"{as_clock(self._clock() - self._began)} elapsed"

    def left(self, done: int, total: int, works: bool = True) -> str:
        """Return such as "00:20 left"; "" while that cannot be said.

        Args:
            done, total: How much is done, of how much.
            works: Whether anything has begun.
        """
        now = self._clock()
        if self._from is None:
            if not works and not done:
                return ""
            self._from = (now, done)
        since, before = self._from
        if done <= before or done >= total or now - since < _SURE_S:
            return ""
        return f"{as_clock((now - since) / (done - before) * (total - done))} left"


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
        write(sys.stdout if stream == layout.STDOUT else sys.stderr, text)

    def end_line(self) -> None:
        """Begin a new line for a text of ours if the job has not ended its own."""
        if self._is_within_a_line:
            say("\n")
            self._is_within_a_line = False
