"""The names of jobs in letters of any script: as their authors write them, and safe for schedulers and terminals."""

from __future__ import annotations

import unicodedata

import pytest

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor import text
from clusterfn.calls.demand import job_name
from clusterfn.config.options import parse_options
from clusterfn.display import live
from clusterfn.errors import ConfigError

ID = "7f3a" * 4
NAMES = ["größe_日本", "обучение", "हिन्दी", "学習.v2", "naïve-fit", "ﾊﾝｶｸ", "épreuve"]


@pytest.mark.parametrize("name", NAMES)
def test_a_function_keeps_its_own_name_in_both_ways_to_write_a_letter(name: str):
    for written in (name, unicodedata.normalize("NFD", name)):
        assert job_name(written) == name == parse_options({"name": written}).name


@pytest.mark.parametrize(
    ("name", "known"),
    [("größe_日本", "gr_e"), ("日本", "function"), ("train", "train"), ("ö1", "_1"), ("a_", "a_"), ("_a.1", "_a.1")],
)
def test_a_scheduler_knows_a_job_by_letters_that_it_takes(name: str, known: str):
    assert layout.job_name(name, ID) == f"{known}.{ID}"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x1b[31mb", "a_31mb"), ("a\u202eb", "a_b"), ("日\u200b本", "日_本"), ("a\x07", "a"), ("a\nb", "a_b"),
        ("a\u2028b", "a_b"), ("١٢", "_١٢"), ("a\x9bb", "a_b"), ("a;rm -rf $HOME", "a_rm_-rf_HOME"), ("../../x", "x"),
        ("🚀", "function"), ("train", "train"), ("a.b", "a.b"), ("train-2.1", "train-2.1"), ("_private_", "private"),
        ("<lambda>", "lambda"), ("my job/1", "my_job_1"), ("01_train", "_01_train"), ("42", "_42"), ("...", "function"),
        ("a" * 80, "a" * 64), ("1" * 80, "_" + "1" * 63),
    ],
)  # fmt: skip
def test_nothing_else_gets_into_a_name(name: str, shown: str):
    assert job_name(name) == shown == parse_options({"name": shown}).name


@pytest.mark.parametrize("name", ["my/größe", "größe\x1b", "日\u202e本", "-größe", "1größe", "ö" * 65, ""])
def test_a_name_that_is_none_is_rejected_with_one_that_is(name: str):
    with pytest.raises(ConfigError, match="is not possible") as caught:
        parse_options({"name": name})

    offered = (caught.value.hint or "").partition('name="')[2].rstrip('"')
    assert parse_options({"name": offered}).name == offered


def test_columns_of_wide_letters_are_below_each_other():
    rows = [("größe_日本", "RUNNING"), (unicodedata.normalize("NFD", "größe"), "DIED"), ("train", "PENDING")]

    lines = live.table(("NAME", "STATE"), rows).splitlines()

    assert {text.width(line[: line.index(state)]) for line, (_, state) in zip(lines[1:], rows)} == {12}
    assert "\u001b" not in live.table(("NAME",), [("a\x1b[2J日",)])


@pytest.mark.parametrize(("most", "shown"), [(10, "日本語"), (6, "日本語"), (5, "日本…"), (4, "日…"), (1, "…")])
def test_a_text_is_cut_by_columns(most: int, shown: str):
    assert text.shortened("日本語", most) == shown
    assert text.width(shown) <= most
