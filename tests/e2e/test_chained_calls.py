"""Programs of task libraries, written with `submit`: chains, trees, reductions and failures of calls that take others.

The patterns are those of the tests of Parsl's python apps; parsl.readthedocs.io describes them.
"""

from __future__ import annotations

import itertools
from pathlib import PurePosixPath

import pytest

from clusterfn import DependencyFailed, cluster
from tests.e2e.conftest import BOTH

pytestmark = [pytest.mark.lab, pytest.mark.long]


class Refused(Exception):
    """What a call raises on purpose."""


def double(x):
    return 2 * x


def square(x):
    import math

    return math.pow(x, 2)


def increment(x, pause_s=0.0):
    import time

    time.sleep(pause_s)
    return x + 1


def add(*numbers):
    return sum(numbers)


def add_inputs(inputs=()):
    return sum(inputs)


def times(left, right):
    return left * right


def as_text(inputs=()):
    return str(inputs[0])


def refuse(unless, inputs=()):
    if not unless:
        raise Refused("on purpose")
    return unless


def look_up():
    return {"a": "X", "b": ["Y", ("Z",)]}


def as_path(text):
    return PurePosixPath(text)


def below(paths, name):
    return type(paths)(path / name for path in paths)


def below_keys(paths, name):
    return {key / name: path / name for key, path in paths.items()}


def innermost(structure):
    return structure[0][0][0][0]


def unknown_name():
    return platform.platform()  # noqa: F821 - the test is that it is not there


def unknown_module():
    import no_such_module

    return no_such_module


CALLED = (
    Refused, double, square, increment, add, add_inputs, times, as_text, refuse, look_up, as_path, below, below_keys,
    innermost, unknown_name, unknown_module,
)  # fmt: skip
for each in CALLED:
    each.__module__ = "__main__"


@pytest.fixture
def app(hosts, host):
    """Send a call, as the apps of such libraries do when they are called."""
    return lambda function, *args, **kwargs: cluster(host=host, cores=1)(function).submit(*args, **kwargs)


@BOTH
@pytest.mark.parametrize("number", [-2, 0, 3])
def test_a_call_imports_what_it_needs(app, host, number):
    assert app(square, number).result(150) == number * number


@BOTH
@pytest.mark.parametrize("count", [0, 1, 8])
def test_calls_in_a_loop(app, host, count):
    jobs = {number: app(double, number) for number in range(count)}

    assert {number: job.result(150) for number, job in jobs.items()} == {number: 2 * number for number in range(count)}


@BOTH
@pytest.mark.parametrize("pause_s", [0.0, 0.2])
@pytest.mark.parametrize("depth", [2, 4])
def test_a_pipeline(app, host, depth, pause_s):
    jobs = [app(increment, 0, pause_s)]
    for _ in range(depth - 1):
        jobs.append(app(increment, jobs[-1], pause_s))

    assert [job.result(150) for job in jobs] == [*range(1, depth + 1)]


@BOTH
@pytest.mark.parametrize("width", [2, 5])
def test_map_and_reduce(app, host, width):
    doubled = [app(double, number) for number in range(width)]

    assert app(add_inputs, inputs=doubled).result(150) == 2 * sum(range(width))
    assert app(add, *doubled).result(150) == 2 * sum(range(width))


@BOTH
def test_each_call_takes_one_or_two_of_the_last_layer(app, host):
    layer = [app(double, number) for number in range(1, 5)]
    layer = [app(double, job) for job in layer]
    pairs = [app(add, *pair) for pair in zip(layer[::2], layer[1::2])]

    assert [pair.result(150) for pair in pairs] == [4 * (1 + 2), 4 * (3 + 4)]


@BOTH
def test_a_diamond(app, host):
    top = app(double, 1)
    left, right = app(times, top, 3), app(times, top, 5)

    assert app(increment, app(times, left, right)).result(150) == 61


@BOTH
def test_fibonacci_by_the_two_before(app, host):
    numbers = [0, 1]
    for _ in range(4):
        numbers.append(app(add, numbers[-2], numbers[-1]))

    assert numbers[-1].result(150) == 5


@BOTH
@pytest.mark.parametrize(("given", "text"), [("hi", "hi"), (3.5, "3.5"), (["foo", 7], "['foo', 7]")])
def test_arguments_that_are_no_jobs_stay_what_they_are(app, host, given, text):
    assert app(as_text, inputs=[given]).result(150) == text


@BOTH
@pytest.mark.parametrize("kind", [tuple, list, set, frozenset])
def test_jobs_in_every_kind_of_collection(app, host, kind):
    paths = kind([app(as_path, "one"), app(as_path, "two")])

    assert app(below, paths, "end").result(150) == kind([PurePosixPath("one/end"), PurePosixPath("two/end")])


@BOTH
def test_jobs_as_keys_and_deep_within(app, host):
    one, two = app(as_path, "one"), app(as_path, "two")

    assert app(below_keys, {one: two}, "end").result(150) == {PurePosixPath("one/end"): PurePosixPath("two/end")}
    assert app(innermost, [([[app(double, 4)]],)]).result(150) == 8


@BOTH
@pytest.mark.parametrize(("keys", "part"), [(["a"], "X"), (["b", 0], "Y"), (["b", 1, 0], "Z")])
def test_a_part_of_a_value_is_an_argument_and_a_result(app, host, keys, part):
    wanted = app(look_up)
    for key in keys:
        wanted = wanted[key]

    assert app(as_text, inputs=[wanted]).result(150) == part
    assert wanted.result(150) == part


@BOTH
def test_a_part_that_is_not_there(app, host):
    with pytest.raises(KeyError, match="none"):
        app(look_up)["none"].result(150)


@BOTH
def test_a_failure_leaves_other_calls_alone(app, host):
    failed, *others = [app(refuse, unless) for unless in (False, 1, 2)]

    assert [job.result(150) for job in others] == [1, 2]
    assert str(failed.exception(150)) == "on purpose" and type(failed.exception()).__name__ == "Refused"


@BOTH
@pytest.mark.parametrize("first", [0, 1])
def test_a_failure_in_a_sequence_ends_what_follows_it(app, host, first):
    jobs = [app(refuse, first > 0)]
    for position in (1, 2):
        jobs.append(app(refuse, first != position, inputs=[jobs[-1]]))

    errors = [job.exception(150) for job in jobs]
    assert [error is None for error in errors[:first]] == [True] * first
    assert type(errors[first]).__name__ == "Refused"
    for error in errors[first + 1 :]:
        assert isinstance(error, DependencyFailed) and str(error.__cause__) == "on purpose"


@BOTH
def test_a_failure_in_a_tree_ends_every_branch_below_it(app, host):
    failed, fine = app(refuse, False), app(refuse, 1)
    below_it = [app(add, failed, fine) for _ in range(3)]

    for job in below_it:
        assert isinstance(job.exception(150), DependencyFailed)
    assert app(double, fine).result(150) == 2


@BOTH
@pytest.mark.parametrize(("function", "error"), [(unknown_name, NameError), (unknown_module, ModuleNotFoundError)])
def test_a_name_or_a_module_that_is_not_there(app, host, function, error):
    with pytest.raises(error):
        app(function).result(150)


@BOTH
def test_a_call_in_a_generator_is_sent_when_it_is_reached(app, host):
    doubled = (app(double, number) for number in itertools.count())

    assert app(add, *itertools.islice(doubled, 3)).result(150) == 6
