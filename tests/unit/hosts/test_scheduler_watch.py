"""When the scheduler is looked at, and what is told. The clock and the connection are the test's own."""

import pytest

from tests.fakes.scheduler_watch import watch_machine, watch_slurm
from tests.turns import settle


@pytest.fixture
def made():
    return watch_slurm()


def test_a_listener_learns_what_squeue_says(made):
    watch, connection, _ = made
    told = []
    watch.add("a.1", told.append)
    connection.answer("7|PENDING|Priority|a.1", "8|RUNNING|None|b.2")
    connection.answer("8|RUNNING|None|b.2")
    assert [each and tuple(each)[:4] for each in told] == [("pending", "PENDING", "Priority", "7"), None]


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


def test_a_job_that_runs_but_has_not_reported_that_it_began_is_looked_at_as_one_that_waits(made):
    watch, connection, clock = made
    has_begun = []
    watch.add("a.1", lambda _: None, None, lambda: bool(has_begun))
    clock.now += 100
    for _ in range(3):
        connection.answer("7|RUNNING|None|a.1")
    assert connection.asked == [4, 60]

    has_begun.append(True)
    connection.answer("7|RUNNING|None|a.1")
    connection.answer("7|RUNNING|None|a.1")

    assert connection.asked == [4, 60, 300]


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


def test_a_new_interval_counts_from_the_last_look(made):
    watch, connection, clock = made
    watch.add("a.1", lambda _: None)
    clock.now += 10
    connection.answer("7|RUNNING|None|a.1")
    assert list(zip(connection.asked, connection.delays)) == [(4, 0.0), (20, 20.0)]
    clock.now += 25
    watch.look_now()
    assert (connection.asked[-1], connection.delays[-1]) == (2.0, 0.0)


def test_looking_begins_again_after_the_host_could_not(made):
    watch, connection, _ = made
    watch.add("a.1", lambda _: None)
    connection.fail()
    settle()
    watch.look_now()
    assert connection.asked == [4, 2.0] and connection.stopped == 0


def test_a_single_look_ends_at_once_where_the_host_cannot_ask(made):
    watch, connection, _ = made
    connection.fail_once_asked()

    assert watch.last_look(60.0) == "SLURM could not be asked: squeue is gone"


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
    watch, connection, _ = watch_slurm(poll_floor_s=120.0)
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
    assert tuple(told[1]) == (40.0, "slurm_load_jobs error: Unable to contact slurm controller")
    assert told[2].state == "RUNNING"
    assert connection.asked == [4, 6, 40, 300]


def test_silence_from_the_first_look_counts_from_the_submission(made):
    watch, connection, clock = made
    told = []
    watch.add("a.1", told.append)
    clock.now += 9
    connection.answer(rc=None)
    assert [tuple(each) for each in told] == [(9.0, "squeue did not answer in time")]


def test_an_answer_that_cannot_know_the_job_says_nothing_about_it(made):
    watch, connection, clock = made
    told = []
    watch.add("a.1", told.append)
    clock.now += 3
    connection.answer("8|RUNNING|None|b.2", took_s=5.0)
    assert told == []
    clock.now += 3
    connection.answer("8|RUNNING|None|b.2", took_s=5.0)
    assert told == [None]


def test_programs_that_follow_a_job_give_it_the_same_limit_of_time():
    commands = []
    for _ in range(2):
        watch, connection, _ = watch_slurm()
        connection.run = lambda argv, unset: commands.append(argv)
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
    return watch_machine()


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
    watch, connection, _ = watch_machine(has_queue=False)
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
