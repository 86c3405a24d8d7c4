"""What scontrol and squeue say of cards, as recorded or as their manuals show it."""

import pytest

from clusterfn.scheduler.base import NodeGpus, Waiting
from clusterfn.scheduler.slurm.site import gpu_nodes, gpu_types, waiting_for_gpus
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.samples import SLURM

# SLURM 22.05.8, shortened in the middle
N1 = (
    "NodeName=n1 Arch=x86_64 CPUTot=8 Gres=gpu:4 GresDrain=N/A GresUsed=gpu:1 NodeAddr=127.0.0.1 State=MIXED"
    " Partitions=short,gpu CfgTRES=cpu=8,mem=8000M AllocTRES=cpu=1"
)
WIDTHS = (32, 32, 48, 48, 22, 40, 80)


def row(per_node: str, per_job: str) -> str:
    cells = ("254_[1-5%2]", "cfbash", per_node, per_job, "2026-11-20T14:57:17", "Resources", "train.7f3a")
    return "".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS))


def test_the_gpus_of_a_node_are_counted_by_type():
    odd = (
        "NodeName=n2 Gres=lscratch:9,gpu:a100:4(S:0-1),gpu:2080ti:16 GresUsed=gpu:a100:2(IDX:0,3),gpu:2080ti:0(IDX:N/A)"
    )

    assert gpu_nodes(f"{N1}\n{odd} State=IDLE+DRAIN\nNodeName=n3 Gres=(null) GresUsed= State=IDLE\n") == [
        NodeGpus("n1", "mixed", "", 4, 1),
        NodeGpus("n2", "idle+drain", "a100", 4, 2),
        NodeGpus("n2", "idle+drain", "2080ti", 16, 0),
    ]
    assert gpu_nodes("NodeName=n1 Gres=gpu:4 State=IDLE") == [NodeGpus("n1", "idle", "", 4, None)], "who knows"
    assert gpu_nodes(f"NodeName=n1 Gres=gpu:{'9' * 5000} State=IDLE") == [], "that is no count"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:4\ngpu:a6000:4\n", ["", "a6000"]),
        ("(null)\nlscratch:9,gpu:a100:4(S:0-1),gpu:2080ti:16\n gpu:a100_1g:7(S:0,1)", ["2080ti", "a100", "a100_1g"]),
        ("CLUSTER: big\n(null)\nlscratch:gpu:4\n", []),
    ],
)
def test_the_types_of_all_nodes_are_read_from_sinfo(text, expected):
    assert gpu_types(text) == expected


@pytest.mark.parametrize(
    ("text", "wants"), [(row("gres:gpu:a100:4", "N/A"), "gpu:a100:4"), (row("N/A", "gres/gpu:8"), "gpu:8")]
)
def test_who_waits_for_gpus_is_read_from_squeue(text, wants):
    (found,) = waiting_for_gpus(text + "\n")

    assert (found.id, found.wants, found.reason, found.name) == ("254_[1-5%2]", wants, "Resources", "train.7f3a")


def test_who_waits_for_cores_alone_is_left_out():
    assert waiting_for_gpus(row("gres:lscratch:4", "N/A")) == []
    assert waiting_for_gpus(row("gres:gpu:a100:4", "N/A")) == [
        Waiting("254_[1-5%2]", "cfbash", "gpu:a100:4", "2026-11-20T14:57:17", "Resources", "train.7f3a")
    ]


def test_the_questions_go_to_the_right_cluster():
    slurm = Slurm(SLURM._replace(scheduler_options={"clusters": "big"}), "ada")

    assert (nodes := slurm.gpus().nodes) is not None and nodes.argv[:2] == ("scontrol", "--clusters=big")
    assert (types := slurm.gpus().types) is not None and types.argv[:2] == ("sinfo", "--clusters=big")
    queue = slurm.gpus().queue
    assert queue is not None and queue.argv[:2] == ("squeue", "--clusters=big") and "--states=PENDING" in queue.argv
