"""What a supervisor on another node says of its end, what its launch leaves, and which ends `requeue=` names."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fcntl", reason="of hosts, which are Unix")

from clusterfn.bridge.layout import LOST, PREEMPTED, RAISED, TIME
from clusterfn.bridge.schedulers.slurm import SlurmOnHost
from clusterfn.bridge.supervisor import rendezvous, retries
from clusterfn.bridge.supervisor.nodes import NodeAttempt, Others
from clusterfn.bridge.supervisor.verdict import EXIT_LEFT_TO_AFTER, Verdict


@pytest.mark.parametrize("asked", [True, False])
def test_a_job_that_was_asked_to_end_on_another_node_is_not_retried_and_may_be_requeued(tmp_path, asked: bool):
    job: Any = SimpleNamespace(
        id="7f3a", shared=SimpleNamespace(number=1), nodes=str(tmp_path / "nodes"), rank=1, tasks=(2, 1), node="n02",
        scheduler=SimpleNamespace(has_nodes=True), spec={"requeue": {retries.PREEMPTION: 3}},
    )  # fmt: skip
    first: Any = SimpleNamespace(number=1, path=lambda name: str(tmp_path / name), words_of_tasks=list)
    others = Others(job, first, [])
    others.ranks = [1]

    NodeAttempt(job).publish(Verdict(LOST, "ended by SIGTERM", stage="supervisor", node="n02", asked=asked))
    failed = others.failure()

    assert failed is not None and "n02" in failed.message
    assert retries.passes(failed) is not asked
    assert retries.cause_of(job, failed) == (retries.PREEMPTION if asked else "")


# Its helper is `sleep` before it ends: a process that has just been forked still has its parent's name.
LAUNCHER_THAT_ENDS_FIRST = """
import os, sys, time
from types import SimpleNamespace
from clusterfn.bridge.agent import libc
from clusterfn.bridge.supervisor import nodes, process_tree

HELPED = "sleep 150 & until grep -q sleep /proc/$!/comm; do :; done"
folder = sys.argv[1]
libc.become_subreaper()
launches = SimpleNamespace(launch_command=lambda *_: ["sh", "-c", HELPED])
job = SimpleNamespace(folder=folder, spec={"resources": {"cores": 1}, "bridge": folder}, scheduler=launches)
attempt = SimpleNamespace(number=1, words_of_tasks=list, path=lambda name: os.path.join(folder, name))
others = nodes.Others(job, attempt, [])
others.start(1, 2)
os.waitpid(others.launcher_pid, 0)
print(*map(process_tree.name_of, others.processes()))
process_tree.end(lambda: sorted(others.processes()), lambda: None)
print(others.processes())
"""


def test_what_a_launcher_leaves_for_a_moment_is_not_left_behind_by_the_function(tmp_path: Path):
    """Srun has a helper process, which ends after it."""
    said = subprocess.run(
        [sys.executable, "-c", LAUNCHER_THAT_ENDS_FIRST, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
    )  # fmt: skip

    helper, left = said.stdout.splitlines()
    assert helper.startswith("sleep ") and len(helper.split(" (")) == 2
    assert left == "set()"


ASKED, UNEXPLAINED = Verdict(LOST, asked=True), Verdict(None, exit_status=EXIT_LEFT_TO_AFTER)


@pytest.mark.parametrize(
    ("verdict", "on_node", "without_scheduler"),
    [
        (Verdict(TIME), "timeout", "timeout"),
        (Verdict(PREEMPTED), "preempted", "preempted"),
        (ASKED, "preempted", "node"),
        (UNEXPLAINED, "", "node"),
        (Verdict(RAISED), "", ""),
    ],
)
def test_each_cause_counts_where_it_can_be_known(verdict: Verdict, on_node: str, without_scheduler: str):
    for has_nodes, cause in ((True, on_node), (False, without_scheduler)):
        job: Any = SimpleNamespace(scheduler=SimpleNamespace(has_nodes=has_nodes))
        job.spec = {"requeue": {"timeout": 1, "preempted": 1, "node": 1}}
        assert retries.cause_of(job, verdict) == cause
        job.spec = {"requeue": None}
        assert retries.cause_of(job, verdict) == ""


def test_a_job_that_was_requeued_often_enough_ends_for_what_ended_it():
    ended = [retries.exhausted(verdict, 2).kind for verdict in (Verdict(PREEMPTED), UNEXPLAINED, Verdict(TIME))]

    assert ended == ["taken_back", "lost", "time"]


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
