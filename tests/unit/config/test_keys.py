"""The table of keys of clusterfn.yml: the reader, the JSON Schema and the page of the reference agree."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

from clusterfn.config import config_file
from clusterfn.config.keys import DEFAULT_KEYS, FILE_KEYS, HOST_KEYS, LIMIT_KEYS, file_schema
from clusterfn.config.notes import NOTES
from clusterfn.config.scheduler_keys import keys_by_scheduler
from clusterfn.errors import ConfigError
from tests.programs import main

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("configuration", ROOT / "packaging" / "configuration.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def accept(text: str) -> config_file.Config:
    """Let both read a file: an editor, by the schema, and clusterfn."""
    jsonschema.Draft7Validator(file_schema()).validate(yaml.safe_load(text))
    return config_file.parse(text.encode(), Path("/work/clusterfn.yml"))


def with_host(word: str, line: str) -> str:
    return f"hosts:\n  a:\n    scheduler: {word}\n    {line}\n"


def obeying(key: str) -> str:
    """A scheduler whose hosts may have that key."""
    return next((word for word, each in keys_by_scheduler().items() if key in each.keys), "bare")


@pytest.mark.parametrize("key", [key for key in HOST_KEYS if key != "scheduler"])
def test_the_example_of_each_key_of_a_host_is_accepted_by_clusterfn_and_by_editors(key: str) -> None:
    accept(with_host(obeying(key), f"{key}: {HOST_KEYS[key].example}"))


@pytest.mark.parametrize("above, keys", [("defaults", DEFAULT_KEYS), ("limits", LIMIT_KEYS)])
def test_so_are_the_examples_of_the_keys_below(above, keys) -> None:
    lines = ", ".join(f"{word}: {key.example}" for word, key in keys.items())

    accept(with_host("bare", f"{above}: {{{lines}}}"))


def test_the_page_and_the_schema_in_the_reference_are_those_of_the_table(writer: ModuleType) -> None:
    page, kept = writer.PAGE.read_text(encoding="utf-8"), writer.SCHEMA.read_text(encoding="utf-8")

    assert writer.with_tables(page) == page, "python packaging/configuration.py"
    assert json.loads(kept) == file_schema(), "python packaging/configuration.py"
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == {*FILE_KEYS, *HOST_KEYS, *DEFAULT_KEYS}


def test_the_page_of_notes_has_the_table_of_them_and_each_can_be_hidden(writer: ModuleType) -> None:
    page = writer.NOTES_PAGE.read_text(encoding="utf-8")

    assert writer.with_notes(page) == page, "python packaging/configuration.py"
    assert accept(f"notes: {{hide: [{', '.join(NOTES)}]}}").hidden_notes == tuple(NOTES)
    with pytest.raises(ConfigError, match='no note has the id "globals"; did you mean'):
        config_file.parse(b"notes: {hide: [globals]}", Path("/work/clusterfn.yml"))


def test_the_example_at_the_top_of_the_page_is_accepted(writer: ModuleType) -> None:
    found = re.search(r"```yaml\n(.*?)```", writer.PAGE.read_text(encoding="utf-8"), re.DOTALL)

    assert found is not None
    assert list(accept(found[1]).hosts) == ["local", "tensor01", "hpc"]


def test_an_editor_explains_each_key_without_links() -> None:
    explained = file_schema()["definitions"]["host"]["properties"]

    assert explained["modules"]["description"] == HOST_KEYS["modules"].meaning
    assert explained["transport"]["description"].startswith("`auto`: the system's ssh, or paramiko if ")
    assert not [key for key, form in explained.items() if "](" in form["description"]]


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
