"""Which tickets of a long queue one turn of the spooler looks at."""

from __future__ import annotations

from clusterfn.bridge.queue import spooler
from clusterfn.bridge.queue.machine import Demand
from tests.unit.bridge.queue.test_plan import ticket

CPU, GPU = Demand(0, 1, 0), Demand(1, 1, 0)


def jobs(of: spooler.QueueFront, *kept: str) -> list[int]:
    return [int(each.job) for each in of.first(kept)]


def test_the_first_of_each_request_and_those_that_are_kept():
    many = spooler.QueueFront()
    many.set_all([ticket(str(number), CPU if number < 1_000 else GPU) for number in range(2_000)], took_s=100.0)

    assert jobs(many, "500", "1999") == [*range(64), 500, *range(1_000, 1_064), 1999]

    many.remove(str(number) for number in range(10))
    assert jobs(many) == [*range(10, 74), *range(1_000, 1_064)]


def test_all_of_few_are_looked_at_each_time():
    few, many = spooler.QueueFront(), spooler.QueueFront()
    few.set_all([ticket("1", CPU)] * 256, took_s=100.0)
    many.set_all([ticket("1", CPU)] * 257, took_s=100.0)

    assert few.complete_from == 0.0
    assert many.complete_from > 100.0
