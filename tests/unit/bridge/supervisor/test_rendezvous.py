"""The port on which the nodes of a job meet: free, and not one that the kernel gives away meanwhile."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("fcntl", reason="of hosts, which are Unix")

from clusterfn.bridge.schedulers.slurm import SlurmOnHost
from clusterfn.bridge.supervisor import rendezvous


@pytest.mark.parametrize("given_out", [(32768, 60999), (20000, 65535), (10000, 40000)])
def test_the_port_is_outside_those_of_outgoing_connections(monkeypatch, given_out):
    monkeypatch.setattr(rendezvous, "ephemeral_ports", lambda: given_out)

    assert not any(given_out[0] <= rendezvous.free_port() <= given_out[1] for _ in range(20))


def test_a_port_in_use_is_passed_over(monkeypatch):
    free = rendezvous.free_port()
    with socket.socket() as taken:
        taken.bind(("", 0))
        monkeypatch.setattr(rendezvous, "ports_outside", lambda *_: [free, taken.getsockname()[1]])

        assert {rendezvous.free_port() for _ in range(20)} == {free}


def test_two_jobs_of_one_moment_choose_different_ports():
    assert len({rendezvous.free_port() for _ in range(5)}) > 1


def test_a_name_that_nobody_resolves_gives_way_to_the_address_of_slurm(monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "no-such-node.invalid")
    monkeypatch.setattr(SlurmOnHost, "node_address", lambda self, name: "10.1.2.3")

    assert rendezvous.place(SlurmOnHost())["MASTER_ADDR"] == "10.1.2.3"
    monkeypatch.setenv("SLURMD_NODENAME", "localhost")
    assert rendezvous.place(SlurmOnHost())["MASTER_ADDR"] == "localhost"


def test_each_task_finds_its_place_on_its_node():
    """srun tells a step its own numbers, and frameworks compare them with the job's."""
    told = rendezvous.variables(SlurmOnHost(), 5, 2, 4)

    assert (told["RANK"], told["LOCAL_RANK"], told["NODE_RANK"]) == ("5", "1", "1")
    assert (told["WORLD_SIZE"], told["LOCAL_WORLD_SIZE"], told["GROUP_WORLD_SIZE"]) == ("8", "4", "2")
    assert (told["SLURM_PROCID"], told["SLURM_LOCALID"], told["SLURM_NODEID"]) == ("5", "1", "1")
    assert (told["SLURM_NTASKS"], told["SLURM_NPROCS"]) == ("8", "8")
    assert (told["SLURM_NNODES"], told["SLURM_NTASKS_PER_NODE"]) == ("2", "4")


@pytest.mark.parametrize(("tasks", "number", "rank"), [(1, "0", 1), (4, "0", 0), (4, "5", 5)])
def test_the_step_counts_all_tasks_or_those_of_the_other_nodes(monkeypatch, tasks, number, rank):
    monkeypatch.setenv("SLURM_PROCID", number)
    assert SlurmOnHost().rank(tasks) == rank
