"""A host whose GPUs are restricted: by `gpus: {only: …}`, which is obeyed, and by variables, which are spoken of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterfn.bridge.agent.facts import visible_gpus
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


@pytest.mark.parametrize(
    ("name", "value", "only"),
    [
        ("CUDA_VISIBLE_DEVICES", "3", "[3]"), ("CUDA_VISIBLE_DEVICES", "", "[0]"),
        ("CUDA_VISIBLE_DEVICES", "-1", "[0]"), ("CUDA_VISIBLE_DEVICES", "0,1,0,1,0,1,0,1", "[0, 1, 0, 1, 0, 1, 0, 1]"),
        ("CUDA_VISIBLE_DEVICES", f"{LONG}1,{LONG}2", f"[{LONG}1, {LONG}2]"),
        ("CUDA_VISIBLE_DEVICES", "MIG-5c89852c-d268", "[MIG-5c89852c-d268]"),
        ("NVIDIA_VISIBLE_DEVICES", "1,2", "[1, 2]"), ("ROCR_VISIBLE_DEVICES", "0", "[0]"),
        ("HIP_VISIBLE_DEVICES", "1", "[1]"), ("CUDA_VISIBLE_DEVICES", "\x1b[2J3", "[0]"),
    ],
)  # fmt: skip
def test_a_variable_of_the_account_is_spoken_of_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, only: str
):
    monkeypatch.setenv(name, value)
    state = HostState(configured(folder, "keep: 1d"))

    said = list(state.capacity.warnings(Resources(gpus=1)))

    shown = value.replace("\x1b[2J", "")
    assert said[0].startswith(f"{name}={shown} is set on box, but clusterfn itself chooses")
    assert f"write `gpus: {{only: {only}}}` for box" in said[0]
    assert list(state.capacity.warnings(Resources(gpus=1))) == []
    state.connection.close()


def test_nothing_is_said_without_a_reason(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    obeyed, without = HostState(configured(folder, "gpus: {only: [3]}")), HostState(configured(folder, "keep: 1d"))

    assert [*obeyed.capacity.warnings(Resources(gpus=1)), *without.capacity.warnings(Resources(gpus=0))] == []
    obeyed.connection.close(), without.connection.close()


@pytest.mark.parametrize("value", ["0,1,2,3,4,5,6,7", ",".join(f"{LONG}{index}" for index in range(8))])
@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
def test_nothing_is_said_of_a_variable_that_leaves_all_gpus(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
):
    monkeypatch.setenv(name, value)
    state = HostState(configured(folder, "keep: 1d"))

    assert list(state.capacity.warnings(Resources(gpus=1))) == []
    state.connection.close()


@pytest.mark.parametrize("value", ["all", "void"])
def test_what_images_of_containers_set_is_no_restriction(folder: Path, monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", value)

    assert visible_gpus() == ""
