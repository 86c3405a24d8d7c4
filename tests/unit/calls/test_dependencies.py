"""A Job where its value was meant, and a value that does not come: the error says how to get it."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from clusterfn import Job, JobGroup, PayloadError, cluster
from tests.fakes.taken import Taken
from tests.sent import prepared
from tests.unit.calls.groups import group

JOB: Job[Any] = Job("7f3a000011112222", "train", "tensor01", "/root/jobs/7f3a", Taken())  # type: ignore[arg-type]
GROUP: JobGroup[Any, Any] = group(2)[1]


@pytest.mark.parametrize(
    "calculate",
    [
        lambda given: given + 1, lambda given: 1 + given, lambda given: given < 3, lambda given: 3.0 / given,
        lambda given: sum([given, given]), operator.neg, abs, float, int, round, lambda given: [given] * given,
    ],
)  # fmt: skip
@pytest.mark.parametrize("given", [JOB, JOB["loss"], GROUP[1]], ids=["job", "part", "item"])
def test_calculating_with_a_job_says_to_call_result(calculate: Any, given: Any) -> None:
    with pytest.raises(TypeError) as rejected:
        calculate(given)
    assert str(rejected.value) == f"{given!r} is not the value itself: call .result()"


@pytest.mark.parametrize(
    ("given", "name", "instead"),
    [
        (JOB, "get", ": call .result()"), (JOB, "wait", ": call .result()"), (JOB, "stdout", ": call .logs(…)"),
        (JOB, "kill", ": call .stop()"), (JOB, "nothing", ""), (JOB["loss"], "value", ": call .result()"),
        (JOB["loss"], "kill", ""), (GROUP, "get", ": call .results()"),
    ],
)  # fmt: skip
def test_an_attribute_of_other_libraries_names_ours(given: Any, name: str, instead: str) -> None:
    with pytest.raises(AttributeError) as rejected:
        getattr(given, name)
    assert str(rejected.value) == f"{type(given).__name__!r} object has no attribute {name!r}{instead}"


def test_calculating_with_a_group_says_to_call_results() -> None:
    with pytest.raises(TypeError, match=r"is not the value itself: call \.results\(\)$"):
        GROUP + [1]  # type: ignore[operator]


def test_jobs_can_be_compared_and_tested_for_being_there() -> None:
    assert JOB == JOB and JOB != 3 and JOB and JOB in {JOB}


def test_a_retried_group_that_has_not_ended_is_no_argument_yet() -> None:
    _, retried = group(2)

    with pytest.raises(PayloadError, match=r"runs again after retry_failed\(\) and has not ended") as rejected:
        prepared(print, (retried,), host="tensor01")
    assert rejected.value.hint == "wait for it first: group.wait()"


@pytest.mark.parametrize("given", [JOB, JOB["history"]])
def test_mapping_over_one_job_says_both_things_that_can_be_meant(given: Any) -> None:
    def total(x: int) -> int:
        return x

    with pytest.raises(TypeError) as rejected:
        cluster(total).map(given)
    assert str(rejected.value) == (
        f"{given!r:.80} means one value, and map() takes lists: map over its .result() to call total with "
        "each item of that value, or use submit() to call total once, with the value"
    )
