"""What a user may write: packages=[…] and environment.yml; and what is refused, with its line."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from clusterfn import ConfigError
from clusterfn.config import places
from clusterfn.config.environment_kinds import names_a_file, split_file
from clusterfn.config.options import parse_options
from clusterfn.environment import resolve
from clusterfn.environment.environment_files import locate_file
from clusterfn.environment.project import admits
from tests.unit.environment.shelf import Shelf


@pytest.mark.parametrize(
    ("versions", "minors"),
    [
        (">=2.4,<2.8", [4, 5, 6, 7]),
        ("~=2.7.0", [7]),
        ("~=2.6", [6, 7, 8, 9]),
        ("==2.7.*", [7]),
        ("==2.7.1+cu118", [7]),
        ("2.7.1", [7]),
        ("!=2.8.*,>2.7.0,<=2.9", [7, 9]),
        ("<2.1", [0]),
        ("", list(range(10))),
    ],
)
def test_the_minor_versions_that_pip_would_take(versions: str, minors: list[int]):
    assert [minor for minor in range(10) if admits(versions, (2, minor))] == minors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pyproject.toml", ("pyproject.toml", ())),
        ("a b/pyproject.toml[gpu]", ("a b/pyproject.toml", ("gpu",))),
        ("uv.lock[gpu, group:dev]", ("uv.lock", ("gpu", "group:dev"))),
        ("a[1]/requirements.txt", ("a[1]/requirements.txt", ())),
        ("pyproject.toml[]", ("pyproject.toml", ())),
        ("a/b.YAML", ("a/b.YAML", ())),
    ],
)
def test_extras_and_groups_are_written_in_brackets(text: str, expected: tuple[str, tuple[str, ...]]):
    assert split_file(text) == expected
    assert names_a_file(text)
    assert parse_options({"environment": text}).environment == text


def test_a_kind_is_no_file():
    assert not names_a_file("conda:ml")


def test_a_file_is_looked_for_beside_the_function_then_in_the_working_directory(tmp_path: Path):
    script, here = tmp_path / "script", tmp_path / "here"
    for folder in (script, here):
        folder.mkdir()
        (folder / "both.yml").write_text("")
    (here / "environment.yml").write_text("")

    assert locate_file("both.yml", [script, here]) == script / "both.yml"
    assert locate_file("environment.yml", [script, here]) == here / "environment.yml"
    with pytest.raises(
        ConfigError, match=r"there is no enviroment.yml in .*script and .*here; did you mean environment.yml"
    ):
        locate_file("enviroment.yml", [script, here])


def test_a_file_in_the_working_directory_comes_before_one_beside_the_script(tmp_path, monkeypatch):
    script, here = tmp_path / "script", tmp_path / "here"
    for folder in (script, here):
        folder.mkdir()
        (folder / "environment.yml").write_text(f"name: {folder.name}\ndependencies: [python=3.11]\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(places, "running_script", lambda: script / "train.py")

    assert str(here) in str(resolve.read_specification("environment.yml", ()).file)
    (here / "environment.yml").unlink()
    assert str(script) in str(resolve.read_specification("environment.yml", ()).file)


def test_the_configuration_is_no_environment_to_be_meant(tmp_path: Path):
    (tmp_path / "clusterfn.yml").write_text("")
    with pytest.raises(ConfigError) as refused:
        locate_file("cluster.yml", [tmp_path])
    assert "did you mean" not in refused.value.message


FILES = {
    "requirements.txt": "# größer\r\nnumpy>=2\r\n",
    "environment.yml": "# größer\r\ndependencies:\r\n- pip:\r\n  - numpy>=2\r\n",
}


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_with_and_without_a_bom(shelf: Shelf, name: str, mark: bytes):
    (shelf.project / name).write_bytes(mark + FILES[name].encode())

    assert [each.text for each in shelf.read(name).pip] == ["numpy>=2"]


@pytest.mark.parametrize(
    "data, line", [(b"numpy\nrich # gr\xf6\xdfer\n", 2), ("numpy\n".encode("utf-16"), 1), (b"PK\3\4\0\0", 1)]
)
@pytest.mark.parametrize("name", [*FILES, "pyproject.toml"])
def test_what_is_not_text_is_refused_with_its_place(shelf: Shelf, name: str, data: bytes, line: int):
    (shelf.project / name).write_bytes(data)

    with pytest.raises(ConfigError, match=f":{line}: the file is not text in UTF-8") as caught:
        shelf.read(name)
    assert caught.value.hint == "save the file as UTF-8"


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(shelf: Shelf):
    (shelf.project / "requirements.txt").mkdir()

    with pytest.raises(ConfigError, match=r"requirements.txt cannot be read: Is a directory"):
        shelf.read("requirements.txt")
