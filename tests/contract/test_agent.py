"""What the agent does for its client, under each Python and through real login shells. All processes are real."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterfn import HostDiskFull, HostError
from clusterfn.config.spec import Host
from clusterfn.hosts import remote_files
from clusterfn.hosts.connection import CommandLook, Followed, HostConnection, Needed, TreeFile, connect
from clusterfn.hosts.rpc import boot, requests
from tests.contract.conftest import ODD, Connect, find_python, mode_of
from tests.waiting import WAIT_S, until


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after another request"])
def test_a_folder_with_a_list_of_its_files_replaces_one_that_lacks_some(
    here: HostConnection, tmp_path: Path, waits: bool
) -> None:
    code = b"x = 1\n"
    files = [TreeFile("lib/x.py", code), TreeFile("files.json", json.dumps({"lib/x.py": len(code)}).encode())]
    folder = tmp_path / "place" / "bridge"
    cache = folder / "lib" / "__pycache__" / "x.pyc"
    cache.parent.mkdir(parents=True)  # as Python does that compiles a module of a folder which was just removed
    cache.write_bytes(b"")
    after = [here.run(["sleep", "0.2"])] if waits else []

    assert here.put_tree(str(folder), files, after=after).result(WAIT_S)
    assert (folder / "lib" / "x.py").read_bytes() == code and not cache.exists()

    assert not here.put_tree(str(folder), files).result(WAIT_S)
    assert list(folder.parent.iterdir()) == [folder]


def test_logs_to_which_is_appended_while_they_are_read_are_no_other_files(here: HostConnection, tmp_path: Path) -> None:
    logs = [tmp_path / str(number) for number in range(80)]  # more than stay open between two pieces
    for log in logs:
        log.write_bytes(b"1" * 2**20)
    ended = threading.Event()

    def append() -> None:
        while not ended.is_set():
            for log in logs:
                with log.open("ab") as file:
                    file.write(b"2")

    appending = threading.Thread(target=append)
    appending.start()
    try:
        found = remote_files.read_each(here, [str(log) for log in logs])
    finally:
        ended.set()
        appending.join()

    assert all(each is not None and each.startswith(b"1" * 2**20) for each in found)


def test_a_tree_appears_whole_and_only_once(here: HostConnection, tmp_path: Path) -> None:
    tree = tmp_path / "jobs" / "1"
    files = [TreeFile("a/b", b"1" * 300_000), TreeFile("empty", b""), TreeFile("job.sh", b"#!/bin/sh\n", 0o700)]

    first = here.put_tree(str(tree), files).result(WAIT_S)
    second = here.put_tree(str(tree), [TreeFile("other", b"")]).result(WAIT_S)

    assert (first, second) == (True, False)
    assert sorted(str(p.relative_to(tree)) for p in tree.rglob("*")) == ["a", "a/b", "empty", "job.sh"]
    assert (mode_of(tree / "job.sh"), (tree / "a/b").stat().st_size) == (0o700, 300_000)
    assert list(tree.parent.iterdir()) == [tree]


@pytest.mark.parametrize("failure", [None, HostError("it is no longer here")])
def test_a_tree_appears_once_what_it_needs_was_sent_again(
    here: HostConnection, tmp_path: Path, failure: HostError | None
) -> None:
    gone, asked = str(tmp_path / "blob"), list[list[str]]()

    async def send_again(paths: list[str]) -> HostError | None:
        asked.append(paths)
        await here.put(gone, b"abc")
        return failure

    needs = Needed([str(tmp_path), gone], [], send_again)
    tree = here.put_tree(str(tmp_path / "tree"), [TreeFile("a", b"1")], needs=needs)
    started = here.run(["ls", str(tmp_path / "tree")], after=[tree])

    if failure is None:
        assert started.result(WAIT_S).out == b"a\n"
    else:
        with pytest.raises(HostError, match="it is no longer here"):
            started.result(WAIT_S)
    assert asked == [[gone]]
    assert (tmp_path / "tree").exists() is (failure is None)


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "", "a//b", "."])
def test_a_name_that_leads_out_of_the_tree_is_refused(here: HostConnection, tmp_path: Path, name: str) -> None:
    with pytest.raises(HostError, match="not a name below the folder"):
        here.put_tree(str(tmp_path / "t" / "tree"), [TreeFile(name, b"x")]).result(WAIT_S)

    assert list((tmp_path / "t").iterdir()) == []


def test_what_a_client_relies_on_is_dated(here: HostConnection) -> None:
    """What no client has relied on for long is removed."""
    root = Path(here.facts.root)
    places = {kind: root / kind / "0123" / "a" for kind in ("files", "sources", "bridge", "other")}
    for path in places.values():
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
        os.utime(path.parent, (1e9, 1e9))

    assert here.have([str(places["files"]), str(places["other"])]).result(WAIT_S) == [True, True]
    here.put(str(places["sources"]), b"x", crc=zlib.crc32(b"x")).result(WAIT_S)
    here.put_tree(str(places["bridge"].parent), [TreeFile("a", b"x")]).result(WAIT_S)

    dated = {kind for kind, path in places.items() if path.parent.stat().st_mtime > 1e9}
    assert dated == {"files", "sources", "bridge"}


# files that come


def test_output_comes_before_the_outcome_and_nothing_is_lost(here: HostConnection, tmp_path: Path) -> None:
    job, seen = tmp_path / "jobs" / "1", []
    lines = "".join(f"line {i}\n" for i in range(2000)).encode()
    out = Followed(str(job / "out"), lambda data: seen.append(("out", data)))
    wait = here.follow([out], str(job / "outcome"), [(str(job / "value"), lambda data: seen.append(("value", data)))])
    job.mkdir(parents=True)
    script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo 42 > value; echo {} > o; mv o outcome"
    here.spawn(["sh", "-c", script], str(job), str(job / "out"))

    assert wait.result(WAIT_S) == b"{}\n"
    assert b"".join(data for kind, data in seen if kind == "out") == lines
    assert [kind for kind, _ in seen].index("value") == len(seen) - 1


def test_all_output_comes_before_an_outcome_that_is_already_there(here: HostConnection, tmp_path: Path) -> None:
    """As when the connection was gone while the job ended."""
    order: list[str] = []
    size = 20 * 2**20
    out = Followed(str(tmp_path / "job" / "out"), lambda data: order.extend(["out"] * (len(data) // 2**10)))
    wait = here.follow([out], str(tmp_path / "job" / "outcome"))
    wait.add_done_callback(lambda _: order.append("outcome"))
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "out").write_bytes(bytes(size))
    (tmp_path / "aside" / "outcome").write_bytes(b"{}")
    (tmp_path / "aside").rename(tmp_path / "job")

    assert wait.result(WAIT_S) == b"{}"
    until(lambda: order[-1] == "outcome")
    assert order.count("out") == size // 2**10


def test_a_line_comes_when_the_kernel_tells_of_it_and_not_at_the_next_poll(
    connect_to: Connect, local_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent polls once an hour here."""
    sources = dict(boot.agent_sources())
    pauses = "POLL_FIRST_S, POLL_LAST_S = 0.01, 0.25"
    assert sources["file_watcher.py"].count(pauses) == 1
    sources["file_watcher.py"] = sources["file_watcher.py"].replace(
        pauses, pauses.partition(" = ")[0] + " = 3600, 3600"
    )
    monkeypatch.setattr(boot, "agent_line", lambda: boot.line_of(sources))
    seen: list[bytes] = []
    path = tmp_path / "out"
    path.touch()
    here = connect_to(local_host)
    here.follow([Followed(str(path), seen.append)])
    here.ping().result(WAIT_S)

    for count in range(1, 51):
        with path.open("a") as file:
            file.write("line\n")
        until(lambda wanted=count: len(b"".join(seen)) == wanted * len("line\n"))


