"""A function, and the modules that it imports, find the words of the script's command line wherever they run."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")

# Much research code parses its command line while a module of its own is imported.
OPTIONS = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parsed = parser.parse_args()
"""
SCRIPT = """
import json, multiprocessing, sys
from clusterfn import Session, cluster

def parse(item=0):
    import options
    return options.parser.parse_args().lr, options.parsed.lr, sys.argv[1:]

@cluster(host="here")
def train(item=0):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = [parse(), pool.apply(parse)]
    sys.argv[1:] = []
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return [*found, pool.apply(parse)]

if __name__ == "__main__":
    found = [*train(), *cluster(host="here")(parse).map(range(2)).results()]
    with Session("here") as session:
        found.append(session.call(parse))
    print(json.dumps(found))
"""


def test_arguments_of_the_script_are_those_of_its_calls_items_and_child_processes(here, run_script, tmp_path):
    (tmp_path / "options.py").write_text(OPTIONS)

    assert run_script(SCRIPT, "--lr", "0.5") == [
        *[[0.5, 0.5, ["--lr", "0.5"]]] * 2,
        [0.1, 0.1, []],
        *[[0.5, 0.5, ["--lr", "0.5"]]] * 3,
    ]


def test_a_function_that_a_command_names_gets_no_words_of_the_command(here, tmp_path):
    (tmp_path / "options.py").write_text(OPTIONS)
    (tmp_path / "train.py").write_text("import options\n\ndef rate(x):\n    return options.parsed.lr\n")
    command = [sys.executable, "-m", "clusterfn", "run", "here", "train.py::rate", "3"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False)

    assert done.stdout.splitlines()[-1:] == ["0.1"], done.stderr
