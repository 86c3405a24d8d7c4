"""What is tried again, and what is watched."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from functools import partial
from typing import Any

import pytest

from clusterfn import ConfigError, Unreachable, gpu
from tests.fakes import torch as fake_torch
from tests.waiting import replace_here, until

pytest_plugins = ["tests.fakes.gpu"]
pytestmark = pytest.mark.usefixtures("no_gpu")
BUSY = RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")
ECC = RuntimeError("CUDA error: uncorrectable ECC error encountered")


@pytest.fixture
def waits(monkeypatch):
    """Seconds that were waited for, without waiting."""
    found = []

    async def asleep(seconds):
        found.append(seconds)

    replace_here(monkeypatch, time, "sleep", found.append)
    replace_here(monkeypatch, asyncio, "sleep", asleep)
    return found


class Failing:
    """Raises these in turn, then returns what it was called with."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return args, kwargs


def asynchronous(fn):
    async def call(*args, **kwargs):
        return fn(*args, **kwargs)

    return call


class Asynchronous:
    """An object whose `__call__` is a coroutine function."""

    def __init__(self, fn):
        self.fn = fn

    async def __call__(self, *args, **kwargs):
        return self.fn(*args, **kwargs)

    async def call(self, *args, **kwargs):
        return self.fn(*args, **kwargs)


@pytest.mark.parametrize(
    "made",
    [None, asynchronous, Asynchronous, lambda fn: Asynchronous(fn).call, lambda fn: partial(Asynchronous(fn))],
    ids=["function", "coroutine function", "object", "its method", "partial of it"],
)
def test_a_transient_error_is_tried_again_and_waits_longer_each_time(waits, logged, made):
    failing = Failing(BUSY, ConnectionResetError("peer"), BUSY)

    if made:
        result = asyncio.run(gpu.retry_transient(made(failing), attempts=4, backoff_s=2.0)(1, a=2))
    else:
        result = gpu.retry_transient(failing, attempts=4, backoff_s=2.0)(1, a=2)

    assert result == ((1,), {"a": 2})
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, (2.0, 4.0, 8.0)))
    assert len(waits) == 3
    assert logged.messages[0].partition(" failed")[0] in ("Failing", "call", "Asynchronous", "partial")
    assert " failed, attempt 1 of 4; retrying in " in logged.messages[0]


@pytest.mark.parametrize(
    "error, again",
    [
        (BUSY, True),
        (ConnectionRefusedError("no"), True),
        (Unreachable("gone", retryable=True), True),
        (ECC, False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (FileNotFoundError("model.pt"), False),
        (ValueError("bad"), False),
        (KeyboardInterrupt(), False),
        (asyncio.CancelledError(), False),
    ],
    ids=repr,
)
def test_only_what_may_go_away_in_this_process_is_tried_again(waits, error, again):
    failing = Failing(error)

    if again:
        assert gpu.retry_transient(failing)(7) == ((7,), {})
    else:
        with pytest.raises(type(error)) as caught:
            gpu.retry_transient(failing)(7)
        assert caught.value is error
    assert failing.calls == 1 + again


def test_the_last_error_is_raised_as_itself_with_the_count(waits):
    failing = Failing(BUSY, BUSY, last := RuntimeError(str(BUSY)), BUSY)

    with pytest.raises(RuntimeError) as caught:
        gpu.retry_transient(failing)()

    assert (caught.value, failing.calls, len(waits)) == (last, 3, 2)
    assert last.__notes__ == ["Failing was called 3 times"]


def test_memory_is_given_back_between_attempts(waits, monkeypatch):
    torch = fake_torch.with_cuda()
    monkeypatch.setitem(sys.modules, "torch", torch)
    failing = Failing(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))

    assert gpu.retry_transient(failing, also=(torch.cuda.OutOfMemoryError,))() == ((), {})
    assert torch.cuda.asked == ["empty_cache"]


def test_as_a_decorator_it_keeps_name_and_kind(waits):
    @gpu.retry_transient
    def load(path):
        """Doc."""
        return path

    @gpu.retry_transient(attempts=2)
    async def fetch(path):
        return path

    assert (load.__name__, load.__doc__, load("a")) == ("load", "Doc.", "a")
    assert asyncio.run(fetch("b")) == "b"