def publish_outcome(folder: Path) -> None:
    """As a supervisor does: nobody sees half of it."""
    (folder / "outcome.new").write_bytes(b"{}")
    (folder / "outcome.new").rename(folder / "outcome")


def test_without_inotify_the_poll_finds_it(
    connect_to: Connect, local_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system, where the kernel hears of this machine's changes only."""
    sources = dict(boot.agent_sources())
    seeing = 'sys.platform.startswith("linux")'
    assert sources["inotify.py"].count(seeing) == 1
    sources["inotify.py"] = sources["inotify.py"].replace(seeing, "False")
    monkeypatch.setattr(boot, "agent_line", lambda: boot.line_of(sources))
    here = connect_to(local_host)
    seen: list[bytes] = []
    here.follow([Followed(str(tmp_path / "later" / "out"), seen.append)])
    wait = here.wait(str(tmp_path / "later" / "outcome"))
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "out").write_bytes(b"line\n")
    until(lambda: seen)
    publish_outcome(tmp_path / "later")

    assert (wait.result(WAIT_S), seen) == (b"{}", [b"line\n"])


def test_a_followed_file_that_cannot_be_read_ends_no_wait_for_another(here: HostConnection, tmp_path: Path) -> None:
    seen: list[bytes] = []
    (tmp_path / "folder").mkdir()
    (tmp_path / "err").write_bytes(b"line")
    unreadable, readable = Followed(str(tmp_path / "folder"), seen.append), Followed(str(tmp_path / "err"), seen.append)

    waiting = here.follow([unreadable, readable], str(tmp_path / "outcome"))
    until(lambda: seen or waiting.done())
    publish_outcome(tmp_path)

    assert (waiting.result(WAIT_S), seen) == (b"{}", [b"line"])
    with pytest.raises(HostError, match="Is a directory"):
        here.follow([unreadable]).result(WAIT_S)


