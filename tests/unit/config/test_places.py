"""Where clusterfn.yml is looked for, and whose file is obeyed."""

import os
import re
import sys
import types
from pathlib import Path

import pytest

from clusterfn.calls import attach, history
from clusterfn.config import config_file, places
from clusterfn.errors import ConfigError


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A working directory with nothing above it that could be found, and no other place."""
    monkeypatch.delenv("CLUSTERFN_CONFIG", raising=False)
    monkeypatch.delenv("CLUSTERFN_HOST", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "project" / "deep"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return tmp_path


def write(path, name):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"hosts:\n  {name}: {{scheduler: bare}}\n")
    return path


def test_without_a_file_there_is_local(alone):
    found = config_file.load()
    assert (list(found.hosts), found.path) == (["local"], None)
    assert found.resolve(None) == (config_file.LOCAL, "there is no clusterfn.yml")
    assert (config_file.LOCAL.scheduler, config_file.LOCAL.environment) == ("local", "current")


def test_the_variable_beats_the_working_directory(alone, monkeypatch):
    write(Path("clusterfn.yml"), "here")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(write(alone / "x.yml", "there")))
    assert config_file.load().named == ("there",)


def test_the_nearest_file_upwards_is_read(alone):
    write(alone / "clusterfn.yml", "far")
    write(alone / "xdg" / "clusterfn" / "clusterfn.yml", "user")
    assert config_file.load().path == alone / "clusterfn.yml"
    write(alone / "project" / "clusterfn.yml", "near")
    assert config_file.load().named == ("near",)


def test_the_users_folder_comes_last(alone):
    path = write(alone / "xdg" / "clusterfn" / "clusterfn.yml", "user")
    assert config_file.load().path == path


def test_macos_reads_its_own_folder_too(alone, monkeypatch):
    monkeypatch.setattr(places.sys, "platform", "darwin")
    path = write(alone / "home" / "Library" / "Application Support" / "clusterfn" / "clusterfn.yml", "mac")
    assert config_file.load().path == path


def test_windows_reads_appdata(alone, monkeypatch):
    monkeypatch.setenv("APPDATA", str(alone / "Roaming"))
    path = write(alone / "Roaming" / "clusterfn" / "clusterfn.yml", "win")
    assert config_file.load().path == path


def test_a_variable_that_names_no_file_is_reported(alone, monkeypatch):
    monkeypatch.setenv("CLUSTERFN_CONFIG", "/nonexistent/x.yml")
    with pytest.raises(ConfigError, match=r"\$CLUSTERFN_CONFIG=/nonexistent/x.yml is not a file"):
        config_file.load()


def test_anothers_file_is_not_obeyed_unless_named(alone, monkeypatch):
    path = write(alone / "clusterfn.yml", "evil")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    monkeypatch.setattr(places, "ROOT_UID", -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        config_file.load()
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


def test_a_folder_instead_of_a_file_is_passed_over(alone):
    (alone / "project" / "clusterfn.yml").mkdir()
    assert config_file.load().path is None


def main_of(monkeypatch, path):
    """Let this look like a program that was started with the file; None is a notebook or a prompt."""
    module = types.ModuleType("__main__")
    if path is not None:
        module.__file__ = str(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.setitem(sys.modules, "__main__", module)


def test_the_folder_of_the_running_script_counts_after_the_working_directory(alone, monkeypatch):
    main_of(monkeypatch, alone / "scripts" / "sub" / "train.py")
    write(alone / "xdg" / "clusterfn" / "clusterfn.yml", "user")
    write(alone / "scripts" / "clusterfn.yml", "above")
    assert config_file.load().named == ("above",)
    write(alone / "scripts" / "sub" / "clusterfn.yml", "beside")
    assert config_file.load().named == ("beside",)
    write(alone / "project" / "clusterfn.yml", "cwd")
    assert config_file.load().named == ("cwd",)


def test_a_script_that_is_a_link_counts_where_it_lies(alone, monkeypatch):
    main_of(monkeypatch, alone / "scripts" / "train.py")
    write(alone / "scripts" / "clusterfn.yml", "beside")
    (alone / "bin").mkdir()
    (alone / "bin" / "train").symlink_to(alone / "scripts" / "train.py")
    sys.modules["__main__"].__file__ = str(alone / "bin" / "train")
    assert config_file.load().named == ("beside",)


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


# Elsewhere the file system may not tell capitals apart, and finds the file.
NEARLY = ["clusterfn.yaml", ".clusterfn.yml", *(["Clusterfn.yml"] if sys.platform == "linux" else [])]


@pytest.mark.parametrize("name", NEARLY)
@pytest.mark.parametrize("folder", ["project", "scripts", "xdg/clusterfn"])
def test_a_file_of_nearly_the_right_name_is_reported(alone, monkeypatch, folder, name):
    main_of(monkeypatch, alone / "scripts" / "train.py")
    path = write(alone / folder / name, "wrong")
    with pytest.raises(ConfigError, match=re.escape(f"found {path}: it must be named clusterfn.yml")):
        config_file.load()


def test_a_wrong_name_does_not_matter_beside_a_right_one_or_if_it_is_anothers(alone, monkeypatch):
    path = write(alone / "project" / "clusterfn.yaml", "wrong")
    monkeypatch.setattr(places, "ROOT_UID", -1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        assert config_file.load().path is None
    write(alone / "clusterfn.yml", "right")
    assert config_file.load().named == ("right",)