def test_the_wait_is_a_minute_at_most_and_the_programs_dice_are_left_alone(waits):
    random.seed(7)
    expected = random.random()
    random.seed(7)

    gpu.retry_transient(Failing(*[BUSY] * 9), attempts=10, backoff_s=30.0)()

    assert max(waits) <= 60.0
    assert random.random() == expected


def test_what_makes_no_sense_is_refused():
    def numbers():
        yield 1

    for wrong in ({"attempts": 0}, {"backoff_s": -1.0}):
        with pytest.raises(ConfigError):
            gpu.retry_transient(print, **wrong)
    with pytest.raises(ConfigError, match="'numbers' again: it is a generator"):
        gpu.retry_transient(numbers)


# Use of the cards


def wait_for_looks(monitor, looks):
    until(lambda: monitor.looks >= looks)


def test_the_monitor_sees_peaks_and_use_of_the_visible_gpus(box, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")

    with gpu.GpuMonitor(interval_s=0.1) as monitor:
        wait_for_looks(monitor, 1)
        with box.process(gpu=3, pid=1, used_mib=20476, utilization=80):
            wait_for_looks(monitor, monitor.looks + 2)
        wait_for_looks(monitor, monitor.looks + 2)

    first, second = monitor.devices
    assert (first.index, first.peak_gb, second.index, second.peak_gb) == (0, 4 / 1024, 1, 20.0)
    assert second.peak_utilization == 80.0
    assert 0.0 < second.utilization < 80.0
    assert monitor.peak_gb == 20.0 + 4 / 1024
    assert "GPU 1: NVIDIA RTX A6000, at most 20 GB of 48 GB, busy " in str(monitor)
    assert monitor.trouble == ""


def test_a_short_block_is_looked_at_too(box):
    with box.process(gpu=0, pid=1, used_mib=1020), gpu.GpuMonitor(interval_s=30.0) as monitor:
        pass

    assert monitor.looks >= 1
    assert monitor.devices[0].peak_gb == 1.0


def test_where_there_is_no_nvidia_smi_pytorch_is_asked(monkeypatch):
    torch = fake_torch.with_cuda([48.0], [10.0])
    torch.cuda.peak_gb[0] = 9.5
    monkeypatch.setitem(sys.modules, "torch", torch)

    with gpu.GpuMonitor() as monitor:
        pass

    assert (monitor.devices[0].peak_gb, monitor.devices[0].own_peak_gb, monitor.peak_gb) == (10.0, 9.5, 10.0)


@pytest.mark.parametrize("mode", ["garbage", "hang", "nvml-mismatch", "no-devices", None])
def test_a_monitor_that_sees_nothing_says_why_and_harms_nothing(request, monkeypatch, mode):
    if mode:
        request.getfixturevalue("box").set(mode)
        monkeypatch.setattr(gpu.smi, "PATIENCE_S", 0.3)

    with gpu.GpuMonitor() as monitor:
        result = 42

    # It is waited for only as long as an nvidia-smi may take, which may begin late.
    until(lambda: "clusterfn-gpu-monitor" not in {thread.name for thread in threading.enumerate()})
    assert (result, monitor.devices, monitor.peak_gb, monitor.looks) == (42, (), 0.0, 0)
    assert monitor.trouble and monitor.trouble in str(monitor)


def test_the_monitor_ends_with_its_block_and_starts_again(box):
    monitor = gpu.GpuMonitor(interval_s=3600.0)
    with pytest.raises(ValueError, match="bad"), monitor:
        raise ValueError("bad")
    looks = monitor.looks
    monitor.stop()

    monitor.start()
    monitor.start()
    assert [thread.name for thread in threading.enumerate()].count("clusterfn-gpu-monitor") == 1
    until(lambda: monitor.looks > looks)
    monitor.stop()

    assert monitor.looks == looks + 2, "at once, and at its end"
    assert "clusterfn-gpu-monitor" not in {thread.name for thread in threading.enumerate()}


def test_looking_too_often_is_refused_and_no_number_is_a_text():
    with pytest.raises(ConfigError, match=r"not a number of at least 0\.1"):
        gpu.GpuMonitor(interval_s=0.01)
    for function in (gpu.GpuMonitor, gpu.validate_vram_usage, gpu.get_recommended_batch_size, attempts):
        with pytest.raises(ConfigError, match="='2GB' is not a number of at least"):
            function("2GB")


def attempts(number: Any) -> object:
    return gpu.retry_transient(attempts=number)
