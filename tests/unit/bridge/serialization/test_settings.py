"""Settings that a script changes: a job has them once it imports their library, and imports none for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn.hosts import serialization
from tests.unit.bridge.serialization.test_calls import TORCH

settings = serialization.part("settings")
DEBUG = Path(__file__).parents[4] / "docs" / "how-to" / "debug.md"
LOAD = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("settings", {settings.__file__!r})
sys.modules["settings"] = settings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(settings)
"""
OF_SMALL_ONES = """
import csv, decimal, sys, warnings
sys.setrecursionlimit(4000)
csv.field_size_limit(1 << 20)
decimal.getcontext().prec = 5
warnings.simplefilter("ignore")
warnings.simplefilter("always", UserWarning)
import numpy
numpy.seterr(all="raise")
numpy.set_printoptions(precision=3)
"""
OF_LIBRARIES = """
import pandas, torch
pandas.set_option("display.max_rows", 7)
torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.set_float32_matmul_precision("high")
torch.set_grad_enabled(False)
torch.autograd.set_detect_anomaly(True)
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = True
torch.backends.cuda.enable_flash_sdp(False)
"""


def run(python: str, *lines: str) -> list[str]:
    argv = [python, "-c", "\n".join([LOAD, *lines])]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("python", "script", "modules"),
    [
        (sys.executable, OF_SMALL_ONES, "csv, decimal, numpy"),
        pytest.param(str(TORCH), OF_LIBRARIES, "pandas, torch", marks=pytest.mark.long),
    ],
)
def test_what_a_script_sets_is_set_in_a_job_once_it_imports_the_library(python: str, script: str, modules: str):
    (before, here) = run(
        python, "print(json.dumps(settings.current()))", script, "print(json.dumps(settings.current()))"
    )
    there = run(
        python, f"settings.apply({json.loads(here)!r})", f"print({modules.split(', ')!r}[-1] in sys.modules)",
        f"import {modules}", "print(json.dumps(settings.current()))",
    )  # fmt: skip

    assert before == "{}"
    assert len(json.loads(here)) >= script.count("\n") // 2
    assert there == ["False", here]


def test_what_a_library_does_not_have_is_named_and_the_rest_is_set_for_this_call(capsys):
    limit = sys.getrecursionlimit()
    finders = list(sys.meta_path)
    settings.apply({"sys:set_nothing": 1, "sys:setrecursionlimit": limit + 7, "not_imported:setting": 1})

    assert sys.getrecursionlimit() == limit + 7
    settings.apply({})
    assert (sys.getrecursionlimit(), sys.meta_path) == (limit, finders), "the next call of an actor comes without it"
    assert "clusterfn: sys.set_nothing of your script has no effect in this job: " in capsys.readouterr().err


def test_the_page_lists_each_setting():
    text = DEBUG.read_text(encoding="utf-8")
    listed = {name.replace(":", ".") for name in settings.CARRIED} | {name.partition("(")[0] for name in settings.NAMED}

    assert sorted(name for name in listed if f"`{name}`" not in text) == []
