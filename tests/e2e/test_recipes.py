"""Each example of docs/how-to/libraries.md runs: on this machine, on a server without a scheduler, and on SLURM."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, lab_venv

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="adaptive needs Python 3.11"),
]
PAGE = REPOSITORY / "docs" / "how-to" / "libraries.md"
EXAMPLE = re.compile(
    r"^## (\S+)(?:(?!\n## ).)*?\n<!-- runs on a host -->\n```python\n(.*?)```", re.DOTALL | re.MULTILINE
)
EXAMPLES = dict(EXAMPLE.findall(PAGE.read_text(encoding="utf-8")))
PRINTED = {
    "scikit-learn": "True\n", "dask": "7998000\n14\n", "scipy": "24\n", "emcee": "(2, 8, 2)\n", "adaptive": "True\n",
    "Optuna": "6\n",
}  # fmt: skip
# What their jobs import there; Optuna stays here.
ON_HOSTS = ("scikit-learn", "joblib", "dask", "numpy", "scipy", "emcee", "adaptive")


def test_every_library_of_the_page_has_an_example():
    assert EXAMPLES.keys() == PRINTED.keys()


def check(library: str, host: str, folder: Path) -> None:
    text = EXAMPLES[library]
    assert '"tensor01"' in text
    (folder / "example.py").write_text(text.replace('"tensor01"', f'"{host}"'), encoding="utf-8")

    ran = subprocess.run([sys.executable, "example.py"], cwd=folder, capture_output=True, text=True, timeout=500)

    assert (ran.returncode, ran.stdout) == (0, PRINTED[library]), ran.stderr


@pytest.mark.lab
@pytest.mark.parametrize("host", ["tensor01", "slurm"])
@pytest.mark.parametrize("library", PRINTED)
def test_an_example_runs_on_a_host_of_the_lab(library, host, hosts, lab, tmp_path, monkeypatch):
    python = lab_venv(lab, "recipes", *ON_HOSTS) / "bin" / "python"
    config = hosts.describe(lab, tmp_path / "clusterfn.yml", python)
    config.write_text(config.read_text().replace("cores: 64", "cores: 3"))  # each of these jobs keeps a core busy
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    before = hosts.jobs()

    check(library, host, tmp_path)

    assert hosts.jobs() - before
