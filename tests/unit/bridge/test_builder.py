"""The builder's parts, and what is removed from a host, by one rule of age."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fcntl", reason="of hosts, which are Unix")

from clusterfn.bridge import removal
from clusterfn.bridge.builder import cleanup, locks
from clusterfn.bridge.builder.link import WRITE, Layout, Linker, TargetFile
from clusterfn.bridge.builder.locks import FolderLock, LockHolder
from clusterfn.bridge.builder.plan import parse_package
from clusterfn.bridge.builder.progress import BuildFailed
from clusterfn.bridge.builder.wheel_builds import advice
from tests.waiting import until


def test_a_lock_is_free_once_it_is_released_though_its_holder_lives(tmp_path: Path):
    with LockHolder(str(tmp_path)) as one, LockHolder(str(tmp_path)) as other:
        first, second = (FolderLock(str(tmp_path / "lock"), each) for each in (one, other))
        assert first.take() and not second.take()

        first.release()

        assert second.take() and not first.is_mine()


def test_a_lock_that_another_builder_has_taken_meanwhile_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, publish = tmp_path / "lock", locks.publish.publish

    def overtaken(*file: Any, **how: Any) -> bool:
        (folder / "7").write_text("another")
        return publish(*file, **how)

    with LockHolder(str(tmp_path)) as holder:
        with monkeypatch.context() as patched:
            patched.setattr(locks.publish, "publish", overtaken)
            assert not FolderLock(str(folder), holder).take()
        assert [path.name for path in folder.iterdir()] == ["7"]


def test_builders_whose_heartbeats_were_removed_take_no_turns_for_ever(tmp_path: Path):
    with LockHolder(str(tmp_path)) as one, LockHolder(str(tmp_path)) as other:
        first, second = (FolderLock(str(tmp_path / "builds" / "lock"), each) for each in (one, other))
        assert first.take()
        while (tmp_path / "builds").exists():  # a heartbeat may come meanwhile
            shutil.rmtree(tmp_path / "builds", ignore_errors=True)

        until(lambda: len(list((tmp_path / "builds" / ".beats").glob("[!.]*"))) == 2)  # the whole ones

        assert first.take() and not second.take() and first.is_mine()


def test_a_link_that_leads_nowhere_goes_unless_its_builder_renews_what_it_leads_to(tmp_path, monkeypatch):
    envs, rename = tmp_path / "envs", os.rename
    envs.mkdir()
    for name in ("dead", "renewed"):
        (envs / name).symlink_to(f".{name}-cafe0001")

    def renewed_first(source: str, target: str) -> None:
        if source == str(envs / "renewed"):
            (envs / ".renewed-cafe0001").mkdir()
        rename(source, target)

    monkeypatch.setattr(os, "rename", renewed_first)
    with LockHolder(str(tmp_path)) as me:
        cleanup.sweep_leftovers(str(tmp_path), me)

    assert sorted(os.listdir(envs)) == [".renewed-cafe0001", "renewed"]


def test_no_folder_is_made_outside_of_an_environment(tmp_path: Path):
    """Neither where a package says that modules lie there, nor by way of a link."""
    (tmp_path / "prefix").mkdir()
    (tmp_path / "prefix" / "lib").symlink_to(tmp_path)
    layout = Layout(str(tmp_path / "prefix"), (3, 11), "../modules")

    with pytest.raises(BuildFailed, match="outside the environment"):
        layout.add(TargetFile(f"{layout.site}/one.py", WRITE, ""))
    with pytest.raises(BuildFailed, match="by way of a link"):
        Linker(str(tmp_path / "prefix"), str(tmp_path / "prefix")).make([TargetFile("lib/deep/one.py", WRITE, "")])

    assert os.listdir(tmp_path) == ["prefix"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("quick.c:2:10: fatal error: Python.h: No such file or directory", "has no headers"),
        ("src/x.c:1:10: fatal error: H5public.h: No such file or directory", "the header H5public.h is missing"),
        ("OSError: CUDA_HOME environment variable is not set.", "modules: [cuda]"),
        ("error: command 'gcc' failed: No such file or directory", "C and C++ compiler"),
        ("CMake Error: CMAKE_CXX_COMPILER not set, after EnableLanguage", "C and C++ compiler"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'swig'", "it needs swig"),
        ("/bin/sh: cmake: command not found", "it needs cmake"),
        ("error: can't find Rust compiler; cargo is not installed", "it needs Rust"),
        ("ModuleNotFoundError: No module named 'torch'", "its setup.py needs torch"),
        ("cc1plus: fatal error: /x.s: No space left on device", "make room there"),
        ("SyntaxError: invalid syntax", "pip wheel --no-deps toy==1.0 -w wheels"),
    ],
)
def test_what_a_failed_build_says_decides_what_to_do(line: str, what: str):
    wheel = {"name": "toy", "version": "1.0", "file": "toy-1.0-built.whl", "sha256": "0" * 64}

    assert what in advice([line], parse_package(wheel))


@pytest.mark.parametrize(("age_s", "due"), [(101, True), (99, False), (-1000, False), (None, False)])
def test_what_is_older_than_it_is_kept_is_due_and_what_has_a_date_of_the_future_or_none_is_not(age_s, due):
    now = time.time()

    assert removal.is_due(None if age_s is None else now - age_s, 100.0, now) is due
    assert not removal.is_due(0.0, 100.0, 100.0)


def test_what_is_needed_after_all_is_back_in_its_place(tmp_path: Path):
    tree = tmp_path / "tree"
    tree.mkdir()
    seen = []

    def is_needed(aside: str) -> bool:
        seen.append((tree.exists(), os.path.isdir(aside)))
        return True

    assert removal.move_aside(str(tree), "0a1b2c3d", is_needed) == ""
    assert seen == [(False, True)] and os.listdir(tmp_path) == ["tree"]


def test_what_was_sent_again_meanwhile_takes_the_place_of_what_is_needed(tmp_path: Path):
    tree = tmp_path / "tree"
    tree.mkdir()

    def sent_again(_: str) -> bool:
        tree.mkdir()
        return True

    moved = removal.move_aside(str(tree), "0a1b2c3d", sent_again)

    assert moved == str(tmp_path / ".expired-tree-0a1b2c3d") and tree.exists()


def test_all_goes_but_what_cannot_be_removed_and_the_error_names_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tree, unlink = tmp_path / "tree", os.unlink
    for name in "abc":
        (tree / name).mkdir(parents=True)
        (tree / name / "file").touch()

    def refuse_one(name: str, **how: Any) -> None:
        if os.path.samestat(os.stat(name, **how), os.stat(tree / "b" / "file")):
            raise PermissionError(13, "Permission denied", name)
        unlink(name, **how)

    monkeypatch.setattr(os, "unlink", refuse_one)
    with pytest.raises(PermissionError):
        removal.remove(str(tree))

    assert os.listdir(tree) == ["b"]


@pytest.mark.parametrize(("mode", "changes"), [(0o750, 2), (0o770, 0)])
def test_modes_are_changed_only_where_no_other_user_can_put_a_link_in_the_way(tmp_path, monkeypatch, mode, changes):
    (tmp_path / "tree" / "inside").mkdir(parents=True)
    tmp_path.chmod(mode)
    changed: list[str] = []

    with monkeypatch.context() as patch:
        patch.setattr(os, "chmod", lambda path, _: changed.append(path))
        removal.remove(str(tmp_path / "tree"))

    assert len(changed) == changes and os.listdir(tmp_path) == []


def test_a_planted_link_is_removed_and_not_followed(tmp_path: Path):
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o500)
    (tmp_path / "tree").mkdir()
    for link in (tmp_path / ".expired-x", tmp_path / "tree" / "inside"):
        link.symlink_to(theirs)

    removal.sweep(str(tmp_path), lambda path: ".expired-" in path)
    removal.remove(str(tmp_path / "tree"))

    assert os.listdir(tmp_path) == ["theirs"] and theirs.stat().st_mode & 0o777 == 0o500
