"""Workers that are forked from an element's template: each is as one whose interpreter was started for it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.group import Group
from tests.bridge.host import Bench
from tests.bridge.layout import layout_bridge
from tests.waiting import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux adopts orphans")

# What an item sees of its process, and what it then changes.
SEEN = """
def f(x):
    import gc, locale, logging, os, random, resource, signal, sys, threading, time, warnings
    own = os.getpid()
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\\n").split(":", 1) for line in file)
    fds = {{}}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            fds[fd if fd < 3 else "high"] = os.readlink("/proc/self/fd/%d" % fd).split(":")[0].split("/")[1 - 2]
        except OSError:
            continue
    drawn = random.random()
    seen = {{
        "argv": sys.argv, "flags": str(sys.flags), "path": sys.path, "cwd": os.path.dirname(os.getcwd()),
        "modules": sorted(name for name in sys.modules if not name.startswith("_clusterfn.bridge.")),
        "main": sorted(name for name in vars(sys.modules["__main__"]) if name.startswith("__")),
        "environ": {{k: v for k, v in os.environ.items() if k not in ("CLUSTERFN_ITEM", "CLUSTERFN_INDEX", "PWD")}},
        "umask": os.umask(0o77), "signals": [str(signal.getsignal(n)) for n in (1, 2, 10, 12, 13, 15, 17)],
        "blocked": status["SigBlk"], "ignored": status["SigIgn"],
        "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"],
        "threads": threading.active_count(), "cpus": sorted(os.sched_getaffinity(0)), "nice": os.nice(0),
        "leads its group": os.getpgrp() == own, "leads its session": os.getsid(0) == own,
        "fds": fds, "children": open("/proc/self/task/%d/children" % own).read(),
        "recursion": sys.getrecursionlimit(), "hooks": str(sys.excepthook), "locale": locale.setlocale(locale.LC_ALL),
        "filters": len(warnings.filters), "level": logging.getLogger().level, "gc": gc.isenabled(),
        "stdout": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering], "time": time.tzname,
    }}
    forked = "_clusterfn.bridge.worker.template" in sys.modules
    if x == 2:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    os.environ["LEFT"] = "x"; sys.path.append("/left"); sys.argv.append("left"); sys.modules["left"] = sys
    os.umask(0o22); os.chdir("/"); signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.setrecursionlimit(5000)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); os.setpgid(0, 0) if {leads} else os.setsid()
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    warnings.simplefilter("error"); logging.getLogger().setLevel(5); gc.disable(); os.nice(1); random.seed(1)
    __import__("builtins").left = 1
    threading.Thread(target=time.sleep, args=(0.01,)).start()
    os.sched_setaffinity(0, seen["cpus"][:1]); sys.stdout = None
    return forked, seen, (drawn, os.environ["CLUSTERFN_INDEX"]), {folder!r} and {waiting!r} and {failing!r}
"""


def test_an_item_that_is_forked_sees_what_one_with_an_interpreter_of_its_own_sees(bench: Bench):
    group = Group(bench, 6, 6, source=SEEN.replace("{leads}", "False"))

    assert group.start(1).wait(150) == 0, group.ends()

    assert group.ends()[2] == ["signal"], "it ends its keeper, which it does not outlive"
    found = [group.value(1, x) for x in (0, 1, 3, 4, 5)]
    assert [each[0] for each in found] == [True] * 2 + [False] * 3
    assert len({each[2][0] for each in found}) == 5 and [each[2][1] for each in found] == list("01345")
    expected = found.pop()[1]
    for _, seen, _, _ in found:
        assert set(seen.pop("modules")) - {"_ctypes", "select"} == set(expected["modules"])
        assert {name: value for name, value in seen.items() if value != expected[name]} == {}


# Item 4 does what `does` says.
ITEM = """
def f(x):
    import glob, os, signal, time

    def template():
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            pid = int(path.split("/")[2])
            try:
                with open(path) as file, open("/proc/%d/stat" % pid) as stat:
                    parent = int(stat.read().rpartition(")")[2].split()[1])
                    is_near = pid == os.getppid() or parent == os.getppid() and pid != os.getpid()
                    if is_near and "template" in file.read().split("\\0"):
                        return pid
            except OSError:
                continue
        return 0

    if x == 4:
        {does}
    return "_clusterfn.bridge.worker.template" in __import__("sys").modules
    {folder!r}, {waiting!r}, {failing!r}
