"""The line of `%%cluster`: what it means, and what is said of a mistake before anything is sent."""

from __future__ import annotations

import pytest

from clusterfn.errors import ConfigError
from clusterfn.jupyter.cell_options import parse_line, values_of


def test_options_are_those_of_the_decorator_and_variables_go_in_and_out():
    line = "--host tensor01 --gpus 1 --gpu-memory=24GB --allow-cpu -i data,x -i y -o result --env A=1 --env B=c=d"

    asked = parse_line(line + " --packages numpy,'pip:rich' --packages python=3.11 --slurm qos=x --slurm exclusive")

    options = asked.options
    assert (options.host, options.gpus, options.gpu_memory_bytes, options.allow_cpu) == ("tensor01", 1, 24 << 30, True)
    assert options.env == {"A": "1", "B": "c=d"} and options.packages == ("numpy", "pip:rich", "python=3.11")
    assert (asked.inputs, asked.outputs) == (("data", "x", "y"), ("result",))
    assert options.scheduler_options == {"slurm": {"qos": "x", "exclusive": True}}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--gpu 1", "no option --gpu; did you mean --gpus?"),
        ("--cpus 4", "no option --cpus; did you mean --cores?"),
        ("--memroy 4GB", "no option --memroy; did you mean --memory?"),
        ("--partition gpu", "the options are -i, -o, --cores"),
        ("tensor01", "does not know what 'tensor01' is for"),
        ("--host", "--host needs a value"),
        ("--host --gpus 1", "--host needs a value"),
        ("--host a --host b", "--host is given twice: a and b"),
        ("--gpus two", "gpus='two' is not a whole number"),
        ("--memory 16", "memory"),
        ("--env A", "write --env NAME=VALUE"),
        ("-i data[0]", "'data[0]' is not the name of a variable"),
        ("-o", "-o needs a value"),
        ("--host 'a", "No closing quotation"),
    ],
)
def test_a_mistake_is_named_with_what_to_write(line, told):
    with pytest.raises(ConfigError) as caught:
        parse_line(line)

    assert told in str(caught.value)


def test_an_undefined_variable_is_named_with_the_one_that_was_perhaps_meant():
    with pytest.raises(ConfigError, match="no variable 'dtaa'; did you mean data?"):
        values_of(("dtaa",), {"data": 1, "_data": 2})
