"""docs/how-to/migrate.md is true: words of other tools are rejected with the new spelling that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import clusterfn
from clusterfn import ConfigError, cluster

PAGE = (Path(__file__).parents[2] / "docs/how-to/migrate.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `((?:cluster|clusterfn\.configure|train\.\w+)\(.*?\))` \| (.+?) \|$", PAGE, re.MULTILINE)


@cluster(cores=1)
def train(lr: float) -> float:
    return lr


def test_a_word_of_another_tool_is_rejected_with_the_new_spelling() -> None:
    for written, says in ROWS:
        with pytest.raises((ConfigError, AttributeError)) as rejected:
            eval(written, {"cluster": cluster, "clusterfn": clusterfn, "train": train})

        assert says in str(rejected.value), written


@pytest.mark.parametrize("given", [[], [{"num_gpus": 1}]])
def test_options_that_are_called_as_in_ray_are_rejected_with_the_new_spelling(given: list[dict[str, int]]) -> None:
    with pytest.raises(ConfigError, match="is not a function") as rejected:
        train.options(*given, num_gpus=1)

    assert rejected.value.hint == "call f.with_options(gpus=1)(x)"


def test_the_tables_name_what_code_for_the_three_tools_has() -> None:
    words = {re.split(r"[(=]", written.replace("cluster(", "", 1))[0] for written, _ in ROWS}

    shown = "partition queue environment async_submit timeout_min mem_gb gpu train.remote"
    assert {*shown.split()} <= words
