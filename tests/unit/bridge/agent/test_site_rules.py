"""/etc/clusterfn.yml: what an administrator writes, what bridge and client make of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from clusterfn.bridge import layout
from clusterfn.bridge.agent import site_rules
from clusterfn.bridge.queue.machine import UserLimits, limits_of
from clusterfn.config.spec import Host, Limits, Resources
from clusterfn.errors import Unsatisfiable
from clusterfn.hosts import host_capacity as on_client
from tests.fakes.job_spec import lay_job

TEXT = """\
# for everybody
defaults:
  memory: 8GB      # of a job that asks for none
  time: "12h"

limits:
  gpus: 2
  cores: 16
  memory: 64GB
  jobs: 8
  time: 2d
"""
SPEC = {"limits": {"gpus": 4, "cores": None, "memory_bytes": None, "jobs": 3}, "scheduler": "bare",
        "resources": {"cores": 1, "gpus": 0, "memory_bytes": None, "time_s": None}}  # fmt: skip
HOST = Host("box", "box", "bare", "clusterfn.yml:2")


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    """The file of an administrator, who is this user."""
    path = tmp_path / "clusterfn.yml"
    path.write_text(TEXT)
    path.chmod(0o644)
    monkeypatch.setattr(site_rules, "PATH", str(path))
    monkeypatch.setattr("clusterfn.bridge.layout.SITE_RULES", str(path))
    monkeypatch.setattr(site_rules, "OWNER", os.getuid())
    return path


def rules_of(text: str) -> on_client.SiteRules:
    return on_client.read_site_rules(json.dumps(site_rules.parse(text)))


def test_the_file_is_read_as_yaml_would_read_it(file):
    told = site_rules.read_rules()

    assert told["trouble"] == []
    assert told["defaults"] == {"memory_bytes": 8 * 2**30, "time_s": 43200.0}
    assert told["limits"] == {
        "gpus": 2, "cores": 16, "memory_bytes": 64 * 2**30, "jobs": 8, "time_s": 172800.0,
    }  # fmt: skip
    written = yaml.safe_load(TEXT)
    assert {key: set(each) for key, each in written.items()} == {
        "defaults": {"memory", "time"}, "limits": {"gpus", "cores", "memory", "jobs", "time"},
    }  # fmt: skip


def test_without_a_file_nothing_changes(file):
    file.unlink()

    assert site_rules.read_rules() == {} and site_rules.obeyed(SPEC, {}) is SPEC


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_could_have_written_is_ignored_and_says_so(file, mode):
    file.chmod(mode)
    told = site_rules.read_rules()

    assert told["limits"] == told["defaults"] == {} and "must belong to root" in told["trouble"][0]


def test_a_file_of_another_user_is_ignored(file, monkeypatch):
    monkeypatch.setattr(site_rules, "OWNER", os.getuid() + 1)
    assert "must belong to root" in site_rules.read_rules()["trouble"][0]


WRONG = ["  gpu: 2", "  gpus: two", "  gpus: -1", "  memory: 8", "  time: 2 days", "  jobs: 0", "gpus: 2", "  gpus:2"]


@pytest.mark.parametrize("line", WRONG)
def test_a_line_that_cannot_be_obeyed_is_named_and_the_others_hold(line):
    told = site_rules.parse(f"limits:\n  cores: 4\n{line}\n")

    assert told["limits"] == {"cores": 4}
    assert len(told["trouble"]) == 1 and told["trouble"][0].startswith("line 3:") and line.strip() in told["trouble"][0]


def test_a_job_gets_no_wider_limits_whatever_its_client_says(file):
    spec = site_rules.obeyed(SPEC, site_rules.read_rules())

    assert limits_of(spec) == UserLimits(2, 16, 64 << 10, 3)
    assert spec["resources"] == {"cores": 1, "gpus": 0, "memory_bytes": 8 * 2**30, "time_s": 43200.0}
    longer = {**SPEC, "resources": {**SPEC["resources"], "time_s": 1e9, "memory_bytes": 5}}
    assert site_rules.obeyed(longer, site_rules.read_rules())["resources"]["time_s"] == 172800.0
    assert SPEC["resources"]["time_s"] is None


def test_a_job_that_the_supervisor_opens_obeys_the_file(file, tmp_path):
    from clusterfn.bridge.supervisor.job import JobFolder

    of_slurm = {**SPEC, "scheduler": "slurm"}  # which has limits of its own

    times = [JobFolder(str(lay_job(tmp_path, job, **spec))).spec["resources"]["time_s"]
             for job, spec in (("7f3a" * 4, SPEC), ("90aa" * 4, of_slurm))]  # fmt: skip
    assert times == [43200.0, None]


def test_the_client_narrows_the_limits_and_the_defaults_of_the_host():
    rules = rules_of(TEXT)
    host = rules.limit(Host("box", "box", "bare", "", limits=Limits(gpus=1, jobs=20)))

    assert host.limits == Limits(gpus=1, cores=16, memory_bytes=64 * 2**30, jobs=8)
    assert (host.defaults.memory_bytes, host.defaults.time_s) == (8 * 2**30, 43200.0)
    assert rules.limit(Host("box", "box", "bare", "", defaults=Resources(time_s=60.0))).defaults.time_s == 60.0
    assert rules.in_words() == ["gpus: 2", "cores: 16", "memory: 64GB", "jobs: 8", "time: 2d"]


def test_a_job_without_a_time_gets_the_longest_and_one_that_asks_for_more_is_rejected():
    rules = rules_of("limits:\n  time: 2h\n")

    assert rules.limit_time(Resources(), "box").time_s == 7200.0
    assert rules.limit_time(Resources(time_s=60.0), "box").time_s == 60.0
    with pytest.raises(Unsatisfiable, match="is more than a job on box may take") as caught:
        rules.limit_time(Resources(time_s=7201.0), "box")
    assert caught.value.evidence == ("the administrator has set it in /etc/clusterfn.yml on box",)


@pytest.mark.parametrize(
    "told", ["{", "[]", "{}", '{"limits": {"gpus": "2"}, "defaults": {}, "trouble": []}',
             '{"limits": {"gpus": true}, "defaults": {}, "trouble": []}',
             '{"limits": {"time_s": -1}, "defaults": {}, "trouble": []}', "[" * 100_000]
)  # fmt: skip
def test_a_host_that_tells_nonsense_limits_nothing_and_is_named_by_check(told):
    rules = on_client.read_site_rules(told)

    assert rules.limits == Limits() and rules.trouble


def test_a_supervisor_looks_for_the_file_that_is_read():
    assert layout.SITE_RULES == site_rules.PATH


@pytest.mark.parametrize(
    ("text", "memory"), [("limits:\n  memory: 4GB\n", 4), ("limits:\n  memory: 4GB\ndefaults:\n  memory: 2GB\n", 2)]
)
def test_a_call_that_asks_for_no_memory_gets_the_default_of_the_file_else_its_limit(text, memory):
    assert rules_of(text).limit(HOST).defaults.memory_bytes == memory << 30
