"""The choice of a build of PyTorch: against rows typed from the sources, and written out whole beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterfn.environment import cuda
from clusterfn.environment.cuda import Cards, choose, companions
from clusterfn.errors import EnvironmentBuildError

ROWS = yaml.safe_load(Path(__file__).with_name("cuda_rows.yml").read_text())
REWRITE = bool(os.environ.get("CLUSTERFN_UPDATE_GOLDEN"))
CHOICES = Path(__file__).with_name("cuda_choices.txt")
DRIVERS = ("450.80.02", "470.57.02", "520.61.05", "525.60.13", "550.54.14", "570.26", "575.57.08", "580.65.06")
CARDS = ("3.7", "5.2", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['driver']}-{row['card']}-{row['torch']}")
def test_the_choice_is_what_the_sources_say(row: dict[str, Any]) -> None:
    cards = Cards(row["driver"], (row["card"],))
    if row["cuda"] is not None:
        assert choose(cards, row["torch"]).cuda == row["cuda"]
        return
    with pytest.raises(EnvironmentBuildError) as caught:
        choose(cards, row["torch"], host="tensor01")
    told = str(caught.value)
    assert all(each in told for each in (row["driver"], row["card"], row["torch"][:3], row["least"], "tensor01")), told
    assert caught.value.hint


def test_there_are_rows_enough() -> None:
    assert len(ROWS) >= 25


def _written_out() -> str:
    lines = [f"PyTorch and CUDA without a wish, by the table of {cuda.table().date}", "driver".ljust(12) + " card"]
    for driver in DRIVERS:
        for card in CARDS:
            try:
                choice = choose(Cards(driver, (card,)))
                told = f"torch {choice.torch} with CUDA {choice.cuda}{'' if not choice.warnings else ' (warns)'}"
            except EnvironmentBuildError as error:
                told = f"refused; {error.hint}"
            lines.append(f"{driver:12} {card:5} {told}")
    return "\n".join(lines) + "\n"


def test_the_table_of_choices_is_the_one_that_was_looked_at() -> None:
    if REWRITE:
        CHOICES.write_text(_written_out())
    assert _written_out() == CHOICES.read_text()


def test_what_is_newer_than_the_table_is_not_refused() -> None:
    newer_card = choose(Cards("580.65.06", ("14.0",)))
    assert "newer than the table" in newer_card.warnings[0]
    newer_torch = choose(Cards("575.57.08", ("8.6",)), "2.99")
    assert "newer than the table" in newer_torch.warnings[0]
    assert newer_torch.index == ""


def test_a_refusal_says_what_would_run() -> None:
    with pytest.raises(EnvironmentBuildError, match=r"torch==2\.7\.\*"):
        choose(Cards("470.57.02", ("8.6",)), "2.8.0")
    with pytest.raises(EnvironmentBuildError, match=r"driver 525\.60\.13 or newer"):
        choose(Cards("450.80.02", ("12.0",)))


def test_mixed_cards_get_what_all_of_them_run() -> None:
    assert choose(Cards("580.65.06", ("6.1", "8.6"))).cuda == "12.6"


def test_an_older_driver_of_the_same_major_version_is_warned_of() -> None:
    choice = choose(Cards("525.60.13", ("8.6",)), "2.9.1")
    assert "560.28.03" in choice.warnings[0]
    assert "PTX" in choice.warnings[0]


def test_the_index_is_named_only_where_the_package_index_has_another_build() -> None:
    assert choose(Cards("575.57.08", ("8.6",)), "2.8.0").index == ""
    assert choose(Cards("575.57.08", ("6.1",)), "2.8.0").index.endswith("/cu126")


def test_a_users_rows_come_first(tmp_path: Path) -> None:
    more = tmp_path / "more.yml"
    more.write_text(
        "date: ours\ndrivers: {'14': '700.1'}\nships: {'14.0': '700.1'}\n"
        "builds: [{cuda: '14.0', torch: ['3.0', null], cards: ['8.6']}]\n"
    )
    known = cuda.table(more)
    assert choose(Cards("700.1", ("8.6",)), "3.1", known).cuda == "14.0"
    assert choose(Cards("575.57.08", ("8.6",)), "2.8.0", known).cuda == "12.8"


def test_companions_belong_together() -> None:
    assert companions("2.8.0") == {"torchvision": "0.23.*", "torchaudio": "2.8.*"}
    assert companions("2.99") == {}
