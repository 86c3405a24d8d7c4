"""`environment="conda:name"`: where it is searched for, and what is said where it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn.environment import existing
from clusterfn.environment.existing import CONDA_LIST, CONDA_PLACES, ExistingEnvironment, parse_existing
from clusterfn.errors import EnvironmentBuildError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="hosts have a POSIX shell")
HOMES = [place[2:] for place in CONDA_PLACES if place.startswith("~/")]


def put(home: Path, folder: str) -> Path:
    """Make an environment whose Python leaves its own path in the home directory."""
    python = home / folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$0" >"$HOME/ran"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def ran(home: Path, text: str) -> Path:
    """Search for an environment in this home directory, and return the Python that has described itself."""
    wanted = ExistingEnvironment(parse_existing(text, "bare"))
    told = subprocess.run(wanted.probe(), capture_output=True, check=False, env={"HOME": str(home), "PATH": ""})
    wanted.verification(told.returncode, told.stdout, told.stderr)
    return Path((home / "ran").read_text().strip())


@pytest.mark.parametrize("place", HOMES)
def test_a_name_is_searched_for_below_every_place_of_conda(tmp_path, place):
    python = put(tmp_path, f"{place}/envs/ml")

    assert ran(tmp_path, "conda:ml") == python


@pytest.mark.parametrize("place", HOMES)
def test_base_is_the_installation_itself(tmp_path, place):
    put(tmp_path, f"{place}/envs/ml")
    python = put(tmp_path, place)

    assert ran(tmp_path, "conda:base") == python


def test_the_list_of_conda_names_environments_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(existing, "CONDA_PLACES", ("~/miniconda3",))  # this machine may have a /opt/conda
    python, installed = put(tmp_path, "far away/envs/ml"), put(tmp_path, "far away/conda")
    (tmp_path / "far away" / "conda" / "condabin").mkdir()
    (tmp_path / ".conda").mkdir()
    listed = [tmp_path / "gone" / "ml", python.parents[1], installed.parents[1]]
    (tmp_path / ".conda" / "environments.txt").write_text("".join(f"{each}\n" for each in listed))

    assert ran(tmp_path, "conda:ml") == python
    assert ran(tmp_path, "conda:base") == installed


def test_what_is_nowhere_is_told_with_all_places(tmp_path):
    with pytest.raises(EnvironmentBuildError, match="'conda:no-such-one' has no interpreter that runs") as caught:
        ran(tmp_path, "conda:no-such-one")

    assert all(place in caught.value.evidence[0] for place in (*CONDA_PLACES, CONDA_LIST))
    assert "prefix:/path" in str(caught.value.hint)


def test_a_path_that_does_not_run_is_told_as_it_is(tmp_path):
    with pytest.raises(EnvironmentBuildError) as caught:
        ran(tmp_path, "python:/no/such/python")

    assert caught.value.evidence == ("none of these can be executed: /no/such/python",)


def test_the_page_about_environments_names_every_place():
    page = (Path(__file__).parents[3] / "docs/how-to/environments.md").read_text(encoding="utf-8")

    assert [place for place in (*CONDA_PLACES, CONDA_LIST) if f"`{place}`" not in page] == []
