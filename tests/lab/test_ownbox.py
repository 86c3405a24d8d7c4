"""A GPU box of a test's own is another machine than all others, with other cards, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import Lab, OwnBox, cable, layout
from tests.lab.processes import held_if_free

pytestmark = pytest.mark.lab

# Its child holds the name on and lets the session end.
BIND = """import os, socket, time
held = socket.socket(socket.AF_UNIX)
held.bind("\\0mine")
if not os.fork():
    os.closerange(0, 3)
    time.sleep(60)
"""


def told(lab: Lab, box: OwnBox, command: str) -> list[str]:
    """What the host answers, as words."""
    done = lab.ssh(box.alias("cfsecond"), command)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split()


def test_two_boxes_have_gpus_names_and_hostnames_of_their_own(lab: Lab) -> None:
    with lab.own_gpubox() as one, lab.own_gpubox() as other:
        everywhere = [*one.uuids(), *other.uuids(), *(card["uuid"] for card in lab.gpubox.read()["cards"])]
        assert len(set(everywhere)) >= 16 + 1 and not set(one.uuids()) & set(other.uuids())
        assert told(lab, one, "uname -n; nvidia-smi --query-gpu=uuid --format=csv,noheader") == [
            one.hostname,
            *one.uuids(),
        ]
        assert lab.ssh(one.alias("cfbash"), ["python3", "-c", BIND]).returncode == 0
        assert "mine" in one.cable.names()
        assert "mine" not in other.cable.names()
        names = [one.cable.name, other.cable.name]
    for name in names:
        with held_if_free(layout.SSHD / f"{name}.lock") as free:  # else another test has it by now
            assert not (free and cable.smi(layout.HOST_BY_NAME[name]).exists())
    assert Path("/proc/sys/kernel/hostname").read_text().strip() not in (one.hostname, other.hostname)


def test_a_gpu_can_be_busy_on_one_box_alone(lab: Lab) -> None:
    with lab.own_gpubox() as box, box.cards.process(3, 1, used_mib=700):
        assert told(lab, box, "nvidia-smi --query-compute-apps=gpu_uuid --format=csv,noheader") == [box.uuids()[3]]
        assert box.uuids()[3] not in str(lab.gpubox.read())
