"""When the scheduler is looked at, and what is told. The clock and the connection are the test's own."""

import asyncio
from concurrent.futures import CancelledError

import pytest

from clusterfn.errors import HostError
from clusterfn.hosts import loop
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.rpc.requests import CommandLook
from clusterfn.hosts.scheduler_watch import SchedulerWatch, Silent
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.base import PENDING, RUNNING, JobState
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.samples import SLURM


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Connection:
    """Remembers what is being repeated; the test answers."""

    def __init__(self):
        self.asked = []
        self.on_look = None
        self.stopped = 0
        self.is_closed = False

    def usable(self):
        return not self.is_closed

    def repeat(self, argv, interval_s, *, share, unset, on_look):
        assert argv and share and "SQUEUE_" in unset
        self.asked.append(interval_s)
        self.on_look = on_look
        self.repeating = Reply(self.stop)
        return self.repeating

    def stop(self):
        self.stopped += 1
        self.on_look = None
        self.repeating.reject(CancelledError())

    def answer(self, *lines, rc=0, err="", age_s=0.0, took_s=0.0):
        self.on_look(CommandLook(rc, "\n".join(lines), err, age_s=age_s, took_s=took_s))
        loop.settle()


class Watch:
    """A watch whose calls have had their effect when they return."""

    def __init__(self, *args, **more):
        self.watch = SchedulerWatch(*args, **more)

    def __getattr__(self, name):
        def call(*args):
            getattr(self.watch, name)(*args)
            loop.settle()

        return call


@pytest.fixture
def made():
    clock, connection = Clock(), Connection()
    return Watch(connection, Slurm(SLURM, "ada"), clock=clock), connection, clock


def test_a_listener_learns_what_squeue_says(made):
    watch, connection, _ = made
    told = []
    watch.add("a.1", told.append)
    connection.answer("7|PENDING|Priority|a.1", "8|RUNNING|None|b.2")
    connection.answer("8|RUNNING|None|b.2")
    assert told == [JobState(PENDING, "PENDING", "Priority", "7"), None]


def test_looks_become_rarer_while_a_job_waits(made):
    watch, connection, clock = made
    watch.add("a.1", lambda _: None)
    start = clock.now
    for _ in range(8):
        clock.now += connection.asked[-1]
        connection.answer("7|PENDING|Priority|a.1")
    assert connection.asked == [4, 6, 20, 40, 60]
    assert clock.now - start == 4 + 6 + 20 + 40 + 4 * 60
    assert connection.stopped == 4


def test_a_running_job_is_looked_at_every_five_minutes_and_a_new_one_soon(made):
    watch, connection, clock = made
    watch.add("a.1", lambda _: None)
    connection.answer("7|RUNNING|None|a.1")
    assert connection.asked == [4]
    connection.answer("7|RUNNING|None|a.1")
    assert connection.asked == [4, 300]
    watch.add("b.2", lambda _: None)
    assert connection.asked[-1] == 4
    watch.remove("b.2")
    assert connection.asked[-1] == 300
    watch.remove("a.1")
    assert connection.on_look is None


def test_a_job_that_is_added_again_is_looked_at_soon_again(made):
    watch, connection, clock = made
    for name in ("a.1", "b.2"):
        watch.add(name, lambda _: None)
    clock.now += 3600
    connection.answer("7|PENDING|Priority|a.1", "8|PENDING|Priority|b.2")
    assert connection.asked == [4, 60]

    watch.add("a.1", lambda _: None)

    assert connection.asked[-1] == 4


def test_a_job_killed_before_its_first_heartbeat_is_missed_soon(made):
    watch, connection, _ = made
    told = []
    watch.add("a.1", told.append)
    connection.answer("7|RUNNING|None|a.1")
    assert connection.asked == [4]  # nothing but the next look can tell of its death
    connection.answer()
    assert told[1] is None and connection.asked == [4]


def test_the_answer_that_the_host_repeats_for_a_new_interval_is_no_second_look(made):
    watch, connection, clock = made
    told = []
    watch.add("a.1", told.append)
    clock.now += 10
    connection.answer("7|RUNNING|None|a.1")
    clock.now += 0.1
    connection.answer("7|RUNNING|None|a.1", age_s=0.1)
    assert len(told) == 1 and connection.asked == [4, 20]
    clock.now += 20
    connection.answer("7|RUNNING|None|a.1", age_s=0.2)  # of another process of the user, on the same host
    assert len(told) == 2 and connection.asked[-1] == 300


def test_looking_begins_again_after_the_host_could_not(made):
    watch, connection, _ = made
    watch.add("a.1", lambda _: None)
    connection.repeating.reject(HostError("squeue is gone"))
    loop.settle()
    watch.look_now()
    assert connection.asked == [4, 2.0] and connection.stopped == 0


def test_a_single_look_ends_at_once_where_the_host_cannot_ask(made):
    watch, connection, _ = made
    loop.begin(reject_soon(connection))

    assert watch.watch.last_look(60.0) == "SLURM could not be asked: squeue is gone"


async def reject_soon(connection):
    while connection.on_look is None:
        await asyncio.sleep(0.01)
    connection.repeating.reject(HostError("squeue is gone"))


