"""What a session rejects before it connects to a host, and what it says of one that never began."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusterfn import ConfigError, Session


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "workers=0 is not a number of workers"),
        ({"workers": True}, "workers=True is not a number of workers"),
        ({"workers": 2, "gpus": 3}, "workers=2 cannot share gpus=3 equally"),
        ({"workers": 4, "cores": 3}, "workers=4 cannot share cores=3"),
    ],
)
def test_workers_that_cannot_share_what_the_session_has_are_rejected(options: dict[str, Any], says: str):
    with pytest.raises(ConfigError) as rejected:
        Session("tensor01", **options)

    assert says in str(rejected.value)
    assert "next:" in str(rejected.value)


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("send", [Session.call, Session.submit, lambda session, f: next(session.map(f, [1]))])
@pytest.mark.parametrize("function", [numbers, functools.partial(numbers)])
def test_a_generator_function_is_rejected_before_anything_is_sent(
    send: Callable[[Session, Callable[..., Any]], Any], function: Callable[..., Any]
) -> None:
    session = Session("local")

    with pytest.raises(ConfigError, match="is a generator function"):
        send(session, function)
    assert session.job is None
