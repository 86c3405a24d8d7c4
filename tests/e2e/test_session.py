"""Sessions: cards and an interpreter held for many calls, each in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import clusterfn
from clusterfn import (
    ActorLost,
    ConfigError,
    DiskFull,
    ExitedEarly,
    HostDiskFull,
    HostError,
    KilledBySignal,
    Session,
    Unsatisfiable,
    WorkerLost,
    cluster,
)
from tests.bridge.test_usage import SMI
from tests.e2e.conftest import Hosts
from tests.fixtures.calls.actor_model import Model
from tests.processes import parent_of
from tests.waiting import until


def process() -> tuple[int, int]:
    """The process of a call, and the one that it was forked from."""
    return os.getpid(), os.getppid()


def server_of(session: Session) -> int:
    """The process of a session that hands out its calls."""
    return parent_of(session.call(process)[1])


def set_a_mark() -> bool:
    """Whether an earlier call had set it in this process."""
    was = hasattr(json, "mark")
    json.mark = True  # type: ignore[attr-defined]
    return was


def sleeper(seconds: float) -> int:
    """Leaves a process behind that lasts for so long, in a session of its own."""
    return subprocess.Popen(["sleep", str(seconds)], start_new_session=True).pid


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def wait_for_gate(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.02)
    return "through"


# Else the processes of calls import this module, and pytest.
for travels_by_value in (process, set_a_mark, sleeper, lives, wait_for_gate):
    travels_by_value.__module__ = "__main__"


def in_a_fork(work: Callable[[], object]) -> str:
    """What `work` returns or raises in a forked child, in Python's words."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(150)
        try:
            said = repr(work())
        except BaseException as error:  # nothing of the test may run on here
            said = repr(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.usefixtures("here")
def test_each_call_has_a_process_of_its_own_forked_from_one_that_stays():
    with Session() as session:
        first, second = session.call(process), session.call(process)
        marks = [session.call(set_a_mark) for _ in range(2)]

    assert first[0] != second[0]
    assert first[1] == second[1]
    assert marks == [False, False], "a call saw what an earlier one did to its process"
    assert session.job is not None and session.job.result(150)["why"] == "closed"


@pytest.mark.usefixtures("here")
def test_a_session_closes_after_half_an_hour_without_a_call_unless_idle_says_otherwise():
    with Session() as session:
        session.call(abs, -1)

    assert session.job is not None
    spec = json.loads(Path(session.job.folder, "spec.json").read_text())
    assert spec["session"]["idle_s"] == 30 * 60
    assert not Path(session.job.folder, "payload.pkl").exists()


@pytest.mark.usefixtures("here")
def test_a_call_shows_what_it_prints_and_raises_what_it_raises(capfd: pytest.CaptureFixture[str]):
    def speak(word: str) -> None:
        print(word, "ä", flush=True)
        print(word, file=sys.stderr)
        raise KeyError(word)

    with Session() as session:
        for word in ("one", "two"):
            with pytest.raises(KeyError, match=word):
                session.call(speak, word)
        job = session.submit(speak, "three")
        with pytest.raises(KeyError, match="three"):
            job.result(150)
        assert job.logs() == "three ä\n"

    out, err = capfd.readouterr()
    assert out == "one ä\ntwo ä\n"
    assert "one\n" in err and "three\n" not in err


class Stderr(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: is_terminal  # type: ignore[method-assign]


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.usefixtures("here")
def test_the_first_call_says_where_it_runs_and_all_others_print_their_output_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stderr := Stderr(is_terminal))
    # A busy machine may need longer for a call than a client stays silent, or shows no state.
    monkeypatch.setattr("clusterfn.hosts.spoken_wait.SPEAK_AFTER_S", 600.0)
    monkeypatch.setattr("clusterfn.calls.job_display.TICK_S", 600.0)
    with Session(workers=2, cores=2) as session:
        session.call(print, "first")
        first = stderr.getvalue()
        for number in range(10):
            session.call(print, number)
        model = session.actor(Model, "x")
        assert [model.predict(number) for number in range(10)] == [2 * number for number in range(10)]
        told = stderr.getvalue()[len(first) :]

    assert first.count(" print in a session on ") == 1
    assert "clusterfn" not in told and "\r" not in told
    printed = ["first", *range(10), "loading x", *(f"predicting {number}" for number in range(10))]
    assert capsys.readouterr().out == "".join(f"{word}\n" for word in printed)


def hold(megabytes: int, then: Callable[[int], object] = abs) -> object:
    return then(len(os.urandom(1) * (megabytes << 20)))


hold.__module__ = "__main__"


@pytest.mark.usefixtures("here")
def test_each_call_tells_what_it_used_itself():
    with Session() as session:
        large, small, ended = (session.submit(hold, *args) for args in ((200,), (1,), (200, os._exit)))
        large.result(150), small.result(150)
        with pytest.raises(ExitedEarly):
            ended.result(150)

    assert 200 << 20 > small.usage["peak_memory_bytes"] > 1 << 20
    for call in (large, ended):
        assert call.usage["peak_memory_bytes"] > 200 << 20
        assert 0 < call.usage["cpu_s"] < 60 and 0 < call.usage["wall_s"] < 60
        assert call.usage["gpus"] == []


@pytest.mark.usefixtures("here")
def test_a_call_takes_the_values_of_jobs_which_are_sent_with_it(capfd: pytest.CaptureFixture[str]):
    def fail(x: int) -> None:
        raise ValueError(f"no {x}")

    outside = cluster(pow).submit(2, 3)
    with Session() as session:
        inside = session.submit(divmod, 17, outside)  # which has not ended
        assert session.submit(max, [inside[0], 1], inside[1]).exception(150) is not None  # a list and a number
        assert session.call(max, inside[0], inside[1], outside) == 8
        with pytest.raises(clusterfn.DependencyFailed, match="fail .* has no value: ValueError"):
            session.submit(abs, session.submit(fail, 3))
        assert session.call(abs, -3) == 3

    assert re.search(
        r"the value of pow \(\w{4}\) is sent from this machine to here, as a session call", capfd.readouterr().err
    )


def test_a_call_that_waits_for_a_job_holds_up_no_other(here: Path, tmp_path: Path):
    outside = cluster(wait_for_gate).submit(str(tmp_path / "gate"))
    with Session() as session, ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(session.submit, len, outside)
        assert session.call(abs, -3) == 3
        assert not waiting.done()
        (tmp_path / "gate").touch()
        assert waiting.result(150).result(150) == len("through")


def wait_until_asked(asked: str) -> int:
    """Until the process that this one was forked from has had a whole answer about the cards; who that is."""
    while not (askers := re.findall(rf"^{os.getppid()} (\d+)$", Path(asked).read_text(), re.MULTILINE)):
        time.sleep(0.02)
    with contextlib.suppress(OSError):  # it is gone
        while Path(f"/proc/{askers[0]}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.02)
    return os.getppid()


def test_a_call_tells_how_the_gpus_of_its_session_were_used(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    uuid, program = f"GPU-{os.urandom(16).hex()}", tmp_path / "bin" / "nvidia-smi"
    once = f'grep -q "^$PPID " {tmp_path}/asked && exec sleep 600\n'  # it has no answer for the second call
    told = f"echo '{uuid}, NVIDIA Toy, 20000, 97'; echo $PPID $$ >>'{tmp_path}/asked'\n"
    (tmp_path / "answer").write_text(once + told)
    (tmp_path / "asked").touch()
    program.parent.mkdir()
    program.write_text(SMI.format(uuid=uuid, folder=tmp_path).replace("asked;", "log;"))
    program.write_text(program.read_text().replace("esac", f'-L) echo "GPU 0: NVIDIA Toy (UUID: {uuid})" ;;\nesac'))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    with Session(gpus=1) as session:
        long, short = session.submit(wait_until_asked, str(tmp_path / "asked")), session.submit(process)
        assert long.result(150) == short.result(150)[1], "the session went on"

    used = {"name": "NVIDIA Toy", "peak_memory_bytes": 20000 * 2**20, "peak_use_percent": 97, "mean_use_percent": 97.0}
    assert long.usage["gpus"] == [{"uuid": uuid, **used}]
    assert short.usage["gpus"] is None, "no answer has said which GPU has the number 0"


@pytest.mark.usefixtures("here")
def test_it_is_an_executor_whose_calls_come_back_in_order():
    with Session() as session:
        assert list(session.map(abs, [-3, 2, -1])) == [3, 2, 1]
        jobs = [session.submit(pow, number, 2) for number in range(30)]

    assert [job.result(0) for job in jobs] == [number**2 for number in range(30)]
    with pytest.raises(RuntimeError, match="after shutdown"):
        session.submit(abs, 1)


@pytest.mark.usefixtures("here")
def test_a_call_that_ends_its_process_costs_no_other():
    with Session() as session:
        with pytest.raises(ExitedEarly, match="exit code 3") as exited:
            session.call(os._exit, 3)
        with pytest.raises(KilledBySignal, match="SIGSEGV"):
            session.call(lambda: os.kill(os.getpid(), signal.SIGSEGV))
        assert session.call(abs, -1) == 1

    assert str(exited.value).rstrip().endswith("/calls/1")


@pytest.mark.usefixtures("here")
def test_what_a_call_leaves_behind_ends_before_the_next_begins():
    with Session() as session:
        pid = session.call(sleeper, 300)
        alive = session.call(lives, pid)

    assert not alive


@pytest.mark.usefixtures("here")
def test_spawned_children_find_the_functions_of_a_call():
    def square(number: int) -> int:
        return number**2

    square.__module__, square.__qualname__ = "__main__", "square"

    def spawn() -> list[int]:
        import multiprocessing

        with multiprocessing.get_context("spawn").Pool(2) as pool:
            return pool.map(square, [1, 2, 3])

    spawn.__module__ = "__main__"
    with Session() as session:
        assert session.call(spawn) == [1, 4, 9]


@pytest.mark.usefixtures("here")
def test_modules_that_calls_use_are_loaded_before_later_ones():
    """yaml comes from the environment; the standard library is loaded by each call."""

    def loaded_before(name: str) -> bool:
        was = name in sys.modules
        __import__(name)
        return was

    with Session(environment=f"python:{sys.executable}") as session:
        assert [session.call(loaded_before, "yaml") for _ in range(2)] == [False, True]
        told = session.job

    assert told is not None and "yaml" in told.result(150)["loaded beforehand"]


def test_a_module_that_starts_threads_is_left_to_the_calls(here: Path, tmp_path: Path):
    folder = _venv(tmp_path / "venv")
    starts = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    (folder / "threaded.py").write_text(starts)
    (folder / "quiet.py").write_text("")

    def use() -> int:

        import quiet  # type: ignore[import-not-found]  # noqa: F401
        import threaded  # type: ignore[import-not-found]  # noqa: F401

        return threading.active_count()

    with Session(environment=f"venv:{tmp_path / 'venv'}") as session:
        assert [session.call(use) for _ in range(2)] == [2, 2]
        told = session.job

    assert told is not None and told.result(150)["loaded beforehand"] == ["quiet"]


def _venv(folder: Path) -> Path:
    """A virtual environment's site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return next((folder / "lib").glob("python*/site-packages"))


def test_an_idle_session_lets_go_and_the_next_call_starts_another(here: Path, capfd: pytest.CaptureFixture[str]):
    session = Session(idle="4s")
    first = session.call(process)
    job = session.job
    assert job is not None and job.result(150)["why"] == "idle"
    second = session.call(process)
    session.shutdown()

    assert first[1] != second[1]
    assert "the session on here has ended (it was idle): starting another" in capfd.readouterr().err


@pytest.mark.usefixtures("here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_sends_no_calls_under_its_parents_numbers_and_ends_nothing_of_it():
    with Session(workers=2, cores=2) as session:
        model = session.actor(Model, "a")
        said = [in_a_fork(lambda number=number: session.call(abs, -number)) for number in (2, 3)]  # type: ignore[misc]
        said.append(in_a_fork(session.stop))
        assert [in_a_fork(model.close), in_a_fork(session.shutdown)] == ["None", "None"]

        assert session.submit(abs, -4).result(150) == 4, "what a child sends takes no number of its parent"
        assert model.predict.submit(5).result(150) == 10

        session.stop()
        assert session.job is not None
        assert session.job.cancelled() or session.job.done(), "it has ended, so no call reaches it any more"
        with pytest.raises(ActorLost, match="its session has ended"):
            model.predict(6)
    for each in said:
        assert re.match(rf"RuntimeError\('this Session belongs to process {os.getpid()}, .*make a Session here", each)


@pytest.mark.usefixtures("here")
def test_the_arrays_of_a_call_may_be_changed_once_it_is_submitted():
    with Session() as session:
        assert session.call(abs, -1) == 1
        batch = bytearray(64 << 20)
        job = session.submit(any, batch)
        batch[-1] = 1
        assert job.result(150) is False


@pytest.mark.usefixtures("here")
def test_a_session_closed_while_a_large_call_is_on_its_way_waits_for_it():
    with Session() as session:
        session.call(abs, -1)
        large = session.submit(len, os.urandom(64 << 20))

    assert large.result(0) == 64 << 20
    assert session.job is not None and session.job.result(0)["calls"] == 2


def fill(path: str) -> str:
    """Take all that is left of a disk."""
    with Path(path).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError as error:
            return str(error)


def test_a_full_disk_costs_a_session_no_other_call(small: Path):
    with Session() as session:
        assert session.call(abs, -1) == 1
        held = session.job
        with pytest.raises(DiskFull):
            session.call(fill, str(small / "filler"))
        with pytest.raises(HostDiskFull):
            session.call(abs, -2)
        (small / "filler").unlink()
        assert session.call(abs, -3) == 3
        assert session.job is held


@pytest.mark.usefixtures("here")
def test_a_session_that_dies_says_so_in_each_call_and_the_next_starts_another(tmp_path: Path):
    session = Session()
    server = server_of(session)
    running = session.submit(wait_for_gate, str(tmp_path / "gate"))
    waiting = session.submit(abs, -1)
    until(lambda: running.state == "RUNNING")
    assert waiting.status == "PENDING", "and no more that its session starts"
    with pytest.raises(HostError, match="it has left no files yet: it is PENDING"):
        waiting.download()
    os.kill(server, signal.SIGKILL)

    with pytest.raises(WorkerLost, match="the session of the call has ended: .*SIGKILL"):
        running.result(150)
    with pytest.raises(WorkerLost, match="the call had not begun when its session ended: .*SIGKILL") as unbegun:
        waiting.result(150)
    assert (unbegun.value.stage, unbegun.value.hint) == ("queue", "call again: nothing of it has run")
    assert session.call(abs, -1) == 1
    session.shutdown()


@pytest.mark.usefixtures("here")
def test_a_function_that_was_promised_more_than_the_session_has_is_refused():
    def work() -> int:
        return 1

    with Session(cores=1, memory="1GB") as session:
        for asks, message in (
            ({"gpus": 1}, "the function asks for gpus=1, the session has 0"),
            ({"memory": "2GB"}, "the function asks for memory='2GB', the session has '1GB'"),
            ({"environment": "a.yml"}, "the function asks for environment='a.yml', which the Session was not given"),
            ({"stall_timeout": "1min"}, "the function asks for stall_timeout='1min', which only a whole job can have"),
            ({"retries": 2}, "the function asks for retries=2"),
            ({"outputs": ["*.pt"]}, "the function asks for outputs=('*.pt',)"),
            ({"host": "elsewhere"}, "the function asks for host='elsewhere', the session has 'here'"),
        ):
            with pytest.raises(ConfigError) as refused:
                session.submit(cluster(**asks)(work))  # type: ignore[call-overload]
            assert message in str(refused.value)
        with pytest.raises(ConfigError, match="the function asks for gpus=1"):
            session.submit(functools.partial(cluster(gpus=1)(work)))
        assert session.call(cluster(cores=1)(work)) == 1


@pytest.mark.usefixtures("here")
def test_a_function_that_asks_for_no_longer_than_the_session_lasts_is_called_in_it():
    def work() -> int:
        return 1

    with Session(cores=1, time="10min") as session:
        assert session.call(cluster(time="2min")(work)) == 1
        with pytest.raises(ConfigError, match="the function asks for time='15min', the session has '10min'"):
            session.submit(cluster(time="15min")(work))
    with Session(cores=1) as session:
        assert session.call(cluster(time="2min")(work)) == 1, "a session without a limit lasts long enough"


def test_a_session_says_its_mistakes_before_anything_is_sent(here: Path):
    with pytest.raises(ConfigError, match="idle='10' is not a duration"):
        Session(idle="10")

    with pytest.raises(ConfigError, match="5 is not a function"):
        Session().call(5)  # type: ignore[arg-type]

    assert not (here / "jobs").exists()


@pytest.mark.lab
def test_a_session_that_can_never_run_says_what_to_ask_for(hosts: Hosts):
    with Session("slurm", memory="900GB") as session, pytest.raises(Unsatisfiable) as never:
        session.call(abs, -1)

    assert "ask for less memory than one node has" in str(never.value.hint)


@pytest.mark.usefixtures("here")
def test_an_error_in_the_block_is_reported_before_its_calls_have_ended(tmp_path: Path):
    gate = tmp_path / "gate"
    (tmp_path / "script.py").write_text(
        "import clusterfn, os, time\n"
        "def work(gate):\n"
        "    while not os.path.exists(gate): time.sleep(0.02)\n"
        "with clusterfn.Session('here') as session:\n"
        f"    for _ in range(2): session.submit(work, {str(gate)!r})\n"
        "    raise ValueError('a typo')\n"
    )
    running = subprocess.Popen([sys.executable, tmp_path / "script.py"], stderr=subprocess.PIPE, text=True)
    assert running.stderr
    said = ""
    while "ValueError in the with block of the session: waiting for its 2 calls (to end them: " not in said:
        said = running.stderr.readline()
        assert said, "it ended without a word"
    gate.touch()

    assert "ValueError: a typo" in running.communicate(timeout=150)[1]


@pytest.mark.lab
def test_calls_and_values_longer_than_what_srun_carries_at_a_time_are_whole(hosts: Hosts):
    def echo(data: bytes) -> bytes:
        return data

    before = hosts.jobs()
    with Session("slurm", cores=1) as session:
        session.call(abs, -1)
        for size in (1000, 1024, 3000, 200_000):
            values = [os.urandom(size) for _ in range(40)]
            jobs = [session.submit(echo, value) for value in values]
            assert all(job.result(150) == value for job, value in zip(jobs, values))
    assert len(hosts.jobs() - before) == 1, "one job of SLURM for all calls"


@pytest.mark.usefixtures("here")
def test_who_forgets_to_close_it_learns_when_it_lets_go(tmp_path: Path):
    (tmp_path / "script.py").write_text(
        "import clusterfn\nsession = clusterfn.Session(idle='1min')\nsession.call(abs, -1)\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=150)

    assert "keeps running on " in done.stderr
    said = r": (\w{4}) \(it ends after 1 min without a call; to end it now: clusterfn cancel \1\)"
    assert re.search(said, done.stderr)


@pytest.mark.usefixtures("here")
def test_after_all_was_stopped_nothing_says_at_the_end_that_it_keeps_running(tmp_path: Path):
    (tmp_path / "script.py").write_text(
        "import clusterfn, os, signal, time\n"
        "def stay(begun):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    os.mkdir(begun)\n"
        "    while not os.path.exists(BEGUN): time.sleep(0.02)\n"
        "session = clusterfn.Session()\n"
        "session.submit(stay, BEGUN + '1')\n"
        "group = clusterfn.cluster(stay).map([BEGUN + '2'])\n"
        "while not os.path.exists(BEGUN + '1') or not os.path.exists(BEGUN + '2'): time.sleep(0.02)\n"
        "group.stop()\n"
        "session.stop()\n".replace("BEGUN", repr(str(tmp_path / "begun")))
    )
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=150)
    (tmp_path / "begun").touch()

    assert "keeps running" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.usefixtures("here")
def test_an_async_block_closes_its_session() -> None:
    async def use() -> tuple[int, Session]:
        async with Session() as session:
            return await session.submit(abs, -3), session

    value, session = asyncio.run(use())

    assert value == 3 and session.job is not None and session.job.result(150)["why"] == "closed"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("busy", [False, True])
def test_who_leaves_the_block_by_ctrl_c_learns_that_the_session_is_closed(busy: bool, tmp_path: Path):
    (tmp_path / "script.py").write_text(
        "import clusterfn, os, time\n"
        "def work(begun, gate):\n"
        "    os.mkdir(begun)\n"
        "    while not os.path.exists(gate): time.sleep(0.02)\n"
        "with clusterfn.Session() as session:\n"
        "    session.call(abs, -1)\n"
        "    print(session.job.id, flush=True)\n"
        f"    if {busy}:\n"
        "        session.submit(work, 'begun', 'gate')\n"
        "        waiting = [session.submit(abs, -1) for _ in range(3)]\n"
        "        while not os.path.exists('begun'): time.sleep(0.02)\n"
        "    raise KeyboardInterrupt\n".replace("'begun'", repr(str(tmp_path / "begun"))).replace(
            "'gate'", repr(str(tmp_path / "gate"))
        )
    )
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=150)
    (tmp_path / "gate").touch()

    assert ("(it is closed, and ends with its last call; to end it now: clusterfn cancel " in done.stderr) == busy
    assert ("keeps running on " in done.stderr) == busy
    withdrawn = "3 calls of the session had not begun and will not run; 1 that had begun will run to the end"
    assert (withdrawn in done.stderr) == busy
    assert clusterfn.attach(done.stdout.strip()).result(150)["why"] == "closed"
