"""Everything on a host is judged by one rule of age and removed in one way."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge import removal


@pytest.mark.parametrize(("age_s", "due"), [(101, True), (99, False), (-1000, False), (None, False)])
def test_what_is_older_than_it_is_kept_is_due_and_what_has_a_date_of_the_future_or_none_is_not(
    age_s: float | None, due: bool
):
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
def test_modes_are_changed_only_where_no_other_user_can_put_a_link_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, changes: int
):
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
