"""`clusterfn usage`: what jobs asked for, what they used, and what would have been enough."""

from __future__ import annotations

import pytest

from clusterfn.calls.remote_state import JobInfo
from clusterfn.cli.jobs import reports_on, suggestions

GB = 2**30


def job(name="train", state="RETURNED", asked=None, kind="", message="", **usage):
    used = {"wall_s": 100.0, "cpu_s": 140.0, "peak_memory_bytes": 3 * GB, "gpus": [], **usage}
    wanted = {"cores": 8, "memory_bytes": 32 * GB} if asked is None else asked
    return JobInfo("7f3a", name, "tensor01", state, message, 0.0, ended=1.0, asked=wanted, usage=used, kind=kind)


def test_jobs_of_one_function_that_asked_for_the_same_are_one_line_with_the_most_that_any_needed():
    reports = reports_on([job(), job(peak_memory_bytes=5 * GB, cpu_s=290.0), job(asked={"cores": 2}), job("embed")])

    first = reports[0]
    assert (len(reports), first["name"], first["jobs"]) == (3, "train", 2)
    assert (first["cores"], first["memory_bytes"], first["longest_s"]) == (2.9, 5 * GB, 100.0)
    assert first["suggestions"] == ["cores=4", 'memory="7GB"']


@pytest.mark.parametrize(
    ("used", "asked", "said"),
    [
        ({"cores": 0.1}, {"cores": 1}, []),
        ({"memory_bytes": 31.9 * GB}, {"memory_bytes": 32 * GB}, ['memory="48GB": it was close to its limit']),
        ({"memory_bytes": 200 << 20}, {"memory_bytes": 4 * GB}, ['memory="256MB"']),
        ({"gpu_use_percent": 0, "longest_s": 60.0}, {"gpus": 1}, ["gpus=0: its GPUs did nothing"]),
        ({"gpu_use_percent": 0, "longest_s": 5.0}, {"gpus": 1}, []),
        ({"gpu_use_percent": 0, "longest_s": 60.0, "gpu_memory_bytes": 500 << 20}, {"gpus": 1}, []),
        ({"gpu_use_percent": None}, {"gpus": 1}, []),
        ({"longest_s": 7200.0}, {"time_s": 43200.0}, ['time="180min"']),
        ({"longest_s": 590.0}, {"time_s": 600.0}, ['time="15min": it was close to its limit']),
        ({}, {"cores": 8, "memory_bytes": GB, "gpus": 1, "time_s": 60.0}, []),
    ],
)
def test_a_request_is_suggested_where_it_saves_much_or_was_close(used, asked, said):
    assert suggestions(used, asked) == said


def test_a_map_is_measured_by_its_largest_item_and_a_function_that_never_returned_gets_no_suggestion():
    (report,) = reports_on([job(wall_s=1000.0, cpu_s=1000.0, items=10, longest_s=120.0)])

    assert (report["cores"], report["longest_s"]) == (1.0, 120.0)
    assert reports_on([job(state="DIED")])[0]["suggestions"] == []
    assert reports_on([job(state="DIED"), job()])[0]["suggestions"] != []
    assert reports_on([job(state="RAISED", message="9 of 9 ended: 8 returned, 1 raised")])[0]["suggestions"] != []


@pytest.mark.parametrize(("kind", "option"), [("memory", 'memory="48GB"'), ("time", 'time="15min"')])
def test_what_ran_out_of_memory_or_time_is_told_to_ask_for_more_whatever_was_measured_before(kind, option):
    asked = {"cores": 8, "memory_bytes": 32 * GB, "time_s": 600.0}
    died, said = job(state="DIED", kind=kind, asked=asked), f"{option}: it reached its limit"

    assert reports_on([died])[0]["suggestions"] == [said]
    assert said in reports_on([job(asked=asked), died])[0]["suggestions"]
