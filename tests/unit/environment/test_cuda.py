"""The choice of a build of PyTorch: against rows typed from the sources, and written out whole beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterfn.environment import cuda
from clusterfn.environment.cuda import GpuCapabilities, TorchRequest, choose_build, companions
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
    lines = [f"PyTorch and CUDA without a wish, by the table of {cuda.load_table().date}", "driver".ljust(12) + " card"]
    for driver in DRIVERS:
        for card in CARDS:
            try:
                choice = choose_build(GpuCapabilities(driver, (card,)))
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
    newer_card = choose_build(GpuCapabilities("580.65.06", ("14.0",)))
    assert "newer than the table" in newer_card.warnings[0]
    newer_torch = choose_build(GpuCapabilities("575.57.08", ("8.6",)), "2.99")
    assert "newer than the table" in newer_torch.warnings[0]
    assert newer_torch.index == ""


def test_a_refusal_says_what_would_run() -> None:
    with pytest.raises(EnvironmentBuildError, match=r"torch==2\.7\.\*"):
        choose_build(GpuCapabilities("470.57.02", ("8.6",)), "2.8.0")
    with pytest.raises(EnvironmentBuildError, match=r"driver 525\.60\.13 or newer"):
        choose_build(GpuCapabilities("450.80.02", ("12.0",)))


def test_mixed_cards_get_what_all_of_them_run() -> None:
    assert choose_build(GpuCapabilities("580.65.06", ("6.1", "8.6"))).cuda == "12.6"


def test_an_older_driver_of_the_same_major_version_is_warned_of() -> None:
    choice = choose_build(GpuCapabilities("525.60.13", ("8.6",)), "2.9.1")
    assert "560.28.03" in choice.warnings[0]
    assert "PTX" in choice.warnings[0]


def test_the_index_is_named_only_where_the_package_index_has_another_build() -> None:
    assert choose_build(GpuCapabilities("575.57.08", ("8.6",)), "2.8.0").index == ""
    assert choose_build(GpuCapabilities("575.57.08", ("6.1",)), "2.8.0").index.endswith("/cu126")


def test_a_users_rows_come_first(tmp_path: Path) -> None:
    more = tmp_path / "more.yml"
    more.write_text(
        "date: ours\ndrivers: {'14': '700.1'}\nships: {'14.0': '700.1'}\n"
        "builds: [{cuda: '14.0', torch: ['3.0', null], capabilities: ['8.6']}]\n"
    )
    known = cuda.load_table(more)
    assert choose_build(GpuCapabilities("700.1", ("8.6",)), "3.1", known).cuda == "14.0"
    assert choose_build(GpuCapabilities("575.57.08", ("8.6",)), "2.8.0", known).cuda == "12.8"


def test_companions_belong_together() -> None:
    assert companions("2.8.0") == {"torchvision": "0.23.*", "torchaudio": "2.8.*"}
    assert companions("2.99") == {}


@pytest.mark.parametrize(
    ("versions", "torch"),
    [
        (">=2.4,<2.8", "2.7"),
        ("~=2.6.0", "2.6"),
        ("<2.8", "2.7"),
        ("==2.5.*", "2.5"),
        ("!=2.14.*", "2.13"),
        ("", "2.14"),
    ],
)
def test_of_a_range_the_newest_that_runs_is_chosen(versions: str, torch: str) -> None:
    assert choose_build(GpuCapabilities("595.45.04", ("8.6",)), versions).torch == torch


def test_a_range_of_which_the_driver_runs_only_old_ones_gets_an_old_one() -> None:
    assert choose_build(GpuCapabilities("470.57.02", ("8.6",)), ">=2.4").torch == "2.7"
    with pytest.raises(EnvironmentBuildError, match=r"no build of PyTorch >=2\.8,<2\.11 runs on tensor01"):
        choose_build(GpuCapabilities("470.57.02", ("8.6",)), ">=2.8,<2.11", host="tensor01")


def test_the_build_that_the_user_names_is_the_one() -> None:
    choice = choose_build(GpuCapabilities("575.57.08", ("8.6",)), TorchRequest("", "11.8", "https://e.org/cu118"))
    assert (choice.torch, choice.cuda) == ("2.7", "11.8")
    assert "CUDA 11.8 for PyTorch 2.7, because https://e.org/cu118 asks for it" in choice.because


def test_a_build_that_the_table_does_not_know_is_left_to_the_user_unless_the_driver_is_too_old() -> None:
    named = TorchRequest("==2.7.1+cu129", "12.9", "torch==2.7.1+cu129")
    choice = choose_build(GpuCapabilities("575.57.08", ("8.6",)), named)
    assert (choice.cuda, choice.torch) == ("12.9", "")
    assert "no such build" in choice.warnings[0]
    with pytest.raises(EnvironmentBuildError, match=r"CUDA 12\.9 needs driver 525\.60\.13 or newer"):
        choose_build(GpuCapabilities("470.57.02", ("8.6",)), named)


def test_a_companion_of_one_pytorch_decides_for_that_one() -> None:
    assert (
        choose_build(GpuCapabilities("595.45.04", ("8.6",)), TorchRequest(companions={"torchvision": "==0.21.0"})).torch
        == "2.6"
    )
