"""A JobGroup by itself, and the two files of an element as they come: no host is asked."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from clusterfn import ClusterfnError, HostError, SubmitError
from clusterfn.bridge.job_states import FINAL
from clusterfn.bridge.supervisor.group import conclude_if_complete
from clusterfn.bridge.supervisor.job import JobFolder
from clusterfn.calls import conclusion, group_run, leaving, map_display
from clusterfn.calls.group import state_of_group
from clusterfn.calls.group_run import GroupRun
from clusterfn.calls.group_state import ItemOutcome
from clusterfn.calls.item_results import ItemResults, ItemStream
from clusterfn.calls.job import run_of
from clusterfn.calls.queue_place import QueuePlace
from clusterfn.calls.submission_line import Started
from clusterfn.config.job_spec import Group
from clusterfn.config.spec import ResultPolicy
from clusterfn.hosts import loop
from clusterfn.hosts.bridge_bundle import HostContents
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.scheduler_watch import Silent
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.base import PENDING, SchedulerLimits, Submission
from clusterfn.scheduler.slurm.states import SlurmState
from clusterfn.scheduler.slurm.submit import Slurm
from tests.fakes.job_spec import job_spec
from tests.fakes.taken import taken
from tests.golden.golden import recorded
from tests.golden.samples import SLURM
from tests.turns import answered, printed, settle
from tests.unit.calls.groups import ended, group
from tests.waiting import WAIT_S, until


def test_a_job_shows_by_completion_what_a_user_may_call():
    job = taken()
    text = (Path(__file__).parents[3] / "docs/reference/api.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"\w+", text.split("## `Job`")[1].split("\n## ")[0]))

    shown = {name for name in dir(job) if not name.startswith("_")} - set(dir(concurrent.futures.Future))
    assert {"logs", "usage"} <= shown <= explained


def test_the_first_end_of_an_item_is_its_end():
    made = ended(1)
    known = state_of_group(made)
    known.end_item(0, ItemOutcome("DIED", None, RuntimeError("late")))
    known.begin_item(0)

    assert made.results() == [1] and made.states == ["RETURNED"]


def test_items_that_are_sent_again_leave_the_ends_of_the_others():
    again = state_of_group(ended(1, ValueError("no"), 3)).with_items_again([1], "90aa000011112222", "/root/jobs/90aa")

    assert again.states == ["RETURNED", "PENDING", "RETURNED"]
    assert again.shown == 2, "their ends have been shown"


def test_ctrl_c_that_comes_after_the_end_is_said_to_be_late(capfd):
    leaving.interrupted(state_of_group(ended(1, 2)), on_interrupt="stop")

    assert capfd.readouterr().err.endswith(" had already ended: RETURNED (2 of 2 ended: 2 returned)\n")


@pytest.mark.parametrize(
    ("kinds", "state"),
    [(["returned", "raised"], "RAISED"), (["raised", "returned", "memory"], "DIED"), (["result"], "RETURNED"),
     (["memory", "exited"], "DIED"), (["returned", "cancelled"], "CANCELLED")],
)  # fmt: skip
def test_the_state_of_a_group_is_the_one_that_its_host_lists(tmp_path, kinds, state):
    known, made = group(len(kinds))
    lines = []
    for index, kind in enumerate(kinds):
        known.end_item(index, ItemOutcome(FINAL.get(kind, "DIED"), kind=kind))
        lines.append(json.dumps({"index": index, "kind": kind}) + "\n")
    assert made.state == state

    journal = tmp_path / "elements" / "1" / "attempts" / "1" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text("".join(lines))
    (tmp_path / "spec.json").write_text(json.dumps(job_spec(tmp_path, group={"count": len(kinds)})))
    for folder, content in (("claims", f"1 0 {len(kinds)}"), ("done", "")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0").write_text(content)
    conclude_if_complete(JobFolder(str(tmp_path)))
    outcome = json.loads((tmp_path / "attempts" / "1" / "outcome.json").read_text())
    assert FINAL.get(outcome["kind"], "DIED") == state


def lines(*values: bytes) -> bytes:
    told, at = b"", 0
    for index, value in enumerate(values):
        record = {"index": index, "kind": "returned", "value": {"size": len(value)}, "at": at}
        told += json.dumps(record).encode() + b"\n"
        at += len(value)
    return told


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("values_first", [True, False])
def test_values_find_their_lines_whichever_comes_first_and_in_what_pieces(size, values_first):
    values = [b"a" * 3, b"", b"b" * 20, b"c"]
    data, stream, found = lines(*values), ItemStream(1, 1), []
    pieces = [data[n : n + size] for n in range(0, len(data), size)]

    def take(more):
        found.extend((line["index"], bytes(value)) for line, value in stream.ready(more))

    if values_first:
        take(b"".join(values))
    for piece in pieces:
        stream.waiting.extend(stream.lines(piece))
        take(b"")
    if not values_first:
        for byte in b"".join(values):
            take(bytes([byte]))

    assert found == list(enumerate(values))


def test_a_line_that_a_crash_has_torn_is_passed_over():
    stream = ItemStream(1, 1)

    assert stream.lines(b'{"index": 1, "ki\n{"begin": 2}\n{"beg') == [{"begin": 2}]
    assert stream.lines(b'in": 3}\n') == [{"begin": 3}]


def results_of(known, connection, **policy):
    host, job = Mock(connection=connection), Mock(id="7f3a", root="/root", results=ResultPolicy(**policy))
    host.settings.name = "tensor01"
    return ItemResults(host, job, known, lambda: None)


@pytest.mark.parametrize(("kind", "state"), [("returned", "RETURNED"), ("raised", "RAISED")])
def test_a_value_that_cannot_be_fetched_is_the_hosts_error_and_not_damage(kind, state):
    known, made = group(1)
    gone = HostError("/root/values.pkl on tensor01 cannot be used")

    def fetch(path, sink, begin, until):
        reply = Reply(lambda: None)
        sink(b"ha")
        reply.reject(gone)
        return reply

    results = results_of(known, Mock(get=fetch), max_bytes=1000)
    stream = ItemStream(1, 1)
    stream.values = "/root/values.pkl"
    results.take_lines(stream, lines(b"half").replace(b"returned", kind.encode()))
    settle()
    results.close()

    until(made.done)
    assert made.states == [state]
    assert (made.failed[0] is gone) == (kind == "returned")


def test_an_exception_of_an_item_is_not_fetched_from_a_host_that_is_not_trusted():
    known, made = group(1)
    connection = Mock()
    results = results_of(known, connection, data_only=True)
    stream = ItemStream(1, 1)
    stream.values = "/root/values.pkl"

    results.take_lines(stream, lines(b"half").replace(b"returned", b"raised"))
    results.close()

    until(made.done)
    assert made.states == ["RAISED"] and not connection.get.called


@pytest.mark.parametrize("what", ["begin", "retry", "index"])
def test_a_line_about_an_item_that_a_group_does_not_have_changes_nothing(what):
    known, made = group(1)
    results = results_of(known, Mock())

    results.take_lines(ItemStream(1, 1), json.dumps({what: 1, "kind": "returned"}).encode() + b"\n")
    settle()

    assert made.states == ["PENDING"] and results.count_ended() == 0


def test_what_an_item_prints_after_its_end_belongs_to_its_output():
    known, made = group(2)
    connection, stream, printed = Mock(), ItemStream(1, 1), b"one late two last"
    results = results_of(known, connection)
    connection.get.side_effect = lambda path, write, begin, **_: Mock(result=lambda _: write(printed[begin:]))

    def take(**line):
        results.take_lines(stream, json.dumps(line).encode() + b"\n")

    take(begin=0, out=0)
    take(index=0, kind="cancelled", out=[0, 4])
    assert results.read_log(0, "stdout") == "one "
    take(begin=1, out=9)
    take(begin=1, out=9)
    take(index=1, kind="cancelled", out=[9, 4])
    assert results.read_log(0, "stdout") == "one late "
    until(made.done)
    assert results.read_log(1, "stdout") == "two last"


def test_the_output_of_an_item_is_in_the_order_in_which_it_came_among_that_of_its_element():
    known, _ = group(2)
    files = {"stdout": b"a1 a2 b1 b2", "stderr": b"A1 B1 ", "order": b"3 0\n3 3\n6 3\n9 3\n9 6\n"}
    connection, stream = Mock(), ItemStream(1, 1)
    results = results_of(known, connection)
    connection.get.side_effect = lambda path, write, begin, **_: Mock(
        result=lambda _: write(files[path.rpartition("/")[2]][begin:])
    )
    for line in [
        {"begin": 0, "out": 0, "err": 0}, {"index": 0, "kind": "cancelled", "out": [0, 6], "err": [0, 3]},
        {"begin": 1, "out": 6, "err": 3}, {"index": 1, "kind": "cancelled", "out": [6, 5], "err": [3, 3]},
    ]:  # fmt: skip
        results.take_lines(stream, json.dumps(line).encode() + b"\n")

    assert results.read_output(0) == [("stdout", b"a1 "), ("stderr", b"A1 "), ("stdout", b"a2 ")]
    assert results.read_output(1) == [("stdout", b"b1 "), ("stderr", b"B1 "), ("stdout", b"b2")]


def look(tracker, seen):
    tracker.elements.on_scheduler(seen)
    settle()


def start(tracker):
    tracker.start(range(1, 4))
    settle()


@pytest.fixture
def elements_on_slurm(monkeypatch):
    """The tracker of a group of three elements, what its submissions answer, and what it asked about those missing."""
    sent, asked = answered(Started("77")), []
    host = Mock(scheduler=Slurm(SLURM, "ada"), root="/root")
    job = SimpleNamespace(
        id="7f3a", name="f", root="/root", bridge="b", group=Group(3, 1, 3, 1), resources=Mock(),
        results=ResultPolicy(), outputs=(),
    )  # fmt: skip
    monkeypatch.setattr("clusterfn.scheduler.slurm.submit.Slurm.elements", lambda *_: [(range(1, 4), Mock())])

    def submit(place, _request, _after, elements):
        elements.taken(Started("77"))
        place.starting[sent] = None

    monkeypatch.setattr(QueuePlace, "submit", submit)
    host.connection.run = lambda argv, **_: asked.append(argv) or Reply(lambda: None)
    host.connection.wait = host.connection.follow = lambda *_, **__: Reply(lambda: None)
    return GroupRun(host, job, group(3)[0], SchedulerLimits()), sent, asked


def test_an_item_that_does_nothing_for_long_is_reported_once_with_how_to_see_where_it_waits(elements_on_slurm, capsys):
    tracker, _, _ = elements_on_slurm
    told = "printed nothing and used no CPU for 10 min"

    for item in ("1", "2"):
        tracker.item_results.say_quiet(item, told)

    assert capsys.readouterr().err == f"clusterfn: item 1 has {told}: clusterfn stack 7f3a shows where it waits\n"


@pytest.mark.parametrize(("kind", "is_believed"), [("payload", False), ("raised", True)])
def test_what_was_damaged_on_the_host_is_sent_again_with_the_next_map(elements_on_slurm, kind, is_believed):
    tracker, _, _ = elements_on_slurm
    tracker.host.contents = HostContents()
    tracker.host.contents.add(["/root/blobs/a"])
    line = {"index": 0, "kind": kind, "attempt": 1, "final": True, "message": "the blob a was altered", "offset": 0}

    tracker.item_results.take_lines(ItemStream(1, 1), json.dumps(line).encode() + b"\n")
    tracker.item_results.close()

    until(lambda: tracker.group.ended(0) is not None)
    assert ("/root/blobs/a" in tracker.host.contents) == is_believed


def test_a_scheduler_that_answers_again_is_not_called_unreachable_any_more(elements_on_slurm):
    tracker, _, _ = elements_on_slurm
    start(tracker)

    look(tracker, Silent(75.0, "squeue: error: no answer"))
    before = tracker.group.reason
    look(tracker, SlurmState(PENDING, "PENDING", "Priority"))

    unreachable = "the scheduler has been unreachable for 75 s: squeue: error: no answer"
    assert (before, tracker.group.reason) == (unreachable, "Priority: waiting for its turn")


def test_the_scheduler_is_asked_about_a_group_once_it_has_accepted_it(elements_on_slurm, monkeypatch):
    """A look before that finds nothing, and the next one comes seconds later."""
    tracker, _, _ = elements_on_slurm
    accepted = []
    monkeypatch.setattr(QueuePlace, "submit", lambda *given: accepted.append(given[-1]))
    start(tracker)
    before = tracker.host.watch.add.call_count

    accepted[0].taken(Started("77"))

    assert (before, tracker.host.watch.add.call_count) == (0, 1)


def test_elements_are_not_missed_while_they_are_still_being_sent(elements_on_slurm):
    tracker, sent, asked = elements_on_slurm
    sent.done = lambda: False
    start(tracker)
    for _ in range(4):
        look(tracker, None)
    assert asked == []

    sent.done = lambda: True
    look(tracker, None)
    assert asked == []
    look(tracker, None)
    assert asked == [("scontrol", "--oneliner", "show", "job", "77")]


def followed_by_another(tracker):
    other = GroupRun(tracker.host, tracker.job, group(3)[0], SchedulerLimits())
    other.follow(range(1, 4))
    return other


@pytest.fixture
def told_elements(elements_on_slurm):
    """The same, with what scontrol says next, and the verdicts by which the host was asked to conclude."""
    tracker, _, _ = elements_on_slurm
    told, concluded = SimpleNamespace(out=b"", err=b"", note=b""), []

    tracker.host.connection.run = lambda argv, **_: printed(told.note if argv[0] == "find" else told.out, told.err)
    tracker.host.bridge.supervise = lambda *_, stdin, **__: concluded.append(json.loads(stdin)) or printed()
    start(tracker)
    return tracker, told, concluded


def test_the_rest_of_elements_that_end_together_is_concluded_once_and_for_their_reason(told_elements):
    tracker, _, concluded = told_elements
    for element in tracker.elements.tasks.values():
        element.begun = element.over = True
    ends = [{"kind": "unsatisfiable", "message": "no node has 9 TB"}] * 20
    loop.call(lambda: [tracker.elements.tasks[1].settle(each, None) for each in ends])
    settle()

    assert [each["message"] for each in concluded] == ["no node has 9 TB"]
    assert tracker.group.state == "PENDING"  # the verdict comes with the journal


ARRAY = recorded("slurm-22.05.8/scontrol-array.txt").replace("aaaa000000000004", "7f3a").encode()


def test_elements_that_squeue_has_lost_and_scontrol_knows_are_not_given_up(told_elements):
    tracker, told, concluded = told_elements
    told.out = b"\n".join(reversed(ARRAY.replace(b"JobState=RUNNING", b"JobState=COMPLETED").splitlines()))
    for _ in range(5):
        look(tracker, None)
    told.out, told.err = b"", b"slurm_load_jobs error: Unable to contact slurm controller"
    look(tracker, None)
    assert concluded == []

    told.err, told.note = b"slurm_load_jobs error: Invalid job id specified", b"refused"  # more wait in another program
    for _ in range(3):
        look(tracker, None)
    assert concluded == []

    told.note = b""
    for _ in range(3):
        look(tracker, None)
    assert [each["message"] for each in concluded] == ["SLURM no longer knows the job, and it left no result"]


def test_elements_of_a_submission_in_doubt_are_given_up_with_the_words_of_the_scheduler(told_elements, monkeypatch):
    tracker, _, concluded = told_elements
    doubt = SubmitError("sbatch did not answer in time", evidence=["Socket timed out"])
    started = Started("", doubt)
    monkeypatch.setattr(QueuePlace, "submit", lambda *given: given[-1].taken(started))
    other = GroupRun(tracker.host, tracker.job, group(3)[0], SchedulerLimits())
    other.start(range(1, 4))
    settle()

    look(other, None)
    assert concluded == []
    look(other, None)
    (verdict,) = concluded
    assert "never started: sbatch did not answer in time" in verdict["message"]
    assert (verdict["evidence"], verdict["stage"]) == (["Socket timed out"], "submit")


def test_elements_that_another_process_may_be_sending_are_looked_for_longer(told_elements):
    tracker, _, concluded = told_elements
    other = followed_by_another(tracker)

    for _ in range(3):
        look(other, None)
    assert concluded == []
    look(other, None)
    assert "never started" in concluded[0]["message"]


def test_elements_that_may_wait_in_the_agent_of_another_program_are_not_given_up(told_elements):
    tracker, told, concluded = told_elements
    tracker.host.scheduler = Bare("boot")
    tracker.host.connection.facts.machine = "m-1"
    other = followed_by_another(tracker)
    told.note = b"/root/machines/m-1/starting"
    for _ in range(9):
        look(other, None)
    assert concluded == []

    told.note = b""
    for _ in range(4):
        look(other, None)
    assert [each["message"] for each in concluded] == ["the items were sent but never started"]


def test_elements_that_have_not_begun_do_not_end_the_group_of_one_that_has(told_elements):
    tracker, _, concluded = told_elements
    tracker.host.scheduler = Bare("boot")
    tracker.host.connection.facts.machine = "m-1"
    tracker.host.connection.have = lambda _: answered([True])
    other = followed_by_another(tracker)
    other.elements.tasks[1].begun = True

    for _ in range(9):
        look(other, None)

    assert concluded == []


def test_the_newest_submission_decides_what_became_of_the_elements(elements_on_slurm):
    tracker, _, asked = elements_on_slurm
    tracker.start(range(1, 4))
    tracker.elements.submitted(range(4, 5), "100", None)  # after 77
    settle()

    for _ in range(2):
        look(tracker, None)

    assert [argv[-1] for argv in asked] == ["77"], "its answer is awaited before that about 100, which counts"


def test_a_group_whose_rest_the_host_cannot_conclude_ends_with_that_error(told_elements, monkeypatch):
    sleep = asyncio.sleep
    monkeypatch.setattr(group_run.asyncio, "sleep", lambda seconds: sleep(0.0 if seconds == 5.0 else seconds))
    tracker, _, _ = told_elements
    tracker.conclude(conclusion.STOPPED).result(WAIT_S)

    for _ in range(2):
        rest = tracker.elements.all()[-1]
        rest.begun = rest.over = True
        rest.settle({"kind": "cancelled"}, None)
        settle()

    until(lambda: tracker.group.has_news(0))
    with pytest.raises(ClusterfnError, match="could not conclude the items that are left"):
        tracker.group.end_of(0, None)


def test_a_group_that_is_lost_asks_its_host_for_nothing_more(told_elements):
    tracker, _, concluded = told_elements
    tracker.elements.tasks[1].settle({"kind": "memory"}, None)

    tracker.group.fail(HostError("the connection is closed"))
    tracker.item_results.close()
    settle()

    assert concluded == []


def test_looks_for_earlier_elements_do_not_count_against_later_ones(elements_on_slurm):
    tracker, _, asked = elements_on_slurm
    start(tracker)
    look(tracker, None)

    tracker.start(range(4, 7))

    settle()
    look(tracker, None)

    assert asked == []


FULL = b"sbatch: error: AssocMaxSubmitJobLimit"
WAITS = f"not in the queue of SLURM yet; {FULL.decode()[15:]}: you have as many jobs as you may have there"


@pytest.fixture
def in_two_arrays(elements_on_slurm, monkeypatch):
    """The tracker of elements 1 and 2, which SLURM has taken, and 3, which waits for room; see `told_elements`."""
    tracker, _, _ = elements_on_slurm
    monkeypatch.undo()
    told, concluded, written = SimpleNamespace(out=b"", err=b""), [], []

    def run(argv, **_):
        answers = {"first": printed(b"77"), "second": printed(b"", FULL, 1), "find": printed()}
        return answers.get(argv[0]) or printed(told.out, told.err)

    host = tracker.host
    host.connection.run, host.settings = run, SLURM
    host.connection.put = lambda path, *_, **__: written.append(path) or answered(True)
    host.bridge.supervise = lambda *_, stdin, **__: concluded.append(json.loads(stdin)) or printed()
    both = [(range(1, 3), Submission("run", ("first",), "/")), (range(3, 4), Submission("run", ("second",), "/"))]
    monkeypatch.setattr(Slurm, "elements", lambda *_: both)
    start(tracker)
    assert not tracker.queue.submissions[-1].done()
    yield tracker, told, concluded, written
    tracker.queue.await_submissions()


PENDING_ARRAY = SlurmState("pending", "PENDING", "Resources", "77_[1-2]")
HELD_ARRAY = PENDING_ARRAY._replace(reason="launch_failed_requeued_held")
ENDS = {
    "cancelled": (None, b"JobId=77 JobName=f.7f3a JobState=CANCELLED", "the job was cancelled through SLURM"),
    "forgotten": (None, b"slurm_load_jobs error: Invalid job id specified", "SLURM no longer knows the job"),
    "held for good": (HELD_ARRAY, b"", "its node could not start it"),
}


@pytest.mark.parametrize(("seen", "evidence", "message"), ENDS.values(), ids=ENDS)
def test_a_group_ends_with_the_elements_that_slurm_had_while_others_wait_for_room(
    in_two_arrays, seen, evidence, message
):
    tracker, told, concluded, _ = in_two_arrays
    for waiting in (PENDING_ARRAY, PENDING_ARRAY._replace(reason="JobHeldUser")):
        look(tracker, waiting)
    assert concluded == []

    told.out = evidence
    for _ in range(3):
        look(tracker, seen)

    assert len(concluded) == 1 and message in concluded[0]["message"]
    assert tracker.elements.room_for_more() == 0  # so that the other array is never submitted


def test_elements_that_wait_for_room_outlive_those_that_have_ended(in_two_arrays):
    tracker, told, concluded, written = in_two_arrays
    told.out = b"JobId=77 JobState=COMPLETED Reason=None"
    for number in (1, 2):
        tracker.elements.tasks[number].begun = tracker.elements.tasks[number].over = True
    for _ in range(5):
        look(tracker, None)

    assert concluded == []
    assert tracker.queue.waits_here and tracker.queue.waiting_reason == WAITS
    assert {path.rpartition("/")[2] for path in written} == {"refused"} and len(written) <= 2  # for other programs


def test_a_job_that_does_nothing_for_long_says_so_in_its_status_until_it_works_again():
    job, heard = taken(), []
    run_of(job).set_state("RUNNING")
    run_of(job).listen(lambda kind, what: heard.append((kind, what)))

    run_of(job).note_quiet("printed nothing and used no CPU for 10 min")

    assert job.status.startswith("RUNNING (printed nothing") and "clusterfn stack 7f3a" in job.status
    assert sum(kind == "note" for kind, _ in heard) == 1
    run_of(job).note_quiet("")
    assert job.status == "RUNNING"


@pytest.mark.parametrize(("waited_s", "is_said"), [(1.0, False), (3.5, True)])
def test_why_a_map_waits_is_not_said_in_its_first_seconds(capsys, waited_s, is_said):
    told = SimpleNamespace(
        id="7f3a" * 4, state="PENDING", reason="Priority: waiting for its turn", transfer=None, submitted_at=100.0
    )
    progress = map_display.CallProgress(8, lambda: 100.0 + waited_s, began=100.0)

    progress.wait(told, "7f3a")

    assert ("Priority" in capsys.readouterr().err) is is_said
