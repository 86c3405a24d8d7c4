"""The one reader of nvidia-smi: GPUs without memory, hidden or lost; what it may take, and what PyTorch says first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn import ConfigError, gpu
from clusterfn.bridge.supervisor import eligible_gpus, gpus, nvidia_smi
from clusterfn.bridge.supervisor.verdict import AttemptEnded
from clusterfn.cli.check.host import describe_gpus
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import Unsatisfiable
from clusterfn.gpu import get_safe_gpu_info, get_safe_vram_usage, smi, validate_vram_usage
from clusterfn.hosts import survey
from clusterfn.hosts.host_state import HostState
from clusterfn.scheduler.site import Section
from tests.fakes import driver
from tests.waiting import until

pytest_plugins = ["tests.fakes.gpu"]
UNKNOWN = ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "[GPU is lost]", "ERR!",
           "[GPU requires reset]", "-", "Unknown Error"]  # fmt: skip
LOST = [
    {"pci.bus_id": "00000000:99:00.0", **dict.fromkeys(("uuid", "name"), "[GPU is lost]")},
    {"pci.bus_id": "00000000:99:00.0", **dict.fromkeys(("index", "uuid", "name"), "[Unknown Error]")},
    "Unable to determine the device handle for GPU 0000:99:00.0: GPU is lost.  Reboot the system to recover this GPU",
    "Unable to determine the device handle for GPU3: 0000:99:00.0: Unknown Error",
]


@pytest.fixture
def path(tmp_path: Path, no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(gpus, "AGAIN_S", 0)
    monkeypatch.setattr(gpus, "LIMIT_S", 60.0)
    monkeypatch.setattr(smi, "PATIENCE_S", 60.0)  # as of `box`
    return tmp_path / "bin"


@pytest.mark.parametrize("cell", UNKNOWN)
def test_each_word_for_unknown_is_no_value(cell: str):
    assert nvidia_smi.value(cell) is None


@pytest.mark.parametrize("cell", ["[N/A]", "ERR!"])
def test_what_a_driver_does_not_say_is_unknown_and_never_zero(path: Path, cell: str):
    driver.install(path, [{**driver.a6000(0), "memory.used": cell, "utilization.gpu": cell}])

    (load,), _ = gpus.gpu_loads()
    (device,) = get_safe_gpu_info().devices

    assert (load.used_mib, load.use_percent, load.total_mib) == (None, None, 49140)
    assert (device.used_gb, device.utilization, device.free_gb, get_safe_vram_usage()) == (None, None, 0.0, 0.0)
    assert gpus.used_by_others(["GPU-0"]) == {}  # unknown is not busy


@pytest.mark.parametrize(
    ("cell", "mib"),
    [("49140", 49140), ("49,140", 49140), ("49.140", 49140), ("49 140", 49140), ("49’140 MiB", 49140),
     ("49140 MiB", 49140), ("12.5", 12), ("²", None), ("-1", None), ("9" * 5000, None)],
)  # fmt: skip
def test_numbers_are_read_as_each_locale_writes_them(cell: str, mib: int | None):
    assert nvidia_smi.count(cell) == mib


def test_cells_belong_to_the_fields_that_were_asked_for_in_any_order():
    fields = ["memory.total", "uuid", "index", "name"]

    (row,) = nvidia_smi.read_table("49,140, GPU-1, 3, NVIDIA, Inc. A6000\n", fields).rows

    assert row == {"memory.total": "49,140", "uuid": "GPU-1", "index": "3", "name": "NVIDIA, Inc. A6000"}


@pytest.fixture
def host(tmp_path: Path) -> HostState:
    return HostState(Host("here", "", "local", "clusterfn.yml:1", root=str(tmp_path / "root")))


@pytest.mark.parametrize("cell", ["[N/A]", "N/A", "[Not Supported]", "0"])
def test_a_gpu_without_memory_of_its_own_has_that_of_the_machine(path: Path, host: HostState, cell: str):
    driver.install(path, [{**driver.GB10, "memory.total": cell}])
    machine_mib = nvidia_smi.machine_memory()[0]
    assert machine_mib

    (card,) = gpus.list_gpus()
    (device,) = get_safe_gpu_info().devices

    assert (card.total_mib, card.unified) == (machine_mib, True)
    assert eligible_gpus.describe_gpus([card]).endswith(" GB, shared with the CPU)")
    assert gpus.candidates([card], {"gpus": 1, "gpu_memory_bytes": machine_mib << 20}) == [card.uuid]
    assert (device.total_gb, device.unified) == (machine_mib / 1024, True)
    assert 0 < validate_vram_usage(0.001).free_gb < machine_mib / 1024
    host.capacity.enough(Resources(gpus=1, gpu_memory_bytes=machine_mib << 20))
    with pytest.raises(Unsatisfiable, match=r"1 x NVIDIA GB10 \(.* GB, shared with the CPU\)"):
        host.capacity.enough(Resources(gpus=1, gpu_memory_bytes=machine_mib << 21))
    host.connection.close()


def test_check_and_init_say_whose_memory_it_is():
    row = "NVIDIA GB10, [N/A], 580.95.05, 12.1"

    found = survey.read_gpus(Section("gpus", 0, [row]), 120 << 30)

    assert found and describe_gpus(found).startswith("1 x NVIDIA GB10, 120 GB, shared with the CPU, ")


@pytest.mark.parametrize("cell", ["[Insufficient Permissions]", "[Unknown Error]"])
def test_memory_that_is_hidden_is_neither_the_machines_nor_enough(path: Path, cell: str):
    driver.install(path, [{**driver.a6000(0), "memory.total": cell}])
    there = gpus.list_gpus()

    assert gpus.candidates(there, {"gpus": 1}) == ["GPU-0"]
    with pytest.raises(AttemptEnded) as caught:
        gpus.candidates(there, {"gpus": 1, "gpu_memory_bytes": 1 << 30})
    assert caught.value.verdict.message.endswith("the host has 1 x NVIDIA RTX A6000 (unknown memory)")
    assert get_safe_gpu_info().devices[0].total_gb is None


@pytest.mark.parametrize(("lost", "rc"), [*((each, 15) for each in LOST), (LOST[0], 0)])
def test_a_lost_gpu_leaves_the_others_to_use(path: Path, host: HostState, lost: dict[str, str] | str, rc: int):
    driver.install(path, [*map(driver.a6000, range(3)), lost, *map(driver.a6000, range(4, 8))], rc=rc)

    loads, said = gpus.gpu_loads()

    assert [card.index for card in gpus.list_gpus()] == [load.index for load in loads] == [0, 1, 2, 4, 5, 6, 7]
    assert "lost" in said[0] or "Unknown Error" in said[0]
    assert len(get_safe_gpu_info().devices) == 7
    host.capacity.enough(Resources(gpus=7))
    with pytest.raises(Unsatisfiable, match="gpus=8 is more than here has: 7"):
        host.capacity.enough(Resources(gpus=8))
    host.connection.close()


@pytest.mark.parametrize(("first", "rc"), [(True, 0), (False, 14)])
def test_a_warning_of_the_driver_is_no_row_and_its_exit_code_not_that_of_the_table(path, host, first, rc):
    warning = "WARNING: infoROM is corrupted at gpu 0000:01:00.0"
    rows = [driver.a6000(0), driver.a6000(1)]
    apps = [{"gpu_uuid": "GPU-1", "pid": str(os.getpid()), "process_name": "python"}]
    driver.install(path, [warning, *rows] if first else [*rows, warning], [warning, *apps, warning], rc=rc)

    assert [card.uuid for card in gpus.list_gpus()] == ["GPU-0", "GPU-1"]
    loads, said = gpus.gpu_loads()
    assert len(loads) == 2 and said == []
    assert [process.name for process in gpus.gpu_processes()["GPU-1"]] == ["python"]
    assert len(get_safe_gpu_info().devices) == 2
    host.capacity.enough(Resources(gpus=2))
    surveyed = survey.read_gpus(Section("gpus", rc, [warning, "NVIDIA RTX A6000, 49140, 575.57.08, 8.6", warning]))
    assert surveyed is not None and (surveyed.names, surveyed.trouble) == (("NVIDIA RTX A6000",), "")
    host.connection.close()


def test_a_machine_whose_only_gpu_is_lost_is_not_one_without_gpus(path: Path):
    driver.install(path, [LOST[2], "No devices were found"], rc=6)

    with pytest.raises(AttemptEnded, match="GPU is lost"):
        gpus.list_gpus()


def test_check_names_the_gpu_that_does_not_answer():
    rows = ["NVIDIA RTX A6000, 49140, 575.57.08, 8.6", str(LOST[2])]

    found = survey.read_gpus(Section("gpus", 15, rows))

    assert found is not None
    assert (found.names, found.lost, found.trouble) == (("NVIDIA RTX A6000",), (LOST[2],), "")


def test_a_gpu_in_mig_mode_and_its_parts_are_read(path: Path):
    parent = {**driver.a6000(0), "memory.used": "[Insufficient Permissions]", "utilization.gpu": "[N/A]"}
    part = {**driver.a6000(1), "uuid": "MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", "memory.total": "9856"}
    driver.install(path, [parent, part], [{"gpu_uuid": part["uuid"], "pid": str(os.getpid()), "process_name": "p"}])

    assert [card.uuid for card in gpus.list_gpus()] == ["GPU-0", part["uuid"]]
    assert list(gpus.used_by_others(["GPU-0", part["uuid"]])) == [part["uuid"]]


def test_a_driver_that_hangs_costs_its_patience_once(no_gpu, box, monkeypatch, logged):
    box.set("hang")
    monkeypatch.setattr(smi, "PATIENCE_S", 0.3)
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **kwargs: started.append(popen(*args, **kwargs)) or started[-1]
    )

    assert gpu.get_safe_vram_usage() == 0.0
    assert gpu.get_safe_vram_usage() == 0.0

    assert len(started) == 1
    until(lambda: started[0].poll() is not None)  # it was ended
    assert "did not answer within" in logged.text


def test_a_driver_that_answers_again_is_believed_again(no_gpu, box):
    smi.hung_at[:] = [-1000.0]

    assert gpu.get_safe_gpu_info().available


@pytest.mark.parametrize("version, device", [("2.7.1+cpu", "cpu"), ("2.7.1+cu128", "cuda"), ("2.7.1", "cuda")])
def test_an_installed_pytorch_for_cpus_counts_before_it_is_imported(no_gpu, box, monkeypatch, version, device):
    monkeypatch.setattr("clusterfn.gpu.devices.installed_torch_version", lambda: version)

    hardware = gpu.detect_hardware()

    assert (hardware.device, hardware.torch, "torch" in sys.modules) == (device, version, False)
    if device == "cpu":
        assert hardware.why_cpu == f"PyTorch {version} is built without CUDA"
        with pytest.raises(ConfigError, match="does not meet the program"):
            gpu.validate_startup_configuration(gpus=1)
