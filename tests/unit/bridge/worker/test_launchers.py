"""What torchrun and accelerate are told, so that a command line needs no word about nodes, GPUs and addresses."""

from __future__ import annotations

import pytest

from clusterfn.bridge.worker.command_line import launcher_variables, with_nodes

ON_TWO = {
    "GROUP_WORLD_SIZE": "2", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "4567",
    "CLUSTERFN_JOB": "7f3a/1", "CUDA_VISIBLE_DEVICES": "0,1,2,3",
}  # fmt: skip


def test_torchrun_on_one_node_gets_the_gpus_and_a_port_of_its_own():
    found = launcher_variables({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"})

    assert found.pop("PET_MASTER_PORT").isdecimal()
    assert found == {"PET_NPROC_PER_NODE": "2"}


def test_torchrun_without_gpus_decides_by_itself_how_many_processes_it_starts():
    assert set(launcher_variables({"CUDA_VISIBLE_DEVICES": ""})) == {"PET_MASTER_PORT"}


def test_torchrun_on_several_nodes_meets_at_the_first():
    assert launcher_variables(ON_TWO) == {
        "PET_NPROC_PER_NODE": "4", "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "n1",
        "PET_MASTER_PORT": "4567", "PET_RDZV_ENDPOINT": "n1:4567", "PET_RDZV_ID": "7f3a-1",
    }  # fmt: skip


def test_where_srun_starts_each_process_no_launcher_starts_more():
    assert launcher_variables({**ON_TWO, "LOCAL_WORLD_SIZE": "4"}) == {}


def test_what_the_user_has_set_stays():
    assert "PET_NPROC_PER_NODE" not in launcher_variables({**ON_TWO, "PET_NPROC_PER_NODE": "1"})


@pytest.mark.parametrize(
    ("before", "added", "after"),
    [
        (["accelerate", "launch"], "--num_processes=8 --multi_gpu", ["train.py", "--cpu"]),
        (["accelerate", "launch"], "--multi_gpu", ["--num_processes", "4", "train.py"]),
        (["python", "-m", "accelerate.commands.launch"], "--num_processes=8", ["--use_fsdp", "train.py"]),
        (["accelerate", "launch"], "", ["--config-file", "fsdp.yaml", "train.py"]),
    ],
)
def test_accelerate_gets_what_its_command_line_leaves_out(before, added, after):
    where = "--num_machines=2 --machine_rank=1 --main_process_ip=n1 --main_process_port=4567"

    assert with_nodes([*before, *after], ON_TWO) == [*before, *where.split(), *added.split(), *after]


@pytest.mark.parametrize("words", [["accelerate", "config"], ["python", "train.py"], ["torchrun", "train.py"]])
def test_other_commands_stay_as_they_are(words):
    assert with_nodes(words, ON_TWO) == words


def test_on_one_node_accelerate_stays_as_it_is():
    assert with_nodes(["accelerate", "launch", "train.py"], {}) == ["accelerate", "launch", "train.py"]
