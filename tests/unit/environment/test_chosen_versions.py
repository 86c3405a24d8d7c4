"""Source distributions: the newest version counts, but a wheel of an older one is better than a large build."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builder import toys
from tests.unit.environment.shelf import HOST, Shelf

OLD = replace(HOST, glibc="2.17")
NEW_GLIBC = "cp311-cp311-manylinux_2_28_x86_64"
OLD_GLIBC = "cp311-cp311-manylinux_2_17_x86_64"


@pytest.fixture
def shelf(shelf: Shelf) -> Shelf:
    """As hydra-core is: its releases want a package that is only there as source."""
    for tool in ("pip", "setuptools", "wheel"):
        shelf.wheel(tool)
    shelf.wheel("core", "0.11")
    shelf.wheel("core", "1.3", requires="parser==4.9")
    shelf.wheel("core", "1.4rc1", requires="parser==4.11")
    shelf.wheel("parser", "4.11")
    toys.sdist(shelf.folder, "parser", {}, "4.9")
    return shelf


@pytest.mark.parametrize("line", ["core", "core>=1.3", "core==1.3"])
def test_a_version_that_needs_a_source_distribution_is_not_given_up_for_an_older_one(shelf: Shelf, line: str):
    shelf.write(f"{line}\n", "requirements.txt")

    assert shelf.found("requirements.txt") == {"core": "1.3", "parser": "4.9"}


@pytest.mark.parametrize(
    ("line", "version"),
    [("core==0.11", "0.11"), ("core<1", "0.11"), ("core==1.4rc1", "1.4rc1"), ("--pre\ncore", "1.4rc1")],
)
def test_an_old_version_or_one_before_a_release_is_taken_if_it_is_wanted(shelf: Shelf, line: str, version: str):
    shelf.write(f"{line}\n", "requirements.txt")

    assert shelf.found("requirements.txt")["core"] == version


def test_a_wheel_that_the_user_has_built_is_preferred(shelf: Shelf):
    shelf.wheel("parser", "4.9")
    shelf.write("core\n", "requirements.txt")

    assert [each.is_source for each in shelf.wheels("requirements.txt")] == [False, False]


def large(shelf: Shelf, name: str = "numeric") -> None:
    """As numpy is: its newest version has wheels for a new glibc, and a source distribution."""
    shelf.wheel(name, "1.0", OLD_GLIBC)
    shelf.wheel(name, "2.0", NEW_GLIBC)
    toys.sdist(shelf.folder, name, {}, "2.0")


def test_what_has_wheels_for_newer_hosts_is_taken_in_the_newest_version_with_one_for_this_host(shelf: Shelf):
    large(shelf)
    shelf.write("numeric\ncore\n", "requirements.txt")

    assert shelf.found("requirements.txt", target=OLD)["numeric"] == "1.0"
    said = [line for line in shelf.said if "instead" in line]
    why = "numeric 2.0 has no wheel for Python 3.11 on x86_64-manylinux_2_17"
    assert said == [f"requirements.txt: numeric 1.0 instead of 2.0: {why}"]
    assert shelf.found("requirements.txt") == {"core": "1.3", "numeric": "2.0", "parser": "4.9"}


def test_what_has_wheels_for_an_older_python_alone_is_taken_in_a_version_that_has_one(shelf: Shelf):
    shelf.wheel("numeric", "1.0")
    shelf.wheel("numeric", "2.0", "cp310-cp310-manylinux_2_17_x86_64")
    toys.sdist(shelf.folder, "numeric", {}, "2.0")
    shelf.write("numeric\n", "requirements.txt")

    assert shelf.found("requirements.txt") == {"numeric": "1.0"}


def test_what_only_one_version_fits_is_built_although_others_have_wheels(shelf: Shelf):
    large(shelf)
    large(shelf, "tables")
    shelf.write("numeric>=2\ntables\n", "requirements.txt")

    found = {each.name: each for each in shelf.wheels("requirements.txt", target=OLD)}

    assert found["numeric"].is_source and found["numeric"].version == "2.0"
    assert found["tables"].version == "1.0"


def test_a_package_that_cannot_be_read_here_is_named_with_a_way_out(shelf: Shelf):
    dynamic = "Metadata-Version: 1.0\nName: odd\nVersion: 1.0\n"
    toys.sdist(shelf.folder, "odd", {"PKG-INFO": dynamic, "setup.py": "raise SystemExit('no')\n"})
    shelf.write("odd\n", "requirements.txt")

    refused = shelf.refusal("requirements.txt")

    assert "odd==1.0 has no wheel, and what it depends on cannot be read here" in refused.message
    assert "`pip wheel --no-deps odd==1.0 -w wheels`" in (refused.hint or "")
