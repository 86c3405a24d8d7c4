"""What is read of pyproject.toml, uv.lock, pylock.toml and requirements.txt, and what makes their lock out of date."""

from __future__ import annotations

import os
import subprocess

import pytest

from clusterfn import ConfigError
from clusterfn.environment import uv
from tests.unit.environment.shelf import Shelf
from tests.unit.environment.test_requirement_lines import PACKAGE, PARTS

EXTRAS = '[project.optional-dependencies]\ngpu = ["fast"]\nMy_Extra = ["slow"]\n'
TOML = "pyproject.toml"


def test_a_file_with_extras_is_found_by_its_name(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    shelf.pyproject('"base"', EXTRAS)
    monkeypatch.chdir(shelf.project)

    spec = shelf.named("pyproject.toml[gpu, My.Extra]")

    assert spec.title == "pyproject.toml[gpu,my-extra]"
    assert [each.name for each in spec.pip] == ["base", "fast", "slow"]


@pytest.mark.parametrize(
    ("name", "text", "parts", "message", "hint"),
    [
        (TOML, "[project]\nname = 'a'\nversion = 1.0.0\n", (), "is not TOML: ", "correct that line"),
        (TOML, "[tool.black]\n", (), "has no [project] table", "requirements.txt"),
        (TOML, "[tool.poetry]\n", (), "has no [project] table", "poetry export"),
        (TOML, "[project]\ndependencies = 'numpy'\n", (), "dependencies is not a list of strings", '["numpy>=2"]'),
        (TOML, f"[project]\n{EXTRAS}", ("gup",), "has no extra 'gup'; did you mean gpu?", "it has gpu, my-extra"),
        (TOML, "[project]\n[dependency-groups]\ndev = []\n", ("group:test",), "has no group 'test'", "it has dev"),
        (TOML, "[project]\n[dependency-groups]\na = [{include-group='a'}]", ("group:a",), "includes itself", "remove"),
        ("requirements.txt", "toy\n", ("gpu",), "requirements.txt has no extras and no groups, but gpu is named", ""),
        ("uv.lock", "version = 1\n", (), "has no pyproject.toml beside it", ""),
        ("pylock.train.toml", 'lock-version = "1.0"\n', (), "has no packages", "uv export"),
        ("pylock.toml", PARTS + PACKAGE.format("base", "", "a" * 64), ("cpu",), "has no extra 'cpu'", ""),
    ],
)  # fmt: skip
def test_a_file_of_a_project_that_cannot_be_used_is_refused_with_one_thing_to_do(
    shelf: Shelf, name: str, text: str, parts: tuple[str, ...], message: str, hint: str
):
    shelf.write(text, name)

    with pytest.raises(ConfigError) as caught:
        shelf.read(name, *parts)

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


HEADER = '# /// script\n# requires-python = ">=3.10"\n# dependencies = ["base<3"]\n#\n{}# ///\nimport base\n'


@pytest.mark.parametrize("before", ["", "#!/usr/bin/env -S uv run --script\n# about\n\n"])
def test_the_header_of_a_script_names_its_packages_and_the_lock_beside_it_their_versions(shelf, monkeypatch, before):
    shelf.wheel("base", "1.0")
    shelf.wheel("base", "2.0")
    toy = shelf.wheel("toy")
    source = f'# [tool.uv.sources]\n# toy = {{ path = "{toy}" }}\n'
    script = shelf.write(before + HEADER.format("").replace('"base<3"', '"base==1.0"'), "train.py")
    find_links = {"UV_FIND_LINKS": str(shelf.folder), "UV_NO_INDEX": "1"}
    subprocess.run(
        [uv.find_uv(), "lock", "-q", "--script", script],
        cwd=shelf.project,
        check=True,
        env={**os.environ, **find_links},
    )
    for name, value in find_links.items():
        monkeypatch.setenv(name, value)

    assert shelf.read("train.py").title == "train.py.lock" and shelf.found("train.py") == {"base": "1.0"}
    shelf.write(before + HEADER.format(source).replace('"base<3"', '"base<3", "toy"'), "train.py")
    refused = shelf.refusal("train.py")
    assert refused.message == "train.py.lock is out of date: train.py has changed since"
    assert refused.hint == f"run `uv lock --script train.py` in {shelf.project}"
    (shelf.project / "train.py.lock").unlink()
    spec = shelf.read("train.py")
    assert (spec.title, [each.name for each in spec.pip]) == ("train.py", ["base", "toy"])
    assert spec.project and spec.project.requires_python == ">=3.10"
    assert shelf.found("train.py") == {"base": "2.0", "toy": "1.0"}


def test_a_script_names_itself_and_one_without_a_header_is_rejected(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    script = shelf.write(HEADER.format(""), "train.py")
    monkeypatch.setattr("clusterfn.config.places.running_script", lambda: script)

    assert shelf.named("script").title == "train.py"
    shelf.write("# /// script\nimport base\n", "train.py")
    with pytest.raises(ConfigError, match="train.py has no packages in a header"):
        shelf.named("script")


def test_each_choice_of_extras_has_a_lock_of_its_own(shelf: Shelf):
    shelf.pyproject('"base"', f"{EXTRAS}[dependency-groups]\ndev = []\n")

    assert shelf.lock_name() == "pyproject.conda-lock.yml"
    assert shelf.lock_name("pyproject.toml", "gpu", "group:dev") == "pyproject-gpu-group-dev.conda-lock.yml"


def test_what_means_the_same_keeps_the_lock(shelf: Shelf):
    shelf.pyproject('"a", "b"', f"{EXTRAS}[tool.black]\nline-length = 80\n")
    before = shelf.read().input_hash
    shelf.pyproject('"b",  # a comment\n"a"', EXTRAS.replace("slow", "slower"))
    assert shelf.read().input_hash == before

    shelf.write("a\nb # why\n", "requirements.txt")
    lines = shelf.read("requirements.txt").input_hash
    shelf.write("# ours\nb\na\n", "requirements.txt")
    assert shelf.read("requirements.txt").input_hash == lines


LOCAL = '[tool.uv.sources]\nhelper = {path = "../helper", editable = true}\n'
MINE = '[project]\nname = "mine"\nversion = "0.1"\ndependencies = ["helper"]\n'
HELPER = '[project]\nname = "helper"\nversion = "1"\ndependencies = ["deep"]\n'


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", MINE.replace("helper", "helper<3") + LOCAL),
        ("pyproject.toml", MINE),
        ("pyproject.toml", MINE + LOCAL + '[tool.uv]\nprerelease = "allow"\n'),
        ("../helper/pyproject.toml", HELPER.replace("deep", "deeper")),
        ("../helper/setup.py", "import setuptools\n"),
    ],
)
def test_what_the_project_or_its_local_package_wants_otherwise_makes_the_lock_out_of_date(shelf, file, text):
    shelf.write(MINE + LOCAL)
    shelf.write(HELPER, "../helper/pyproject.toml")
    before = shelf.read().input_hash

    shelf.write(text, file)

    assert shelf.read().input_hash != before


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml"])
def test_a_wheel_that_was_built_again_makes_the_lock_out_of_date(shelf: Shelf, name: str):
    wheel = shelf.write("one", "dist/x-0.1-py3-none-any.whl")
    shelf.write("./dist/x-0.1-py3-none-any.whl\nnumpy\n", "requirements.txt")
    shelf.pyproject('"x"', '[tool.uv.sources]\nx = {path = "dist/x-0.1-py3-none-any.whl"}\n')
    before = shelf.read(name).input_hash
    assert shelf.read(name).input_hash == before

    wheel.write_text("another")

    assert shelf.read(name).input_hash != before


