"""What builds a source distribution: its pyproject.toml says so, its backend may want more, and the lock has it all."""

from __future__ import annotations

import pytest

from tests.builder import toys
from tests.unit.environment.shelf import Shelf


@pytest.fixture
def shelf(shelf: Shelf) -> Shelf:
    for tool in ("pip", "setuptools", "wheel", "helper"):
        shelf.wheel(tool)
    return shelf


def builds(shelf: Shelf, files: dict[str, str], lines: str = "toy\n") -> set[str]:
    """The names of what builds a package of these files, where these are the lines of requirements.txt."""
    toys.sdist(shelf.folder, "toy", files)
    shelf.write(lines, "requirements.txt")
    found = {each.name: each for each in shelf.wheels("requirements.txt")}
    return {each.name for each in found["toy"].builds_with}


def test_a_setup_py_that_imports_pkg_resources_gets_a_setuptools_that_has_it(shelf: Shelf):
    shelf.wheel("setuptools", "84.0")
    toys.sdist(shelf.folder, "toy", {"setup.py": "import pkg_resources\n"})
    shelf.write("toy\n", "requirements.txt")

    (toy,) = shelf.wheels("requirements.txt")

    assert {each.name: each.version for each in toy.builds_with}["setuptools"] == "1.0"


@pytest.mark.parametrize(
    ("files", "lines", "tools"),
    [
        ({"setup.py": ""}, "--no-binary :all:\ntoy\n", {"setuptools", "wheel"}),
        (toys.with_backend("toy", requires='["helper"]'), "toy\n", {"helper"}),
        ({**toys.with_backend("toy"), "own.py": "import helper\nimport unheard_of\n"}, "toy\nhelper\n", {"helper"}),
    ],
    ids=["it has wheels where nothing else may", "its pyproject says so", "it counts on a package of the environment"],
)
def test_what_builds_it(shelf: Shelf, files: dict[str, str], lines: str, tools: set[str]):
    assert builds(shelf, files, lines) == {"pip", *tools}


def test_its_backend_is_asked_for_more_where_no_program_of_this_machine_can_hide_what_it_needs(shelf: Shelf):
    more = "['helper'] if __import__('shutil').which('ls') is None else []"

    assert builds(shelf, toys.with_backend("toy", more=more)) == {"pip", "helper"}


def test_its_backend_sees_no_token_of_the_user_and_no_setting_of_theirs(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    for name in ("HF_TOKEN", "UV_INDEX_MINE_PASSWORD", "CFLAGS"):
        monkeypatch.setenv(name, "mine")
    more = "['helper'] if 'mine' not in os.environ.values() and os.environ['HOME'] else []"

    assert builds(shelf, toys.with_backend("toy", more=more)) == {"pip", "helper"}


def test_the_settings_of_uv_in_a_source_distribution_do_not_count(shelf: Shelf):
    files = toys.with_backend("toy", more="['helper']")
    files["pyproject.toml"] += '[tool.uv]\nrequired-version = "==0.0.1"\n'
    toys.sdist(shelf.folder, "toy", files)
    shelf.pyproject('"toy"', shelf.settings)

    (toy,) = shelf.wheels()

    assert {each.name for each in toy.builds_with} == {"pip", "helper"}


def test_no_module_of_the_project_or_of_pythonpath_hides_what_it_needs(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    shelf.write("HERE = 1\n", "elsewhere/helper.py")
    shelf.write("raise SystemExit('the json of the project')\n", "json.py")
    monkeypatch.setenv("PYTHONPATH", str(shelf.project / "elsewhere"))
    files = {**toys.with_backend("toy"), "own.py": "import helper\n"}

    assert builds(shelf, files, "toy\nhelper\n") == {"pip", "helper"}


def test_it_is_built_with_the_version_that_the_environment_has(shelf: Shelf):
    shelf.wheel("helper", "2.0")
    toys.sdist(shelf.folder, "toy", toys.with_backend("toy", requires='["helper"]'))
    shelf.write("toy\nhelper<2\n", "requirements.txt")

    toy = next(each for each in shelf.wheels("requirements.txt") if each.name == "toy")

    assert {each.version for each in toy.builds_with if each.name == "helper"} == {"1.0"}


def test_the_lock_has_what_builds_it_and_the_environment_is_another_with_other_tools(shelf: Shelf):
    sdist = toys.sdist(shelf.folder, "toy", {"setup.py": ""})
    shelf.write("toy\n", "requirements.txt")
    first = shelf.lock("requirements.txt")

    toy = next(each for each in first.packages if each.name == "toy")
    assert (toy.url, toy.is_source) == (sdist.as_uri(), True)
    assert [each.name for each in toy.builds_with] == ["pip", "setuptools", "wheel"]
    assert not {"pip", "wheel"} & {each.name for each in first.packages}

    shelf.wheel("setuptools", "81.0")
    first.path.unlink()
    assert shelf.lock("requirements.txt").id("linux-64") != first.id("linux-64")


def test_a_uv_lock_may_have_source_distributions(shelf: Shelf):
    toys.sdist(shelf.folder, "toy", {"setup.py": ""})
    shelf.pyproject('"toy"', shelf.settings)
    shelf.uv_lock()

    (toy,) = shelf.wheels("uv.lock")

    assert toy.is_source and {each.name for each in toy.builds_with} == {"pip", "setuptools", "wheel"}