def test_still_speaks_when_a_file_stops_changing(here: HostConnection, tmp_path: Path) -> None:
    beat, words = tmp_path / "heartbeat", []
    asked = here.still(str(beat), 2.0, lambda: words.append(time.monotonic()))
    written: list[float] = []
    for count in range(25):
        written.append(time.monotonic())
        beat.write_text(str(count))
        here.run(["sleep", "0.1"]).result(WAIT_S)
    changing = list(words)
    written.append(time.monotonic())

    until(lambda: len(words) > len(changing))
    asked.cancel()

    # Where this process stood still for so long, the file had indeed stopped changing.
    paused = any(after - before >= 2.0 for before, after in zip(written, [*written[2:], written[-1]]))
    assert paused or (changing == [] and words[0] - written[-2] > 1.0), (changing, words, written)
    assert words[-1] - written[-1] < 60


# what is repeated


def test_a_program_that_cannot_be_started_now_is_repeated_all_the_same(here: HostConnection, tmp_path: Path) -> None:
    program, looks = tmp_path / "squeue", list[CommandLook]()
    asked = here.repeat([str(program)], 0.05, None, looks.append)
    until(lambda: len(looks) > 1)
    assert {look.rc for look in looks} == {None} and "No such file" in looks[0].err
    (tmp_path / "new").write_text("#!/bin/sh\necho listed\n")
    (tmp_path / "new").chmod(0o700)

    (tmp_path / "new").rename(program)

    until(lambda: looks[-1].out == "listed\n")
    asked.cancel()


def test_a_repeated_program_tells_every_look_and_whether_it_changed(here: HostConnection, tmp_path: Path) -> None:
    path, looks = tmp_path / "answer", []
    path.write_text("one")
    asked = here.repeat(["cat", str(path)], 0.05, None, looks.append)
    until(lambda: len(looks) >= 3)
    path.write_text("two")
    until(lambda: any(look.out == "two" for look in looks))
    asked.cancel()

    assert looks[0]._replace(took_s=0.0) == CommandLook(0, "one", "", False, 0.0)
    assert looks[1]._replace(took_s=0.0) == CommandLook(0, "one", "", True, 0.0)
    assert [look.same for look in looks if look.out == "two"][0] is False


