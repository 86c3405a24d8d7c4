"""One builder for each environment, whatever happens to it; an environment is whole or absent."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.builder import toys
from tests.builder.host import Host
from tests.builder.toys import SITE
from tests.waiting import until

# Holds its build up until a file is there.
WAITS = b'echo begun >> "$CONDA_PREFIX/../begun"; while ! [ -e "$CONDA_PREFIX/../../go" ]; do sleep 0.05; done\n'


def slow(host: Host, shelf: Path, python: dict, **more: object) -> dict:
    """A plan whose build waits for `<root>/go`."""
    package = toys.conda(shelf, "slow", {"etc/conda/activate.d/slow.sh": WAITS, f"{SITE}/slow.py": b"X = 1\n"})
    return host.plan([python, package], **{"verify": ["slow"], **more})


def begun(host: Host) -> None:
    until((host.root / "envs" / "begun").exists)


def go(host: Host) -> None:
    (host.root / "go").touch()


def assert_whole_or_absent(host: Host, plan: dict) -> None:
    """What READY promises holds, and nothing is half made under the final name."""
    prefix = host.prefix(plan)
    if not prefix.is_symlink() and prefix.exists():
        assert (prefix / "READY").exists()
    if (prefix / "READY").exists():
        sizes = json.loads((prefix / ".clusterfn" / "manifest").read_text())
        assert {path: (prefix / path).lstat().st_size for path in sizes} == sizes
        json.loads((prefix / "READY").read_text())


@pytest.mark.fault("42")
def test_of_eight_at_once_one_builds(host: Host, shelf: Path, python: dict):
    plan = slow(host, shelf, python)
    first = host.start(plan)
    begun(host)
    others = [host.start(plan) for _ in range(7)]
    waits = [each.waits() for each in others]
    try:
        until(lambda: all("activate" in [line["stage"] for line in each.lines()] for each in (first, *others)))
    finally:
        go(host)

    found = [each.answer() for each in (first, *others)]

    assert [each.rc for each in found] == [0] * 8
    assert sorted(each.last["reused"] for each in found) == [False] + [True] * 7
    assert {each["stage"] for each in waits} == {"wait"} and f"pid {first.process.pid} on " in waits[0]["text"]
    assert host.leftovers() == []


@pytest.mark.long
def test_packages_are_unpacked_once_for_two_environments_at_once(host: Host, shelf: Path, python: dict):
    big = toys.module(shelf, "big", 2000)
    plans = [host.plan([python, big], id=name * 8) for name in ("a", "b")]
    found = [each.answer() for each in [host.start(plan) for plan in plans]]

    assert [each.rc for each in found] == [0, 0]
    unpacked = [max((line["bytes"] for line in each.lines if line["stage"] == "unpack"), default=0) for each in found]
    assert min(unpacked) < max(unpacked)
    assert host.leftovers() == []
    first = host.prefix(plans[0]) / SITE / "big/data7.txt"
    assert first.stat().st_nlink == 3 and first.samefile(host.prefix(plans[1]) / SITE / "big/data7.txt")


def test_who_waited_shares_the_failure_and_the_next_call_tries_again(host: Host, shelf: Path, python: dict):
    plan = slow(host, shelf, python, verify=["nosuchmodule"])
    first = host.start(plan)
    begun(host)
    second = host.start(plan)
    second.waits()
    go(host)

    told = [first.answer(), second.answer()]

    assert [each.rc for each in told] == [1, 1]
    assert told[0].last["message"] == told[1].last["message"]
    assert (host.root / "envs" / "begun").read_text() == "begun\n", "it was built twice"
    assert host.build({**plan, "verify": ["slow"]}).rc == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_when_the_builder_is_ended_who_waits_takes_over(host: Host, shelf: Path, python: dict, number: int):
    plan = slow(host, shelf, python)
    first = host.start(plan)
    begun(host)
    second = host.start(plan)
    second.waits()

    first.process.send_signal(number)
    ended = first.answer()
    go(host)

    assert ended.rc == (-signal.SIGKILL if number == signal.SIGKILL else 143)
    assert second.answer().last == {**answer_ready(host, plan), "stage": "done", "done": 1, "of": 1}
    assert_whole_or_absent(host, plan)
    assert host.leftovers() == []


@pytest.mark.parametrize("at", ["before it is shown", "while a script runs"])
def test_who_stood_still_and_was_taken_for_dead_leaves_the_others_environment_alone(
    host: Host, shelf: Path, python: dict, at: str
):
    plan = slow(host, shelf, python)
    if at == "before it is shown":
        held_package(host, python)
        go(host)
    first = host.start(plan)
    until(lambda: builders(host) - {"feedbeef"})
    if at == "before it is shown":
        until((host.root / "builds" / plan["id"] / "plan.json").exists)
    else:
        begun(host)
    first.process.send_signal(signal.SIGSTOP)
    for token in builders(host):  # silent for a minute, as others on other machines count
        (host.root / "builds" / ".beats" / token).unlink()
    go(host)
    assert host.build(plan).rc == 0
    ready = (host.prefix(plan) / "READY").stat().st_ino

    first.process.send_signal(signal.SIGCONT)

    assert first.answer().last.get("reused") is True, first.lines()
    assert (host.prefix(plan) / "READY").stat().st_ino == ready
    assert_whole_or_absent(host, plan)


def builders(host: Host) -> set[str]:
    folder = host.root / "builds" / ".beats"
    return {path.name for path in folder.glob("????????")} if folder.exists() else set()


def answer_ready(host: Host, plan: dict) -> dict:
    return {"ok": True, "reused": False, "ready": json.loads((host.prefix(plan) / "READY").read_text())}


def beat_of(**other: object) -> str:
    """What a living holder writes."""
    who = {
        "host": os.uname()[1], "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "pid": os.getpid(),
        "pids": os.readlink("/proc/self/ns/pid"),
        "start": Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19],
    }  # fmt: skip
    return f"{1:012d}\n{json.dumps({**who, **other})}\n"


def held_package(at: Host, package: dict, **who: object) -> None:
    """Somebody who lives unpacks a package."""
    folder = at.root / "pkgs" / f".lock-{package['sha256']}"
    folder.mkdir(parents=True)
    (folder / "1").write_text("feedbeef")
    beats = at.root / "builds" / ".beats"
    beats.mkdir(parents=True)
    (beats / "feedbeef").write_text(beat_of(**who))


def held_by(at: Host, plan: dict, **who: object) -> Path:
    """A lock that somebody holds; the path of his beat."""
    lock, beats = at.root / "builds" / plan["id"] / "lock", at.root / "builds" / ".beats"
    lock.mkdir(parents=True)
    beats.mkdir(parents=True)
    (beats / "feedbeef").write_text(beat_of(**who))
    (lock / "1").write_text("feedbeef")
    return beats / "feedbeef"


def test_what_a_stopped_builder_is_making_stays_for_it(host: Host, shelf: Path, python: dict):
    plan = slow(host, shelf, python)
    first = host.start(plan)
    begun(host)
    first.process.send_signal(signal.SIGSTOP)
    for token in builders(host):
        os.utime(host.root / "builds" / ".beats" / token, (time.time() - 700,) * 2)

    assert host.build(host.plan([python], id="bbbbbbbb")).rc == 0  # which removes what builders have left
    first.process.send_signal(signal.SIGCONT)
    go(host)

    answered = first.answer()
    assert answered.rc == 0, answered.last


@pytest.mark.long
def test_a_builder_goes_on_though_another_has_made_its_package_while_it_was_stopped(
    host: Host, shelf: Path, python: dict
):
    large = toys.module(shelf, "large", 9)
    sent = host.root / "blobs" / large["sha256"]
    sent.parent.mkdir(parents=True)
    shutil.copy(large["url"][7:], sent)
    plans = [host.plan([python, {**large, "url": ""}], id=name * 8) for name in "ab"]
    host.before = signalled(host, signal.SIGSTOP, "/files/.*/large$")  # it unpacks then
    first, host.before = host.start(plans[0]), ()
    assert os.WIFSTOPPED(os.waitpid(first.process.pid, os.WUNTRACED)[1])

    assert host.build(plans[1]).rc == 0
    first.process.send_signal(signal.SIGCONT)

    answered = first.answer()
    assert answered.rc == 0, answered.last


@pytest.mark.parametrize("what", ["environment", pytest.param("package", marks=pytest.mark.long)])
def test_a_holder_that_a_signal_has_stopped_is_named_and_its_lock_is_taken(host: Host, python: dict, what: str):
    plan = host.plan([python])
    with subprocess.Popen(["sleep", "600"]) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        start = Path(f"/proc/{stopped.pid}/stat").read_text().rpartition(")")[2].split()[19]
        if what == "environment":
            held_by(host, plan, pid=stopped.pid, start=start)
        else:
            held_package(host, python, pid=stopped.pid, start=start)
        began = time.monotonic()

        built = host.build(plan)
        took_s = time.monotonic() - began
        stopped.kill()

    assert built.rc == 0 and took_s >= 5, "it may have stopped for a moment"
    if what == "environment":
        said = next(line["text"] for line in built.lines if line["stage"] == "wait")
        assert said == f"pid {stopped.pid} on {os.uname()[1]} ({getpass.getuser()}, stopped by a signal) builds it"


@pytest.mark.fault("41")
@pytest.mark.parametrize("who", [{"pid": 2**22 + 1}, {"start": "1"}, {"boot": "another"}])
def test_the_lock_of_a_process_that_is_gone_or_from_before_the_machine_booted_is_taken_at_once(
    host: Host, python: dict, who: dict
):
    plan = host.plan([python])
    held_by(host, plan, **who)

    assert host.build(plan).rc == 0


def test_a_lock_without_a_beat_is_taken(host: Host, python: dict):
    plan = host.plan([python])
    held_by(host, plan).unlink()

    assert host.build(plan).rc == 0


@pytest.mark.parametrize("who", [{}, {"host": "elsewhere"}, {"pids": "pid:[1]", "pid": 2**22 + 1}])
def test_the_lock_of_one_who_may_live_is_respected(host: Host, python: dict, who: dict):
    plan = host.plan([python])
    beat = held_by(host, plan, **who)
    process = host.start(plan)
    process.waits()
    until(lambda: (host.root / "builds" / ".beats").exists() and len(list(beat.parent.glob("[!.]*"))) == 2)

    assert process.process.poll() is None
    beat.unlink()

    assert process.answer().rc == 0


@pytest.mark.long
def test_a_lock_from_another_machine_is_taken_after_a_minute_of_silence(host: Host, python: dict):
    plan = host.plan([python])
    held_by(host, plan, host="elsewhere")
    began = time.monotonic()

    assert host.build(plan).rc == 0
    assert time.monotonic() - began > 55


@pytest.mark.parametrize(("who", "silent_s"), [({"pid": 2**22 + 1}, 0), ({"host": "elsewhere"}, 700)])
def test_what_dead_builders_left_is_swept_and_what_others_do_is_not(
    host: Host, python: dict, who: dict, silent_s: float
):
    plan = host.plan([python])
    beat = held_by(host, plan, **who)
    os.utime(beat, (time.time() - silent_s, time.time() - silent_s))
    names = (("envs", plan["id"]), ("pkgs", "0" * 64), ("pkgs", f"expired-{'1' * 64}"), ("pkgs", f"aside-{'2' * 64}"))
    left = [host.root / kind / f".{name}-feedbeef" for kind, name in names]
    left.append(host.root / "envs" / ".planted-..")  # its end would name a folder, where others name a process
    other = host.root / "envs" / ".abcdef01-cafe0001"
    for folder in (*left, other):
        (folder / "bin").mkdir(parents=True)
    (host.root / "builds" / ".beats" / "cafe0001").write_text(beat_of())

    assert host.build(plan).rc == 0

    assert not any(folder.exists() for folder in left) and not beat.exists()
    assert other.exists()


SIGNALLED = """
import os, re, runpy, sys
number, pattern, left = int(sys.argv[1]), sys.argv[2], [int(sys.argv[3])]

