"""What a function leaves behind, closes or removes never costs its value, and never outlives the job."""

from __future__ import annotations

import os
import resource
import signal
import subprocess

import pytest

from tests.bridge.host import Bench, clean_environ, obey_modes
from tests.processes import is_running, named
from tests.waiting import until

THREAD = """def f():
    import threading, time
    threading.Thread(target=time.sleep, args=(600,)).start()
    return 5
"""


def test_a_child_that_ignores_sigterm_and_changed_its_tag_is_ended(bench: Bench):
    sleeps = f"sleep {10_000 + os.getpid()}"  # as no other process of the machine does
    command = f"trap '' TERM; exec env -i {sleeps}"
    source = "def f(command):\n    import subprocess\n    subprocess.Popen(command, shell=True)\n"
    job = bench.job(source, command, grace_s=0.2)

    assert job.run()["kind"] == "returned"
    assert not named(*sleeps.split())


def test_a_thread_that_stays_does_not_delay_the_value(bench: Bench):
    job = bench.job(THREAD, grace_s=3.0)

    assert job.run()["kind"] == "returned" and job.value() == 5
    (ended,) = [e for e in job.events() if "still there after the function's end" in e.get("message", "")]
    assert ended["t"] - (job.attempt / "outcome.json").stat().st_mtime >= 2.9


def test_what_atexit_writes_is_kept(bench: Bench):
    source = "def f():\n    import atexit, time\n    atexit.register(lambda: (time.sleep(0.3), print('farewell')))\n"
    job, _ = bench.run(source)

    assert job.output() == "farewell\n"


def test_an_exit_in_atexit_does_not_change_the_outcome(bench: Bench):
    source = "def f():\n    import atexit, os\n    atexit.register(lambda: os._exit(9))\n    return 1\n"
    job, outcome = bench.run(source)

    assert (outcome["kind"], job.value()) == ("returned", 1)


@pytest.mark.parametrize(
    "mischief",
    [
        "os.close(1); os.close(2)", "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = None; sys.stderr = object()", "os.closerange(3, 500)", "del sys.stdout, sys.stderr",
        "sys.stdout = type('Odd', (), {'flush': lambda self: 1 / 0})()", "os.environ.clear()",
        "sys.stdout = type('Odd', (), {'flush': lambda self: sys.exit(3)})()", "sys.path.clear()",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))", "os.chdir('/'); os.umask(0o777)",
        "shutil.rmtree(os.getcwd())", "shutil.rmtree(os.path.dirname(os.getcwd()), ignore_errors=True)",
        "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE)]",
        "sys.modules.pop('json')", "sys.stdout.reconfigure(encoding='ascii', errors='strict')", "os.setsid()",
    ],
)  # fmt: skip
def test_the_value_arrives_whatever_the_function_does(bench: Bench, mischief):
    job, outcome = bench.run(f"def f():\n    import os, sys, shutil, signal\n    {mischief}\n    return 'value'\n")

    assert outcome["kind"] == "returned", outcome
    assert job.value() == "value"


@pytest.mark.parametrize("limit", [(64, 64), (1024, 1024), (1024, 4096), (1024, 16384)])
def test_any_limit_of_open_files_will_do_and_is_what_the_function_finds(bench: Bench, limit):
    source = "def f():\n    import resource\n    return resource.getrlimit(resource.RLIMIT_NOFILE)\n"
    job = bench.job(source)

    job.start(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit)).wait(150)

    assert (job.outcome()["kind"], job.value()) == ("returned", list(limit))


def test_the_value_is_on_the_disk_before_it_is_reported(bench: Bench):
    """Seen from inside: the function watches the fsync of the process that it runs in."""
    job, _ = bench.run("""def f():
    import os, sys
    fsync, out = os.fsync, sys.stdout
    def seen(fd):
        out.write('synced %s of %d bytes\\n' % (os.readlink('/proc/self/fd/%d' % fd), os.fstat(fd).st_size))
        fsync(fd)
    os.fsync = seen
""")

    path = job.attempt / "value.pkl"
    assert job.output() == f"synced {path} of {path.stat().st_size} bytes\n"


def test_a_fork_that_comes_out_of_the_function_says_nothing(bench: Bench):
    job, outcome = bench.run("""def f():
    import os
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return 'parent' if pid else 'child'
""")

    assert (outcome["kind"], job.value()) == ("returned", "parent")


def test_a_fork_that_raises_says_nothing(bench: Bench):
    job, outcome = bench.run("""def f():
    import os
    pid = os.fork()
    if pid == 0:
        raise SystemExit(4)
    return os.waitpid(pid, 0)[1]
""")

    assert (outcome["kind"], job.value()) == ("returned", 4 << 8)


