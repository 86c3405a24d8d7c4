"""What is printed of clusterfn's own sentences: levels, quiet mode, the logger of the user, and how long is left."""

from __future__ import annotations

import io
import logging
import os
import struct
import sys

import pytest

from clusterfn.config import config_file, notes
from clusterfn.display import console, live

LOGGER = logging.getLogger("clusterfn")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.delenv("CLUSTERFN_QUIET", raising=False)
    monkeypatch.delenv("CLUSTERFN_CONFIG", raising=False)
    monkeypatch.setattr(notes, "is_quiet", False)
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

    assert not notes.is_quiet


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


@pytest.fixture
def terminal(monkeypatch):
    """Make stderr a terminal of 40 columns and 5 lines. Call it in the test: pytest sets stderr after its fixtures."""

    def become(stream: io.TextIOBase | None = None) -> Terminal:
        stream = stream or Terminal()
        for name, value in (("TERM", "xterm"), ("COLUMNS", "40"), ("LINES", "5")):
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return become


def test_sentences_appear_above_the_line_that_is_replaced(terminal):
    stream = terminal()
    with console.Status() as status:
        status.show("7f3a pending 00:01")
        console.tell("9f2d train on tensor01")
        status.show("7f3a pending 00:02")
    console.tell("done")

    assert stream.getvalue() == (
        "\r\x1b[K7f3a pending 00:01\r\x1b[Kclusterfn: 9f2d train on tensor01\n7f3a pending 00:01"
        "\r\x1b[K7f3a pending 00:02\r\x1b[Kclusterfn: done\n"
    )


def test_another_stderr_does_not_get_the_line_of_the_first(monkeypatch, terminal):
    terminal()
    console.redraw("7f3a pending 00:01")
    other = io.StringIO()
    monkeypatch.setattr(sys, "stderr", other)
    console.tell("done")

    assert other.getvalue() == "clusterfn: done\n"


def test_a_bar_fits_the_terminal_and_is_removed_without_a_trace(terminal):
    stream = terminal()
    console.redraw("sending 1 of 4 MB", (1, 4))
    console.redraw("sending 9 of 4 MB {bar} \x1b[2J", (9, 4))
    console.redraw("one of very many words in it", (1, 2))
    console.redraw("")

    assert stream.getvalue().split("\r\x1b[K")[1:] == [
        " 25%|###            | sending 1 of 4 MB", "100%|##########| sending 9 of 4 MB {ba…",
        " 50%|#####     | one of very many word…", "",
    ]  # fmt: skip


def test_several_lines_are_replaced_in_their_place_and_only_as_many_as_there_is_room_for(terminal, monkeypatch):
    stream = terminal()
    lines = live.TerminalLines(stream)
    lines.show("1\n2\n3\n4\n5\n6")
    lines.show("one\n" + "x" * 50)
    # A terminal of another size has wrapped the lines, so nobody knows where they are.
    monkeypatch.setenv("COLUMNS", "30")
    lines.show("two")

    assert stream.getvalue() == f"\r\x1b[K1\n2\n3\n… 3 more lines\r\x1b[3A\x1b[Jone\n{'x' * 38}…\x1b[H\x1b[Jtwo"


def test_a_line_is_spelled_in_the_letters_of_the_terminal(terminal):
    raw = io.BytesIO()
    terminal(io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    console.redraw("2 of 4 ✓", (2, 4))

    assert raw.getvalue().decode("ascii").endswith(" 50%|############            | 2 of 4 \\u2713")


def test_a_line_is_as_wide_as_the_terminal_of_stderr_also_where_stdout_is_a_file(monkeypatch):
    pytest.importorskip("pty", reason="a terminal of one's own needs Unix")
    monkeypatch.delenv("COLUMNS", raising=False)
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 123, 0, 0))
    with os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert live.size() == (122, 24)
    os.close(ours)


def test_where_lines_stay_other_words_are_said_soon_and_other_numbers_ever_less_often(capsys):
    now = [0.0]
    status = console.Status(lambda: now[0])
    for at, line in ((1, "start 14:01"), (3, "start 14:03"), (4, "held"), (7, "held"), (32, "start 14:32"),
                     (40, "start 14:40"), (90, "start 14:41"), (93, "start 14:42"), (152, "start 14:43")):  # fmt: skip
        now[0] = at
        status.show(line)

    said = [line.removeprefix("clusterfn: ") for line in capsys.readouterr().err.splitlines()]
    assert said == ["start 14:03", "held", "start 14:40", "start 14:43"]


def test_time_in_a_queue_counts_as_elapsed_and_not_for_the_rest():
    now = [0.0]
    status = console.Status(lambda: now[0])
    status.times(0, 50, works=False)
    now[0] = 3600.0
    assert status.times(0, 50) == "1:00:00 elapsed"
    now[0] += 12.0

    assert status.times(4, 50) == "1:00:12 elapsed, 02:18 left"


def test_what_was_done_before_does_not_make_the_rest_faster():
    now = [0.0]
    status = console.Status(lambda: now[0])
    assert status.times(40, 50) == "00:00 elapsed"
    now[0] = 10.0

    assert [status.times(done, 50)[15:] for done in (40, 41, 50)] == ["", "01:30 left", ""]


def test_a_table_for_few_columns_keeps_those_that_matter_most_and_the_beginning_of_its_last_text():
    head, rows = ("ID", "NAME", "USE", ""), [("1", "n" * 40, "97 %", "why " * 9), ("2", "\x1b[2Jn", "0 %", "")]

    def fitted(room):
        return live.table(head, rows, room, ("NAME", "", "USE")).splitlines()

    assert fitted(None) == fitted(200)
    assert fitted(None)[2] == f"2   n{' ' * 39}  0 %"
    assert fitted(39) == ["ID  USE", f"1   97 %  {'why ' * 9}".rstrip(), "2   0 %"]
    assert fitted(10) == ["ID  USE", "1   97 %", "2   0 %"]
    assert fitted(3) == ["ID", "1", "2"]


@pytest.mark.parametrize(
    "seconds, shown", [(-1.0, "00:00"), (0.9, "00:00"), (61.0, "01:01"), (3600.0, "1:00:00"), (360_000.0, "100:00:00")]
)
def test_a_duration_is_shown_as_a_clock_does(seconds, shown):
    assert console.as_clock(seconds) == shown
