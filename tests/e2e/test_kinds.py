"""Cards by type and size, and what a job sees of them: on a shared server, with SLURM and on this machine."""

from __future__ import annotations

import os

import pytest

from clusterfn import cluster
from tests.bridge import cards as toys

MIXED = (("NVIDIA RTX A1000", 8188), ("NVIDIA RTX A6000", 49140), ("NVIDIA RTX A6000", 49140), ("NVIDIA A100", 81920))


def visible():
    return os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")


def which(item):
    return os.environ["CUDA_VISIBLE_DEVICES"], item


def place():
    return os.environ["SLURMD_NODENAME"], os.environ["CUDA_VISIBLE_DEVICES"]


visible.__module__ = which.__module__ = place.__module__ = "__main__"


@pytest.fixture(scope="module")
def mixed_box(own_box):
    cards = [toys.card(index, *kind) for index, kind in enumerate(MIXED)]
    own_box.cards.write({**own_box.cards.read(), "cards": cards})
    return own_box


@pytest.fixture
def box(mixed_box, lab, hosts, tmp_path, monkeypatch):
    """A machine with several kinds of cards; its name in clusterfn.yml."""
    name = mixed_box.alias("cfbash")
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, names=(name,))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    return name


@pytest.mark.lab
def test_a_call_gets_gpus_of_its_type_and_size(box):
    assert cluster(host=box, gpu_type="a6000", gpu_memory="40GB", gpus=2)(visible)() == ("1,2", "PCI_BUS_ID")


@pytest.mark.lab
def test_a_map_runs_as_many_at_a_time_as_there_are_gpus_of_its_type(box, capsys):
    seen = cluster(host=box, gpus=1, gpu_type="a100")(which).map(range(2)).results()

    assert ": 2 items, 1 at a time" in capsys.readouterr().err
    assert seen == [("3", 0), ("3", 1)]


@pytest.mark.lab
def test_slurms_own_gpus_are_kept_and_counted_as_it_counts(hosts):
    given, order = cluster(host="slurm", gpus=2)(visible)()

    assert len(given.split(",")) == 2
    assert order == "PCI_BUS_ID"
    assert cluster(host="slurm")(visible)() == ("", None)


@pytest.mark.lab
def test_slurm_gives_a_gpu_of_the_type_that_is_asked_for(hosts, lab):
    job = cluster(host="slurm", gpus=2, gpu_type="a6000", name="typed")(place).submit()

    node, given = job.result(150)
    told = lab.slurm.run("scontrol", "--oneliner", "show", "job", "--all").stdout
    (line,) = [line for line in told.splitlines() if f"JobName=typed.{job.id} " in line]
    assert (node, len(given.split(","))) == ("n2", 2), "the one node whose cards have that type"
    assert "TresPerNode=gres:gpu:a6000:2" in line


def test_on_this_machine_cuda_is_hidden_too(here):
    assert cluster(gpus=0)(visible)() == ("", None)
