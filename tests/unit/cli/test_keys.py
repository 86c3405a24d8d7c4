"""Keys end a screen that refreshes, on the terminal of a person."""

from __future__ import annotations

import os
import sys

import pytest

from tests.e2e.terminal import PROMPT, Terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of Unix")
# As `clusterfn top`, it waits for what a host says.
SHOWS = """
import queue
from clusterfn.cli.keys import ended_by_key
with ended_by_key():
    print("be" + "gan", flush=True)
    queue.SimpleQueue().get()
"""


@pytest.fixture
def terminal(tmp_path):
    (tmp_path / "shows.py").write_text(SHOWS)
    opened = Terminal(["sh"], tmp_path, {**os.environ, "TERM": "xterm", "PYTHONPATH": os.getcwd()})
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("key", "code"), [("q", 0), ("Q", 0), ("\x1b", 0), ("\x03", 130)], ids=["q", "Q", "Esc", "Ctrl-C"]
)
def test_a_key_ends_a_screen_and_leaves_the_terminal_as_it_was(terminal, key, code):
    terminal.type(f"stty -a > before; '{sys.executable}' shows.py 2> err")
    terminal.wait_for("began")
    # Neither another key nor an arrow is meant.
    terminal.press("x")
    terminal.press("\x1b[A")
    terminal.press(key)

    terminal.wait_for(PROMPT, timeout_s=60)
    terminal.type("echo code=$?; stty -a | cmp - before && echo as before")

    assert terminal.wait_for(r"code=\d+", timeout_s=60) == f"code={code}"
    terminal.wait_for("as before\n", timeout_s=60)
