"""What public bug reports broke, sent over SSH to each Python in one session: values, functions and exceptions.

The environment has older versions of numpy, pydantic and attrs than the caller.
"""

from __future__ import annotations

import pytest

from tests.e2e.conftest import REPOSITORY, venv_with_older_versions

pytestmark = pytest.mark.lab

BESIDE = "def load():\n    return 5\n"
SCRIPT = (REPOSITORY / "tests" / "fixtures" / "calls" / "public_reports.py").read_text(encoding="utf-8")


MINORS = ["3.11", *(pytest.param(each, marks=pytest.mark.long) for each in ("3.9", "3.13"))]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("minor", MINORS)
def test_what_public_reports_broke_works(hosts, lab, run_script, tmp_path, monkeypatch, minor):
    environment = venv_with_older_versions(lab, minor)
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", environment / "bin" / "python", "", ("py36",))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "wandb" / "run-1").mkdir(parents=True)

    assert run_script(SCRIPT, timeout_s=600) == {}  # sixty calls
