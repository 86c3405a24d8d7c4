"""A function with a name in other letters, on real hosts: found by it, shown with it, watched by the scheduler's."""

from __future__ import annotations

import unicodedata

import pytest

import clusterfn
from clusterfn import cluster
from tests.e2e.conftest import ON_SLURM
from tests.programs import main

pytestmark = pytest.mark.lab
NAME = "größe_日本"


def größe_日本(x):
    print("länge", x)
    if x < 0:
        raise ValueError(f"{x} ist zu klein")
    return x + 1


@ON_SLURM
def test_a_job_has_the_name_of_its_function_everywhere(hosts, host, capsys, monkeypatch):
    monkeypatch.setattr(größe_日本, "__module__", "__main__")
    job = cluster(host=host)(größe_日本).submit(3)
    failing = cluster(host=host)(größe_日本).with_options(name=unicodedata.normalize("NFD", NAME)).submit(-1)

    assert job.result(150) == 4
    with pytest.raises(ValueError, match="zu klein"):
        failing.result(150)
    assert job.name == failing.name == NAME
    assert {told.name for told in clusterfn.jobs(host) if told.id in (job.id, failing.id)} == {NAME}
    capsys.readouterr()
    for name in (NAME, unicodedata.normalize("NFD", NAME)):
        assert main(["logs", host, name]) == 0
        told = capsys.readouterr()
        assert "länge" in told.out and "2 jobs are named" in told.err
    assert main(["cancel", host, NAME]) == 0
    assert "already ended" in capsys.readouterr().err