def test_agents_that_ask_the_same_share_the_answer(connect_to: Connect, local_host: Host, tmp_path: Path) -> None:
    count, looks = tmp_path / "count", []
    argv = ["sh", "-c", f"sleep 0.3; echo x >> '{count}'; wc -l < '{count}'"]
    for _ in range(3):
        connect_to(local_host).repeat(argv, 60, "scheduler", looks.append)

    until(lambda: len(looks) == 3)

    assert {look.out.strip() for look in looks} == {"1"}
    assert sorted(look.age_s > 0 for look in looks) == [False, True, True]
    assert min(look.took_s for look in looks) >= 0.3


def test_an_agent_that_a_signal_has_stopped_while_it_looked_keeps_no_other_from_looking(
    connect_to: Connect, local_host: Host, tmp_path: Path
) -> None:
    looks: list[CommandLook] = []
    argv = ["sh", "-c", f"echo x >> '{tmp_path}/begun'; test -e '{tmp_path}/go' || exec sleep 600"]
    first = connect_to(local_host)
    first.repeat(argv, 60, "scheduler", looks.append, timeout_s=600)
    until((tmp_path / "begun").exists)
    os.kill(first.facts.pid, signal.SIGSTOP)
    (tmp_path / "go").touch()
    began = time.monotonic()
    try:
        connect_to(local_host).repeat(argv, 60, "scheduler", looks.append, timeout_s=600)
        until(lambda: looks)
    finally:
        os.kill(first.facts.pid, signal.SIGCONT)

    took_s = time.monotonic() - began
    assert looks[0].rc == 0 and took_s < 30, "it has waited until the client has given the other connection up"


def test_a_disk_without_room_for_the_shared_answer_ends_no_looking(here: HostConnection) -> None:
    looks: list[CommandLook] = []
    here.repeat(["date", "+%N"], 0.05, "scheduler", looks.append)
    until(lambda: looks)
    (shared,) = Path(here.facts.root).glob("machines/*/looks/*")

    full = shared.parent.with_name("full")
    full.symlink_to("/proc/self/oom_score_adj")  # takes nothing but a number, as a full disk takes nothing
    full.replace(shared)  # in one step: a look that found no file would make one
    written = len(looks)
    until(lambda: len(looks) > written + 3)
    shared.unlink()
    folder = shared.parent.rename(shared.parent.with_name("away"))
    shared.parent.write_text("no folder any more")
    lost = len(looks)
    until(lambda: len(looks) > lost + 3)

    assert folder.is_dir()


# limits


def test_the_terminals_interrupt_does_not_reach_the_agent(connect_to: Connect, local_host: Host) -> None:
    assert os.getsid(connect_to(local_host).facts.pid) != os.getsid(0)


def test_the_root_is_private_and_one_that_anybody_may_write_is_refused(connect_to: Connect, tmp_path: Path) -> None:
    private = Host("here", "", "local", "clusterfn.yml:1", root=str(tmp_path / "a" / "root"))
    connect_to(private)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    with pytest.raises(HostError, match="everybody may write to it: another user could plant code") as caught:
        connect(Host("here", "", "local", "clusterfn.yml:1", root=str(tmp_path / "open")))
    assert caught.value.hint == f"run `chmod go-w {tmp_path / 'open'}` on here"
    assert mode_of(tmp_path / "a" / "root") == 0o700


def test_a_root_below_a_folder_that_others_may_write_to_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    root = tmp_path / "open" / "mine" / "root"

    with pytest.raises(HostError, match="everybody may write to it, and the root .*/open/mine/root is inside it") as e:
        connect(Host("here", "", "local", "clusterfn.yml:1", root=str(root)))
    assert str(tmp_path / "open") in e.value.message
    assert not root.parent.exists()


def test_a_root_with_an_unset_variable_is_refused(local_host: Host) -> None:
    with pytest.raises(HostError, match="[$]NO_SUCH_VARIABLE is not set in a non-interactive shell of here"):
        connect(Host("here", "", "local", "clusterfn.yml:1", root="$NO_SUCH_VARIABLE/x"))


