"""What is printed of clusterfn's own sentences: levels, quiet mode, the logger of the user, and how long is left."""

from __future__ import annotations

import io
import logging
import os
import struct
import sys

import pytest

from clusterfn.config import config_file, quiet
from clusterfn.display import console

LOGGER = logging.getLogger("clusterfn")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.delenv("CLUSTERFN_QUIET", raising=False)
    monkeypatch.delenv("CLUSTERFN_CONFIG", raising=False)
    monkeypatch.setattr(quiet, "in_file", False)
    level, disabled = LOGGER.level, LOGGER.manager.disable
    yield
    LOGGER.setLevel(level)
    logging.disable(disabled)


def said(capsys) -> str:
    console.tell("7f3a train on tensor01")
    console.redraw("7f3a pending")
    console.warn("7f3a was stopped")
    return capsys.readouterr().err


ALL = "clusterfn: 7f3a train on tensor01\n\r\x1b[K7f3a pending\r\x1b[Kclusterfn: 7f3a was stopped\n7f3a pending"
WARNINGS = "clusterfn: 7f3a was stopped\n"


@pytest.mark.parametrize(
    "variable, setting, shown",
    [(None, False, ALL), ("1", False, WARNINGS), ("0", False, ALL), ("", True, ALL), (None, True, WARNINGS),
     ("0", True, ALL), ("no", True, ALL), ("yes", False, WARNINGS)],
)  # fmt: skip
def test_quiet_hides_progress_and_keeps_warnings(capsys, monkeypatch, tmp_path, variable, setting, shown):
    (tmp_path / "clusterfn.yml").write_text(f"quiet: {str(setting).lower()}\nhosts: {{h: {{scheduler: bare}}}}\n")
    config_file.load(tmp_path)
    if variable is not None:
        monkeypatch.setenv("CLUSTERFN_QUIET", variable)

    assert said(capsys) == shown


def test_a_file_without_quiet_ends_quiet(tmp_path):
    (tmp_path / "clusterfn.yml").write_text("quiet: true\nhosts: {h: {scheduler: bare}}\n")
    config_file.load(tmp_path)
    (tmp_path / "clusterfn.yml").write_text("hosts: {h: {scheduler: bare}}\n")
    config_file.load(tmp_path)

    assert not quiet.in_file


@pytest.mark.parametrize(
    "level, shown", [(logging.INFO, ALL), (logging.DEBUG, ALL), (logging.WARNING, WARNINGS), (logging.ERROR, "")]
)
def test_the_level_of_the_logger_decides(capsys, level, shown):
    LOGGER.setLevel(level)

    assert said(capsys) == shown


def test_logging_that_is_disabled_shows_nothing(capsys):
    logging.disable(logging.CRITICAL)

    assert said(capsys) == ""


def test_a_handler_of_the_logger_gets_the_sentences_instead_of_stderr(capsys):
    class Kept(logging.Handler):
        lines: list[tuple[int, str]] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.lines.append((record.levelno, record.getMessage()))

    handler = Kept()
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        shown = said(capsys)
        console.say("\nclusterfn: 7f3a 100% done\n  stop it\n", logging.WARNING)
    finally:
        LOGGER.removeHandler(handler)

    assert shown == "" and capsys.readouterr().err == ""
    assert handler.lines == [
        (logging.INFO, "7f3a train on tensor01"),
        (logging.WARNING, "7f3a was stopped"),
        (logging.WARNING, "7f3a 100% done\n  stop it"),
    ]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch, tqdm: bool = False) -> Terminal:
    """Make stderr a terminal of 40 columns. Call it in the test: pytest sets stderr after its fixtures."""
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stderr", stream)
    if not tqdm:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    return stream


