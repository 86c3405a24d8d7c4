"""Which clusterfn.yml is found: by the variable, upwards or beside the script; and whose file is obeyed."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from pathlib import Path

import pytest

from clusterfn.calls import attach, history
from clusterfn.config import config_file, places
from clusterfn.errors import ConfigError
from tests.programs import main


def write(path, name):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"hosts:\n  {name}: {{scheduler: bare}}\n")
    return path


def main_of(monkeypatch, path):
    """Let this look like a program that was started with the file; None is a notebook or a prompt."""
    module = types.ModuleType("__main__")
    if path is not None:
        module.__file__ = str(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.setitem(sys.modules, "__main__", module)


@pytest.fixture
def named(capsys):
    """The names of the hosts of the file that is found."""

    def ask() -> list[str]:
        assert main(["hosts", "--json"]) == 0
        return [each["name"] for each in json.loads(capsys.readouterr().out) if each["name"] != "local"]

    return ask


@pytest.fixture
def refusal(capsys):
    """How the command fails."""

    def ask() -> str:
        assert main(["hosts"]) == 2
        return capsys.readouterr().err

    return ask


def test_the_variable_beats_the_working_directory(alone, monkeypatch, named):
    write(Path("clusterfn.yml"), "here")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(write(alone / "x.yml", "there")))
    assert named() == ["there"]


def test_the_nearest_file_upwards_is_read(alone, named):
    write(alone / "clusterfn.yml", "far")
    write(alone / "xdg" / "clusterfn" / "clusterfn.yml", "user")
    assert named() == ["far"]
    write(alone / "project" / "clusterfn.yml", "near")
    assert named() == ["near"]


def test_the_users_folder_comes_last(alone, named):
    write(alone / "xdg" / "clusterfn" / "clusterfn.yml", "user")
    assert named() == ["user"]


def test_windows_reads_appdata(alone, monkeypatch, named):
    monkeypatch.setenv("APPDATA", str(alone / "Roaming"))
    write(alone / "Roaming" / "clusterfn" / "clusterfn.yml", "win")
    assert named() == ["win"]


def test_a_variable_that_names_no_file_is_reported(alone, monkeypatch, refusal):
    monkeypatch.setenv("CLUSTERFN_CONFIG", "/nonexistent/x.yml")
    assert re.search(r"\$CLUSTERFN_CONFIG=/nonexistent/x.yml is not a file", refusal())


def test_a_folder_instead_of_a_file_is_passed_over(alone, named):
    (alone / "project" / "clusterfn.yml").mkdir()
    assert named() == []


def test_the_folder_of_the_running_script_counts_after_the_working_directory(alone, monkeypatch, named):
    main_of(monkeypatch, alone / "scripts" / "sub" / "train.py")
    write(alone / "xdg" / "clusterfn" / "clusterfn.yml", "user")
    write(alone / "scripts" / "clusterfn.yml", "above")
    assert named() == ["above"]
    write(alone / "scripts" / "sub" / "clusterfn.yml", "beside")
    assert named() == ["beside"]
    write(alone / "project" / "clusterfn.yml", "cwd")
    assert named() == ["cwd"]


def test_a_script_that_is_a_link_counts_where_it_lies(alone, monkeypatch, named):
    main_of(monkeypatch, alone / "scripts" / "train.py")
    write(alone / "scripts" / "clusterfn.yml", "beside")
    (alone / "bin").mkdir()
    (alone / "bin" / "train").symlink_to(alone / "scripts" / "train.py")
    sys.modules["__main__"].__file__ = str(alone / "bin" / "train")
    assert named() == ["beside"]


# Elsewhere the file system may not tell capitals apart, and finds the file.
NEARLY = ["clusterfn.yaml", ".clusterfn.yml", *(["Clusterfn.yml"] if sys.platform == "linux" else [])]


@pytest.mark.parametrize("name", NEARLY)
@pytest.mark.parametrize("folder", ["project", "scripts", "xdg/clusterfn"])
def test_a_file_of_nearly_the_right_name_is_reported(alone, monkeypatch, folder, name, refusal):
    main_of(monkeypatch, alone / "scripts" / "train.py")
    path = write(alone / folder / name, "wrong")
    assert f"found {path}: it must be named clusterfn.yml" in refusal()


def test_a_user_without_an_account_and_without_home_learns_to_set_it(alone, monkeypatch, refusal):
    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert "HOME is not set" in refusal()


def test_the_home_of_nobody_in_the_variable_is_rejected(alone, monkeypatch, refusal):
    monkeypatch.setenv("CLUSTERFN_CONFIG", "~no-one/clusterfn.yml")
    assert "this machine has no user no-one" in refusal()


def test_without_a_file_there_is_local(alone):
    found = config_file.load()
    assert (list(found.hosts), found.path) == (["local"], None)
    assert found.resolve(None) == (config_file.LOCAL, "there is no clusterfn.yml")
    assert (config_file.LOCAL.scheduler, config_file.LOCAL.environment) == ("local", "current")


def test_macos_reads_its_own_folder_too(alone, monkeypatch):
    monkeypatch.setattr(places.sys, "platform", "darwin")
    path = write(alone / "home" / "Library" / "Application Support" / "clusterfn" / "clusterfn.yml", "mac")
    assert config_file.load().path == path


def test_anothers_file_is_not_obeyed_unless_named(alone, monkeypatch):
    folder = alone / "my lab"
    path = write(folder / "clusterfn.yml", "evil")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    monkeypatch.setattr(places, "ROOT_UID", -1)
    for find in (config_file.load, lambda: places.find_file(folder, None)):
        with pytest.raises(ConfigError, match="belongs to another user") as caught:
            find()
        assert caught.value.hint == f"to use it anyway, set CLUSTERFN_CONFIG='{path}'"
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    assert config_file.load().named == ("evil",)


def test_the_file_that_a_job_was_sent_with_is_not_obeyed_either_once_it_is_anothers(alone, monkeypatch):
    path = write(alone / "shared" / "clusterfn.yml", "evil")
    monkeypatch.setenv("XDG_STATE_HOME", str(alone / "state"))
    history.remember(types.SimpleNamespace(id="7f3a" * 4, host="evil", name="f"), path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    monkeypatch.setattr(places, "ROOT_UID", -1)

    with pytest.raises(ConfigError, match="belongs to another user, and its lines would run with your permissions"):
        attach.attach("7f3a")


@pytest.mark.parametrize("place", [None, "bin/clusterfn", "lib/site-packages/pytest/__main__.py"])
def test_a_notebook_and_an_installed_command_are_no_script(alone, monkeypatch, place):
    monkeypatch.setattr(places.sysconfig, "get_path", lambda _: str(alone / "env" / "bin"))
    main_of(monkeypatch, alone / "env" / place if place else None)
    write(alone / "env" / "clusterfn.yml", "env")
    assert config_file.load().path is None


def test_a_command_names_the_file_that_it_runs(alone):
    write(alone / "scripts" / "clusterfn.yml", "beside")
    config_file.running(alone / "scripts" / "train.py")
    assert config_file.load().named == ("beside",)


def test_a_wrong_name_does_not_matter_beside_a_right_one_or_if_it_is_anothers(alone, monkeypatch):
    path = write(alone / "project" / "clusterfn.yaml", "wrong")
    monkeypatch.setattr(places, "ROOT_UID", -1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        assert config_file.load().path is None
    write(alone / "clusterfn.yml", "right")
    assert config_file.load().named == ("right",)
