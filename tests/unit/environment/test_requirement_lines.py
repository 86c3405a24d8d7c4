"""One meaning of pip's lines wherever they stand, and files of other tools, read as these tools read them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from clusterfn import LockError
from tests.builder import toys
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


def test_what_uv_says_of_its_work_is_no_reason(shelf: Shelf):
    shelf.wheel("toy")
    shelf.write("toy>2\n", "requirements.txt")

    evidence = shelf.refusal("requirements.txt").evidence

    assert evidence[0].startswith("error: No solution found")
    assert not any("constraints.txt" in each for each in evidence)


def test_the_keys_in_brackets_of_conda_are_no_extras(shelf: Shelf):
    shelf.write("dependencies:\n- \"numpy[version='>=1.2',build=py*]\"\n", "environment.yml")

    assert shelf.read("environment.yml").conda[0].name == "numpy"


def test_a_lock_of_conda_lock_is_known_by_its_content(shelf: Shelf):
    path = shelf.write("version: 1\nmetadata:\n  platforms: []\npackage:\n- name: python\n", "env.yml")

    assert shelf.read("env.yml").given_lock == path


@pytest.mark.parametrize("parts", [("all",), ("group:dev",)])
def test_own_extras_count_wherever_the_project_names_them(shelf: Shelf, parts: tuple[str, ...]):
    more = (
        '[project.optional-dependencies]\nfast = ["numba"]\nplots = ["seaborn"]\nall = ["mine[fast, plots]"]\n'
        '[dependency-groups]\ndev = ["mine[all]", "pytest"]\n'
    )
    shelf.pyproject('"numpy"', more)

    named = {each.name for each in shelf.read("pyproject.toml", *parts).pip}

    assert named >= {"numpy", "numba", "seaborn"}


PARTS = """\
lock-version = "1.0"
extras = ["gpu"]
dependency-groups = ["default", "lint"]
default-groups = ["default"]
"""
PACKAGE = """\
[[packages]]
name = "{0}"
version = "1.0"
marker = '{1}'
wheels = [{{url = "https://files.invalid/{0}-1.0-py3-none-any.whl", hashes = {{sha256 = "{2}"}}}}]
"""
MARKERS = {
    "base": '"default" in dependency_groups', "ruff": "\'lint\' in dependency_groups", "cupy": '"gpu" in extras',
    "slow": '"gpu" not in extras and python_version >= "3.8"', "never": '"default" in extras',
}  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "expected"),
    [((), {"base", "slow"}), (("gpu",), {"base", "cupy"}), (("group:lint",), {"base", "slow", "ruff"})],
)
def test_the_extras_and_groups_of_a_pylock_are_chosen_and_its_default_groups_are_always(shelf, parts, expected):
    packages = "".join(PACKAGE.format(name, marker.replace("'", '"'), "a" * 64) for name, marker in MARKERS.items())
    shelf.write(PARTS + packages, "pylock.toml")

    assert set(shelf.found("pylock.toml", *parts)) == expected


def test_a_pylock_for_other_machines_is_rejected(shelf: Shelf):
    environments = "environments = [\"sys_platform == 'win32'\", \"python_version >= '3.13'\"]\n"
    shelf.write(PARTS + environments + PACKAGE.format("base", "", "a" * 64), "pylock.toml")

    refused = shelf.refusal("pylock.toml")

    assert "is for other machines or another Python than 3.11" in refused.message
    assert set(shelf.found("pylock.toml", python="3.13")) == {"base"}


def test_an_archive_of_a_pylock_needs_no_version_in_its_name(shelf: Shelf):
    for tool in ("pip", "helper"):
        shelf.wheel(tool)
    made = toys.sdist(shelf.folder, "toy", toys.with_backend("toy", requires='["helper"]'))
    path = made.rename(shelf.project / "v1.0.tar.gz")
    archive = f'archive = {{url = "{path.as_uri()}", hashes = {{sha256 = "{sha256(path)}"}}}}\n'
    shelf.write(f'[[packages]]\nname = "toy"\nversion = "1.0"\n{archive}', "pylock.toml")

    (toy,) = shelf.wheels("pylock.toml")

    assert (toy.version, toy.url, toy.sha256) == ("1.0", path.as_uri(), sha256(path))
    assert {each.name for each in toy.builds_with} == {"pip", "helper"}


def test_the_name_of_another_file_may_follow_without_a_space(shelf: Shelf):
    shelf.write("toy\n", "more.txt")
    shelf.write("-rmore.txt\n--use-feature=fast-deps\n", "requirements.txt")

    assert [each.name for each in shelf.read("requirements.txt").pip] == ["toy"]
