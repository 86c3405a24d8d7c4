"""What `clusterfn gpus` shows of what a host has told."""

import io
import json
import time

import pytest

from clusterfn.cli import gpus, screen


def card(**facts):
    return {
        "uuid": "GPU-1", "name": "NVIDIA RTX A6000", "index": 0, "total_mib": 49140, "used_mib": 20580,
        "use_percent": 97, "holder": None, "without_lease": [], **facts,
    }  # fmt: skip


def holder(**facts):
    return {"user": "bob", "own": False, "job": None, "name": None, "since": None, **facts}


def shown(*of, waiting=(), clock=lambda: 0.0):
    return gpus.MachineTables(clock).of({"gpus": of, "waiting": list(waiting)})


def test_each_gpu_says_who_has_it():
    own = holder(own=True, user="ada", job="7f3a000011112222", name="train", since=time.time() - 7300)
    text = shown(
        card(holder=own),
        card(index=1, holder=holder()),
        card(index=2, without_lease=["python (pid 123, bob)", "800 MB in use by an unknown process"]),
        card(index=3, used_mib=4, use_percent=None),
    )

    first, _, head, *rows = text.splitlines()
    assert first == "1 of 4 GPUs free"
    assert head.split() == ["GPU", "NAME", "MEMORY", "USE", "HELD", "BY"]
    assert [row.split("  ")[-1].strip() for row in rows] == [
        "you: train (7f3a), 2 h 1 min",
        "bob",
        "in use without a lease: python (pid 123, bob), 800 MB in use by an unknown process",
        "free",
    ]
    assert "20.1 GB of 48 GB" in rows[0] and "97 %" in rows[0] and " ? " in rows[3]


def test_who_watches_sees_for_how_long_a_held_gpu_has_done_nothing():
    now = [100.0]
    lines = gpus.MachineTables(lambda: now[0])

    def use(**facts):
        row = lines.of({"gpus": [card(**{"holder": holder(), "use_percent": 0, **facts})], "waiting": []})
        return row.splitlines()[3].split("48 GB")[1].split("  bob")[0].strip()

    assert use() == "0 %"
    now[0] += 90
    assert use() == "0 % for 1 min 30 s"
    assert use(used_mib=1) == "0 %", "it has done something"
    now[0] += 30
    assert use(used_mib=1) == "0 % for 30 s"
    assert use(used_mib=1, use_percent=5) == "5 %"
    assert use(used_mib=1) == "0 %"


def test_a_gpu_of_unknown_use_is_no_free_gpu():
    told = {"nodes": [{"node": "n1", "state": "idle", "type": "", "total": 4, "used": None}], "waiting": []}

    assert gpus.cluster_tables(told).splitlines()[0] == "? of 4 GPUs free"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_block_is_redrawn_in_its_place_on_a_terminal_alone(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("LINES", "3")
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        block = screen.Block(stream)
        block.show("one\n" + "x" * 20 + "\nthree")
        block.show("two")

    assert terminal.getvalue() == "one\n… 2 more\n\x1b[2A\x1b[Jtwo\n"
    assert pipe.getvalue() == f"one\n{'x' * 20}\nthree\n\ntwo\n"
    assert json.dumps(pipe.getvalue()).count("u001b") == 0


def test_a_block_whose_terminal_has_another_size_by_now_begins_on_an_empty_screen(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LINES", "9")
    terminal = Terminal()
    block = screen.Block(terminal)
    for columns in ("20", "10", "10"):
        monkeypatch.setenv("COLUMNS", columns)
        block.show("x" * 20)

    assert terminal.getvalue() == f"{'x' * 18}…\n\x1b[H\x1b[J{'x' * 8}…\n\x1b[1A\x1b[J{'x' * 8}…\n"


@pytest.mark.parametrize(
    ("room", "lines"),
    [
        (9, ["a", "", "b", "1", "2", "3", "", "c", "4"]),
        (7, ["a", "b", "1", "2", "3", "c", "4"]),
        (6, ["a", "b", "1", "… 2 more", "c", "4"]),
        (5, ["a", "c", "4"]),
        (2, ["a"]),
        (1, ["a"]),
    ],
)
def test_a_text_for_few_lines_loses_empty_ones_then_ends_and_then_its_longest_paragraphs(room, lines):
    fitted = screen.fitted_lines("a\n\nb\n1\n2\n3\n\nc\n4", room)

    assert fitted == lines and len(fitted) <= room


def test_a_table_for_few_columns_keeps_those_that_matter_most_and_the_beginning_of_its_last_text():
    head, rows = ("ID", "NAME", "USE", ""), [("1", "n" * 40, "97 %", "why " * 9), ("2", "n", "0 %", "")]

    def narrow(room):
        return screen.narrow_table(head, rows, room, ("ID", "USE", "", "NAME")).splitlines()

    assert narrow(None) == narrow(200) == screen.table(head, rows).splitlines()
    assert narrow(24) == ["ID  USE", f"1   97 %  {'why ' * 9}".rstrip(), "2   0 %"]
    assert narrow(8) == ["ID  USE", "1   97 %", "2   0 %"]
    assert narrow(39)[1:] == [f"1   {'n' * 12}…  97 %  {'why ' * 9}".rstrip(), f"2   n{' ' * 14}0 %"]
