"""Sweeps and groups with the real Optuna and pandas, in a folder of their own: other tests need a Python without."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]  # the first one installs
WANTED = ("optuna", "pandas")


@pytest.fixture(scope="module")
def libraries(lab):
    """A folder for PYTHONPATH; it stays with the lab."""
    from tests.lab.layout import ENVS

    folder = ENVS / f"libraries-{sys.version_info[0]}.{sys.version_info[1]}"
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(part), *WANTED]
        subprocess.run(command, check=True, capture_output=True, timeout=350)
        part.rename(folder)
    return folder


@pytest.fixture
def run_with(libraries, run_script, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(libraries)])))
    return run_script


COMMON = """
import json, sys
import optuna
import clusterfn
from clusterfn import cluster

optuna.logging.set_verbosity(optuna.logging.WARNING)

def study():
    return optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=3))
"""
TRIAL = """
def refused(objective):
    asked = study()
    try:
        asked.optimize(objective, n_trials=1)
    except clusterfn.PayloadError as error:
        return [error.message, error.hint]
    return [list(asked.best_params)]

@cluster
def suggests(trial):
    return trial.suggest_float("lr", 0, 1)

def passes_a_list(trial):
    return suggests.map([trial]).results()[0]

def passes_values(trial):
    trial.suggest_float("lr", 0, 1)
    return suggests(optuna.trial.FixedTrial(trial.params))

print(json.dumps([refused(each) for each in (suggests, passes_a_list, passes_values)]))
"""


def test_a_trial_that_would_not_tell_its_study_what_it_suggests_is_refused(here, run_with):
    once, in_a_map, values = run_with(COMMON + TRIAL)

    assert "its study is in the memory of this process, and does not learn what a job suggests" in once[0]
    assert "call trial.suggest_…() on this machine, and pass the values" in once[1]
    assert "its study is in the memory of this process" in in_a_map[0] and values == [["lr"]]


FRAME = """
import json
import clusterfn
from clusterfn import cluster

@cluster
def work(x, score):
    return {}[x] if x == 2 else x * score

result = clusterfn.sweep(work, {"x": [1, 2, 3], "score": [0.5]})
frame = result.to_dataframe()
print(json.dumps([
    list(frame.columns), list(frame.index), frame["x"].tolist(), frame["score"].isna().tolist(),
    frame["error"].dropna().to_dict(), frame.sort_values("score", ascending=False).index[0],
    str(frame["score"].dtype), frame.index.name,
]))
"""


def test_a_table_has_a_row_for_each_configuration(here, run_with):
    columns, names, xs, missing, errors, best, kind, index = run_with(FRAME)

    assert columns == ["x", "config_score", "score", "seconds", "error", "job"] and index == "name"
    assert names == ["GRID_0000", "GRID_0001", "GRID_0002"] and xs == [1, 2, 3]
    assert missing == [False, True, False] and errors == {"GRID_0001": "KeyError: 2"}
    assert best == "GRID_0002" and kind == "float64"


TABLE = """
import json, time
from clusterfn import cluster

@cluster
def train(lr, wall_s, state):
    if state == 1:
        raise ValueError("no\\nmore")
    while state == 3:
        time.sleep(1)
    return {"loss": 0.1, "state": "fine"} if state == 0 else 3

group = train.map([0.0, 0.1, 0.2, 0.3], ["long"] * 4, range(4), max_parallel=1, chunksize=1)
while group.states[2] != "RETURNED":
    time.sleep(0.02)
table = group.to_dataframe()
group.cancel()
missing = table.isna()
print(json.dumps([
    list(table.columns), list(table["item"]), list(table["state"]), table["error"].dropna().to_dict(),
    [table.loc[0, "loss"], table.loc[0, "result_state"], table.loc[2, "result"]],
    [bool(missing.loc[1, "result"]), bool(missing.loc[3, "wall_s"])],
]))
"""


def test_a_table_has_a_row_for_each_item(here, run_with):
    columns, items, states, errors, values, missing = run_with(TABLE)

    assert columns[:7] == ["item", "state", "error", "lr", "argument_wall_s", "argument_state", "wall_s"]
    assert columns[-3:] == ["loss", "result_state", "result"]
    assert items == [f"0.{number}, 'long', {number}" for number in range(4)]
    assert states[:3] == ["RETURNED", "RAISED", "RETURNED"] and states[3] in ("PENDING", "RUNNING")
    assert errors == {"1": "ValueError: no"}
    assert values == [0.1, "fine", 3]
    assert missing == [True, True]