def test_children_do_not_hold_the_descriptors_of_the_report_and_the_value(bench: Bench):
    job, _ = bench.run("""def f():
    import subprocess
    return subprocess.run(['ls', '/proc/self/fd'], close_fds=False, stdout=-1).stdout.decode()
""")

    assert [int(fd) for fd in job.value().split() if int(fd) > 3] == []


TWO_CHILDREN = """def f():
    import subprocess
    hows = {'start_new_session': True}, {'env': {}}
    print(*[subprocess.Popen(['sleep', '600'], **how).pid for how in hows], flush=True)
    import time
    time.sleep(600)
"""


def test_what_a_dead_supervisor_leaves_is_found_by_its_tag_and_by_its_session(bench: Bench):
    job = bench.job(TWO_CHILDREN)
    script = job.start()
    children = [int(pid) for pid in job.wait_for_text("\n").split()]
    worker = job.worker_pid()

    os.kill(job.supervisor_pid(), signal.SIGKILL)

    until(lambda: not is_running(worker))
    assert script.wait(150) == 10  # by itself: the sweep spares job.sh
    assert [pid for pid in children if is_running(pid)] == []
    assert len([note for note in job.outcome()["notes"] if "sleep" in note]) == 2


ANOTHER_SESSION = """
sleep 600 &
'{python}' -I -S '{bridge}/supervise.py' after '{job}' 137
echo "after: $?"
kill $! && echo spared
"""


def test_a_sweep_that_job_sh_did_not_ask_for_spares_the_session_of_who_did(bench: Bench):
    job = bench.job("def f():\n    return 1\n")
    script = ANOTHER_SESSION.format(python=bench.host, bridge=bench.bridge, job=job.folder)

    argv = ["/bin/sh", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, start_new_session=True, env=clean_environ())

    assert "after: 10" in done.stdout
    assert "spared" in done.stdout


LOCKED = """def f(which, end):
    import os
    os.chmod(os.path.abspath(os.path.join('..', *['..'] * which)), 0)
    print('locked', flush=True)
    exec(end)
    return 'value'
"""


@pytest.mark.parametrize("which", [0, 1, 2], ids=["attempt", "attempts", "job"])
@pytest.mark.parametrize(("end", "kind"), [("", "returned"), ("os._exit(3)", "exited")])
def test_a_function_that_locks_its_folders_still_ends_truthfully(bench: Bench, which, end, kind):
    job = bench.job(LOCKED, which, end)

    job.start(before=obey_modes).wait(150)

    assert job.outcome()["kind"] == kind
    assert (job.outcome()["by"], job.folder.stat().st_mode & 0o700) == ("supervisor", 0o700)
    assert kind != "returned" or job.value() == "value"


@pytest.mark.parametrize("which", [0, 1, 2], ids=["attempt", "attempts", "job"])
def test_after_concludes_in_folders_that_the_function_locked(bench: Bench, which):
    job = bench.job(LOCKED, which, "import signal; os.kill(os.getppid(), signal.SIGKILL)")

    job.start(before=obey_modes).wait(150)

    assert (job.outcome()["kind"], job.outcome()["by"]) == ("lost", "after")


FORGED = """def f(lines):
    import os
    for fd in os.listdir('/proc/self/fd'):
        if int(fd) > 800 and os.readlink('/proc/self/fd/' + fd).startswith('pipe:'):
            os.write(int(fd), lines.encode())
    return 'value'
"""


LINES = [
    '{"done": []}', '{"done": "lost"}', '{"done": "returned", "usage": 3}', '{"done": "returned", "size": "1"}',
    '{"done": "returned", "size": 1}', '{"done": "raised", "usage": {"cpu_s": {}}}', '{"note": 5}', '{"stage": {}}',
    '[1]', '[["done", "returned"]]', "[" * 100000,
    '{"done": "raised", "exception": ' + '{"a":' * 200 + "1" + "}" * 201,
    '{"note": "\\ud800 \\udc80"}',
]  # fmt: skip


@pytest.mark.parametrize("lines", [LINES, *(pytest.param([line], marks=pytest.mark.long) for line in LINES)])
def test_what_the_worker_did_not_report_is_not_believed(bench: Bench, lines):
    job, outcome = bench.run(FORGED, "".join(f"{line}\n" for line in lines))

    assert (outcome["kind"], outcome["stage"]) == ("returned", "result"), outcome
    assert job.value() == "value"