def test_sentences_appear_above_the_line_that_is_redrawn(monkeypatch):
    terminal = terminal_of(monkeypatch)
    line = console.StatusLine()
    line.redraw("7f3a pending 00:01")
    console.tell("9f2d train on tensor01")
    line.redraw("7f3a pending 00:02")
    line.close()
    console.tell("done")

    assert terminal.getvalue() == (
        "\r\x1b[K7f3a pending 00:01\r\x1b[Kclusterfn: 9f2d train on tensor01\n7f3a pending 00:01"
        "\r\x1b[K7f3a pending 00:02\nclusterfn: done\n"
    )


def test_another_stderr_does_not_get_the_line_of_the_first(monkeypatch):
    terminal_of(monkeypatch)
    console.redraw("7f3a pending 00:01")
    other = io.StringIO()
    monkeypatch.setattr(sys, "stderr", other)
    console.tell("done")

    assert other.getvalue() == "clusterfn: done\n"


def test_a_bar_fits_the_terminal_and_is_removed_without_a_trace(monkeypatch):
    pytest.importorskip("tqdm", reason="tqdm draws the bars")
    terminal = terminal_of(monkeypatch, tqdm=True)
    console.redraw("sending 1 of 4 MB", (1, 4))
    console.redraw("sending 9 of 4 MB {bar} \x1b[2J", (9, 4))
    console.redraw("")

    first, last, *removed = [frame for frame in terminal.getvalue().split("\r") if frame]
    assert first == " 25%|███▊           | sending 1 of 4 MB" and len(first) == 39
    assert last == "100%|████████| sending 9 of 4 MB {bar} "
    assert not "".join(removed).replace("\x1b[K", "").strip()


def test_a_bar_is_spelled_in_the_letters_of_the_terminal(monkeypatch):
    pytest.importorskip("tqdm", reason="tqdm draws the bars")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stderr", stream)
    console.redraw("2 of 4 ✓", (2, 4))
    console.redraw("")

    assert raw.getvalue().decode("ascii").split("\r")[1] == " 50%|#########5         | 2 of 4 \\u2713"


def test_a_line_is_as_wide_as_the_terminal_of_stderr_also_where_stdout_is_a_file(monkeypatch):
    pytest.importorskip("pty", reason="a terminal of one's own needs Unix")
    monkeypatch.delenv("COLUMNS", raising=False)
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 123, 0, 0))
    with os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert console.columns() == 122
    os.close(ours)


def test_changed_numbers_of_a_reason_are_said_every_ten_minutes_and_other_words_at_once(capsys):
    line = console.StatusLine()
    for now, reason in ((0, "start 14:05"), (60, "start 14:06"), (120, "held"), (180, "held"), (240, "start 14:07"),
                        (300, "start 14:08"), (900, "start 14:09")):  # fmt: skip
        line.say_reason(reason, now)

    assert capsys.readouterr().err.splitlines() == ["start 14:05", "held", "start 14:07", "start 14:09"]


def test_time_in_a_queue_counts_as_elapsed_and_not_for_the_rest():
    now = [0.0]
    pace = console.Pace(lambda: now[0], 0.0)
    assert pace.left(0, 50, works=False) == ""
    now[0] = 3600.0
    assert pace.left(0, 50) == "" and pace.elapsed() == "1:00:00 elapsed"
    now[0] += 12.0

    assert pace.left(4, 50) == "02:18 left" and pace.elapsed() == "1:00:12 elapsed"


def test_what_was_done_before_does_not_make_the_rest_faster():
    now = [0.0]
    pace = console.Pace(lambda: now[0], 0.0)
    assert pace.left(40, 50) == ""
    now[0] = 10.0

    assert pace.left(40, 50) == "" and pace.left(41, 50) == "01:30 left" and pace.left(50, 50) == ""


@pytest.mark.parametrize(
    "seconds, shown", [(-1.0, "00:00"), (0.9, "00:00"), (61.0, "01:01"), (3600.0, "1:00:00"), (360_000.0, "100:00:00")]
)
def test_a_duration_is_shown_as_a_clock_does(seconds, shown):
    assert console.as_clock(seconds) == shown
