"""One meaning of pip's lines wherever they stand: in requirements.txt, in a `pip:` section, or in `packages=`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from clusterfn import LockError
from tests.lock.conftest import make_wheel, sha256
from tests.unit.environment.shelf import Shelf

Written = Callable[[str], Any]


@pytest.fixture
def shelf(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.chdir(shelf.project)
    return shelf


@pytest.fixture(params=["requirements.txt", "environment.yml", "packages="])
def written(shelf: Shelf, request: pytest.FixtureRequest) -> Written:
    """Write lines of pip, and read them as a specification."""

    def write(text: str) -> Any:
        lines = [line for line in text.replace("\\\n", " ").splitlines() if line]
        if request.param == "packages=":
            return shelf.packages(["python=3.11", *(line if line[0] == "-" else f"pip:{line}" for line in lines)])
        if request.param == "environment.yml":
            below = "".join(f"  - {json.dumps(line)}\n" for line in lines)
            text = f"dependencies:\n- python=3.11\n- pip:\n{below}"
        shelf.write(text, request.param)
        return shelf.read(request.param)

    return write


def wheels(shelf: Shelf, spec: Any) -> dict[str, str]:
    lock = shelf.lock_of(spec)
    return {each.name: each.version for each in lock.on("linux-64") if each.manager == "pip"}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("-r more/more.txt\n", {"toy": "1.0", "deep": "1.0"}),
        ("toy\n-c limits.txt\n", {"toy": "1.0", "deep": "0.9"}),
        ("-e .\n", {"deep": "1.0"}),
        ("-e ./libs/helper[train]\n", {"deep": "1.0", "extra": "1.0"}),
        ("./libs/helper\n", {"deep": "1.0"}),
        ("--pre\nearly\n", {"early": "2.0rc1"}),
        ("early\n", {"early": "1.0"}),
        ("./own-1.0-py3-none-any.whl\n", {"own": "1.0", "deep": "1.0"}),
        ("--find-links elsewhere\nrare\n", {"rare": "3.0"}),
        ("toy[more]==1.* ; python_version > '3.8'\nextra; sys_platform == 'win32'\n", {"toy": "1.0", "deep": "1.0"}),
        ("deep --hash=sha256:{deep}\n", {"deep": "1.0"}),
    ],
)
def test_a_line_means_the_same_in_each_place(shelf: Shelf, written: Written, text: str, expected: dict[str, str]):
    shelf.wheel("toy", requires="deep")
    shelf.wheel("deep", "0.9")
    deep = shelf.wheel("deep")
    for name, version in [("extra", "1.0"), ("early", "1.0"), ("early", "2.0rc1")]:
        shelf.wheel(name, version)
    make_wheel(shelf.project / "elsewhere", "rare", "3.0")
    make_wheel(shelf.project, "own", requires="deep")
    shelf.write("toy\n", "more/more.txt")
    shelf.write("deep<1\n", "limits.txt")
    shelf.pyproject('"deep"')
    extras = '[project.optional-dependencies]\ntrain = ["extra"]\n'
    shelf.write(f'[project]\nname = "helper"\nversion = "1"\ndependencies = ["deep"]\n{extras}',
                "libs/helper/pyproject.toml")  # fmt: skip

    spec = written(text.format(project=shelf.project, deep=sha256(deep)) if "{" in text else text)

    assert wheels(shelf, spec) == expected
    assert "skipped" not in "".join(shelf.said)


def test_what_conda_brings_is_kept_and_what_cannot_go_with_it_is_reported(shelf: Shelf):
    """The channel of the shelf brings python and setuptools 80.0."""
    for version in ("80.0", "81.0"):
        shelf.wheel("setuptools", version)
    shelf.wheel("toy", requires="setuptools>=60")
    shelf.wheel("newer", requires="setuptools>=81")
    shelf.write("dependencies:\n- python=3.11\n- pip:\n  - toy\n", "environment.yml")

    lock = shelf.lock("environment.yml")

    rows = {(each.manager, each.name, each.version) for each in lock.on("linux-64")}
    assert rows == {("conda", "python", "3.11.7"), ("conda", "setuptools", "80.0"), ("pip", "toy", "1.0")}
    lock.path.unlink()
    shelf.write("dependencies:\n- python=3.11\n- pip:\n  - newer\n", "environment.yml")
    with pytest.raises(LockError) as caught:
        shelf.lock("environment.yml")
    assert re.search(r"setuptools\s*<81|setuptools[>=]=81", " ".join(caught.value.evidence))


@pytest.mark.parametrize("line", ["setuptools[core]", "setuptools[core]>=60", "toy"])
def test_the_extras_of_what_conda_brings_are_installed_in_its_version(shelf: Shelf, line: str):
    shelf.wheel("setuptools", "80.0", requires="old; extra == 'core'")
    shelf.wheel("setuptools", "81.0", requires="new; extra == 'core'")
    for name in ("old", "new"):
        shelf.wheel(name)
    shelf.wheel("toy", requires="setuptools[core]")
    shelf.write(f"dependencies:\n- python=3.11\n- pip:\n  - {line}\n", "environment.yml")

    lock = shelf.lock("environment.yml")

    rows = {(each.manager, each.name, each.version) for each in lock.on("linux-64") if each.name != "toy"}
    assert rows == {("conda", "python", "3.11.7"), ("conda", "setuptools", "80.0"), ("pip", "old", "1.0")}


def test_a_selector_limits_a_line_to_its_platforms(shelf: Shelf):
    for name in ("toy", "apple"):
        shelf.wheel(name)
    lines = "  - toy  # [linux]\n  - apple  # [osx]\n"
    shelf.write(f"dependencies:\n- python=3.11\n- pip:\n{lines}", "environment.yml")

    assert wheels(shelf, shelf.read("environment.yml")) == {"toy": "1.0"}
