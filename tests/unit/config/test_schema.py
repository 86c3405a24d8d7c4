"""The JSON Schema of clusterfn.yml: it accepts what clusterfn accepts, and editors mark mistakes with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from clusterfn.cli import main
from clusterfn.config import config_file, hosts, schema
from clusterfn.errors import ConfigError

REFERENCE = Path(__file__).parents[3] / "docs/reference"
PAGE = (REFERENCE / "configuration.md").read_text(encoding="utf-8")


def mistakes(text: str) -> list[str]:
    validator = jsonschema.Draft7Validator(schema.file_schema())
    return [error.message for error in validator.iter_errors(yaml.safe_load(text))]


def test_the_schema_in_the_reference_is_the_one_of_the_key_table():
    (kept,) = REFERENCE.glob("*.schema.json")

    assert json.loads(kept.read_text(encoding="utf-8")) == schema.file_schema(), f"clusterfn config --schema > {kept}"


def test_the_examples_of_the_reference_are_valid():
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| `([^`]*)` \|", PAGE, re.MULTILINE)
    assert mistakes(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]) == []
    assert {key for key, _ in rows} == hosts.HOST_KEYS | hosts.DEFAULT_KEYS
    for key, example in rows:
        below = key in hosts.DEFAULT_KEYS - {"environment"} and "{" not in example  # gpus is a key of a host, too
        line = f"defaults: {{{key}: {example}}}" if below else f"{key}: {example}"
        word = {"limits": "bare", "gpus": "bare", "grid_engine": "grid_engine"}.get(key, "slurm")
        given = line if key == "scheduler" else f"scheduler: {word}\n    {line}"
        assert mistakes(f"hosts:\n  a:\n    {given}\n") == [], key


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
def test_a_mistake_that_an_editor_marks_is_one_for_clusterfn(keys):
    text = f"hosts:\n  a: {{{keys}}}\n"

    assert mistakes(text)
    with pytest.raises(ConfigError):
        config_file.parse(text.encode(), Path("/work/clusterfn.yml"))


def test_the_command_prints_the_schema_without_a_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "absent.yml"))

    assert main(["config", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema.file_schema()
    assert main(["config", "tensor01", "--schema"]) == 2
    assert "clusterfn config --schema" in capsys.readouterr().err
