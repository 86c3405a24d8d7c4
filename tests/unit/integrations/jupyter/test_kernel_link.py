"""The connection to a kernel's holder: opened again when it is lost, and given up where it can never be opened."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

from clusterfn.errors import HostError
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.integrations.jupyter import kernel_link
from clusterfn.integrations.jupyter.kernel_link import HolderLink
from tests.waiting import WAIT_S


class Host:
    """A host on which the scheduler's command fails as the test says.

    Args:
        answers: For each start, whether the holder answers before the command fails.
        kind: Of the failures.
    """

    def __init__(self, answers: list[bool], kind: str) -> None:
        self.answers = answers
        self.kind = kind

    def converse(self, argv: Any, hello: bytes, on_data: Callable[[bytes], Any], unset: Any) -> Reply[None]:
        assert (list(argv), hello, list(unset)) == (["srun", "attach"], b"hello", ["SLURM_"])
        if self.answers.pop(0):
            on_data(b"frames")
        error = HostError("srun ended with status 1: unrecognized option")
        error.kind = self.kind
        reply: Reply[None] = Reply(lambda: None)
        reply.reject(error)
        return reply


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What a proxy hears until it is told that the holder is gone, or the command has no further answer."""
    monkeypatch.setattr(kernel_link, "SCHEDULER_S", 0.0)

    def played(answers: list[bool], kind: str = "program") -> list[str]:
        host: Any = Host(answers, kind)
        events: queue.Queue[tuple[str, Any]] = queue.Queue()
        link = HolderLink(lambda: host, "/s", lambda *event: events.put(event), ["srun", "attach"], ["SLURM_"])
        heard: list[str] = []
        while answers and "gone" not in heard:
            link.open(b"hello")
            heard.append(events.get(timeout=WAIT_S)[0])
            if heard[-1] == "data":
                heard.append(events.get(timeout=WAIT_S)[0])
        return heard

    return played


def test_a_command_that_never_reaches_the_holder_is_given_up(play: Callable[..., list[str]]):
    assert play([False] * 9) == ["lost"] * 4 + ["gone"]


def test_a_link_that_has_worked_is_opened_again_and_again(play: Callable[..., list[str]]):
    assert play([False, True, *[False] * 9]) == ["lost", "data", *["lost"] * 10]


def test_a_holder_that_does_not_listen_is_gone_at_once(play: Callable[..., list[str]]):
    assert play([False] * 9, kind="unavailable") == ["gone"]
