"""What a type checker knows of calls; `make lint` checks this file, and nothing runs it."""

from __future__ import annotations

from typing_extensions import assert_type

from clusterfn import Job, cluster


@cluster
def half(x: float) -> float:
    return x / 2


def check_types() -> None:
    assert_type(half(1.0), float)
    assert_type(half.submit(1.0), Job[float])
    collected = half.map([1.0])
    assert_type(collected.results(), list[float | Exception])  # a failure stands in the place of its value
    assert_type(collected.result(0), float)  # which raises it
    assert_type(half.map([1.0], on_error="raise").results(), list[float])
    for index, value in collected:
        assert_type((index, value), tuple[int, float | Exception])
