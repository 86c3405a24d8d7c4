"""Calls in a row are forked: the supervisor from the agent, and the worker from a keeper, a fork of the template there.

Each is as one whose interpreters start for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn import cluster
from tests.bridge.test_template import SEEN
from tests.e2e.conftest import local_host
from tests.processes import command_line, named
from tests.waiting import stays, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux adopts orphans")


def _made_here() -> Callable[[], bool]:
    """Return a function that travels by value: an environment may have no pytest."""

    def is_forked() -> bool:
        return "\0jobs\0" in Path("/proc/self/cmdline").read_text()  # the words of the template

    return is_forked


is_forked = _made_here()


def call_until_forked(call: Callable[[], Any], is_forked: Callable[[Any], Any] = bool) -> Any:
    """Call until a call is forked; return its value."""
    return until(lambda: is_forked(value := call()) and (value,))[0]


def template_of(root: Path) -> int:
    """Return the process of the template whose bridge is below this root; 0 if there is none."""
    words = {pid: command_line(pid) for pid in named(root)}
    return next((pid for pid in words if {b"template", b"jobs"} <= set(words[pid])), 0)


@pytest.fixture(params=["here", pytest.param("py36", marks=pytest.mark.lab)])
def host(request: pytest.FixtureRequest) -> str:
    """A host without a scheduler: this machine, and one with Python 3.6 behind ssh."""
    request.getfixturevalue("here" if request.param == "here" else "hosts")
    return str(request.param)


def seeing(host: str) -> Any:
    """Return a function that tells what it sees of its process, and whether that was forked from a job's template."""
    names = dict.fromkeys(("folder", "waiting", "failing"), "x")
    own = 'gc.get_threshold(), "\\0jobs\\0" in open("/proc/self/cmdline").read()'
    source = SEEN.replace('os.environ["CLUSTERFN_INDEX"]', own).format(leads=False, **names)
    place: dict[str, Any] = {"__name__": "__main__"}
    exec(source, place)
    return cluster(host=host)(place["f"])


def facts_of(value: Any, job_id: str) -> tuple[bool, dict[str, Any], float]:
    """Return whether a process was forked, what it saw apart from its job's name, and its random number."""
    _, facts, (drawn, threshold, forked), _ = value
    facts["threshold"] = threshold
    assert facts.pop("cpus")
    facts["environ"] = {name: str(value).replace(job_id, "ID") for name, value in facts["environ"].items()}
    return forked, {**facts, "cwd": facts["cwd"].replace(job_id, "ID")}, drawn


def assert_same(facts: dict[str, Any], alone: dict[str, Any]) -> None:
    # The keeper has loaded these.
    more = set(facts.pop("modules")) - set(alone.pop("modules"))
    assert more <= {"select", "_ctypes", "atexit"}, more
    assert {name: value for name, value in facts.items() if value != alone[name]} == {}


def test_a_forked_call_sees_what_one_with_interpreters_of_its_own_sees(host: str):
    f = seeing(host)

    def seen() -> tuple[bool, dict[str, Any], float]:
        job = f.submit(0)
        forked, facts, drawn = facts_of(job.result(), job.id)
        assert os.path.basename(facts["cwd"]) == "1"
        return forked, facts, drawn

    _, alone, first = seen()
    _, facts, second = call_until_forked(seen, lambda value: value[0])
    _, _, third = seen()

    assert_same(facts, alone)
    assert len({first, second, third}) == 3


def test_an_element_that_is_forked_has_its_items_forked_by_the_same_keeper(host: str):
    f = seeing(host)

    def seen() -> list[tuple[bool, dict[str, Any], float]]:
        group = f.map(range(2), max_parallel=1)
        return [facts_of(value, group.id) for value in group.results()]

    before = seen()
    after = call_until_forked(seen, lambda values: values[0][0])

    # The agent may have had a template of earlier jobs.
    assert [each[0] for each in after] == [True, True]
    for (_, alone, _), (_, facts, _) in zip(before, after):
        assert_same(facts, alone)
    assert len({each[2] for each in before + after}) == 4


@pytest.mark.parametrize(
    "ends",
    ["os.kill(os.getpid(), 9)", "os._exit(3)", "1 / 0", "sys.exit(2)"],
    ids=["killed", "exits", "raises", "sys.exit"],
)
def test_how_a_forked_call_ends_is_seen_as_it_is(here: Path, ends: str):
    place: dict[str, Any] = {"__name__": "__main__", "is_forked": is_forked}
    exec(f"import os, sys, time\ndef f(ends):\n if ends:\n  {ends}\n return is_forked()\n", place)
    f = cluster(place["f"])

    def end() -> tuple[str, str]:
        with pytest.raises(BaseException) as caught:
            f(True)
        return type(caught.value).__name__, str(caught.value).splitlines()[0]

    alone = end()
    call_until_forked(lambda: f(False))

    assert end() == alone


