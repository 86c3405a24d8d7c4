"""Whatever a host repeats, as often as it wants: reading it takes a time that grows with its bytes, and ends well."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from clusterfn.bridge.supervisor.text import in_one_line, printable
from clusterfn.bridge.worker import cuda_table
from clusterfn.calls import outcome, outcome_errors
from clusterfn.calls.outcome import JobLocation
from clusterfn.config.spec import ResultPolicy
from clusterfn.errors import ClusterfnError
from clusterfn.gpu import smi
from clusterfn.hosts import serialization
from clusterfn.hosts import survey as surveyed
from clusterfn.scheduler.site import Section
from tests.fuzz import damaged, fuzzed, twisted
from tests.fuzz.test_host import BARE_TEXTS, SLURM_TEXTS, SMI_TEXTS, read_as_a_machines, read_as_slurms
from tests.fuzz.test_wire import OUTCOMES

LONG = 40_000  # characters: what takes quadratic time in them takes seconds
LIMIT_S = 4.0
PLACE = JobLocation("box", "7f3a", "/r/jobs/7f3a", ResultPolicy(data_only=True))
container, data_reader = serialization.part("container"), serialization.part("data_reader")


def grown(samples: Sequence[bytes]) -> st.SearchStrategy[str]:
    """One of these texts, in which a few characters are repeated until it is long."""

    def make(seed: bytes) -> str:
        dice = random.Random(seed)
        text = dice.choice(samples).decode("utf-8", "replace")
        start = dice.randint(0, len(text))
        part = dice.choice([text[start : start + dice.randint(1, 12)] or "x", " ", "\x1b]", "|", ":", "0"])
        return text[:start] + part * (LONG // len(part)) + text[start:]

    return st.binary(min_size=9, max_size=9).map(make)


@contextlib.contextmanager
def in_a_moment() -> Iterator[None]:
    began = time.thread_time()  # without the threads that other tests have left
    yield
    assert time.thread_time() - began < LIMIT_S


@fuzzed(0.1, text=grown(SLURM_TEXTS))
def test_what_slurm_prints_at_length_is_read_in_a_moment(text: str) -> None:
    with in_a_moment():
        read_as_slurms(text)


def test_a_long_word_in_an_error_and_many_empty_lines_are_read_in_a_moment() -> None:
    with in_a_moment():
        read_as_slurms(f"squeue: error: {'x' * LONG}\n")
        assert smi.read_rows("\n" * LONG) == []


DF = [
    b"/dev/sda1 ext4 103081248 48640488 49158500 50% /\n",
    b"server:/export/home nfs4 1 2 3 50% /home\nldd (Ubuntu GLIBC 2.35-0ubuntu3) 2.35\nKillUserProcesses=no\n",
]


@fuzzed(0.1, text=grown([*BARE_TEXTS, *SMI_TEXTS, *DF]))
def test_what_a_machine_prints_at_length_is_read_in_a_moment(text: str) -> None:
    lines = text.splitlines()
    with in_a_moment():
        read_as_a_machines(text)
        surveyed.read_gpus(Section("gpus", 0, lines))
        surveyed.read_volume(
            Section("volume", 0, ["/r"], {"path": ["/r"], "df": lines, "inodes": lines, "lfs": lines}), {}
        )
        smi.read_rows(text)


TRACEBACKS = [
    b'Traceback (most recent call last):\n  File "/r/sources/' + b"0" * 64 + b'/m.py", line 3, in f\n',
    b"RuntimeError: CUDA error: out of memory; NCCL error in: ../a.cpp:1, unhandled system error\n",
    b"\x1b]0;title\x07\x1b[2J\x1bPq\x1b\\ text",
]


@fuzzed(0.1, text=grown(TRACEBACKS))
def test_a_traceback_at_length_is_shown_in_a_moment(text: str) -> None:
    with in_a_moment():
        in_one_line(printable(outcome.name_files_as_here(text)))
        cuda_table.find_known_error(text)


HOSTILE = [
    "**x", "**/**/x", "../../x", "x/../../y", "a" * 100_000, "{0.__class__}", "%s", "(a+)+$", "$(reboot)", "`id`", "/",
    "x\x00", "\x1b[2J", "\ud800", "<script>", "[red]", "a.b", "*", "", ".", "..", "-r", "\\\\server\\share", {}, [[]],
    {"module": "**/*", "python": "/bin/sh; reboot"}, {"cause": {"kind": "raised"}}, 10**400, 1e308, -1, True, None,
]  # fmt: skip
DEEP: Any = {"kind": "dependency"}
for _ in range(300):
    DEEP = {"kind": "dependency", "cause": DEEP, "exception": {"missing": {"module": "*", "python": "/p"}}}
MISSING = {"type": "ModuleNotFoundError", "missing": {"module": "a.b", "python": "/usr/bin/python3"}, "traceback": "x"}
PUBLISHED = [*OUTCOMES, {**OUTCOMES[1], "kind": "payload", "exception": MISSING}]
PUBLISHED += [{**OUTCOMES[0], "kind": "dependency", "cause": DEEP}]
DATA = [
    serialization.part("plain_data").dumps(each)[0]
    for each in ({"a": [1, 2.5, None], (1, (2, 3)): {4, "x"}}, [b"abc", frozenset([1, -1]), 2**70], [{}] * 9)
]


@fuzzed(0.5, published=twisted(PUBLISHED, HOSTILE), data=damaged(DATA))
def test_no_hostile_outcome_takes_long_or_raises_what_is_no_error_of_ours(published: Any, data: bytes) -> None:
    value = bytearray(b"".join(container.Packed(data, is_data=True).pieces()))
    with in_a_moment():
        try:
            told = outcome.read(json.dumps(published).encode())
        except ValueError:  # which `result()` says
            return
        if told["kind"] == "returned":
            told["value"] = {"size": len(value)}
        try:
            if told["kind"] == "returned":
                outcome.value_of(told, value, PLACE)
            else:
                raise outcome_errors.exception_of(told, value, PLACE)
        except ClusterfnError as error:
            assert len(str(error)) < 1_000_000 and "\x1b" not in str(error)


@fuzzed(0.5, data=damaged(DATA))
def test_no_damaged_value_takes_long_or_raises_anything_unexpected(data: bytes) -> None:
    with in_a_moment(), contextlib.suppress(ValueError):
        data_reader.loads(memoryview(data))
