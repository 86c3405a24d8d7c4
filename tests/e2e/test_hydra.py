"""Hydra's multirun with our launcher: values, folders, failures and options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.e2e.conftest import BOTH, lab_venv

APP = """
import os
from pathlib import Path
import hydra
from hydra.core.hydra_config import HydraConfig


@hydra.main(version_base="1.3", config_path="conf", config_name="app")
def main(config):
    assert "CLUSTERFN_JOB" in os.environ
    if config.lr == 5:
        raise ValueError(f"lr {config.lr} of run {HydraConfig.get().job.num}")
    print("ran", config.lr)
    folder = Path(HydraConfig.get().runtime.output_dir)
    (folder / "result.txt").write_text(f"{config.model.name} {config.lr}")
    return config.lr


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "app.yaml").write_text("defaults: [model: small, _self_]\nlr: 1\n")
    for name in ("small", "large"):
        (tmp_path / "conf" / "model" / f"{name}.yaml").write_text(f"name: {name}\n")
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def multirun(app: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "app.py", "--multirun", "hydra/launcher=clusterfn", "hydra.sweep.dir=runs", *words]
    return subprocess.run(argv, cwd=app, capture_output=True, text=True, timeout=250, env=os.environ, check=False)


def test_six_runs_are_one_group_and_their_files_come_to_hydras_folders(here: Path, app: Path):
    done = multirun(app, "lr=0,1,2", "model=small,large")

    assert done.returncode == 0, done.stderr
    assert "6 items" in done.stderr
    assert len(list((here / "jobs").iterdir())) == 1
    found = {path.parent.name: path.read_text() for path in app.glob("runs/*/result.txt")}
    pairs = [(lr, model) for lr in (0, 1, 2) for model in ("small", "large")]
    assert found == {str(number): f"{model} {lr}" for number, (lr, model) in enumerate(pairs)}
    overrides = (app / "runs" / "3" / ".hydra" / "overrides.yaml").read_text()
    assert overrides == "- lr=1\n- model=large\n"


RETURNED = """
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback


class Show(Callback):
    def on_multirun_end(self, config, **kwargs):
        import gc

        found = [each for each in gc.get_objects() if isinstance(each, JobReturn)]
        for each in sorted(found, key=lambda each: each.overrides):
            hydra = each.hydra_cfg.hydra
            print("returned", each.working_dir, hydra.sweep.dir, hydra.sweep.subdir, hydra.runtime.output_dir, sep="|")
"""


@pytest.mark.long
def test_what_the_launcher_returns_names_the_folders_here(here: Path, app: Path):
    (app / "show.py").write_text(RETURNED)

    done = multirun(app, "lr=1,2", "+hydra.callbacks.show._target_=show.Show", "+hydra.job.env_set.PYTHONPATH=.")

    assert done.returncode == 0, done.stderr
    said = [line.split("|")[1:] for line in done.stdout.splitlines() if line.startswith("returned|")]
    assert said == [[f"runs/{n}", "runs", str(n), str(app / "runs" / str(n))] for n in range(2)], done.stdout
    written = OmegaConf.load(app / "runs" / "1" / ".hydra" / "hydra.yaml")
    assert written.hydra.runtime.output_dir == str(app / "runs" / "1") and written.hydra.sweep.dir == "runs"


@pytest.mark.long
def test_a_run_that_fails_is_raised_by_hydra_after_the_others(here: Path, app: Path):
    done = multirun(app, "lr=1,5,7")

    assert done.returncode == 1
    assert "ValueError: lr 5 of run 1" in done.stderr
    assert sorted(path.parent.name for path in app.glob("runs/*/result.txt")) == ["0", "2"]


def test_a_wrong_option_is_named_before_anything_is_sent(here: Path, app: Path):
    done = multirun(app, "lr=1", "hydra.launcher.memory=4")

    assert done.returncode == 1
    assert "memory=4 is not an amount of memory" in done.stderr, done.stderr
    listed = multirun(app, "lr=1", "hydra.launcher.modules=[-x]")
    assert "modules='-x' is not possible" in listed.stderr, listed.stderr
    assert not (here / "jobs").exists()


@pytest.mark.lab
@pytest.mark.long
@BOTH
def test_a_multirun_on_a_host_of_the_lab(hosts, lab, host: str, app: Path):
    environment = f"venv:{lab_venv(lab, 'hydra', 'hydra-core')}"

    done = multirun(
        app, "lr=1,2", f"hydra.launcher.host={host}", f"hydra.launcher.environment={environment}",
        "hydra.launcher.memory=200MB",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert sorted(path.read_text() for path in app.glob("runs/*/result.txt")) == ["small 1", "small 2"]
