"""Parts of the builder: its locks, what it clears away, needs and links, and what it says of a failed build."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fcntl", reason="of hosts, which are Unix")

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
        shutil.rmtree(tmp_path / "builds")

        until(lambda: len(list((tmp_path / "builds" / ".beats").glob("*"))) == 2)

        assert first.take() and not second.take() and first.is_mine()


def test_a_link_that_leads_nowhere_goes_unless_its_builder_renews_what_it_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
