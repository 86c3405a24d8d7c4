"""What a call for GPUs is told: by a cluster that has none of the type, and by an nvidia-smi that fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterfn.bridge.supervisor import gpus as bridge_gpus
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import Unsatisfiable
from clusterfn.hosts import host_capacity
from clusterfn.hosts.host_state import HostState

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
def test_a_failing_nvidia_smi_is_never_no_gpus_and_is_asked_again(
    host: HostState, smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, failure: str
):
    monkeypatch.setattr(host_capacity, "PATIENCE_S", 0.5 if failure == "sleep 20" else 60.0)
    smi(failure)
    host.capacity.enough(Resources(gpus=1))  # the supervisor asks nvidia-smi itself, and reports the failure

    monkeypatch.setattr(host_capacity, "PATIENCE_S", 60.0)
    smi(TABLE)
    with pytest.raises(Unsatisfiable, match="gpus=2 is more than here has: 1"):
        host.capacity.enough(Resources(gpus=2))


def test_a_host_without_nvidia_smi_has_no_gpus_until_it_is_installed(
    host: HostState, smi: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
