"""The table of CUDA's errors and the pages about clusterfn.gpu: they say what the code does, and their examples run."""

from __future__ import annotations

import doctest
import importlib
import logging
import pkgutil
import re
import time
from pathlib import Path

import pytest

from clusterfn import gpu
from clusterfn.bridge.worker.cuda_table import HERE, NEVER, NEW_PROCESS, TABLE
from tests.waiting import replace_here

pytest_plugins = ["tests.fakes.gpu"]
pytestmark = pytest.mark.usefixtures("no_gpu")
PAGE = Path(__file__).parents[3] / "docs/reference/gpu.md"


def test_each_row_of_the_table_is_found_by_each_of_its_own_texts():
    for row in TABLE:
        assert {gpu.classify(RuntimeError(f"x: {text}.")).name for text in row.texts} == {row.name}
        assert row.advice and re.match("https://", row.source)
        assert row.retry in (HERE, NEW_PROCESS, NEVER)


@pytest.mark.parametrize("row", [row for row in TABLE if row.retry != NEVER], ids=lambda row: row.name)
def test_each_transient_row_is_tried_here_or_said_to_need_a_new_process(monkeypatch, row):
    replace_here(monkeypatch, time, "sleep", lambda _: None)
    errors = [RuntimeError(row.texts[0])]

    def fails_once():
        if errors:
            raise errors.pop()

    if row.retry == HERE:
        assert gpu.retry_transient(fails_once)() is None
        return
    with pytest.raises(RuntimeError) as caught:
        gpu.retry_transient(fails_once)()
    assert caught.value.__notes__[-1].startswith("a new process may succeed where this one cannot; next: ")


def test_the_reference_has_exactly_the_table():
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (`.*`) \| (here|new process|never) \| (.+) \|$", text, re.MULTILINE)

    written = [(name, tuple(re.findall(r"`([^`]+)`", texts)), retry, advice) for name, texts, retry, advice in rows]
    assert written == [(row.name, row.texts, row.retry, row.advice) for row in TABLE]


@pytest.mark.parametrize("name", [each.name for each in pkgutil.iter_modules(gpu.__path__)])
def test_the_examples_of_the_docstrings_run(name, monkeypatch):
    monkeypatch.setattr(logging.getLogger("clusterfn.gpu"), "disabled", True)
    assert doctest.testmod(importlib.import_module(f"clusterfn.gpu.{name}")).failed == 0


def test_every_public_name_is_explained_in_order_and_every_function_has_an_example():
    assert gpu.__all__ == sorted(gpu.__all__)
    for name in gpu.__all__:
        explained = getattr(gpu, name).__doc__ or ""
        assert explained and f"`{name}" in PAGE.read_text(encoding="utf-8"), name
        assert not name[0].islower() or ">>>" in explained, name
