"""Jobs that fall silent: how much their host is asked, above all while it is slow, and what its answers mean."""

from __future__ import annotations

import collections
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from clusterfn.bridge import layout
from clusterfn.calls import conclusion, liveness
from clusterfn.calls.conclusion import parse_conclusion
from clusterfn.calls.run import Location, Run
from clusterfn.errors import ClusterfnError, HostError, Unreachable
from clusterfn.hosts.connection import Completed
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.golden import recorded
from tests.golden.samples import BARE, SLURM
from tests.turns import settle
from tests.waiting import until

BOOT = "12345678-1234-1234-1234-123456789abc"


class SlowHost:
    """A host that answers when it is told to.

    Attributes:
        asked: The commands that it has not answered.
        count: How often it was asked for each program.
    """

    def __init__(self, together: bool = True) -> None:
        self.scheduler: Any = Bare(BOOT)
        if not together:
            self.scheduler.evidence_of_many = False
            self.scheduler.evidence_command = lambda number: ("cat", "/boot_id", f"/proc/{number.split(':')[1]}/stat")
        self.connection = self
        self.asked: list[tuple[list[str], Reply[Completed]]] = []
        self.count: collections.Counter[str] = collections.Counter()
        self.living: set[str] = set()
        # What `find` prints, by the name that it looks for; no job is claimed then.
        self.found: dict[str, str] = {}
        self.claim, self.root, self.facts = "", "/root", SimpleNamespace(machine="m-1")
        self.most_open = 0
        self.settings, self.bridge, self.contents = BARE, self, Mock()
        self.runs: dict[str, SilentRun] = {}

    def supervise(self, command: str, folder: str, *, stdin: bytes, **_: Any) -> Reply[Completed]:
        self.runs[folder].verdict = json.loads(stdin)
        return self.run([command, folder])

    def run(self, argv: Any, **_: Any) -> Reply[Completed]:
        self.count[argv[0]] += 1
        reply: Reply[Completed] = Reply(lambda: None)
        self.asked.append((list(argv), reply))
        self.most_open = max(self.most_open, len(self.asked))
        return reply

    def answer(self) -> None:
        argv, reply = self.asked.pop(0)
        out = ""
        if argv[0] == "find":
            out = self.found.get(argv[1].rpartition("/")[2], "")
        elif argv[0] == "grep" and not self.found:
            claims = (path for path in argv if path.endswith(layout.CLAIM))
            out = "".join(f"{path}:{self.claim or BOOT + ':' + path.split('/')[3] + ':77'}\n" for path in claims)
        elif argv[0] == "cat":
            pids = [path.split("/")[2] for path in argv[2:]]
            out = f"{BOOT}\n" + "".join(f"{pid} (sh) S {'0 ' * 18}77\n" for pid in pids if pid in self.living)
        elif argv[0] == "conclude":
            out = '{"attempt": null}'
            self.runs[argv[1]].is_closed = True
        reply.resolve(Completed(0, None, out.encode(), b""))
        settle()

    def answer_all(self) -> None:
        while self.asked:
            self.answer()

    @property
    def is_connected(self) -> bool:
        return True


class SilentRun(Run):
    """A silent job, and the verdict that its host was asked to publish."""

    verdict: dict[str, Any] | None = None


def made(host: Any, count: int) -> list[SilentRun]:
    places = [(str(number), f"/root/jobs/{number}", "f", BARE.result_policy()) for number in range(1000, 1000 + count)]
    runs = [SilentRun(Location(host, *place)) for place in places]
    host.runs = {run.folder: run for run in runs}
    return runs


def ask(host: Any, jobs: Sequence[Any]) -> None:
    for job in jobs:
        liveness.ask(job)
    settle()


def test_a_claim_that_says_that_the_job_is_concluded_is_not_of_another_start_of_the_host() -> None:
    host = SlowHost()
    host.claim = "concluded"
    (job,) = made(host, 1)
    job.at.scheduler_id = f"{BOOT}:1000:77"

    ask(host, [job])
    host.answer_all()

    assert job.verdict is not None and job.verdict["kind"] == "lost"


def test_one_question_answers_for_all_and_none_is_asked_while_it_is_open():
    host = SlowHost()
    jobs = made(host, 300)
    host.living = {str(1000 + number) for number in range(300)}

    for _ in range(20):  # for four minutes all of them stay silent, and the host says nothing
        ask(host, jobs)

    assert dict(host.count) == {"grep": 1}
    host.answer_all()
    assert sum(host.count.values()) <= 4, "of the one that came first, and of the others together"
    assert not any(job.verdict for job in jobs)


