"""What a call for GPUs is told by its host, what it may ask of one without a scheduler, and `gpus: {only: …}`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.queue import lease_names, machine
from clusterfn.bridge.supervisor import gpus
from clusterfn.bridge.supervisor import gpus as bridge_gpus
from clusterfn.bridge.supervisor.verdict import AttemptEnded
from clusterfn.config import config_file
from clusterfn.config.spec import Host, Limits, Resources
from clusterfn.errors import ConfigError, Unsatisfiable
from clusterfn.hosts import host_capacity
from clusterfn.hosts.host_capacity import HostCapacity
from clusterfn.hosts.host_state import HostState
from tests.fakes import driver

WANTED = Resources(gpus=2, gpu_type="a6000")


@pytest.mark.parametrize("types", [None, ["a6000"], ["", "a6000", "v100"]])
def test_a_type_that_is_there_or_may_be_is_asked_for(types):
    host_capacity.require_type(types, WANTED, "hpc", "SLURM")


@pytest.mark.parametrize(
    ("types", "says", "hint"),
    [
        (["a100", "v100"], "the types of hpc are: a100, v100", "ask for one of these types, or choose another host"),
        (["", "A6000"], "the types of hpc are: A6000", 'did you mean gpu_type="A6000"?'),
        (["h100", "nvidia_rtx_a6000"], "h100, nvidia_rtx_a6000", 'did you mean gpu_type="nvidia_rtx_a6000"?'),
        ([], "hpc has no GPU with a type in SLURM", "leave gpu_type= out, or choose another host"),
    ],
)
def test_a_type_that_is_not_there_is_refused_with_those_that_are(types, says, hint):
    with pytest.raises(Unsatisfiable) as caught:
        host_capacity.require_type(types, WANTED, "hpc", "SLURM")

    assert caught.value.message.startswith("the call asks for 2 GPUs of type a6000, and ")
    assert caught.value.message.endswith(says)
    assert caught.value.hint == hint


TABLE = "echo '0, GPU-1, 49140, NVIDIA RTX A6000'"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the nvidia-smi of this machine do what these lines of sh say."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def become(lines: str) -> None:
        (folder / "new").write_text(f"#!/bin/sh\n{lines}\n")
        (folder / "new").chmod(0o755)
        (folder / "new").rename(folder / "nvidia-smi")

    return become


@pytest.fixture
def host(smi: object, tmp_path: Path) -> Iterator[HostState]:
    host = HostState(Host("here", "", "local", "clusterfn.yml:1", root=str(tmp_path / "root")))
    yield host
    host.connection.close()


@pytest.mark.parametrize(
    "failure",
    ["sleep 20", "echo '<html>502</html>'", "true", "echo 'Failed to initialize NVML'; exit 18",
     "echo '²²²'", "echo 'No devices were found'; exit 6"],
)  # fmt: skip
def test_a_failing_nvidia_smi_is_never_no_gpus_and_is_asked_again(host, smi, monkeypatch, failure):
    monkeypatch.setattr(host_capacity, "PATIENCE_S", 0.5 if failure == "sleep 20" else 60.0)
    smi(failure)
    host.capacity.enough(Resources(gpus=1))  # the supervisor asks nvidia-smi itself, and reports the failure

    monkeypatch.setattr(host_capacity, "PATIENCE_S", 60.0)
    smi(TABLE)
    with pytest.raises(Unsatisfiable, match="gpus=2 is more than here has: 1"):
        host.capacity.enough(Resources(gpus=2))


def test_a_host_without_nvidia_smi_has_no_gpus_until_it_is_installed(host, smi, tmp_path, monkeypatch):
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    (tmp_path / "clusterfn.yml").write_text("hosts: {here: {scheduler: local}, far: {address: a, scheduler: bare}}\n")
    with pytest.raises(Unsatisfiable, match="gpus=1 is more than here has: 0") as rejected:
        host.capacity.enough(Resources(gpus=1))
    assert rejected.value.hint.startswith("remove gpus=, or use host='far': ")

    smi(TABLE)
    host.capacity.enough(Resources(gpus=1))


@pytest.mark.parametrize("number", ["²", "9" * 5000, "-1", "[Unknown Error]"])
def test_numbers_that_are_none_leave_a_gpu_of_unknown_size(number: str):
    (card,) = host_capacity.read_gpus(f"{number}, GPU-1, {number}, NVIDIA RTX A6000\n", 1024) or ()

    assert (card.index, card.total_mib, card.unified, card.uuid) == (0, None, False, "GPU-1")


@pytest.mark.parametrize(
    "name", ["/tmp/a\nfoo", "/tmp/a\n\nGPU-", "/tmp/a\rb", "/tmp/a\x1b]0;owned\x07b", "/tmp/a\u2028b", "/tmp/\nGPU-2, "]
)
def test_a_process_may_have_any_name(smi: Callable[[str], None], tmp_path: Path, name: str):
    """Any user of the machine chooses names."""
    (tmp_path / "rows").write_text(f"GPU-1, {os.getpid()}, {name}\nGPU-2, 7, /usr/bin/b\n", newline="")
    smi(f"cat '{tmp_path}/rows'")

    found = bridge_gpus.gpu_processes()

    assert (found["GPU-2"][-1].name, found["GPU-1"][0].pid) == ("b", str(os.getpid()))
    assert found["GPU-1"][0].name.isprintable()


def test_what_is_no_table_is_asked_for_again(smi: Callable[[str], None], tmp_path: Path):
    table = TABLE.replace("0, ", "0, 0, ", 1).replace("NV", "[N/A], NV")
    smi(f"mkdir {tmp_path / 'asked'} 2>/dev/null && echo garbage || {table}")

    assert [card.uuid for card in bridge_gpus.list_gpus()] == ["GPU-1"]


BOX = Host("box", "box", "bare", "clusterfn.yml:2")


def capacity(limits: Limits) -> HostCapacity:
    """That of a machine with 4 cores."""
    facts = SimpleNamespace(cpus=4, memory_bytes=8 << 30, lacking=())
    rules, connection = SimpleNamespace(has_nodes=False), SimpleNamespace(facts=facts)
    box: Any = SimpleNamespace(
        settings=BOX._replace(limits=limits), scheduler=rules, scheduler_rules=rules, connection=connection
    )
    return HostCapacity(box)


@pytest.mark.parametrize(("cores", "limit"), [(4, None), (2, 2), (8, 8)], ids=["all", "the limit", "more than it has"])
def test_the_cores_are_those_of_the_machine_or_of_the_limit(cores: int, limit: int | None) -> None:
    machine = capacity(Limits(cores=limit))

    machine.enough(Resources(cores=cores))
    with pytest.raises(Unsatisfiable, match=rf"cores={cores + 1} is more than .*: {cores}\n"):
        machine.enough(Resources(cores=cores + 1))


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
