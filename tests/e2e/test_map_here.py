"""Maps on this machine: what their items get, what they leave, and what becomes of those that fail."""

from __future__ import annotations

import sys

import pytest

from clusterfn import ConfigError, cluster

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @cluster(host="here")
    def of(self, x, offset=0):
        return self.factor * x + offset


def test_a_method_of_an_object_has_submit_and_map_and_each_call_gets_the_constants(here):
    triple = Scale(3).of

    group = triple.map([1, 2], offset=10)
    job = triple.with_options(name="renamed").submit(4)

    assert group.results(60) == [13, 16] and group.name == "of"
    assert group.label(1) == "2"
    assert job.result(60) == 12 and job.name == "renamed"


def test_a_constant_that_the_function_does_not_take_is_rejected_before_anything_is_sent(here):
    with pytest.raises(ConfigError, match=r"map\(\) has no argument 'offse'; did you mean offset\?"):
        Scale(3).of.map([1], offse=10)
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        Scale(3).of.map([1], x=10)

    assert not (here / "jobs").exists() or not any((here / "jobs").iterdir())
