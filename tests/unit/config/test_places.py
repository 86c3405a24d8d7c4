"""Where clusterfn.yml is looked for, and whose file is obeyed."""

import os
import types

import pytest

from clusterfn.calls import attach, history
from clusterfn.config import config_file, places
from clusterfn.errors import ConfigError
from tests.unit.config.test_found_file import main_of, write


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
