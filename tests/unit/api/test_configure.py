"""`clusterfn.configure`: hosts of this process in place of a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import clusterfn
from clusterfn import ConfigError
from tests.programs import main


@pytest.fixture(autouse=True)
def file_again() -> Iterator[None]:
    yield
    clusterfn.configure()


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The hosts by name, and where each is defined; the default one with a star."""
    assert main(["hosts", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    return {each["name"] + "*" * each["default"]: each["source"] for each in rows if each["name"] != "local"}


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What `clusterfn hosts` says besides the list."""
    assert main(["hosts"]) == 0
    return capsys.readouterr().err


def test_a_function_runs_on_a_host_that_no_file_names(tmp_path, capsys):
    clusterfn.configure(hosts={"mine": {"scheduler": "local", "root": str(tmp_path / "root"), "limits": {"cores": 64}}})

    assert clusterfn.cluster(abs)(-3) == 3

    assert "abs on mine (the only host in clusterfn.configure())" in capsys.readouterr().err
    assert list((tmp_path / "root" / "jobs").iterdir())


def test_it_replaces_the_file_until_it_is_called_without_arguments(tmp_path, monkeypatch, capsys):
    file = tmp_path / "clusterfn.yml"
    file.write_text("hosts:\n  hpc: {scheduler: bare}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(file))

    clusterfn.configure(
        hosts={"a": {"scheduler": "bare", "limits": {"jobs": 2}}, "b": {"scheduler": "bare"}}, default_host="b"
    )
    assert listed(capsys) == {"a": "clusterfn.configure()", "b*": "clusterfn.configure()"}
    assert "a call without a host uses b: default_host: in clusterfn.configure()" in said(capsys)
    assert main(["config", "a", "--json"]) == 0
    assert '"limits.jobs", "value": 2' in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"there is no host 'hpc' \(host='hpc'\)") as refused:
        clusterfn.cluster(host="hpc")(abs).submit(1)
    assert refused.value.evidence == ("clusterfn.configure() describes the hosts a, b",)
    assert refused.value.hint == "choose one of them or local, or add hpc to clusterfn.configure()"

    clusterfn.configure()
    assert listed(capsys) == {"hpc*": f"{file}:2"}


def test_without_hosts_the_file_keeps_its_own(tmp_path, monkeypatch, capsys):
    file = tmp_path / "clusterfn.yml"
    file.write_text("hosts:\n  a: {scheduler: bare}\n  b: {scheduler: bare}\ndefault_host: a\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(file))

    clusterfn.configure(quiet=True)
    assert (listed(capsys), said(capsys)) == ({"a*": f"{file}:2", "b": f"{file}:3"}, "")

    clusterfn.configure(default_host="b")
    assert listed(capsys) == {"a": f"{file}:2", "b*": f"{file}:3"}
    assert "default_host: in clusterfn.configure()" in said(capsys)

    with pytest.raises(
        ConfigError,
        match=r"there is no host 'c'(?s:.*)write the name of a host \(.*\), or describe others with clusterfn.conf",
    ):
        clusterfn.configure(default_host="c")
    assert "b*" in listed(capsys)
    with pytest.raises(ConfigError, match="this needs one host, and there are several: a, b"):
        clusterfn.login(["a", "b"])  # type: ignore[arg-type]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cluster_host": "hpc"}, "configure() has no argument 'cluster_host'"),
    ({"hosts": "tensor01"}, "hosts='tensor01' is not a dict"),
    ({"default_host": 5}, "default_host=5 is not the name of a host"),
    ({"quiet": "false"}, "quiet='false' is neither True nor False"),
    ({"hosts": {"a": {}}}, "clusterfn.configure(): hosts.a: the key `scheduler` is missing"),
    ({"hosts": {"a": {"scheduler": "slum"}}}, 'clusterfn.configure(): hosts.a.scheduler: "slum" is not allowed'),
    ({"hosts": {"a": {"scheduler": "bare", "memory": "4GB"}}}, 'unknown key "memory"'),
    ({"hosts": {"a": {"scheduler": "bare", "password": "hunter22"}}}, "`password:` is never read"),
    ({"hosts": {"a": {"scheduler": "bare", "secrets": {"HF_TOKEN": "hunter22"}}}}, "expected names of variables"),
    ({"hosts": {"a": {"scheduler": "bare"}}, "default_host": "b"}, 'there is no host "b"'),
]


@pytest.mark.parametrize(("given", "says"), WRONG)
def test_what_is_wrong_is_named_and_changes_nothing(given, says, capsys):
    clusterfn.configure(hosts={"before": {"scheduler": "bare"}})

    with pytest.raises(ConfigError) as refused:
        clusterfn.configure(**given)

    assert says in str(refused.value) and "hunter22" not in str(refused.value)
    assert [*listed(capsys)] == ["before*"]