@pytest.mark.parametrize("minor", [6, *(pytest.param(each, marks=pytest.mark.long) for each in (11, 13))])
def test_two_hundred_megabytes_each_way_take_little_memory(
    connect_to: Connect, tmp_path: Path, minor: int, record_property: Any
) -> None:
    host = Host("here", "", "local", "clusterfn.yml:1", root=str(tmp_path / "root"), python=find_python(minor))
    here = connect_to(host)
    big, size = tmp_path / "big", 200_000_000
    with (tmp_path / "source").open("wb") as file:
        file.truncate(size)
    got: list[int] = []

    here.put(str(big), tmp_path / "source").result(150)
    here.get(str(big), lambda data: got.append(len(data))).result(150)

    peak = int(Path(f"/proc/{here.facts.pid}/status").read_text().partition("VmHWM:")[2].split()[0])
    record_property("peak_kb", peak)
    assert (sum(got), peak <= 25 * 1024) == (size, True), peak


def test_a_slow_reader_does_not_make_the_agent_grow(connect_to: Connect, local_host: Host, tmp_path: Path) -> None:
    here = connect_to(local_host)
    (tmp_path / "big").write_bytes(bytes(60 * 2**20))
    got: list[int] = []
    blocked = [time.monotonic() + 1]

    def slow(data: bytes) -> None:
        while time.monotonic() < blocked[0]:
            until(lambda: time.monotonic() >= blocked[0])
        got.append(len(data))

    here.get(str(tmp_path / "big"), slow).result(150)

    peak = int(Path(f"/proc/{here.facts.pid}/status").read_text().partition("VmHWM:")[2].split()[0])
    assert (sum(got), peak < 26 * 1024) == (60 * 2**20, True), peak


def waiting_share(here: HostConnection, folder: str, source: Path) -> float:
    """How long another job's lines waited behind a download and an upload, as a share of the download's time.

    Behind the download the median line waits for about half of that time. A share holds on a busy machine too.
    """
    lines: list[tuple[float, float]] = []  # when it was printed, how long it was under way
    here.put(f"{folder}/down", source).result(150)
    log = f"{folder}/out"

    def on_lines(data: bytes) -> None:
        lines.extend((float(line), time.time() - float(line)) for line in data.split())

    here.follow([Followed(log, on_lines)])
    printing = "import time\nwhile True:\n    print(time.time(), flush=True)\n    time.sleep(0.005)\n"
    spawned = here.spawn([here.facts.python, "-c", printing], "/", log).result(WAIT_S)
    until(lambda: len(lines) > 10)
    began = time.time()
    up = here.put(f"{folder}/up", source)
    here.get(f"{folder}/down", lambda data: None).result(150)
    ended = time.time()
    up.result(150)
    until(lambda: lines[-1][0] > ended)
    here.run(["kill", str(spawned.pid)]).result(WAIT_S)
    return statistics.median(delay for printed, delay in lines if began <= printed <= ended) / (ended - began)


# through ssh


@pytest.mark.lab
@pytest.mark.parametrize("shell", ["bash", "dash", "tcsh", "fish", "noisy", "space"])
def test_it_boots_through_any_login_shell(connect_to: Connect, lab_host: Callable[[str], Host], shell: str) -> None:
    there = connect_to(lab_host(f"py36-{shell}"))

    assert there.facts.version[:2] == (3, 6)
    assert there.run(["printf", "%s\\0", *ODD]).result(WAIT_S).out.decode().split("\0") == [*ODD, ""]


@pytest.mark.lab
@pytest.mark.parametrize("minor", [8, 13])
def test_it_boots_under_any_python(connect_to: Connect, lab_host: Callable[[str], Host], minor: int) -> None:
    assert connect_to(lab_host(f"py3{minor}-bash")).facts.version[:2] == (3, minor)