def test_an_extra_may_name_others_of_its_project(shelf: Shelf):
    extras = '[project.optional-dependencies]\nall = ["Mine[gpu, all]", "x"]\ngpu = ["{}"]\n'
    shelf.pyproject('"base"', extras.format("torch"))
    before = shelf.read("pyproject.toml", "all")
    shelf.pyproject('"base"', extras.format("cupy"))

    assert before.wheel("torch") is not None
    assert shelf.read("pyproject.toml", "all").input_hash != before.input_hash


def test_a_file_with_dynamic_dependencies_makes_the_lock_out_of_date(shelf: Shelf):
    shelf.write(
        '[project]\nname = "mine"\ndynamic = ["dependencies", "optional-dependencies"]\n'
        '[tool.setuptools.dynamic]\ndependencies = {file = ["requirements/base.txt"]}\n'
        'optional-dependencies.gpu = {file = "requirements/gpu.txt"}\n'
    )
    found = set()
    for base, gpu in (("a", "b"), ("a<2", "b"), ("a", "b<2")):
        shelf.write(base, "requirements/base.txt")
        shelf.write(gpu, "requirements/gpu.txt")
        found.add(shelf.read().input_hash)

    assert len(found) == 3


def test_hashes_of_requirements_are_read_for_each_project(shelf: Shelf):
    shelf.write(
        f"A_b==1 --hash=sha256:{'A' * 64} --hash=sha512:ff\nc==2 --hash sha256:{'b' * 64}\n", "requirements.txt"
    )
    project = shelf.read("requirements.txt").project

    assert project.hashes == {"a-b": frozenset(["a" * 64]), "c": frozenset(["b" * 64])}


