"""`clusterfn hosts` and `config`: what is set, and where it comes from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from clusterfn.config import keys
from tests.programs import main

FILE = """\
default_host: cluster
hosts:
  tensor01:
    scheduler: bare
    root: /scratch/ada
  cluster:
    address: ada@login.example.edu
    scheduler: slurm
    keep: 7d
    defaults:
      memory: 16GB
    slurm:
      partition: gpu
"""


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "clusterfn.yml"
    path.write_text(FILE)
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    monkeypatch.delenv("CLUSTERFN_HOST", raising=False)
    return path


def test_hosts_are_listed_in_the_order_of_the_file_with_the_default_marked(path, capsys):
    assert main(["hosts"]) == 0
    shown = capsys.readouterr()
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [
        ["tensor01", "tensor01"], ["*", "cluster"], ["local", "this"]
    ]  # fmt: skip
    assert f"{path}:6" in shown.out and "uses cluster: default_host: in" in shown.err
    main(["hosts", "--json"])
    assert [(host["name"], host["default"]) for host in json.loads(capsys.readouterr().out)] == [
        ("tensor01", False), ("cluster", True), ("local", False)
    ]  # fmt: skip
    path.write_text(FILE.replace("default_host: cluster\n", ""))
    assert main(["hosts"]) == 0
    shown = capsys.readouterr()
    assert "*" not in shown.out and "has several hosts and no default_host" in shown.err


def settings(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[object, str]]:
    assert main(["config", *words, "--json"]) == 0
    return {each["setting"]: (each["value"], each["from"]) for each in json.loads(capsys.readouterr().out)}


def test_each_setting_names_its_line_or_is_a_default(path, capsys):
    found = settings(capsys)

    assert found["file"] == (str(path), "$CLUSTERFN_CONFIG")
    assert found["default_host"] == ("cluster", f"{path}:1")
    assert found["host"][0] == "cluster"
    assert found["keep"] == ("7d", f"{path}:9")
    assert found["defaults.memory"] == ("16GB", f"{path}:11")
    assert found["defaults.cores"] == (1, "default")
    assert found["slurm.partition"] == ("gpu", f"{path}:13")
    assert found["root"] == ("~/.clusterfn", "default")
    assert found["address"] == ("ada@login.example.edu", f"{path}:7")


def test_a_host_has_only_the_settings_that_it_obeys_with_units_as_the_file_would_have_them(path, capsys):
    found = settings(capsys, "tensor01")

    durations = ("keep", "poll_floor", "login_ttl", "build_timeout")
    assert [found[key][0] for key in durations] == ["14d", "2s", "8h", "20min"]
    assert (found["queue_timeout"], found["purge_days"]) == ((None, "default"), (None, "default"))
    assert found["root"] == ("/scratch/ada", f"{path}:5")
    assert not [name for name in found if name.startswith("slurm")]
    assert main(["config", "tensor01"]) == 0
    assert re.search(rf"^root +/scratch/ada +{path}:5$", capsys.readouterr().out, re.MULTILINE)


def test_each_default_has_a_name_that_the_file_takes(path, capsys):
    known = {*keys.HOST_KEYS, *(f"defaults.{word}" for word in keys.DEFAULT_KEYS)}

    for host in ("tensor01", "cluster", "local"):
        shown = [name for name, (_, source) in settings(capsys, host).items() if source == "default"]
        assert [name for name in shown if name not in known] == []


def test_without_a_file_the_local_machine_has_its_defaults(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERFN_CONFIG", raising=False)
    monkeypatch.setattr("clusterfn.config.places.find_file", lambda *_: None)

    found = settings(capsys)

    assert found["file"] == (None, "there is no clusterfn.yml")
    assert found["scheduler"] == ("local", "default")
