"""What the items of a group use and have used, added up."""

from __future__ import annotations

from clusterfn.bridge.supervisor.group import sum_of_usages

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
