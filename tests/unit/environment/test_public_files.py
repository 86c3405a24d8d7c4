"""Features of public environment files that once were read otherwise than by their own tools (benchmarks/files)."""

from __future__ import annotations

import pytest

from clusterfn import ConfigError
from tests.unit.environment.shelf import Shelf
from tests.unit.environment.test_locks_of_others import PACKAGE, PARTS


@pytest.mark.parametrize("written", ["uvicorn[standard] >=0.12", "ray[default,tune]", "dask [complete]=2024"])
def test_extras_in_the_list_of_conda_are_rejected_with_their_line(shelf: Shelf, written: str):
    shelf.write(f"dependencies:\n- python=3.11\n- {written}\n", "environment.yml")

    with pytest.raises(ConfigError, match=r"^environment\.yml:3: .*has extras") as caught:
        shelf.read("environment.yml")

    assert "`pip:`" in str(caught.value.hint)


def test_what_a_pylock_does_not_have_is_rejected(shelf: Shelf):
    shelf.write(PARTS + PACKAGE.format("base", "", "a" * 64), "pylock.toml")

    with pytest.raises(ConfigError, match=r"has no extra 'cpu'"):
        shelf.read("pylock.toml", "cpu")
    with pytest.raises(ConfigError, match=r"has no group 'docs'"):
        shelf.read("pylock.toml", "group:docs")


@pytest.mark.parametrize("line", ["torch==1.9+cu111 -f https://e.org/whl", "toy --config-settings a=b", "toy --pre"])
def test_an_option_behind_a_requirement_is_rejected_and_a_hash_is_not(shelf: Shelf, line: str):
    shelf.write(f"toy --hash=sha256:{'a' * 64} --hash sha256:{'b' * 64}\n{line}\n", "requirements.txt")

    with pytest.raises(ConfigError, match=r"requirements\.txt:2: .*option behind the requirement") as caught:
        shelf.read("requirements.txt")

    assert line.split()[1] in str(caught.value.hint)


@pytest.mark.parametrize("line", ["- toy", "--pre toy", "-"])
def test_a_line_that_is_neither_a_requirement_nor_an_option_is_rejected(shelf: Shelf, line: str):
    shelf.write(f"toy\n{line}\n", "requirements.txt")

    with pytest.raises(ConfigError, match=f'requirements.txt:2: "{line}" is neither'):
        shelf.read("requirements.txt")


@pytest.mark.parametrize("line", ["-e .", ".[plots]", "./src"])
def test_a_folder_that_is_no_project_is_rejected(shelf: Shelf, line: str):
    (shelf.project / "src").mkdir()
    shelf.write(f"{line}\n", "requirements.txt")

    with pytest.raises(ConfigError, match="neither pyproject.toml nor setup.py"):
        shelf.read("requirements.txt")
