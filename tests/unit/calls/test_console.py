"""What is printed of clusterfn's own sentences: levels, quiet mode, and the logger of the user."""

from __future__ import annotations

import logging

import pytest

from clusterfn.calls import console
from clusterfn.config import config_file

LOGGER = logging.getLogger("clusterfn")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.delenv("CLUSTERFN_QUIET", raising=False)
    monkeypatch.delenv("CLUSTERFN_CONFIG", raising=False)
    monkeypatch.setattr(config_file, "quiet", False)
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

    assert not config_file.quiet


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
