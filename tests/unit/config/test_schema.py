"""The JSON Schema of clusterfn.yml: it accepts what clusterfn accepts, and editors mark mistakes with it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml

from tests.programs import main


def schema_by_the_command(capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["config", "--schema"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "keys",
    [
        "address: a",
        "scheduler: slrm",
        "scheduler: bare, enviroment: current",
        "scheduler: bare, slurm: {partition: gpu}",
        "scheduler: slurm, limits: {gpus: 1}",
        "scheduler: bare, defaults: {memory: 16}",
        "scheduler: bare, root: clusterfn",
        "scheduler: grid_engine, grid_engine: {partition: gpu}",
    ],
)
def test_a_mistake_that_an_editor_underlines_is_one_for_clusterfn(keys, tmp_path, monkeypatch, capsys):
    file = tmp_path / "clusterfn.yml"
    file.write_text(f"hosts:\n  a: {{{keys}}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(file))
    validator = jsonschema.Draft7Validator(schema_by_the_command(capsys))

    assert [*validator.iter_errors(yaml.safe_load(file.read_text()))]
    assert main(["hosts"]) == 2
    assert capsys.readouterr().err.startswith(f"ConfigError: {file}:")


def test_the_command_prints_the_schema_without_a_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "absent.yml"))
    assert {"default_host", "hosts"} <= schema_by_the_command(capsys)["properties"].keys()

    assert main(["config", "tensor01", "--schema"]) == 2
    assert "clusterfn config --schema" in capsys.readouterr().err
