"""`clusterfn cancel` of very many jobs: few requests, and of each job what became of it."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.slurm_hosts import LoginNode, slurm_hosts
from tests.programs import main


class Queue(LoginNode):
    """A login node with jobs that another program has sent; its SLURM knows the n-th of them as 1000 + n.

    Attributes:
        jobs: Their ids.
        state: What they all are.
        begun: Those of them that cannot be withdrawn any more.
        stuck: The numbers, and the names in the queue, that scancel cannot remove.
        unlisted: The ids that squeue does not list.
        elsewhere: The host of each job that was sent by another login node of the same home.
        withdrawals: How many jobs each request to withdraw has named.
        scancels: The words of each scancel.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.jobs: list[str] = []
        self.state = "PENDING"
        self.begun: set[str] = set()
        self.stuck: set[str] = set()
        self.unlisted: set[str] = set()
        self.elsewhere: dict[str, str] = {}
        self.withdrawals: list[int] = []
        self.scancels: list[list[str]] = []

    def hold(self, count: int) -> list[str]:
        self.jobs = [secrets.token_hex(8) for _ in range(count)]
        return self.jobs

    def ran(self, program: str, request: Any, stdin: bytes) -> Iterator[tuple[Any, bytes]]:
        words, lines, rc = request["argv"], [], 0
        if "list" in words:
            facts = {"name": "f", "state": self.state, "message": "", "started": 1.0}
            here = self.hello["hostname"]
            lines = [json.dumps({"id": each, "host": self.elsewhere.get(each, here), **facts}) for each in self.jobs]
        elif "withdraw" in words:
            asked = json.loads(stdin)
            assert asked["verdict"]["withdraw"] and asked["verdict"]["kind"] == "cancelled"
            self.withdrawals.append(len(asked["jobs"]))
            lines = [json.dumps({"id": each, "name": "f"}) for each in asked["jobs"] if each not in self.begun]
        elif "remove" in words:
            ids = words[words.index("remove") + 3 :]
            lines = [json.dumps({"removed": [{"id": each, "bytes": 1} for each in ids], "kept": []})]
        elif program == "scancel":
            self.scancels.append(words[1:])
            rc = int(any(word.rpartition("=")[2] in self.stuck for word in words))
        else:
            yield from super().ran(program, request, stdin)
            return
        out = "".join(f"{line}\n" for line in lines).encode()
        yield {"end": True, "ok": True, "rc": rc, "signal": None, "out": len(out), "truncated": False}, out

    def looked(self) -> bytes:
        listed = [(number, each) for number, each in enumerate(self.jobs, 1000) if each not in self.unlisted]
        return "\n".join(f"{number}|PENDING|Priority|1|N/A|f.{each}" for number, each in listed).encode()


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], Queue]]:
    with contextlib.ExitStack() as opened:

        def make() -> Queue:
            first = secrets.randbelow(10**9)  # a name of its own: connections to those made before are kept
            world = opened.enter_context(slurm_hosts(monkeypatch, tmp_path, 1, first, node=Queue))
            (node,) = world.nodes.values()
            assert isinstance(node, Queue)
            return node

        yield make


def cancelled(node: Queue, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what `--json` says of each job."""
    code = main(["cancel", "--json", "--yes", *(words or ["--all", node.hello["hostname"]])])
    return code, {each["id"]: each for each in json.loads(capsys.readouterr().out)}


def test_a_thousand_jobs_take_a_request_for_fifty(queue: Callable[[], Queue], capsys: Any) -> None:
    node = queue()
    jobs = node.hold(1000)

    code, told = cancelled(node, capsys)

    assert code == 0 and list(told) == jobs
    one = told[jobs[7]]
    assert one == {
        "id": jobs[7], "name": "f", "host": one["host"], "state": "CANCELLED", "ended": True,
        "done": "was withdrawn before it started",
    }  # fmt: skip
    assert {each["done"] for each in told.values()} == {one["done"]}
    assert node.withdrawals == [50] * 20
    assert sorted(int(word) for words in node.scancels for word in words) == list(range(1000, 2000))
    assert len(node.scancels) == 20
    assert node.asked["find"] == node.asked["follow"] == 0, "each job by itself"


def test_what_scancel_keeps_is_named_and_hides_no_other(queue: Callable[[], Queue], capsys: Any) -> None:
    node = queue()
    jobs = node.hold(60)
    node.stuck = {"1007", f"f.{jobs[7]}", "1003"}  # by its name, that one can be removed

    code, told = cancelled(node, capsys)

    assert code == 1
    failed = told.pop(jobs[7])
    assert (failed["ended"], failed["error"]["type"], failed["error"]["stage"]) == (False, "SubmitError", "queue")
    assert all(each["ended"] for each in told.values()) and len(told) == 59
    removed = {word for words in node.scancels if not node.stuck & {*words} for word in words}
    assert removed >= {str(number) for number in range(1000, 1060)} - {"1003", "1007"}


def test_a_job_that_squeue_does_not_list_is_removed_by_name(queue: Callable[[], Queue], capsys: Any) -> None:
    node = queue()
    jobs = node.hold(3)
    node.unlisted = {jobs[1]}

    code, _ = cancelled(node, capsys)

    assert code == 0
    assert {words[-1] for words in node.scancels} == {"1002", f"--name=f.{jobs[1]}"}


def test_jobs_that_have_begun_are_asked_about_by_themselves(queue: Callable[[], Queue], capsys: Any) -> None:
    node = queue()
    jobs = node.hold(5)
    node.begun = {jobs[2], jobs[4]}

    code, told = cancelled(node, capsys)

    assert code == 1, "this host finds nothing of them"
    assert [each["ended"] for each in told.values()] == [True, True, False, True, False]
    assert [told[each]["error"]["type"] for each in (jobs[2], jobs[4])] == ["ConfigError"] * 2
    assert node.asked["find"] >= 2