def watched(change):
    def then_signal(*arguments, **more):
        done = change(*arguments, **more)
        if any(isinstance(each, str) and re.search(pattern, each) for each in arguments):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), number)
        return done
    return then_signal

for name in ("mkdir", "symlink", "link", "unlink", "rename", "replace"):
    setattr(os, name, watched(getattr(os, name)))
sys.argv = sys.argv[7:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def signalled(host: Host, number: int, pattern: str, nth: int = 1) -> tuple[str, ...]:
    """What makes a builder send itself a signal after the nth change of a name that the pattern fits."""
    return (host.python, "-I", "-S", "-c", SIGNALLED, str(int(number)), pattern, str(nth))


@pytest.mark.fault("43")
def test_killed_after_each_change_of_a_name_an_environment_is_whole_or_absent(host: Host, shelf: Path, python: dict):
    plan = host.plan([python, toys.module(shelf, "mine")], verify=["mine"])
    ends = []
    while 0 not in ends:
        this = {**plan, "id": f"turn{len(ends):04d}"}
        host.before = signalled(host, signal.SIGKILL, "/envs/[^/]+$|READY$", len(ends) + 1)
        ends.append(host.build(this).rc)
        host.before = ()
        assert not (host.prefix(this).is_symlink() and (host.prefix(this) / "READY").exists()), "seen, but not in place"
        assert_whole_or_absent(host, this)
        assert host.build(this).rc == 0
        assert host.leftovers() == []

    assert ends[:-1] == [-signal.SIGKILL] * (len(ends) - 1) and len(ends) > 5
