"""The comparison of one, two, three and five models again and again: none hangs, and nothing is left behind by any."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterfn import cluster
from tests.chaos import holds
from tests.chaos.onhost import until
from tests.chaos.sharing import CARDS, Sharing, shared
from tests.e2e.inside import host_of
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]
ROUNDS = 10
COUNTS = (1, 2, 3, 5)


@pytest.fixture
def sharing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sharing]:
    with shared(lab) as box:
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(box.config))
        yield box


def card(model: int) -> tuple[int, str]:
    """Which card a model was compared on."""
    import os

    return model, os.environ["CUDA_VISIBLE_DEVICES"]


card.__module__ = "__main__"


def left(sharing: Sharing, before: set[str]) -> list[str]:
    """Names that somebody has bound besides these, tickets, and processes that run from ada's root.

    The agent may keep one template of ada's next jobs for as long as it is connected.
    """
    root = sharing.root("ada")
    tickets = [str(path) for path in root.glob("machines/*/queue/*")]
    commands = ((pid, _command(pid)) for pid in sharing.box.cable.pids())
    processes = [f"{pid} {words}" for pid, words in commands if str(root) in words]
    templates = [each for each in processes if " template jobs " in each]
    others = [each for each in processes if each not in templates]
    return [*sorted(sharing.names() - before), *tickets, *others, *templates[1:]]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def held() -> dict[str, int]:
    """What this process and its agent have open."""
    agent = host_of("ada").connection.facts.pid
    files = {f"files of {name}": len(os.listdir(f"/proc/{pid}/fd")) for name, pid in (("us", "self"), ("agent", agent))}
    return {**files, "threads": threading.active_count()}


def test_comparisons_one_after_another_leave_no_process_gpu_ticket_file_or_thread(
    sharing: Sharing, table: Callable[[str], None]
) -> None:
    """With two cards for them: two models need no queue, three and five do."""
    over, compare = sharing.folder / "over", cluster(host="ada", gpus=1)(card)
    holder = sharing.send_until(sharing.new_lane(), "bob", CARDS - 2, over)
    assert until(lambda: sharing.there(holder).runs(), 150), sharing.there(holder).history()
    longest, first, before = 0.0, {}, sharing.names()
    free = {str(number) for number, card in enumerate(sharing.box.uuids()) if holds.GPU + card not in before}
    for _ in range(ROUNDS):
        for count in COUNTS:
            began = time.monotonic()
            results = compare.map(range(count), sequential_up_to=1).results(150)
            longest = max(longest, time.monotonic() - began)
            assert [model for model, _ in results] == list(range(count))
            assert {used for _, used in results} <= free
            assert until(lambda: not left(sharing, before), 150), left(sharing, before)
        first = first or held()

    over.touch()
    table(f"{ROUNDS} x {COUNTS} models, the slowest in {longest:.1f} s; open at the end: {held()}, at first {first}")
    assert until(lambda: all(now <= first[what] + 2 for what, now in held().items()), 150), (first, held())
    assert sharing.settles() == []
