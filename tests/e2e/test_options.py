"""Options of one call that change what its host is asked for, and secrets that a host's section names."""

from __future__ import annotations

import json

import pytest

import clusterfn
from clusterfn import ConfigError, cluster
from tests.e2e.conftest import ON_SLURM
from tests.waiting import until

pytestmark = pytest.mark.lab


def partition(item=0):
    import os

    return os.environ["SLURM_JOB_PARTITION"]


def variables(*names):
    import os

    return {name: os.environ.get(name) for name in names}


for each in (partition, variables):
    each.__module__ = "__main__"


def test_a_call_goes_to_the_partition_that_it_names(hosts):
    there = cluster(host="slurm", slurm={"partition": "low", "comment": "mine"})(partition)

    assert "--partition=low" in there.script() and "--comment=mine" in there.script()
    assert there() == "low"
    assert cluster(host="slurm")(partition)() == "short"
    assert there.map(range(2)).results(150) == ["low", "low"]


def test_a_group_that_is_attached_stays_in_its_partition(hosts):
    """A new process knows the option from the group's own files: it submits the elements that are left with it."""
    group = cluster(host="slurm", slurm={"partition": "low"})(partition).map(range(3), max_parallel=1)
    attached = clusterfn.attach(group.id, "slurm")

    assert attached.results(150) == ["low"] * 3


def test_memory_that_a_call_asks_of_slurm_replaces_the_usual_amount(hosts):
    there = cluster(host="slurm", slurm={"mem-per-cpu": "300M"})(partition)

    assert "--mem-per-cpu=300M" in there.script() and "--mem=" not in there.script()
    assert there() == "short"
    with pytest.raises(ConfigError, match="memory= and slurm= both set the memory"):
        there.with_options(memory="1GB").script()
    assert "--mem=" in there.with_options(slurm={}).script()


def test_another_scheduler_refuses_the_options_before_anything_is_sent(hosts):
    before = hosts.jobs()

    with pytest.raises(ConfigError, match="slurm= is for hosts with `scheduler: slurm`, and tensor01 has"):
        cluster(host="tensor01", slurm={"partition": "low"})(partition)()

    assert hosts.jobs() == before
    elsewhere = cluster(host="slurm", slurm={"partition": "low"})(variables).with_options(host="tensor01", slurm={})
    assert elsewhere("NO_SUCH_VARIABLE") == {"NO_SUCH_VARIABLE": None}


def test_a_secret_that_is_not_set_here_is_rejected_before_anything_is_sent(hosts, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    before = hosts.jobs()

    with pytest.raises(ConfigError, match="names a variable, which is not set in this process"):
        cluster(host="tensor01", secrets=["AKIA0123"])(variables)()  # the secret itself
    with pytest.raises(ConfigError, match="HF_TOKEN, which is not set in this process"):
        cluster(host="tensor01", secrets=["HF_TOKEN"])(variables)()

    assert hosts.jobs() == before


@ON_SLURM
def test_what_the_section_of_the_host_names_is_given_to_its_jobs_where_it_is_set(hosts, host, tmp_path, monkeypatch):
    text = hosts.config.read_text()
    mine = tmp_path / "clusterfn.yml"
    mine.write_text(text.replace(f"  {host}:\n", f"  {host}:\n    secrets: [CF_TOKEN, CFLOW_*, CF_UNSET]\n"))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(mine))
    monkeypatch.setenv("CF_TOKEN", "token-of-mine")
    monkeypatch.setenv("CFLOW_URI", "https://flow.example")
    monkeypatch.setenv("CF_TOKEN_2", "not named")
    monkeypatch.setenv("CFLOW_PROJECT", "scratch")
    names = ("CF_TOKEN", "CFLOW_URI", "CF_UNSET", "CF_TOKEN_2", "CFLOW_PROJECT")

    job = cluster(host=host, env={"CFLOW_PROJECT": "mine"})(variables).submit(*names)

    assert job.result(150) == dict(zip(names, ("token-of-mine", "https://flow.example", None, None, "mine")))
    spec = json.loads((hosts.root / "jobs" / job.id / "spec.json").read_text())
    assert spec["secrets"] == ["CF_TOKEN"] and spec["env"]["CFLOW_URI"] == "https://flow.example"
    until(lambda: not list((hosts.root / "jobs" / job.id).rglob("*secret*")))
