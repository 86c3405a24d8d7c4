"""`%%cluster`: its line, what a cell reads, sets and gives back, and mistakes named before anything is sent."""

from __future__ import annotations

import json

import pytest

from clusterfn.config.options import CallOptions, parse_options
from clusterfn.errors import ConfigError, HostError
from clusterfn.integrations.jupyter import cell_magic
from clusterfn.integrations.jupyter.cell_magic import check_names, names_in, parse_line, values_of


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
    "binds": ("--binds /data,/scratch:/mnt", ["/data", "/scratch:/mnt"]),
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
    "notify": ("--notify 'touch x'", "touch x"),
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


CELL = """
import numpy as np, os.path
def f(x):
    global counted
    counted = x
    return [helper(y) for y in data] + [np.sum(x), undefined]
class A:
    size = scale
    def g(self): return size
result, (a, *b) = f(3), other
for i in range(3): pass
with open("x") as file: print(display(i))
"""


def test_the_names_that_a_cell_reads_and_sets():
    found = names_in(CELL, "<cell>")

    assert found.reads == {"helper", "data", "undefined", "scale", "size", "other"}
    assert found.sets == {"np", "os", "f", "A", "counted", "result", "a", "b", "i", "file"}
    assert found.is_certain and not names_in("from math import *", "<cell>").is_certain


def test_what_only_the_notebook_has_is_rejected_with_how_to_pass_it():
    notebook = {"data": 1, "helper": len, "js": json, "scale": 2, "unused": 3}

    with pytest.raises(ConfigError) as caught:
        check_names(names_in("data, helper, js, scale, undefined", "<cell>"), ("scale",), (), notebook)

    assert "the cell uses data, helper, js, which exist only in the notebook" in str(caught.value)
    assert "send variables: -i data -i helper; import modules in the cell: import json as js" in str(caught.value)


def test_an_output_that_the_cell_never_sets_is_rejected():
    with pytest.raises(ConfigError, match="the cell never sets 'reslut'; did you mean result?"):
        check_names(names_in("result = 1", "<cell>"), (), ("reslut",), {})
    check_names(names_in("from x import *", "<cell>"), (), ("anything",), {})
    check_names(names_in("data.sort()", "<cell>"), ("data",), ("data",), {"data": []})


def test_a_cell_of_a_hostile_host_runs_nothing_in_the_notebook_and_sets_only_what_was_asked_for():
    html = {"text/html": "<script>x</script>", "application/javascript": "x", "text/plain": "a\x1b[2Jb"}
    told = {"values": {"asked": 1, "open": 2}, "missing": [], "shown": [html, {"image/png": "x", "text/html": "y"}]}

    values, shown = cell_magic.read_result(told, ["asked", "lacking"], "box", is_data=True)

    assert values == {"asked": 1}
    assert [set(bundle) for bundle in shown] == [{"text/plain"}, {"text/plain", "image/png"}]
    assert shown[0]["text/plain"] == "ab"
    assert cell_magic.read_result(told, ["asked"], "box", is_data=False)[1] == told["shown"]
    for nonsense in (7, {}, {"values": 1, "shown": []}, {"values": {}, "shown": [3]}):
        with pytest.raises(HostError, match="box sent the result of the cell"):
            cell_magic.read_result(nonsense, ["asked"], "box", is_data=True)
