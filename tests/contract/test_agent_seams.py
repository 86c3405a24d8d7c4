"""Trees and jobs: what the agent takes from its client, and what of theirs it follows. All processes are real."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterfn import HostError
from clusterfn.config.spec import Host
from clusterfn.hosts import remote_files
from clusterfn.hosts.connection import Followed, HostConnection, Needed, TreeFile
from clusterfn.hosts.rpc import boot, requests
from tests.contract.conftest import Connect, mode_of
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
    wait.future.add_done_callback(lambda _: order.append("outcome"))
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
    for pause in ("POLL_FIRST_S = 0.01\n", "POLL_LAST_S = 0.25\n"):
        assert sources["file_watcher.py"].count(pause) == 1
        longer = pause.partition(" = ")[0] + " = 3600\n"
        sources["file_watcher.py"] = sources["file_watcher.py"].replace(pause, longer)
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
    seeing = 'Inotify() if sys.platform.startswith("linux")'
    assert sources["libc.py"].count(seeing) == 1
    sources["libc.py"] = sources["libc.py"].replace(seeing, "Inotify() if False")
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


# what nobody foresaw


def test_a_fault_of_the_agent_shows_its_file_and_line(here: HostConnection, tmp_path: Path) -> None:
    """Although that host has no such file."""
    fields = {"path": str(tmp_path / "tree"), "files": [[5, 0, 0o600]]}

    request = requests.SimpleRequest("put", fields, lambda *_: None)
    here.link.ask(request)
    with pytest.raises(HostError, match=r"clusterfn-agent/parts.py.*, line \d+, in plan_file\n +parts = name.split"):
        request.reply.result(WAIT_S)
    here.ping().result(WAIT_S)
