"""A job is found from another copy of the project, and when a host has another name, another root, or is away."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("jobs cannot run there", allow_module_level=True)

from clusterfn.calls import attach, history
from clusterfn.errors import ConfigError, HostError

JOB = "7f3a000000000001"


@pytest.fixture(autouse=True)
def _own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def root_with_job(root: Path) -> Path:
    folder = root / "jobs" / JOB
    folder.mkdir(parents=True)
    root.chmod(0o700)
    (folder / "spec.json").write_text(json.dumps({"id": JOB, "host": "here"}))
    return root


def config(path: Path, **hosts: Path | None) -> Path:
    """Write a clusterfn.yml: each host is a root of this machine; one without a root starts no agent."""
    lines = ["hosts:"]
    for name, root in hosts.items():
        where = f"root: {root}" if root else "python: /no/such/python"
        lines += [f"  {name}:", "    scheduler: local", f"    {where}"]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def use(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))


def sent(host: str, path: Path) -> None:
    """Let this machine remember that it sent the job, a while ago."""
    ledger = history.ledger_path()
    ledger.parent.mkdir(parents=True, exist_ok=True)
    ledger.write_text(json.dumps({"id": JOB, "host": host, "config": str(path), "name": "train", "at": 1}) + "\n")


def test_a_host_that_cannot_be_asked_hides_no_job_of_another(tmp_path, monkeypatch):
    use(monkeypatch, config(tmp_path / "clusterfn.yml", away=None, gpu=root_with_job(tmp_path / "root")))

    assert attach.find_job("7f3a", None)[0].settings.name == "gpu"


def test_a_job_that_is_nowhere_names_the_hosts_that_could_not_be_asked(tmp_path, monkeypatch):
    use(monkeypatch, config(tmp_path / "clusterfn.yml", away=None, gpu=root_with_job(tmp_path / "root")))

    with pytest.raises(ConfigError, match="there is no job 90aa on local, gpu|there is no job 90aa on gpu") as caught:
        attach.find_job("90aa", None)
    assert "away could not be asked: " in "\n".join(caught.value.evidence)


def test_a_host_that_was_named_and_cannot_be_asked_says_why(tmp_path, monkeypatch):
    use(monkeypatch, config(tmp_path / "clusterfn.yml", away=None))

    with pytest.raises(HostError, match="/no/such/python"):
        attach.find_job("7f3a", "away")


def test_another_copy_of_the_project_finds_it_by_the_file_that_sent_it(tmp_path, monkeypatch):
    sent("gpu", config(tmp_path / "one" / "clusterfn.yml", gpu=root_with_job(tmp_path / "root")))
    use(monkeypatch, config(tmp_path / "two" / "clusterfn.yml", other=tmp_path / "r"))

    assert attach.find_job("7f3a", None)[1] == f"{tmp_path}/root/jobs/{JOB}"


@pytest.mark.parametrize("left", ["", "hosts: [", "hosts: {}\n"])
def test_the_file_that_sent_it_may_be_gone_or_broken_or_without_the_host(tmp_path, monkeypatch, left):
    one = config(tmp_path / "one" / "clusterfn.yml", gpu=root_with_job(tmp_path / "root"))
    sent("gpu", one)
    one.write_text(left)
    use(monkeypatch, config(tmp_path / "two" / "clusterfn.yml", gpu=tmp_path / "root"))

    assert attach.find_job("7f3a", None)[1] == f"{tmp_path}/root/jobs/{JOB}"


def test_a_host_that_has_another_name_now_is_found(tmp_path, monkeypatch):
    path = config(tmp_path / "clusterfn.yml", gpu=root_with_job(tmp_path / "root"))
    sent("gpu", path)
    use(monkeypatch, config(path, renamed=tmp_path / "root"))

    assert attach.find_job("7f3a", None)[0].settings.name == "renamed"


def test_a_name_that_means_another_host_now_does_not_hide_the_job(tmp_path, monkeypatch):
    path = config(tmp_path / "clusterfn.yml", gpu=root_with_job(tmp_path / "root"))
    sent("gpu", path)
    use(monkeypatch, config(path, gpu=tmp_path / "successor", before=tmp_path / "root"))

    assert attach.find_job("7f3a", None)[0].settings.name == "before"


def test_a_host_with_another_address_or_root_by_now_is_asked_there(tmp_path, monkeypatch):
    sent("gpu", config(tmp_path / "one" / "clusterfn.yml", gpu=None))
    use(monkeypatch, config(tmp_path / "two" / "clusterfn.yml", gpu=root_with_job(tmp_path / "root"), away=None))

    assert attach.find_job("7f3a", None)[1] == f"{tmp_path}/root/jobs/{JOB}"


def test_a_host_that_clusterfn_yml_no_longer_has_is_named_with_the_file_that_had_it(tmp_path, monkeypatch):
    path = config(tmp_path / "clusterfn.yml", gpu=tmp_path / "root")
    sent("gpu", path)
    use(monkeypatch, config(path, other=tmp_path / "r"))

    with pytest.raises(ConfigError, match="it was sent to gpu") as caught:
        attach.find_job("7f3a", None)
    assert "another name" in (caught.value.hint or "")
    assert str(path) in (caught.value.hint or "")