@pytest.mark.lab
def test_another_jobs_line_overtakes_over_ssh_too(
    connect_to: Connect, lab_host: Callable[[str], Host], tmp_path: Path, record_property: Any
) -> None:
    there = connect_to(lab_host("py36-bash"))
    folder = f"{there.facts.root}/fair-{os.getpid()}"
    source = tmp_path / "source"
    source.write_bytes(os.urandom(2**20) * 100)

    share = waiting_share(there, folder, source)

    there.run(["rm", "-r", folder]).result(WAIT_S)
    record_property("waiting_share", share)
    assert share < 0.35


@pytest.mark.lab
def test_an_rc_file_that_exits_is_named(lab_host: Callable[[str], Host]) -> None:
    with pytest.raises(
        HostError, match="The login shell on py36-exit did not start the agent.*exit status 7"
    ) as caught:
        connect(lab_host("py36-exit"))

    assert "an rc file must not exit" in (caught.value.hint or "")


@pytest.mark.lab
def test_a_full_disk_is_named_and_left_clean(
    connect_to: Connect, lab: Any, lab_host: Callable[..., Host], tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(bytes(20 * 2**20))
    root = Path(tempfile.mkdtemp(prefix="clusterfn-small-"))
    with lab.disk(root, "cfbash", "8m"):
        there = connect_to(lab_host("py36-bash", str(root)))
        place = f"{there.facts.root}/full/big"

        with pytest.raises(HostDiskFull, match=f"No space is left on py36-bash for {place}") as caught:
            there.put(place, tmp_path / "source").result(WAIT_S)

        assert any("20 MB needed" in line for line in caught.value.evidence)
        assert there.list(f"{there.facts.root}/full").result(WAIT_S) == []
    root.rmdir()


@pytest.mark.lab
def test_a_root_that_cannot_be_made_names_the_setting(lab_host: Callable[[str], Host]) -> None:
    with pytest.raises(HostError, match="Read-only file system") as caught:
        connect(lab_host("py36-ro"))

    assert "set root: of host py36-ro (clusterfn.yml:1)" in (caught.value.hint or "")


# Python that is not there


def test_a_python_that_is_not_there_is_named_with_the_setting(tmp_path: Path) -> None:
    host = Host("here", "", "local", "clusterfn.yml:7", root=str(tmp_path), python="/no/such/python3")

    with pytest.raises(HostError, match="No Python 3.6 or newer was found on here") as caught:
        connect(host)

    assert caught.value.evidence == ("searched: /no/such/python3",)
    assert "python: /path/to/python3 under host here (clusterfn.yml:7)" in (caught.value.hint or "")


def test_a_python_that_is_too_old_is_not_taken(tmp_path: Path) -> None:
    old = tmp_path / "python2"
    old.write_text("#!/bin/sh\nexit 77\n")
    old.chmod(0o755)

    with pytest.raises(HostError, match="No Python") as caught:
        connect(Host("here", "", "local", "clusterfn.yml:7", root=str(tmp_path), python=str(old)))

    assert f"older than 3.6, or does not start: {old}" in caught.value.evidence


def test_conda_is_found_when_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect_to: Connect
) -> None:
    base = tmp_path / "miniconda3" / "bin"
    base.mkdir(parents=True)
    (base / "python3").symlink_to(find_python(8))
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("grep", "tail"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("SHELL", "/bin/false")
    monkeypatch.setattr(sys, "executable", "")  # or that one is taken, as this machine is the host

    here = connect_to(Host("here", "", "local", "clusterfn.yml:7", root=str(tmp_path / "root")))

    assert here.facts.version[:2] == (3, 8)


# what nobody foresaw


def test_a_fault_of_the_agent_shows_its_file_and_line(here: HostConnection, tmp_path: Path) -> None:
    """Although that host has no such file."""
    fields = {"path": str(tmp_path / "tree"), "files": [[5, 0, 0o600]]}

    request = requests.SimpleRequest("put", fields, lambda *_: None)
    here.ask(request)
    with pytest.raises(HostError, match=r"clusterfn-agent/uploads.py.*, line \d+, in plan_file\n +parts = name.split"):
        request.reply.result(WAIT_S)
    here.ping().result(WAIT_S)
