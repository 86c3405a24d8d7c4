"""GPUs on a machine without a scheduler, with a program that plays nvidia-smi. Who waits for them: test_queue."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.bridge.box import Box


def test_more_than_the_host_has_is_refused_at_once(box: Box):
    outcome = box.run(box.job(3))

    assert (outcome["kind"], outcome["stage"]) == ("unsatisfiable", "lease")
    assert outcome["message"] == "the job asks for 3 GPUs, and the host has only 2"


def test_a_host_without_nvidia_smi_has_no_gpus(box: Box):
    outcome = box.job(1).run(PATH="/nowhere")

    assert outcome["kind"] == "unsatisfiable"
    assert "nvidia-smi on this host cannot be started" in outcome["message"]


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("mismatch", "environment", "exit code 18: Failed to initialize NVML: Driver/library version mismatch"),
        ("garbage", "environment", "answered what is not a table: <html>502</html>"),
        ("none", "unsatisfiable", "the host has none"),
    ],
)
def test_what_nvidia_smi_said_is_reported(box: Box, mode, kind, words):
    box.say(mode)

    outcome = box.run(box.job(1))

    assert (outcome["kind"], outcome["stage"]) == (kind, "lease")
    assert words in outcome["message"]


def test_gpus_that_other_users_use_are_passed_over(box: Box):
    box.say(cards=4, used={"0": 812}, apps={"2": os.getpid()})
    job = box.job(2)

    box.run(job)

    assert job.value() == "1,3"


@pytest.mark.parametrize("how", [{"divided": 0}, {"lost": 0}, {"env": {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}}])
def test_where_cuda_counts_other_gpus_than_nvidia_smi_they_are_named_by_their_uuids(box: Box, how: dict[str, Any]):
    env = how.pop("env", {})
    box.say(cards=3, used={"0": 812}, **how)
    job = box.job(2, env=env)

    assert box.run(job)["kind"] == "returned"
    assert job.value() == f"{box.uuid(1)},{box.uuid(2)}"