"""


def group_of(bench: Bench, does: str = "pass", count: int = 8, **more: Any) -> Group:
    return Group(bench, count, count, source=ITEM.replace("{does}", does), **more)


@pytest.mark.parametrize(
    ("does", "kind"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal"), ("os._exit(3)", "exited"), ("1 / 0", "raised"),
        ("os.setsid()", "returned"), ("os.killpg(0, signal.SIGKILL)", "signal"),
        pytest.param("os.abort()", "signal", marks=pytest.mark.long),
        ("held = bytearray(300 << 20); signal.pause()", "memory"),
    ],
)  # fmt: skip
def test_how_a_forked_item_ends_is_seen_as_it_is(bench: Bench, does: str, kind: str):
    group = group_of(bench, does, resources={"memory_bytes": 200 << 20})

    assert group.start(1).wait(150) == 0

    assert group.ends() == {x: [kind if x == 4 else "returned"] for x in range(8)}
    assert group.value(1, 5) is True
    assert group.line(5)["usage"]["peak_memory_bytes"] < 100 << 20


def test_an_element_waits_for_no_late_keeper(bench: Bench, tmp_path: Path):
    hurried = ("supervisor/keeper.py", "_START_S = 100.0", "_START_S = 0.0")
    bench.bridge = layout_bridge(tmp_path / "hurried", hurried)
    group = group_of(bench)

    assert group.start(1).wait(150) == 0

    assert group.ends() == {x: ["returned"] for x in range(8)} and group.value(1, 0) is False


def test_without_its_keeper_an_element_goes_on(bench: Bench):
    group = group_of(bench, "os.kill(template(), signal.SIGKILL); time.sleep(600)")

    assert group.start(1).wait(150) == 0

    assert group.ends() == {x: ["signal" if x == 4 else "returned"] for x in range(8)}
    assert [group.value(1, x) for x in (3, 5, 7)] == [True, False, False]


@pytest.mark.parametrize(
    "starts",
    [
        "print('hello')",
        "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "import os; log = os.dup(2)",
        "kept = open('/etc/passwd')",
        "import sys; sys.modules['_ctypes'] = None",
    ],
    ids=["prints", "starts a thread", "keeps its output", "keeps a file", "has no ctypes"],
)
def test_what_an_environment_does_when_it_starts_is_done_for_each_item(bench: Bench, tmp_path: Path, starts: str):
    (tmp_path / "sitecustomize.py").write_text(starts + "\n")
    group = group_of(bench, count=5, env={"PYTHONPATH": str(tmp_path)})

    assert group.start(1).wait(150) == 0

    assert not any(group.value(1, x) for x in range(5))
    stdout = (group.folder_of(1) / "attempts/1/stdout").read_text()
    assert stdout.count("hello") == (5 if "hello" in starts else 0)


# As packages such as certifi's on some machines: a line of a .pth file imports them when the interpreter starts.
DRAWS = """
def f(x):
    import random, sys
    numpy = sys.modules.get("numpy")
    drawn = [random.random(), at_start.OWN.random(), numpy.random.random() if numpy else 0]
    return "_clusterfn.bridge.worker.template" in sys.modules, drawn
    {folder!r}, {waiting!r}, {failing!r}
import at_start
"""


@pytest.mark.parametrize(
    "starts", ["OWN = random.Random()", "import numpy\nOWN = numpy.random.default_rng()"], ids=["random", "numpy"]
)
def test_forked_items_draw_numbers_of_their_own(bench: Bench, tmp_path: Path, starts: str):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    bench.python = str(tmp_path / "venv" / "bin" / "python")
    packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    (packages / "at_start.py").write_text(f"import random\n{starts}\n")
    numpy = Path(pytest.importorskip("numpy").__file__).parents[1]
    (packages / "certifi-like.pth").write_text(f"{numpy}\nimport at_start\n")
    group = Group(bench, 6, 6, source=DRAWS)

    assert group.start(1).wait(150) == 0

    found = [group.value(1, x) for x in range(6)]
    assert all(forked for forked, _ in found)
    drawn = list(zip(*(each[1] for each in found)))
    assert [len(set(numbers)) for numbers in drawn] == [6, 6, 6 if "numpy" in starts else 1]


def test_nothing_is_left_behind_when_the_supervisor_is_killed(bench: Bench):
    pids = "open(os.path.join({folder!r}, 'pids'), 'w').write('%d %d' % (os.getpid(), template())); time.sleep(600)"
    group = group_of(bench, pids)
    process = group.start(1)
    found = until(lambda: (group.told / "pids").exists() and (group.told / "pids").read_text().split())

    process.kill()

    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in found))


# A module of the environment, and a function that decides what its import finds: each item has to import it anew.
ANEW = "import os, random\nrandom.seed(42)\nCHOICE = os.environ.get('CHOICE')\n"
IMPORTS_IT = """
def f(x):
    import os, random, time
    os.environ["CHOICE"] = str(x)
    import anew
    drawn = random.random()
    time.sleep(0.3)  # for a template that would load the module ahead
    is_forked = "_clusterfn.bridge.worker.template" in __import__("sys").modules
    return anew.CHOICE, drawn, is_forked
    {folder!r}, {waiting!r}, {failing!r}
"""


def test_each_item_imports_what_earlier_items_have_imported(bench: Bench, tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    bench.python = str(tmp_path / "venv" / "bin" / "python")
    packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    (packages / "anew.py").write_text(ANEW)
    group = Group(bench, 12, 12, source=IMPORTS_IT)

    assert group.start(1).wait(150) == 0

    found = [group.value(1, x) for x in range(12)]
    drawn = random.Random(42).random()
    assert [value[:2] for value in found] == [[str(x), drawn] for x in range(12)]
    assert found[-1][2], "the last was not forked"


# Its own folder, as its variable and the folders of its modules have it.
FOLDER = """
def f(x):
    import os, sys
    own = os.getcwd()
    there = [os.path.basename(each) for each in sys.path if os.path.dirname(each) == os.path.dirname(own)]
    return os.path.basename(own), os.environ["PWD"] == own, there
    {folder!r}, {waiting!r}, {failing!r}
"""


def test_relative_folders_of_an_items_variables_are_those_of_its_own_folder(bench: Bench):
    group = Group(bench, 6, 6, source=FOLDER, env={"PYTHONPATH": "."})

    assert group.start(1).wait(150) == 0

    assert [group.value(1, x) for x in range(6)] == [[str(x), True, [str(x)]] for x in range(6)]
