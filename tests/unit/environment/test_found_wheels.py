"""What uv finds in the files of a project: which wheels, whose markers, extras, hashes, locks and passwords count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lock.conftest import sha256
from tests.unit.environment.shelf import HOST, Shelf, locked, where

ARM = replace(HOST, platform="linux-aarch64")


def test_the_newest_version_that_the_hosts_glibc_can_load_is_found(shelf: Shelf):
    shelf.wheel("toy", "1.0", "cp311-cp311-manylinux_2_17_x86_64")
    shelf.wheel("toy", "2.0", "cp311-cp311-manylinux_2_28_x86_64")
    shelf.pyproject('"toy"')

    assert shelf.found(target=replace(HOST, glibc="2.27")) == {"toy": "1.0"}
    assert shelf.found() == {"toy": "2.0"}


def test_extras_and_groups_that_are_named_are_found_and_no_others(shelf: Shelf):
    for name in ("base", "fast", "slow", "tester", "linter"):
        shelf.wheel(name)
    shelf.pyproject(
        '"base"', '[project.optional-dependencies]\ngpu = ["fast"]\ncpu = ["slow"]\n'
        '[dependency-groups]\ndev = ["tester", {include-group = "lint"}]\nlint = ["linter"]\n'
    )  # fmt: skip

    assert set(shelf.found()) == {"base"}
    assert set(shelf.found("pyproject.toml", "gpu")) == {"base", "fast"}
    assert set(shelf.found("pyproject.toml", "cpu", "group:dev")) == {"base", "slow", "tester", "linter"}


LOCAL = '[project]\nname = "helper"\nversion = "0.1"\ndependencies = ["{}"]\n'


def test_the_dependencies_of_a_local_package_are_found_and_it_is_sent_as_source(shelf: Shelf):
    shelf.wheel("deep")
    shelf.write(LOCAL.format("deep"), "libs/helper/pyproject.toml")
    shelf.pyproject('"helper"', '[tool.uv.sources]\nhelper = {path = "libs/helper", editable = true}\n')

    assert shelf.found() == {"deep": "1.0"}
    assert shelf.said == ["helper: clusterfn sends local packages as source"]


def test_a_member_of_a_workspace_has_its_dependencies_found(shelf: Shelf):
    shelf.wheel("deep")
    shelf.write('[tool.uv.workspace]\nmembers = ["*"]\n')
    shelf.write(LOCAL.format("deep"), "helper/pyproject.toml")
    shelf.write(LOCAL.replace("helper", "train").format("helper") + "[tool.uv.sources]\nhelper.workspace = true\n",
                "train/pyproject.toml")  # fmt: skip

    assert shelf.found("train/pyproject.toml") == {"deep": "1.0"}


def test_a_local_package_that_is_not_editable_is_named(shelf: Shelf):
    shelf.wheel("deep")
    shelf.write(LOCAL.format("deep"), "libs/helper/pyproject.toml")
    shelf.pyproject('"helper"', '[tool.uv.sources]\nhelper = {path = "libs/helper"}\n')

    assert shelf.found() == {"deep": "1.0"}
    assert "helper: make it editable" in shelf.said[-1]


def test_hashes_of_requirements_are_compared(shelf: Shelf):
    wheel = shelf.wheel("toy")
    shelf.write(f"toy==1.0 \\\n  --hash=sha256:{'0' * 64} \\\n  --hash=sha256:{sha256(wheel)}\n", "requirements.txt")
    assert shelf.wheels("requirements.txt")[0].sha256 == sha256(wheel)

    shelf.write(f"toy==1.0 --hash=sha256:{'0' * 64}\n", "requirements.txt")
    refused = shelf.refusal("requirements.txt")
    assert refused.message == "requirements.txt: toy 1.0 has another hash than the file allows"
    assert sha256(wheel) in refused.evidence[0]


def test_where_some_have_hashes_all_must(shelf: Shelf):
    wheel = shelf.wheel("toy", requires="deep")
    shelf.wheel("deep")
    shelf.write(f"toy==1.0 --hash=sha256:{sha256(wheel)}\n", "requirements.txt")

    assert shelf.refusal("requirements.txt").message == "requirements.txt has hashes, but none for deep 1.0"


def test_a_line_that_uv_rejects_is_shown_with_its_own_words(shelf: Shelf):
    shelf.pyproject('"toy=>2"')

    refused = shelf.refusal()

    assert refused.message == "pyproject.toml could not be locked: uv rejects it"
    assert "no such comparison operator" in " ".join(refused.evidence)


def test_a_uv_lock_gives_its_own_versions_for_the_host(shelf: Shelf):
    for version in ("1.0", "2.0"):
        shelf.wheel("toy", version, "cp311-cp311-manylinux_2_17_x86_64")
        shelf.wheel("toy", version, "cp311-cp311-manylinux_2_28_x86_64")
        shelf.wheel("toy", version, "cp311-cp311-manylinux_2_17_aarch64")
    shelf.wheel("win")
    shelf.wheel("fast")
    shelf.pyproject(
        '"toy<2", "win; sys_platform == \'win32\'"',
        f'[project.optional-dependencies]\ngpu = ["fast"]\n{shelf.settings}', ">=3.11",
    )  # fmt: skip
    shelf.uv_lock()
    shelf.wheel("toy", "1.5", "cp311-cp311-manylinux_2_17_x86_64")  # after it was locked

    assert shelf.found("uv.lock") == {"toy": "1.0"}
    assert shelf.found("uv.lock", "gpu") == {"toy": "1.0", "fast": "1.0"}
    assert shelf.wheels("uv.lock")[0].url.endswith("manylinux_2_28_x86_64.whl")
    assert shelf.wheels("uv.lock", target=replace(HOST, glibc="2.27"))[0].url.endswith("manylinux_2_17_x86_64.whl")
    assert shelf.wheels("uv.lock", target=ARM)[0].url.endswith("aarch64.whl")


def test_a_uv_lock_that_is_out_of_date_is_refused(shelf: Shelf):
    shelf.wheel("toy")
    shelf.wheel("more")
    shelf.pyproject('"toy"', shelf.settings)
    shelf.uv_lock()
    shelf.pyproject('"toy", "more"', shelf.settings)

    refused = shelf.refusal("uv.lock")

    assert refused.message == "uv.lock is out of date: pyproject.toml has changed since"
    assert refused.hint == f"run `uv lock` in {shelf.project}"


def test_a_uv_lock_for_a_newer_python_than_this_one_is_used_and_the_missing_check_is_said(shelf: Shelf, monkeypatch):
    shelf.wheel("toy")
    text = shelf.pyproject('"toy"', shelf.settings).read_text()
    shelf.uv_lock()
    newer = shelf.project / "uv.lock"
    shelf.write(text.replace(">=3.9", ">=3.99"))
    newer.write_text(newer.read_text().replace(">=3.9", ">=3.99"))

    assert shelf.found("uv.lock", python="3.99") == {"toy": "1.0"}
    assert "uv.lock may be out of date, uv cannot check it here" in shelf.said[0]


def test_a_pylock_is_read_without_asking_its_server(shelf: Shelf):
    near = shelf.wheel("near", "3.0")
    archive = f'archive = {{path = "../wheels/{near.name}", hashes = {{sha256 = "{"a" * 64}"}}}}'
    shelf.pylock(
        locked("toy", server="ada:sekret@files", more=where("sys_platform == 'linux'")),
        locked("win", more=where("sys_platform == 'win32'")),
        f'[[packages]]\nname = "near"\n{archive}\n',
        '[[packages]]\nname = "mine"\ndirectory = {path = ".", editable = true}\n',
    )

    near_found, toy = shelf.wheels("pylock.toml")

    assert (toy.url, toy.sha256) == ("https://files.invalid/toy-1.0-py3-none-any.whl", "a" * 64)
    assert (near_found.name, near_found.version, near_found.url) == ("near", "3.0", near.as_uri())


@pytest.mark.parametrize(("python", "server"), [("3.10", "a"), ("3.11", "b")])
def test_of_one_version_from_two_indexes_a_lock_gives_the_file_whose_marker_holds(shelf, python, server):
    older = where("python_full_version < '3.11'")
    newer = older.replace("<", ">=")
    shelf.pylock(
        locked("toy", sha256="a" * 64, server="a", more=older), locked("toy", sha256="b" * 64, server="b", more=newer)
    )

    (toy,) = shelf.wheels("pylock.toml", python=python)

    assert (toy.url, toy.sha256) == (f"https://{server}.invalid/toy-1.0-py3-none-any.whl", server * 64)


def test_variables_of_uv_that_narrow_the_choice_do_not_count(shelf: Shelf, monkeypatch):
    shelf.wheel("toy", "2.0")
    limit = shelf.write("toy<2\n", "limit.txt")
    for name in ("UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE"):
        monkeypatch.setenv(name, str(limit))
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2001-01-01")
    monkeypatch.setenv("UV_WORKING_DIR", str(shelf.folder))
    shelf.pyproject('"toy"')
    shelf.pylock(locked("toy"))

    assert shelf.found() == {"toy": "2.0"}
    assert shelf.found("pylock.toml") == {"toy": "1.0"}


def test_a_repository_of_another_kind_than_git_in_a_pylock_is_refused_by_name(shelf: Shelf):
    shelf.write('[[packages]]\nname = "x"\nvcs = {type = "hg", url = "https://ada:sekret@e.org/x"}\n', "pylock.toml")
    assert "https://***@e.org/x is no commit of a git repository" in shelf.refusal("pylock.toml").message


DYNAMIC = """\
[project]
name = "{0}"
version = "0.1"
dynamic = ["dependencies"]
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """\
import pathlib
METADATA = "Metadata-Version: 2.1\\nName: {0}\\nVersion: 0.1\\nRequires-Dist: deep\\n"
def prepare_metadata_for_build_wheel(folder, settings=None):
    place = pathlib.Path(folder, "{0}-0.1.dist-info")
    place.mkdir()
    (place / "METADATA").write_text(METADATA)
    return place.name
prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel
"""


def test_a_project_whose_build_backend_knows_its_dependencies_is_asked_for_them(shelf: Shelf):
    shelf.wheel("deep")
    shelf.write(DYNAMIC.format("mine"))
    shelf.write(BACKEND.format("mine"), "backend.py")

    assert shelf.found() == {"deep": "1.0"}


def test_an_editable_line_may_name_such_a_project(shelf: Shelf):
    shelf.wheel("deep")
    shelf.write(DYNAMIC.format("helper"), "helper/pyproject.toml")
    shelf.write(BACKEND.format("helper"), "helper/backend.py")
    shelf.write("-e ./helper\n", "requirements.txt")

    assert shelf.found("requirements.txt") == {"deep": "1.0"}
