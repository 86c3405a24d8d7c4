"""A host whose GPUs are restricted by `gpus: {only: …}`, which is obeyed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterfn.bridge.queue import lease_names, machine
from clusterfn.bridge.supervisor import gpus
from clusterfn.bridge.supervisor.verdict import AttemptEnded
from clusterfn.config import config_file
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import ConfigError, Unsatisfiable
from clusterfn.hosts.host_state import HostState
from tests.fakes import driver

LONG = "GPU-7f3a0000-0000-0000-0000-00000000000"  # and the number of the GPU


def configured(tmp_path: Path, key: str, scheduler: str = "local") -> Host:
    text = f"hosts:\n  box: {{scheduler: {scheduler}, root: {tmp_path}/root, {key}}}\n"
    return config_file.parse(text.encode(), tmp_path / "clusterfn.yml").hosts["box"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with eight GPUs, whose account sets none of the variables."""
    driver.install(tmp_path / "bin", [{**driver.a6000(index), "uuid": f"{LONG}{index}"} for index in range(8)])
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name in ("CUDA", "NVIDIA", "ROCR", "HIP"):
        monkeypatch.delenv(f"{name}_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("only", "left"),
    [("[3]", [3]), ("[3, 5]", [3, 5]), (f"[{LONG}3]", [3]), (f"['3', {LONG}5]", [3, 5]), ("[3, 3]", [3])],
)
def test_only_these_gpus_count_for_the_client_and_for_the_queue(folder: Path, only: str, left: list[int]):
    host = configured(folder, f"gpus: {{only: {only}}}")
    state, resources = HostState(host), {"gpus": 1, "gpus_only": list(host.gpus_only)}

    state.capacity.enough(Resources(gpus=len(left)))
    with pytest.raises(Unsatisfiable, match=rf"gpus={len(left) + 1} is more than gpus: .* leaves of box: {len(left)}"):
        state.capacity.enough(Resources(gpus=len(left) + 1))
    state.connection.close()

    uuids = [f"{LONG}{index}" for index in left]
    assert gpus.candidates(gpus.list_gpus(), resources) == uuids
    assert machine.gpus_of_kind(machine.kind_of(resources), gpus.list_gpus()) == uuids


def test_more_than_the_key_leaves_is_rejected_on_the_host_too(folder: Path):
    with pytest.raises(AttemptEnded) as caught:
        gpus.candidates(gpus.list_gpus(), {"gpus": 2, "gpus_only": ["3"]})

    message = caught.value.verdict.message
    assert message == "the job asks for 2 GPUs, and the host has only 1 that gpus: {only: [3]} in clusterfn.yml leaves"


def test_the_public_name_of_a_waiting_job_is_as_before():
    """Programs of other users and versions read it."""
    kind = machine.kind_of({"gpu_type": "a6000", "gpus_only": ["3"]})
    waiting = machine.Waiting(5, 1000, "a" * 16, machine.Demand(1, 1, 0), kind, 0)

    name = lease_names.wait(waiting, 60)

    assert name.endswith("/a6000/0")
    assert lease_names.HeldNames({name}, 1).waiting[0].kind == kind._replace(only=())


@pytest.mark.parametrize(
    ("only", "hint"), [("[8]", "correct it in"), (f"[{LONG}x]", f"did you mean {LONG}"), ("[0, 9]", "correct it in")]
)
def test_a_gpu_that_is_not_there_is_named(folder: Path, only: str, hint: str):
    state = HostState(configured(folder, f"gpus: {{only: {only}}}"))

    with pytest.raises(Unsatisfiable, match="and box has no such GPU") as caught:
        state.capacity.enough(Resources(gpus=1))

    assert (caught.value.hint or "").startswith(hint)
    state.connection.close()


@pytest.mark.parametrize(
    ("key", "problem", "hint"),
    [
        ("gpus: 2", "expected `{only: […]}`", "defaults: {gpus: 1}"),
        ("gpus: {onyl: [3]}", 'unknown key "onyl"; did you mean only?', "only"),
        ("gpus: {only: 3}", "expected a list of GPUs", "write `gpus: {only: [3]}`"),
        ("gpus: {only: []}", "expected a list of GPUs", "write `gpus: {only: [3]}`"),
        ("gpus: {only: [a6000]}", '"a6000" names no GPU', "nvidia-smi -L"),
        ("gpus: {only: [-1]}", "names no GPU", "nvidia-smi -L"),
    ],
)
def test_mistakes_in_the_key_are_reported(tmp_path: Path, key: str, problem: str, hint: str):
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, key)

    assert problem in str(caught.value) and hint in str(caught.value)


def test_a_scheduler_chooses_gpus_itself(tmp_path: Path):
    with pytest.raises(ConfigError, match="the scheduler chooses the GPUs of a job"):
        configured(tmp_path, "address: hpc, gpus: {only: [3]}", "slurm")