def leaves(note: str, which: str) -> bool:
    """Leave a process, of another session unless it is the keeper's, kill the supervisor or the keeper, and wait."""
    import os
    import time

    if note:
        if which == "keeper":
            Path(note).write_text(str(os.getpid()))
        elif os.fork() == 0:
            os.setsid()
            Path(note).write_text(f"{os.getpid()} {os.getppid()}")
            time.sleep(600)
        while not os.path.exists(note) or not Path(note).read_text():
            time.sleep(0.02)
        lines = Path(os.environ["CLUSTERFN_CHECKPOINT"]).with_name("processes").read_text().splitlines()
        pids = dict(line.split()[::2] for line in lines)
        os.kill(int(pids[which]), 9)
        time.sleep(600)
    return "\0jobs\0" in Path("/proc/self/cmdline").read_text()


@pytest.mark.parametrize(
    ("which", "error"), [pytest.param("supervisor", "WorkerLost", marks=pytest.mark.long), ("keeper", "KilledBySignal")]
)
def test_what_a_call_leaves_is_ended_when_its_supervisor_or_keeper_is_killed(
    here: Path, tmp_path: Path, which: str, error: str
):
    leave = cluster(leaves)
    call_until_forked(lambda: leave("", ""))
    with pytest.raises(clusterfn.errors.WorkerLost) as caught:
        leave(str(tmp_path / "note"), which)

    assert type(caught.value).__name__ == error and "SIGKILL" in str(caught.value)
    pids = (tmp_path / "note").read_text().split()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_without_its_template_a_call_starts_and_later_ones_are_forked_again(here: Path, number: int):
    f = cluster(is_forked)
    call_until_forked(f)
    template = template_of(here)

    os.kill(template, number)

    assert f() is False
    call_until_forked(f)
    assert template_of(here) != template


def test_a_name_or_variable_that_is_not_ascii_changes_nothing(
    tmp_path: Path, warm_root: Path, monkeypatch: pytest.MonkeyPatch
):
    root = warm_root.rename(tmp_path / "größe")
    (tmp_path / "clusterfn.yml").write_text(local_host(root))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))

    @cluster(env={"ORT": "Köln"}, name="größe")
    def ort() -> tuple[bool, str]:
        import os

        return "\0jobs\0" in Path("/proc/self/cmdline").read_text(), os.environ["ORT"]

    assert call_until_forked(ort, lambda value: value[0]) == (True, "Köln")


def test_an_environment_that_has_changed_is_used_as_it_is_now(here: Path, tmp_path: Path):
    python = _venv(tmp_path)
    packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))

    @cluster(environment=f"python:{python}")
    def find() -> tuple[bool, str]:
        is_forked = "\0jobs\0" in Path("/proc/self/cmdline").read_text()
        try:
            import added
        except ImportError:
            return is_forked, ""
        return is_forked, str(added.WHERE)

    call_until_forked(find, lambda value: value[0])
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "added.py").write_text("WHERE = 'project'\n")
    (packages / "added.pth").write_text(f"{tmp_path / 'project'}\n")

    assert find() == (False, "project")
    assert call_until_forked(find, lambda value: value[0]) == (True, "project")


def test_spare_off(tmp_path: Path, warm_root: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "clusterfn.yml"
    config.write_text(local_host(warm_root) + "    spare: off\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    f = cluster(is_forked)

    for _ in range(4):
        assert f() is False
        stays(lambda: template_of(warm_root) == 0, 0.3)


def test_nothing_of_it_outlives_the_connection(here: Path, tmp_path: Path, run_script: Callable[..., Any]):
    text = (
        "import json, os, time, clusterfn\n"
        "@clusterfn.cluster\n"
        "def f(gate):\n"
        "    while gate and not os.path.exists(gate): time.sleep(0.02)\n"
        "    return 'jobs' in open('/proc/self/cmdline').read().split(chr(0))\n"
        "while not f(''): time.sleep(0.1)\n"
        f"job = f.submit({str(tmp_path / 'gate')!r})\n"
        "while job.state != 'RUNNING': time.sleep(0.01)\n"
        "print(json.dumps(job.id))\n"
    )
    job = run_script(text)

    (tmp_path / "gate").touch()
    until(lambda: template_of(here) == 0)  # the job has its words, too
    assert clusterfn.attach(job).result() is True


def _venv(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    return folder / "venv" / "bin" / "python"


def signals_of_supervisor() -> tuple[bool, int]:
    import os
    from pathlib import Path

    noted = Path(os.environ["CLUSTERFN_CHECKPOINT"]).with_name("processes").read_text().splitlines()
    pid = next(line.split()[2] for line in reversed(noted) if line.startswith("supervisor "))
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return "\0jobs\0" in Path("/proc/self/cmdline").read_text(), int(status["SigIgn"], 16)


signals_of_supervisor.__module__ = "__main__"


def test_a_forked_supervisor_ends_at_no_write_to_a_program_that_does_not_read(here: Path) -> None:
    there = cluster(signals_of_supervisor)

    _, ignored = call_until_forked(there, lambda seen: seen[0])

    assert ignored & 1 << signal.SIGPIPE - 1 and ignored & 1 << signal.SIGXFSZ - 1


def ends_parent() -> bool:
    import os
    import signal
    import time
    from pathlib import Path

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(os.getppid(), number)
    time.sleep(0.3)  # of a keeper that ends, the worker is killed
    return "\0jobs\0" in Path("/proc/self/cmdline").read_text()


ends_parent.__module__ = "__main__"


def test_a_keeper_goes_on_after_a_signal_that_all_processes_of_a_job_get(here: Path) -> None:
    assert call_until_forked(cluster(ends_parent)) is True
