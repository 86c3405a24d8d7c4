"""`clusterfn hold` and `release` on a host that has no SLURM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import main as command


@pytest.mark.parametrize("words", [["hold", "box", "--gpus", "1"], ["release", "box"]])
@pytest.mark.parametrize("scheduler", ["bare", "grid_engine"])
def test_a_host_without_slurm_is_rejected_and_the_session_named(
    words: list[str],
    scheduler: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "clusterfn.yml"
    config.write_text(f"hosts:\n  box:\n    address: box.invalid\n    scheduler: {scheduler}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))

    assert command(words) == 2

    said = capsys.readouterr().err
    assert f"box has no SLURM, so there is no allocation to {words[0]}" in said
    assert 'clusterfn.Session("box", gpus=1)' in said
