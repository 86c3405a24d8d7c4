"""A job that does nothing is ended with the stack of each of its threads; one that does something is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.bridge.host import Bench, Job
from tests.bridge.layout import layout_bridge
from tests.interpreters import interpreter
from tests.waiting import until

# As a module that travels: its file lies on the host, so its lines can be shown.
STUCK = """import multiprocessing
import os
import subprocess
import sys
import threading
import time

lock = threading.Lock()


def twice():
    with lock:
        print("locked", flush=True)
        lock.acquire()  # the second time


def fork_and_lock():
    held = threading.Event()
    threading.Thread(target=keep, args=(held,), daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        with lock:  # held by a thread that the child has not
            os._exit(0)
    os.waitpid(child, 0)  # for ever


def keep(held):
    with lock:
        held.set()
        time.sleep(1000)


def in_a_spawned_child():
    child = multiprocessing.get_context("spawn").Process(target=twice)
    child.start()
    child.join()


def beside_a_program(path):
    program = subprocess.Popen(["sleep", "1000"])
    os.mkfifo(path)
    print(program.pid, flush=True)
    open(path).close()  # waits
    return program.poll()


def prints():
    for _ in range(80):
        time.sleep(0.1)
        print(".", flush=True)


def computes():
    for _ in range(80):
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
        time.sleep(0.08)


def runs_a_pipe(path):
    os.mkfifo(path)
    exec(compile("lock.acquire()\\nlock.acquire()", path, "exec"), {"lock": threading.Lock()})


def children_compute():
    for _ in range(3):
        subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 2.7: pass"], check=True)
"""


STALL_S = 6.0  # who starts may be kept from its CPU for some seconds, which must not be taken for a stall


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose supervisors wait longer for stacks: a busy machine may stop a process while it writes its own."""
    changes = [
        ("supervisor/limits.py", "_BUSY_S = 100.0", "_BUSY_S = 2.0"),  # a supervisor that was late takes it for none
        ("supervisor/stacks.py", "_ANSWER_S = 2.0", "_ANSWER_S = 60.0"),
        ("supervisor/stacks.py", "_IN_ALL_S = 10.0", "_IN_ALL_S = 100.0"),
        ("supervisor/stacks.py", "_QUIET_S = 0.1", "_QUIET_S = 2.0"),
    ]
    return layout_bridge(tmp_path_factory.mktemp("root") / "bridge" / "test", *changes)


@pytest.fixture
def job(bench: Bench, tmp_path: Path):
    """Makes a job that calls a function of `STUCK`."""
    (tmp_path / "stuck.py").write_text(STUCK)

    def make(name: str, *args: str, **spec: object) -> Job:
        source = f"def f(*args):\n    import stuck\n    return stuck.{name}(*args)\n"
        return bench.job(source, *args, sys_path=[str(tmp_path)], **spec)

    return make


def waiting(job: Job) -> None:
    """Until a function beside a program waits, and its program too."""
    pid = int(job.wait_for_text("\n"))
    until(lambda: all(") S " in Path(f"/proc/{each}/stat").read_text() for each in (pid, job.worker_pid())))


def ask(job: Job, token: str) -> None:
    """As a client does: the question is there whole or not at all."""
    (job.folder / "question").write_text(token)
    (job.folder / "question").rename(job.folder / "stack")


def shown(outcome: dict[str, object]) -> str:
    assert outcome["kind"] == "stalled", outcome
    return "\n".join(outcome["evidence"])


def test_code_that_is_named_after_a_pipe_does_not_hold_up_the_supervisor(job, tmp_path):
    """Nothing ever writes to the pipe, and who opens it to read the line waits for ever."""
    stack = shown(job("runs_a_pipe", str(tmp_path / "pipe"), stall_s=STALL_S).run())

    assert 'pipe", line 2 in <module>\n' in stack


def test_a_forked_child_that_waits_for_a_lock_shows_its_own_stack(job):
    stuck = job("fork_and_lock", stall_s=STALL_S)
    stack = shown(stuck.run())

    assert "os.waitpid(child, 0)  # for ever" in stack
    assert "with lock:  # held by a thread that the child has not" in stack
    assert "time.sleep(1000)" in stack
    assert stuck.tagged() == []


@pytest.mark.parametrize("python", [pytest.param("3.9", marks=pytest.mark.long), "3.13"])
def test_a_stuck_function_ends_with_the_line_where_it_is(bridge: Path, tmp_path: Path, python: str):
    """An old supervisor reads what any worker writes."""
    if interpreter("3.6") is None or interpreter(python) is None:
        pytest.skip(f"Python 3.6 or {python} is not installed here")
    bench = Bench(tmp_path / "root", bridge, str(interpreter("3.6")), str(interpreter(python)))
    (tmp_path / "stuck.py").write_text(STUCK)
    source = "def f():\n    import stuck\n    return stuck.twice()\n"

    outcome = bench.run(source, sys_path=[str(tmp_path)], stall_s=STALL_S)[1]

    stack = shown(outcome)
    assert outcome["message"] == "the job printed nothing and used no CPU time for 6 s"
    assert outcome["stage"] == "function"
    assert 'stuck.py", line 14 in twice\n      lock.acquire()  # the second time\n' in stack
    assert "worker.py" not in stack


@pytest.mark.long
def test_a_spawned_child_does_too(job):
    assert "lock.acquire()  # the second time" in shown(job("in_a_spawned_child", stall_s=STALL_S).run())


@pytest.mark.long
@pytest.mark.parametrize("name", ["computes", "prints", "children_compute"])
def test_a_process_that_does_something_is_left_alone(job, name: str):
    assert job(name, stall_s=STALL_S).run()["kind"] == "returned"


def test_who_asks_gets_the_stacks_and_the_job_goes_on(job, tmp_path: Path):
    asked = job("beside_a_program", str(tmp_path / "go"))
    script, token = asked.start(), "0123456789abcdef"
    waiting(asked)
    ask(asked, token)
    answer = asked.folder / f"stack.{token}"
    stack = until(lambda: answer.exists() and answer.read_text())
    os.close(os.open(tmp_path / "go", os.O_RDWR))
    script.wait(150)

    assert "in beside_a_program\n      open(path).close()  # waits\n" in stack
    assert "sleep (pid " in stack
    assert "no stack of Python's; it is sleeping" in stack
    assert asked.outcome()["kind"] == "returned"
    assert asked.value() is None, "the program was ended by the question"
    assert not (asked.folder / "stack").exists()


def test_a_stack_that_is_asked_for_shows_no_secret(job, tmp_path: Path):
    asked = job("beside_a_program", str(tmp_path / "go"), secret={"TOKEN": ".close()  # waits"})
    script = asked.start()
    waiting(asked)
    ask(asked, "0123456789abcdef")
    answer = asked.folder / "stack.0123456789abcdef"
    stack = until(lambda: answer.exists() and answer.read_text())
    os.close(os.open(tmp_path / "go", os.O_RDWR))
    script.wait(150)

    assert "      open(path)***\n" in stack and "# waits" not in stack


@pytest.mark.parametrize("written", ["../../../evil", "", "0123456789abcdeg"])
def test_an_odd_question_is_not_answered_and_does_no_harm(job, tmp_path: Path, written: str):
    asked = job("beside_a_program", str(tmp_path / "go"))
    script = asked.start()
    waiting(asked)
    ask(asked, written)
    until(lambda: not (asked.folder / "stack").exists())
    os.close(os.open(tmp_path / "go", os.O_RDWR))
    script.wait(150)

    assert asked.outcome()["kind"] == "returned"
    assert not [name for name in os.listdir(asked.folder) if name.startswith("stack.")]


def test_a_worker_whose_file_was_removed_is_named_all_the_same(bench: Bench):
    source = "def f():\n    import os, time\n    os.unlink('../stacks')\n    time.sleep(1000)\n"
    _, outcome = bench.run(source, stall_s=STALL_S)

    assert "no stack of Python's" in shown(outcome)


def test_a_job_that_does_nothing_for_long_says_so_once_and_that_it_works_again(bench: Bench, tmp_path: Path):
    go, end = tmp_path / "go", tmp_path / "end"
    waits = "    while not os.path.exists({}):\n        time.sleep(0.05)\n"
    source = f"def f(go, end):\n    import os, time\n{waits.format('go')}    print('again', flush=True)\n"
    job = bench.job(source + waits.format("end"), str(go), str(end), quiet_s=0.5)
    job.start()
    events = job.attempt / "events.jsonl"
    until(lambda: events.exists() and '"quiet"' in events.read_text())
    go.touch()
    until(lambda: '"active"' in events.read_text())
    end.touch()

    job.script.wait(150)

    told = [json.loads(line) for line in events.read_text().splitlines()]
    said = [each["reason"] for each in told if each["event"] == "quiet"]
    assert said[0].startswith("printed nothing and used no CPU for ")
    assert job.outcome()["kind"] == "returned", "it is only told"