def test_a_requeued_job_is_looked_at_as_one_that_waits(made):
    watch, connection, clock = made
    watch.add("a.1", lambda _: None)
    clock.now += 100
    connection.answer("7|RUNNING|None|a.1")
    connection.answer("7|RUNNING|None|a.1")
    connection.answer("7|PENDING|BeginTime|a.1")
    assert connection.asked == [4, 60, 300, 60]


def test_a_stale_heartbeat_looks_at_once(made):
    watch, connection, _ = made
    watch.add("a.1", lambda _: None)
    connection.answer("7|RUNNING|None|a.1")
    watch.look_now()
    assert connection.asked[-1] == 2.0
    connection.answer("7|RUNNING|None|a.1")
    assert connection.asked[-1] == 300


def test_never_more_often_than_the_host_allows():
    connection = Connection()
    watch = Watch(connection, Slurm(SLURM, "ada"), clock=Clock(), poll_floor_s=120.0)
    watch.add("a.1", lambda _: None)
    watch.look_now()
    assert connection.asked == [120.0]


def test_a_dead_scheduler_is_silent_and_nothing_has_ended(made):
    watch, connection, clock = made
    told = []
    watch.add("a.1", told.append)
    clock.now += 5
    connection.answer("7|RUNNING|None|a.1")
    clock.now += 40
    connection.answer(rc=1, err="slurm_load_jobs error: Unable to contact slurm controller")
    connection.answer("7|RUNNING|None|a.1")
    assert told[1] == Silent(40.0, "slurm_load_jobs error: Unable to contact slurm controller")
    assert told[2].phase == RUNNING
    assert connection.asked == [4, 6, 40, 300]


def test_silence_from_the_first_look_counts_from_the_submission(made):
    watch, connection, clock = made
    told = []
    watch.add("a.1", told.append)
    clock.now += 9
    connection.answer(rc=None)
    assert told == [Silent(9.0, "squeue did not answer in time")]


@pytest.mark.parametrize(
    "times", [{"age_s": 5.0}, {"took_s": 5.0}], ids=["an older answer", "a look that began before"]
)
def test_an_answer_that_cannot_know_the_job_says_nothing_about_it(made, times):
    watch, connection, clock = made
    told = []
    watch.add("a.1", told.append)
    clock.now += 3
    connection.answer("8|RUNNING|None|b.2", **times)
    assert told == []
    clock.now += 3
    connection.answer("8|RUNNING|None|b.2", **times)
    assert told == [None]


def test_programs_that_follow_a_job_give_it_the_same_limit_of_time():
    commands = []
    for _ in range(2):
        connection = Connection()
        connection.run = lambda argv, unset: commands.append(argv)
        watch = Watch(connection, Slurm(SLURM, "ada"), clock=Clock())
        watch.add("a.1", lambda _: None, 3600.0)
        for _ in range(2):
            connection.answer("7|PENDING|PartitionTimeLimit|1|N/A|a.1")

    assert commands == 2 * [("scontrol", "update", "JobId=7", "TimeLimit=60")]


def test_a_listener_may_remove_its_own_job(made):
    watch, connection, _ = made
    watch.add("a.1", lambda _: watch.remove("a.1"))
    connection.answer("7|COMPLETED|None|a.1")
    assert connection.on_look is None


@pytest.fixture
def queue():
    """The queue of a machine without a scheduler."""
    clock, connection = Clock(), Connection()
    return Watch(connection, Bare("boot", lambda: ("supervise", "queue")), clock=clock), connection, clock


WAITS = "a.00000000000000aa|PENDING|2 jobs before it"


def test_a_machines_own_queue_is_asked_sooner_and_oftener(queue):
    watch, connection, clock = queue
    told = []
    watch.add("a.00000000000000aa", told.append)
    assert connection.asked == [2.0]
    for _ in range(10):
        connection.answer(WAITS)
        clock.now += connection.asked[-1]
    assert connection.asked == [2.0, 5.0, 10.0]
    assert told[0].reason == "2 jobs before it"

    watch.add("b.00000000000000bb", lambda _: None)
    assert connection.asked[-1] == 2.0


def test_who_is_not_in_a_machines_own_queue_is_not_missed_the_sooner_because_it_is_asked_often(queue):
    watch, connection, clock = queue
    told = []
    watch.add("a.00000000000000aa", told.append)
    while clock.now < 1030:
        connection.answer("")
        clock.now += 2
    assert told == [None, None]

    connection.answer(WAITS)
    connection.answer("")
    assert [each and each.reason for each in told[2:]] == ["2 jobs before it", None]


def test_nobody_is_asked_on_a_bare_host():
    connection = Connection()
    watch = Watch(connection, Bare(), clock=Clock())
    watch.add("a.1", lambda _: None)
    watch.look_now()
    assert connection.asked == []


def test_a_program_that_sends_a_job_every_few_seconds_asks_the_controller_once_a_minute(made):
    watch, connection, clock = made
    for number in range(30):
        watch.add(f"a.{number}", lambda _: None)
        clock.now += 4
        if connection.asked[-1] == 4 or number == 29:
            connection.answer("7|PENDING|Priority|a.1")
    assert connection.asked[-1] == 60

    before = len(connection.asked)
    for _ in range(20):  # a file system that hangs: each heartbeat is missed every few seconds
        watch.look_now()
        clock.now += 2
    assert connection.asked[before:] == []

    clock.now += 600
    watch.add("b.1", lambda _: None)
    assert connection.asked[-1] == 4, "the first job of some minutes is looked at soon all the same"
