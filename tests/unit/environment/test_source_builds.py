"""Source distributions: what builds one, and that the newest counts, unless a wheel of an older one saves a build."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builder import toys
from tests.unit.environment.shelf import HOST, Shelf


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


OLD = replace(HOST, glibc="2.17")
NEW_GLIBC = "cp311-cp311-manylinux_2_28_x86_64"
OLD_GLIBC = "cp311-cp311-manylinux_2_17_x86_64"


@pytest.fixture
def hydra(shelf: Shelf) -> Shelf:
    """As hydra-core is: its releases want a package that is only there as source."""
    shelf.wheel("core", "0.11")
    shelf.wheel("core", "1.3", requires="parser==4.9")
    shelf.wheel("core", "1.4rc1", requires="parser==4.11")
    shelf.wheel("parser", "4.11")
    toys.sdist(shelf.folder, "parser", {}, "4.9")
    return shelf


@pytest.mark.parametrize("line", ["core", "core>=1.3", "core==1.3"])
def test_a_version_that_needs_a_source_distribution_is_not_given_up_for_an_older_one(hydra: Shelf, line: str):
    hydra.write(f"{line}\n", "requirements.txt")

    assert hydra.found("requirements.txt") == {"core": "1.3", "parser": "4.9"}


@pytest.mark.parametrize(
    ("line", "version"),
    [("core==0.11", "0.11"), ("core<1", "0.11"), ("core==1.4rc1", "1.4rc1"), ("--pre\ncore", "1.4rc1")],
)
def test_an_old_version_or_one_before_a_release_is_taken_if_it_is_wanted(hydra: Shelf, line: str, version: str):
    hydra.write(f"{line}\n", "requirements.txt")

    assert hydra.found("requirements.txt")["core"] == version


def test_a_wheel_that_the_user_has_built_is_preferred(hydra: Shelf):
    hydra.wheel("parser", "4.9")
    hydra.write("core\n", "requirements.txt")

    assert [each.is_source for each in hydra.wheels("requirements.txt")] == [False, False]


def large(hydra: Shelf, name: str = "numeric") -> None:
    """As numpy is: its newest version has wheels for a new glibc, and a source distribution."""
    hydra.wheel(name, "1.0", OLD_GLIBC)
    hydra.wheel(name, "2.0", NEW_GLIBC)
    toys.sdist(hydra.folder, name, {}, "2.0")


def test_what_has_wheels_for_newer_hosts_is_taken_in_the_newest_version_with_one_for_this_host(hydra: Shelf):
    large(hydra)
    hydra.write("numeric\ncore\n", "requirements.txt")

    assert hydra.found("requirements.txt", target=OLD)["numeric"] == "1.0"
    said = [line for line in hydra.said if "instead" in line]
    why = "numeric 2.0 has no wheel for Python 3.11 on x86_64-manylinux_2_17"
    assert said == [f"requirements.txt: numeric 1.0 instead of 2.0: {why}"]
    assert hydra.found("requirements.txt") == {"core": "1.3", "numeric": "2.0", "parser": "4.9"}


def test_what_has_wheels_for_an_older_python_alone_is_taken_in_a_version_that_has_one(hydra: Shelf):
    hydra.wheel("numeric", "1.0")
    hydra.wheel("numeric", "2.0", "cp310-cp310-manylinux_2_17_x86_64")
    toys.sdist(hydra.folder, "numeric", {}, "2.0")
    hydra.write("numeric\n", "requirements.txt")

    assert hydra.found("requirements.txt") == {"numeric": "1.0"}


def test_what_only_one_version_fits_is_built_although_others_have_wheels(hydra: Shelf):
    large(hydra)
    large(hydra, "tables")
    hydra.write("numeric>=2\ntables\n", "requirements.txt")

    found = {each.name: each for each in hydra.wheels("requirements.txt", target=OLD)}

    assert found["numeric"].is_source and found["numeric"].version == "2.0"
    assert found["tables"].version == "1.0"


def test_a_package_that_cannot_be_read_here_is_named_with_a_way_out(hydra: Shelf):
    dynamic = "Metadata-Version: 1.0\nName: odd\nVersion: 1.0\n"
    toys.sdist(hydra.folder, "odd", {"PKG-INFO": dynamic, "setup.py": "raise SystemExit('no')\n"})
    hydra.write("odd\n", "requirements.txt")

    refused = hydra.refusal("requirements.txt")

    assert "odd==1.0 has no wheel, and what it depends on cannot be read here" in refused.message
    assert "`pip wheel --no-deps odd==1.0 -w wheels`" in (refused.hint or "")
