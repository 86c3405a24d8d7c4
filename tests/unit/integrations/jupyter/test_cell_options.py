"""The line of `%%cluster`: what it means, and what is said of a mistake before anything is sent."""

from __future__ import annotations

import pytest

from clusterfn.config.options import CallOptions, parse_options
from clusterfn.errors import ConfigError
from clusterfn.integrations.jupyter.cell_magic import parse_line, values_of


def test_options_are_those_of_the_decorator_and_variables_go_in_and_out():
    line = "--host tensor01 --gpus 1 --gpu-memory=24GB --allow-cpu -i data,x -i y -o result --env A=1 --env B=c=d"

    asked = parse_line(line + " --packages numpy,'pip:rich' --packages python=3.11 --slurm qos=x --slurm exclusive")

    options = asked.options
    assert (options.host, options.gpus, options.gpu_memory_bytes, options.allow_cpu) == ("tensor01", 1, 24 << 30, True)
    assert options.env == {"A": "1", "B": "c=d"} and options.packages == ("numpy", "pip:rich", "python=3.11")
    assert (asked.inputs, asked.outputs) == (("data", "x", "y"), ("result",))
    assert options.scheduler_options == {"slurm": {"qos": "x", "exclusive": True}}


# Each option of `@cluster`: how a cell writes it, and the value that it means there.
EVERY = {
    "cores": ("--cores 4", 4),
    "memory": ("--memory 16GB", "16GB"),
    "gpus": ("--gpus 2", 2),
    "gpu_memory": ("--gpu-memory 24GB", "24GB"),
    "gpu_type": ("--gpu-type a6000", "a6000"),
    "allow_cpu": ("--allow-cpu", True),
    "time": ("--time '1h 30min'", "1h 30min"),
    "environment": ("--environment conda:ml", "conda:ml"),
    "packages": (
        "--packages 'torch>=2.4, <2.8' --packages pip:foo[a,b],python=3.11",
        ["torch>=2.4, <2.8", "pip:foo[a,b]", "python=3.11"],
    ),
    "modules": ("--modules gcc/12,cuda/12.4", ["gcc/12", "cuda/12.4"]),
    "env": ("--env A=1 --env B=c=d,e", {"A": "1", "B": "c=d,e"}),
    "secrets": ("--secrets HF_TOKEN --secrets WANDB_KEY", ["HF_TOKEN", "WANDB_KEY"]),
    "slurm": (
        "--slurm partition=gpu --slurm exclusive --slurm account=None",
        {"partition": "gpu", "exclusive": True, "account": None},
    ),
    "results": ("--results data", "data"),
    "max_result": ("--max-result 2GB", "2GB"),
    "nodes": ("--nodes 2", 2),
    "tasks_per_node": ("--tasks-per-node 4", 4),
    "host": ("--host tensor01", "tensor01"),
    "outputs": ("--outputs '*.pt' --outputs log.txt", ["*.pt", "log.txt"]),
    "cwd": ("--cwd '~/data'", "~/data"),
    "name": ("--name train", "train"),
    "on_interrupt": ("--on-interrupt stop", "stop"),
    "stall_timeout": ("--stall-timeout 10min", "10min"),
    "warn_before": ("--warn-before 5min", "5min"),
    "retries": ("--retries 2", 2),
    "requeue": ("--requeue timeout --requeue node=1", {"timeout": 3, "node": 1}),
    "resume": ("--resume 7f3a", "7f3a"),
    "keep": ("--keep", True),
    "priority": ("--priority=-5", -5),
    "notify": ("--notify 'command=touch x' --notify after=1h", {"command": "touch x", "after": "1h"}),
}


def test_every_option_of_the_decorator_can_be_written_in_a_cell():
    assert {*EVERY} == {*CallOptions.__annotations__}


def test_an_option_means_in_a_cell_what_it_means_in_the_decorator():
    for keyword in EVERY:
        line, value = EVERY[keyword]

        assert parse_line(line).options == parse_options({keyword: value})


def test_a_flag_may_come_before_any_option():
    asked = parse_line("--keep --allow-cpu -i x --keep")

    assert (asked.options.keep, asked.options.allow_cpu, asked.inputs) == (True, True, ("x",))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--gpu 1", "unrecognized arguments: --gpu 1"),
        ("--colour gpu", "the options are -i, -o and those of @cluster"),
        ("tensor01", "unrecognized arguments: tensor01"),
        ("--host --gpus 1", "argument --host: expected one argument"),
        ("--gpus two", "gpus='two' is not a whole number"),
        ("--env A", "write --env NAME=VALUE"),
        ("-i data[0]", "'data[0]' is not the name of a variable"),
        ("-o", "argument -o/--output: expected one argument"),
        ("--host 'a", "No closing quotation"),
        ("--allow-cpu=no --gpus 1", "argument --allow-cpu: ignored explicit argument"),
        ("--requeue timeouts", "requeue= has no cause 'timeouts'; did you mean timeout?"),
    ],
)
def test_a_mistake_is_named_with_what_to_write(line, told):
    with pytest.raises(ConfigError) as caught:
        parse_line(line)

    assert told in str(caught.value)


def test_an_undefined_variable_is_named_with_the_one_that_was_perhaps_meant():
    with pytest.raises(ConfigError, match="no variable 'dtaa'; did you mean data?"):
        values_of(("dtaa",), {"data": 1, "_data": 2})
