"""What is read of pyproject.toml, uv.lock, pylock.toml and requirements.txt, and what makes their lock out of date."""

from __future__ import annotations

import pytest

from clusterfn.config.forms import names_a_file, split_file
from clusterfn.config.options import parse_options
from clusterfn.environment import resolve
from clusterfn.environment.uv import names_indexes
from clusterfn.errors import ConfigError
from tests.unit.environment.shelf import Shelf
from tests.unit.environment.test_outdated_locks import EXTRAS, MEMBER, ROOT, ROOT_INDEX


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pyproject.toml", ("pyproject.toml", ())),
        ("a b/pyproject.toml[gpu]", ("a b/pyproject.toml", ("gpu",))),
        ("uv.lock[gpu, group:dev]", ("uv.lock", ("gpu", "group:dev"))),
        ("a[1]/requirements.txt", ("a[1]/requirements.txt", ())),
        ("pyproject.toml[]", ("pyproject.toml", ())),
    ],
)
def test_extras_and_groups_are_written_in_brackets(text: str, expected: tuple[str, tuple[str, ...]]):
    assert split_file(text) == expected
    assert names_a_file(text)
    assert parse_options({"environment": text}).environment == text


def test_a_file_with_extras_is_found_by_its_name(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    shelf.pyproject('"base"', EXTRAS)
    monkeypatch.chdir(shelf.project)

    spec = resolve.read_specification("pyproject.toml[gpu, My.Extra]", ())

    assert spec.title == "pyproject.toml[gpu,my-extra]"
    assert [each.name for each in spec.pip] == ["base", "fast", "slow"]


@pytest.mark.parametrize(
    ("text", "parts", "message", "hint"),
    [
        ("[project]\nname = 'a'\nversion = 1.0.0\n", (), "is not TOML: ", "correct that line"),
        ("[tool.black]\n", (), "has no [project] table", "requirements.txt"),
        ("[tool.poetry]\n", (), "has no [project] table", "poetry export"),
        ("[tool.pixi.dependencies]\n", (), "has no [project] table", "pixi workspace export"),
        ("project = 1", (), "project is not a table", "correct it"),
        ("[project]\ndependencies = 'numpy'\n", (), "dependencies is not a list of strings", '["numpy>=2"]'),
        (f"[project]\n{EXTRAS}", ("gup",), "has no extra 'gup'; did you mean gpu?", "it has gpu, my-extra"),
        ("[project]\n", ("gpu",), "has no extra 'gpu'", "it has no extras"),
        ("[project]\n[dependency-groups]\ndev = []\n", ("group:test",), "has no group 'test'", "it has dev"),
        ("[project]\n[dependency-groups]\na = [{include-group = 'a'}]\n", ("group:a",), "includes itself", "remove"),
    ],
)  # fmt: skip
def test_a_pyproject_that_cannot_be_used_is_refused_with_one_thing_to_do(
    shelf: Shelf, text: str, parts: tuple[str, ...], message: str, hint: str
):
    shelf.write(text)

    with pytest.raises(ConfigError) as caught:
        shelf.read("pyproject.toml", *parts)

    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    "tool, key", [("pixi", "dependencies"), ("pixi", "pypi-dependencies"), ("poetry", "dependencies")]
)
def test_packages_in_the_table_of_another_tool_are_named_as_left_out(shelf: Shelf, tool: str, key: str):
    table = f"[tool.{tool}.{key}]\npython = '3.11'\nToy = '*'\ngdal = '*'\nmine = {{path = '.'}}\n"
    shelf.pyproject('"toy"', table)

    (said,) = shelf.read().sentences

    assert f"[tool.{tool}] are not read, so these are left out: gdal; " in said


def test_the_table_of_poetry_is_read_by_its_build_backend_where_project_says_so(shelf: Shelf):
    shelf.write("[project]\nname = 'a'\ndynamic = ['dependencies']\n[tool.poetry.dependencies]\ngdal = '*'\n")

    assert shelf.read().sentences == ()


@pytest.mark.parametrize("name, hint", [("pixi.lock", "pixi workspace export"), ("poetry.lock", "poetry export")])
def test_the_lock_of_another_tool_is_refused_with_how_to_export_it(shelf: Shelf, name: str, hint: str):
    shelf.write("version: 6\n", name)

    with pytest.raises(ConfigError, match=f"{name} is not an environment.yml") as caught:
        shelf.read(name)

    assert hint in (caught.value.hint or "")


def test_the_line_of_a_toml_error_is_named(shelf: Shelf):
    shelf.write("[project]\nname = \n")
    with pytest.raises(ConfigError, match="line 2"):
        shelf.read()


@pytest.mark.parametrize("name", ["requirements.txt", "environment.yml"])
def test_only_a_project_has_extras(shelf: Shelf, name: str):
    shelf.write("toy\n", name)
    with pytest.raises(ConfigError, match=f"{name} has no extras and no groups, but gpu is named"):
        shelf.read(name, "gpu")


def test_a_uv_lock_needs_its_pyproject(shelf: Shelf):
    shelf.write("version = 1\n", "uv.lock")
    with pytest.raises(ConfigError, match=r"has no pyproject\.toml beside it"):
        shelf.read("uv.lock")


def test_a_toml_file_without_packages_is_no_pylock(shelf: Shelf):
    shelf.write('lock-version = "1.0"\n', "pylock.train.toml")
    with pytest.raises(ConfigError, match="has no packages") as caught:
        shelf.read("pylock.train.toml")
    assert "uv export" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("pyproject.toml", "[tool.uv]\n", (False, False)),
        ("pyproject.toml", '[[tool.uv.index]]\nurl = "https://a"\n', (True, False)),
        ("pyproject.toml", '[[tool.uv.index]]\nurl = "https://a"\ndefault = true\n', (False, True)),
        ("pyproject.toml", '[[tool.uv.index]]\nurl = "https://a"\nexplicit = true\n', (False, False)),
        ("pyproject.toml", '[tool.uv.pip]\nindex-url = "https://a"\n', (False, True)),
        ("uv.toml", 'extra-index-url = ["https://a"]\n', (True, False)),
        ("../uv.toml", '[[index]]\nurl = "https://a"\n', (True, False)),
    ],
)
def test_uvs_own_settings_are_known(shelf: Shelf, file: str, text: str, expected: tuple[bool, bool]):
    shelf.write(text, file)
    assert names_indexes(shelf.project) == expected


def test_a_password_in_the_address_of_a_repository_is_not_shown(shelf: Shelf):
    shelf.write("hg+https://ada:sekret@e.org/x\n", "requirements.txt")
    with pytest.raises(ConfigError) as caught:
        shelf.read("requirements.txt")

    assert "://***@e.org/x" in caught.value.message and "sekret" not in caught.value.message


def test_the_settings_of_a_workspace_count_for_its_members(shelf: Shelf):
    shelf.write(MEMBER + "[tool.uv]\n", "libs/train/pyproject.toml")
    shelf.write(MEMBER + "[tool.uv]\n", "libs/old/pyproject.toml")
    shelf.write(ROOT + ROOT_INDEX)

    assert names_indexes(shelf.project / "libs" / "train") == (True, False)
    assert names_indexes(shelf.project / "libs" / "old") == (False, False)