def test_the_index_of_torch_decides_on_its_build_as_an_index_url_does(shelf: Shelf):
    shelf.pyproject(
        '"torch"', '[[tool.uv.index]]\nname = "cu118"\nurl = "https://m.example/whl/cu118"\nexplicit = true\n'
        '[[tool.uv.index]]\nname = "ours"\nurl = "https://ours.example/simple"\n'
        '[tool.uv.sources]\ntorch = [{index = "cu118", extra = "gpu"}, {index = "ours", extra = "other"}]\n'
        '[project.optional-dependencies]\ngpu = []\nother = []\n',
    )  # fmt: skip

    assert shelf.read("pyproject.toml", "gpu").indexes == ("https://m.example/whl/cu118",)
    assert shelf.read().indexes == ()


def test_a_file_with_other_line_endings_keeps_the_lock(shelf: Shelf):
    def hashes() -> list[str]:
        return [shelf.read(name).input_hash for name in ("pyproject.toml", "uv.lock", "pylock.toml")]

    files = {
        "pyproject.toml": MINE + LOCAL, "../helper/setup.py": "import setuptools\n", "uv.lock": "version = 1\n",
        "pylock.toml": '[[packages]]\nname = "toy"\nversion = "1.0"\n',
    }  # fmt: skip
    for name, text in files.items():
        shelf.write(text, name)
    before = hashes()
    for name, text in files.items():
        (shelf.project / name).write_bytes(text.replace("\n", "\r\n").encode())

    assert hashes() == before


@pytest.mark.parametrize("text", [HELPER.replace('version = "1"', 'version = "2"'), f"{HELPER}description = 'new'\n"])
def test_a_new_version_of_a_local_package_keeps_the_lock(shelf: Shelf, text: str):
    shelf.write(MINE + LOCAL)
    shelf.write(HELPER, "../helper/pyproject.toml")
    before = shelf.read().input_hash

    shelf.write(text, "../helper/pyproject.toml")

    assert shelf.read().input_hash == before


def test_a_local_package_on_another_drive_is_named_by_its_whole_path(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    shelf.write(HELPER, "../helper/pyproject.toml")
    shelf.write(MINE + LOCAL)

    def another_drive(path: str, start: str) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr("os.path.relpath", another_drive)
    assert '"name": "helper"' in shelf.read().wish
