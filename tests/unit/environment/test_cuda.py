"""The choice of a build of PyTorch: against rows typed from the sources, and written out whole beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterfn.environment import torch_build
from clusterfn.environment.torch_build import GpuCapabilities, choose_build, cuda_warnings
from clusterfn.errors import EnvironmentBuildError

ROWS = yaml.safe_load(Path(__file__).with_name("cuda_rows.yml").read_text())
REWRITE = bool(os.environ.get("CLUSTERFN_UPDATE_GOLDEN"))
CHOICES = Path(__file__).with_name("cuda_choices.txt")
DRIVERS = ("450.80.02", "470.57.02", "520.61.05", "525.60.13", "550.54.14", "570.26", "575.57.08", "580.65.06")
CARDS = ("3.7", "5.2", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['driver']}-{row['card']}-{row['torch']}")
def test_the_choice_is_what_the_sources_say(row: dict[str, Any]) -> None:
    cards = GpuCapabilities(row["driver"], (row["card"],))
    if row["cuda"] is not None:
        assert choose_build(cards, row["torch"]).cuda == row["cuda"]
        return
    with pytest.raises(EnvironmentBuildError) as caught:
        choose_build(cards, row["torch"], host="tensor01")
    told = str(caught.value)
    assert all(each in told for each in (row["driver"], row["card"], row["torch"][:3], row["least"], "tensor01")), told
    assert caught.value.hint


def test_there_are_rows_enough() -> None:
    assert len(ROWS) >= 25


def _written_out() -> str:
    lines = [
        f"PyTorch and CUDA without a wish, by the table of {torch_build.load_table().date}",
        "driver".ljust(12) + " card",
    ]
    for driver in DRIVERS:
        for card in CARDS:
            try:
                gpus = GpuCapabilities(driver, (card,))
                choice = choose_build(gpus)
                warns = " (warns)" if cuda_warnings(choice.cuda, gpus) else ""
                told = f"torch {choice.torch} with CUDA {choice.cuda}{warns}"
            except EnvironmentBuildError as error:
                told = f"refused; {error.hint}"
            lines.append(f"{driver:12} {card:5} {told}")
    return "\n".join(lines) + "\n"


def test_the_table_of_choices_is_the_one_that_was_looked_at() -> None:
    if REWRITE:
        CHOICES.write_text(_written_out())
    assert _written_out() == CHOICES.read_text()


def test_what_is_newer_than_the_table_is_not_refused() -> None:
    newer_card = GpuCapabilities("580.65.06", ("14.0",))
    assert "newer than the table" in cuda_warnings(choose_build(newer_card).cuda, newer_card)[0]
    assert torch_build.runs_on("2.99.0", "13.9", newer_card)


def test_a_refusal_says_what_would_run() -> None:
    with pytest.raises(EnvironmentBuildError, match=r"torch==2\.7\.\*"):
        choose_build(GpuCapabilities("470.57.02", ("8.6",)), "2.8.0")
    with pytest.raises(EnvironmentBuildError, match=r"driver 525\.60\.13 or newer"):
        choose_build(GpuCapabilities("450.80.02", ("12.0",)))


def test_mixed_gpus_get_what_all_of_them_run() -> None:
    assert choose_build(GpuCapabilities("580.65.06", ("6.1", "8.6"))).cuda == "12.6"


def test_an_older_driver_of_the_same_major_version_is_warned_of() -> None:
    gpus = GpuCapabilities("525.60.13", ("8.6",))
    (warning,) = cuda_warnings(choose_build(gpus, "2.9.1").cuda, gpus)
    assert "560.28.03" in warning and "PTX" in warning


def test_the_index_is_named_only_where_the_package_index_has_another_build() -> None:
    assert choose_build(GpuCapabilities("575.57.08", ("8.6",)), "2.8.0").backend == ""
    assert choose_build(GpuCapabilities("575.57.08", ("6.1",)), "2.8.0").backend == "cu126"


@pytest.mark.parametrize(
    ("versions", "torch"), [(">=2.4,<2.8", "2.7"), ("~=2.6.0", "2.6"), ("!=2.14.*", "2.13"), ("", "2.14")]
)
def test_of_a_range_the_newest_that_runs_is_chosen(versions: str, torch: str) -> None:
    assert choose_build(GpuCapabilities("595.45.04", ("8.6",)), versions).torch == torch


def test_a_range_of_which_the_driver_runs_only_old_ones_gets_an_old_one() -> None:
    assert choose_build(GpuCapabilities("470.57.02", ("8.6",)), ">=2.4").torch == "2.7"
    with pytest.raises(EnvironmentBuildError, match=r"no build of PyTorch >=2\.8,<2\.11 runs on tensor01"):
        choose_build(GpuCapabilities("470.57.02", ("8.6",)), ">=2.8,<2.11", host="tensor01")
