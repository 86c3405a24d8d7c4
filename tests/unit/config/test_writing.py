"""A host is added to clusterfn.yml as text: what was there stays as it was, and what is wrong is refused untouched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from clusterfn.config import config_file, writing
from clusterfn.errors import ConfigError

KEYS = {"address": "ada@tensor01.example.edu:2222", "scheduler": "bare", "root": "~/.clusterfn"}
ADDED = ["  new:", "    address: ada@tensor01.example.edu:2222", "    scheduler: bare", "    root: ~/.clusterfn"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clusterfn.yml"


def add(path: Path, old: str | None, name: str = "new", **more: object) -> str:
    if old is not None:
        path.write_bytes(old.encode())
    writing.write(writing.adding(name, {**KEYS, **more}, path))
    return path.read_bytes().decode()


def test_a_first_host_makes_the_file_and_is_the_default(path):
    text = add(path, None)

    assert text.splitlines()[1:] == ["hosts:", *ADDED, "", "default_host: new"]
    assert config_file.read(path).resolve(None)[0].address == KEYS["address"]


# What is there; the same with {host} where the new lines are to stand.
FILES = {
    "comments": "# b\nhosts:\n  a:  # first\n    scheduler: bare\n    # root: /x\n{host}\n# e\ndefault_host: a # b\n",
    "lists": "default_host: a\nhosts:\n  a:\n    scheduler: bare\n    modules:\n    - x\n    - y # z\n{host}",
    "many lines": "default_host: a\nhosts:\n  a:\n    scheduler: bare\n    setup: |\n      x\n\n      y\n{host}\n",
    "in one line": "hosts:\n  a: {scheduler: bare}\n  b: {scheduler: bare}\n{host}",
}


@pytest.mark.parametrize("name", FILES)
def test_all_that_was_there_stays(path, name):
    old, new = FILES[name].replace("{host}", ""), FILES[name].replace("{host}", "\n".join([*ADDED, ""]))

    assert add(path, old) == new
    assert "new" in config_file.read(path).named


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hosts:\n  a: {scheduler: bare}", "hosts:\n  a: {scheduler: bare}\n"),
        ("# nothing yet\n", "# nothing yet\nhosts:\n"),
        ("default_host: local", "default_host: local\nhosts:\n"),
        ("", "hosts:\n"),
    ],
)
def test_what_the_lines_need_before_them_is_made(path, old, new):
    assert add(path, old).startswith(new + "\n".join([*ADDED, ""]))


@pytest.mark.parametrize("old", [None, "hosts:\n  a: {scheduler: bare}\n"])
def test_what_is_suggested_is_a_comment_and_changes_nothing(path, old):
    if old is not None:
        path.write_text(old)
    writing.write(writing.adding("new", KEYS, path, "defaults: {gpus: 1}  # why"))

    assert "\n    # defaults: {gpus: 1}  # why\n" in path.read_text()
    assert config_file.read(path).hosts["new"].defaults.gpus == 0


def test_lines_end_as_those_of_the_file_do(path):
    text = add(path, "hosts:\r\n  a: {scheduler: bare}\r\n  b: {scheduler: bare}\r\n")

    assert text.count("\n") == text.count("\r\n") == 7


def test_a_deeper_indentation_is_kept_to(path):
    assert "\n      new:\n        address: " in add(path, "hosts:\n      a:\n          scheduler: bare\n")


def test_a_second_host_does_not_take_the_calls_of_the_first(path):
    text = add(path, "hosts:\n  a: {scheduler: bare, address: a.example.edu}\n")

    assert text.endswith("\ndefault_host: a\n")
    assert config_file.read(path).resolve(None)[0].name == "a"


def test_what_yaml_would_take_for_something_else_is_quoted(path):
    add(path, None, name="1e5", root="~/a: b #c", slurm={"account": "no", "partition": {"cpu": "1", "gpu": "g"}},
        scheduler="slurm")  # fmt: skip

    host = config_file.read(path).hosts["1e5"]
    assert host.root == "~/a: b #c"
    assert host.scheduler_options == {"account": "no", "partition": {"cpu": "1", "gpu": "g"}}


@pytest.mark.parametrize(
    ("old", "problem"),
    [
        ("hosts:\n  new: {scheduler: bare}\n", "already has a host new"),
        ("hosts:\n  a: {scheduler: wrong}\n", "wrong"),
        ("hosts: [\n", "not YAML"),
        ("hosts: {a: {scheduler: bare}}\n", "cannot be added"),
        ("hosts:\n  a:\n    scheduler: bare\n...\n", "cannot be added"),
    ],
)
def test_a_file_that_cannot_be_extended_is_refused_and_left(path, old, problem):
    path.write_text(old)

    with pytest.raises(ConfigError, match=problem):
        writing.adding("new", KEYS, path)
    assert path.read_text() == old


def test_keys_that_would_not_be_read_are_refused(path):
    with pytest.raises(ConfigError, match="not an absolute path"):
        writing.adding("new", {**KEYS, "root": "relative"}, path)


def test_a_text_that_would_change_another_host_is_not_written(path, monkeypatch):
    path.write_text("hosts:\n  a: {scheduler: bare, root: /a}\n")
    monkeypatch.setattr(writing, "text_with_host", lambda *_: "hosts: {a: {scheduler: bare}, new: {scheduler: bare}}\n")

    with pytest.raises(ConfigError, match="its other hosts would change") as caught:
        writing.adding("new", KEYS, path)
    assert list(caught.value.evidence) == ADDED


def test_what_is_added_is_reported(path):
    path.write_text("hosts:\n  a: {scheduler: bare}\n  b: {scheduler: bare}\n")

    assert list(writing.adding("new", KEYS, path).added) == ADDED


@pytest.mark.skipif(sys.platform == "win32", reason="modes and links of Unix")
def test_the_mode_and_a_link_stay(path, tmp_path):
    real = tmp_path / "real.yml"
    real.write_text("hosts:\n  a: {scheduler: bare}\n")
    real.chmod(0o600)
    path.symlink_to(real)

    add(path, None)

    assert path.is_symlink() and real.stat().st_mode & 0o777 == 0o600
    assert "new" in config_file.read(real).named


def test_a_folder_that_cannot_be_written_to_keeps_the_file(path, monkeypatch):
    change = writing.adding("new", KEYS, path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no")))

    with pytest.raises(ConfigError, match="cannot be written"):
        writing.write(change)
    assert list(path.parent.iterdir()) == []


def test_the_file_that_would_be_found_is_extended(tmp_path, monkeypatch):
    monkeypatch.delenv("CLUSTERFN_CONFIG")
    (tmp_path / "clusterfn.yml").write_text("hosts:\n  a: {scheduler: bare}\n")
    below = tmp_path / "below" / "deep"
    below.mkdir(parents=True)

    assert writing.place(below) == tmp_path / "clusterfn.yml"
    (tmp_path / "clusterfn.yml").unlink()
    assert writing.place(below) == below / "clusterfn.yml"
