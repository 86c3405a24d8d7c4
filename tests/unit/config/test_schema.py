"""The JSON Schema of clusterfn.yml: it accepts what clusterfn accepts, and editors mark mistakes with it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from clusterfn.cli import main
from clusterfn.config import config_file
from clusterfn.config.keys import file_schema
from clusterfn.errors import ConfigError


def mistakes(text: str) -> list[str]:
    validator = jsonschema.Draft7Validator(file_schema())
    return [error.message for error in validator.iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize(
    "keys",
    [
        "address: a",
        "scheduler: slrm",
        "scheduler: bare, enviroment: current",
        "scheduler: bare, partition: gpu",
        "scheduler: bare, slurm: {partition: gpu}",
        "scheduler: slurm, limits: {gpus: 1}",
        "scheduler: bare, defaults: {memory: 16}",
        "scheduler: bare, defaults: {time: 60}",
        "scheduler: bare, defaults: {cores: 0}",
        "scheduler: bare, root: clusterfn",
        "scheduler: grid_engine, grid_engine: {partition: gpu}",
    ],
)
def test_a_mistake_that_an_editor_underlines_is_one_for_clusterfn(keys):
    text = f"hosts:\n  a: {{{keys}}}\n"

    assert mistakes(text)
    with pytest.raises(ConfigError):
        config_file.parse(text.encode(), Path("/work/clusterfn.yml"))


def test_the_command_prints_the_schema_without_a_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "absent.yml"))

    assert main(["config", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == file_schema()
    assert main(["config", "tensor01", "--schema"]) == 2
    assert "clusterfn config --schema" in capsys.readouterr().err