def test_jobs_that_are_gone_are_concluded_a_few_at_a_time():
    host = SlowHost()
    jobs = made(host, 100)
    host.living = {"1001"}
    ask(host, jobs)

    host.answer_all()

    assert [job.folder for job in jobs if not job.is_closed] == ["/root/jobs/1001"]
    assert host.most_open <= 4
    assert host.count["tail"] == host.count["conclude"] == 99


def test_jobs_of_a_cluster_are_asked_about_one_after_another():
    host = SlowHost(together=False)
    jobs = made(host, 10)
    host.living = {str(1000 + number) for number in range(10)}
    ask(host, jobs)

    host.answer_all()

    assert host.most_open == 1 and host.count["cat"] == 10


def test_a_job_that_has_ended_meanwhile_is_not_asked_about():
    host = SlowHost()
    jobs = made(host, 10)
    ask(host, jobs)
    for job in jobs[1:]:
        job.is_closed = True

    host.answer_all()

    assert host.count["grep"] == 1


@pytest.mark.parametrize("answered", range(4))
def test_a_question_that_fails_ends_none_of_the_later_ones(answered: int):
    host = SlowHost()
    first, later = made(host, 2)
    ask(host, [first])
    for _ in range(answered):
        host.answer()
    host.asked.pop(0)[1].reject(Unreachable("the connection was lost"))
    settle()
    host.answer_all()

    ask(host, [later])
    host.answer_all()

    assert later.verdict is not None and later.verdict["kind"] == layout.LOST


@pytest.mark.parametrize("answered", range(2))
def test_a_question_that_took_too_long_is_asked_again(answered: int, monkeypatch):
    monkeypatch.setattr(liveness, "AGAIN_S", 0.05)
    host = SlowHost()
    (job,) = made(host, 1)
    ask(host, [job])
    for _ in range(answered):
        host.answer()

    host.asked.pop(0)[1].reject(HostError("cat took longer than 60 s"))

    until(lambda: host.asked)
    host.answer_all()
    assert job.verdict is not None and job.verdict["kind"] == layout.LOST


@pytest.mark.parametrize("starts_later", [True, False])
def test_a_job_that_nobody_has_begun_is_lost_unless_it_may_wait_in_the_agent_of_another_program(starts_later):
    host = SlowHost()
    host.found = {layout.SPEC: "old", layout.STARTING: "young" if starts_later else ""}
    (job,) = made(host, 1)
    ask(host, [job])

    host.answer_all()

    assert (job.verdict is None) == starts_later


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_job_that_the_scheduler_does_not_know_is_lost_unless_another_program_waits_to_submit_it(is_refused):
    host = SlowHost()
    host.scheduler = Slurm(SLURM, "ada")
    host.found = {layout.REFUSED: "young" if is_refused else ""}
    (job,) = made(host, 1)
    ask(host, [job])

    host.answer_all()

    assert (job.verdict is None) == is_refused


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Completed(None, 9, b"", b""), "its program printed nothing and ended with signal 9"),
        (Completed(1, None, b"", b""), "its program printed nothing and ended with exit status 1"),
        (Completed(1, None, b"", b"No module named os"), "No module named os"),
    ],
)
def test_an_answer_that_cannot_be_read_is_the_evidence(answer: Completed, says: str):
    with pytest.raises(ClusterfnError, match="could not conclude the job") as rejected:
        parse_conclusion(answer, BARE, "/root/jobs/7f3a")

    assert list(rejected.value.evidence) == [says]


def test_what_the_scheduler_says_of_another_job_with_the_number_is_no_word_about_this_one():
    """A controller that has lost its state gives numbers again."""
    own, line = "7f3a000011112222", recorded("slurm-22.05.8/scontrol-kill.txt").replace("FAILED", "RUNNING")
    tracker: Any = SimpleNamespace(host=SimpleNamespace(scheduler=Slurm(SLURM, "ada")), id=own)

    verdict = conclusion.explain(tracker, line, "", "30")

    assert verdict is not None and "30 is another job now" in verdict.message
    assert conclusion.explain(tracker, line.replace("kill.aaaa00000000000e", f"train.{own}"), "", "30") is None
