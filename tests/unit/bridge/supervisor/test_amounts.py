"""Sizes and durations: one way to read them in every message, and one way in which an option takes them."""

from __future__ import annotations

import pytest

from clusterfn.bridge.supervisor.group import sum_of_usages
from clusterfn.bridge.supervisor.text import format_duration, format_size
from clusterfn.config.units import exact_memory, exact_time, parse_memory, parse_time


@pytest.mark.parametrize(
    ("size", "shown", "as_option"),
    [
        (1, "1 byte", "1 bytes"), (1023, "1023 bytes", "1023 bytes"), (1500 * 2**10, "1.5 MB", "1500KB"),
        (2**20 - 1, "1 MB", "1048575 bytes"), (300 * 2**20, "300 MB", "300MB"), (3 * 2**29, "1.5 GB", "1.5GB"),
        (8 * 2**30, "8 GB", "8GB"), (8 * 10**9, "7.5 GB", "7812500KB"), (2**40, "1 TB", "1TB"),
        (5000 * 2**40, "5000 TB", "5000TB"),
    ],
)  # fmt: skip
def test_a_size(size: int, shown: str, as_option: str) -> None:
    assert format_size(size) == shown
    assert exact_memory(size) == as_option
    assert as_option.endswith("bytes") or parse_memory(as_option) == size


@pytest.mark.parametrize(
    ("seconds", "shown", "as_option"),
    [
        (0.25, "0.2 s", "0.25s"), (2.5, "2.5 s", "2.5s"), (9.96, "10 s", "9.96s"), (59.7, "1 min", "59.7s"),
        (90, "1 min 30 s", "90s"), (5400, "1 h 30 min", "90min"), (3601, "1 h 1 s", "3601s"),
        (14 * 86400, "14 d", "14d"), (93784, "1 d 2 h", "93784s"),
    ],
)  # fmt: skip
def test_a_duration(seconds: float, shown: str, as_option: str) -> None:
    assert format_duration(seconds) == shown
    assert exact_time(seconds) == as_option
    assert parse_time(as_option) == seconds


def test_nothing() -> None:
    assert (format_size(0), format_duration(0), format_duration(-1)) == ("0 bytes", "0 s", "0 s")


GPU = {"uuid": "GPU-1", "name": "Toy", "peak_memory_bytes": 10, "peak_use_percent": 50, "mean_use_percent": 20.0}


def item(wall_s, **more):
    return {"wall_s": wall_s, "cpu_s": 2 * wall_s, "peak_memory_bytes": int(100 * wall_s), "gpus": [], **more}


def test_times_are_added_and_memory_is_that_of_the_largest_item():
    found = sum_of_usages([item(1.0), item(3.0), item(2.0)])

    assert found is not None and "now" not in found
    assert (found["items"], found["wall_s"], found["cpu_s"]) == (3, 6.0, 12.0)
    assert (found["longest_s"], found["peak_memory_bytes"]) == (3.0, 300)


def test_a_gpu_that_several_items_had_counts_by_the_time_of_each():
    busier = {**GPU, "peak_memory_bytes": 30, "peak_use_percent": None, "mean_use_percent": 80.0}

    found = sum_of_usages([item(1.0, gpus=[GPU]), item(3.0, gpus=[busier]), item(1.0, gpus=None)])

    assert found is not None and found["gpus"] == [
        {**GPU, "peak_memory_bytes": 30, "peak_use_percent": 50, "mean_use_percent": 65.0}
    ]


def test_what_running_items_use_now_is_added():
    now = {"cores": 1.5, "memory_bytes": 10, "gpus": [{"uuid": "GPU-1", "memory_bytes": 5, "use_percent": 97}]}

    found = sum_of_usages([item(1.0, now=now), item(1.0, now={**now, "cores": None, "gpus": None})])

    assert found is not None and found["now"] == {"cores": 1.5, "memory_bytes": 20, "gpus": now["gpus"]}


def test_no_item_has_no_usage():
    assert sum_of_usages([]) is None
