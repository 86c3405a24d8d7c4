"""Who could replace what lies at a path: real folders, owners and links."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("fcntl")

import grp
import pwd

from clusterfn.bridge.agent import trusted
from clusterfn.bridge.agent.trusted import Trusted

BOB, LAB = 64_001, 64_002  # nobody has these numbers


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Make a folder below another with an owner, a group and a mode."""
    if os.geteuid() != 0:
        pytest.skip("needs root: folders get other owners")

    def make(name: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Path:
        path = tmp_path / name
        path.mkdir()
        os.chown(path, uid, gid)
        path.chmod(mode)
        return path

    return make


def objection(path: Path, *owners: str) -> str:
    found = Trusted(owners).objection(str(path))
    return "" if found is None else " ".join(found)


def test_a_root_in_a_folder_of_its_own_is_fine_and_one_that_does_not_exist_yet(folder):
    home = folder("home", 0o700)

    assert objection(home / "root") == ""
    assert objection(home / "a" / "b") == ""


def test_a_folder_above_that_everybody_may_write_to_is_named_unless_it_is_sticky(folder):
    scratch, sticky = folder("scratch", 0o777), folder("sticky", 0o1777)

    assert objection(scratch / "mine" / "root") == f"{scratch} everybody may write to it"
    assert objection(sticky / "root") == ""
    assert "everybody may write" in objection(sticky)  # it is no root itself


def test_a_folder_above_that_belongs_to_another_user_is_named_also_in_a_sticky_one(folder):
    sticky, theirs = folder("sticky", 0o1777), folder("sticky/bob", 0o755, BOB)

    assert objection(theirs / "root") == f"{theirs} it belongs to the user with id {BOB}"
    assert objection(theirs / "root", str(BOB)) == ""
    assert sticky.exists()


def test_a_folder_that_a_group_may_write_to_is_named_unless_nobody_else_is_in_it_or_it_is_trusted(folder, monkeypatch):
    shared, own = folder("shared", 0o2770, 0, LAB), folder("own", 0o770, 0, 0)

    assert objection(shared / "root") == f"{shared} the group {LAB} may write to it"
    assert objection(own / "root") == ""
    monkeypatch.setattr(grp, "getgrnam", lambda name: SimpleNamespace(gr_gid=LAB, gr_mem=["eve"]))
    assert objection(shared / "root", "lab") == ""
    assert Trusted(["lab"]).owns(os.stat(folder("shared/colleague", 0o770, BOB, LAB)))


def test_a_folder_between_the_root_and_a_file_is_named_unless_a_function_works_in_it(folder):
    root, shared, work = folder("root", 0o777), folder("root/shared", 0o777), folder("root/work")
    theirs, of_work = folder("root/bob", 0o755, BOB), folder("root/work/bob", 0o777, BOB)

    paths = (root, work, of_work, shared, theirs)
    *fine, everybodys, bobs = (Trusted(()).objection_below(str(root), str(path / "file")) for path in paths)
    assert fine == [None] * 3
    assert everybodys == (str(shared), "everybody may write to it")
    assert bobs == (str(theirs), f"it belongs to the user with id {BOB}")


def test_the_way_of_a_link_is_looked_at_on_both_sides(folder, tmp_path):
    safe, scratch = folder("safe"), folder("scratch", 0o777)
    (safe / "out").symlink_to("../scratch/../scratch")
    (scratch / "back").symlink_to(safe)

    assert objection(safe / "out" / "root").startswith(str(scratch))
    assert objection(scratch / "back").startswith(str(scratch))


def test_what_comes_after_a_link_is_looked_at_too(folder):
    safe, inner, theirs = folder("safe"), folder("safe/inner"), folder("safe/inner/bob", 0o755, BOB)
    (safe / "link").symlink_to(inner.name)

    assert objection(safe / "link" / "bob" / "root") == f"{theirs} it belongs to the user with id {BOB}"


def test_a_group_of_the_users_own_name_is_private_only_without_other_members(monkeypatch):
    members = ["bob"]
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="bob" if uid == BOB else "root"))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_gid=gid, gr_mem=[]))
    monkeypatch.setattr(grp, "getgrnam", lambda name: SimpleNamespace(gr_gid=LAB, gr_mem=members))

    assert trusted.private_groups(BOB) == {0, LAB}
    members.append("eve")
    assert trusted.private_groups(BOB) == {0}


def test_links_without_end_and_files_on_the_way_are_named(folder):
    safe = folder("safe")
    (safe / "loop").symlink_to("loop")
    (safe / "file").write_text("")

    assert "it is not a folder" in objection(safe / "loop" / "root")
    assert objection(safe / "file") == f"{safe / 'file'} it is not a folder"


def test_in_a_container_that_maps_one_user_the_files_of_root_are_nobodys(folder, monkeypatch):
    theirs = folder("theirs", 0o755, 65_534)
    monkeypatch.setattr(trusted, "read_text", lambda path: "1000 0 1" if path.endswith("uid_map") else "65534")

    assert objection(theirs / "root") == ""
