"""Files of other tools, as people publish them, read as these tools read them."""

from __future__ import annotations

import pytest

from tests.builder import toys
from tests.lock.conftest import sha256
from tests.unit.environment.shelf import Shelf


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
def test_the_extras_and_groups_of_a_pylock_are_chosen_and_its_default_groups_are_always(
    shelf: Shelf, parts: tuple[str, ...], expected: set[str]
):
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
