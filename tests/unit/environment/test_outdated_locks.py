"""What of a project makes its lock out of date, and what does not."""

from __future__ import annotations

import pytest

from tests.unit.environment.shelf import Shelf

EXTRAS = '[project.optional-dependencies]\ngpu = ["fast"]\nMy_Extra = ["slow"]\n'


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
def test_what_the_project_or_its_local_package_wants_otherwise_makes_the_lock_out_of_date(
    shelf: Shelf, file: str, text: str
):
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
