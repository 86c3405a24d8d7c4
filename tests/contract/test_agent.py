"""What the agent does for its client, under each Python and through real login shells. All processes are real."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import stat
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterfn.config.spec import Host
from clusterfn.errors import HostDiskFull, HostError
from clusterfn.hosts import remote_files
from clusterfn.hosts.connection import CommandLook, Followed, HostConnection, Needed, TreeFile, connect
from clusterfn.hosts.rpc import boot, requests
from tests.bridge.host import is_running
from tests.contract.conftest import Connect, find_python
from tests.waiting import WAIT_S, until

ODD = ["a b", "$HOME", "`id`", "it's", "", "-n", "*", "line\nbreak", "ü", "!", "\\", '"', "%j"]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# programs in a fork of the agent

PROGRAM = """
import json, os, sys, time
def main(argv):
    if argv == ["wait"]:
        time.sleep(600)
    if argv == ["raise"]:
        raise OSError("no room")
    if argv[0] == "print late":
        with open(os.path.join(argv[1], ".fork"), "w") as file:
            file.write(str(os.getpid()))
        os.rename(os.path.join(argv[1], ".fork"), os.path.join(argv[1], "fork"))
        while not os.path.exists(os.path.join(argv[1], "go")):
            time.sleep(0.01)
    fds = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    told = {"argv": argv, "cwd": os.getcwd(), "mine": os.environ.get("MINE"), "gone": os.environ.get("GONE_1")}
    told.update(fds=fds[:-1], leads=os.getsid(0) == os.getpid(), stdin=sys.stdin.read())
    told.update(forked="supervise.py" not in open("/proc/self/cmdline").read())
    print(json.dumps(told))
    return 7
"""


@pytest.fixture
def supervise(tmp_path: Path) -> str:
    """A supervise.py whose program tells where it runs."""
    package = tmp_path / "_clusterfn" / "bridge" / "supervisor"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "program.py").write_text(PROGRAM)
    start = "import sys\nfrom _clusterfn.bridge.supervisor import program\nsys.exit(program.main(sys.argv[1:]))\n"
    (tmp_path / "supervise.py").write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{start}")
    return str(tmp_path / "supervise.py")


@pytest.mark.parametrize("forks", [True, False])
def test_a_supervise_command_runs_alike_in_a_fork_of_the_agent(
    here: HostConnection, supervise: str, tmp_path: Path, forks: bool
) -> None:
    argv = [here.facts.python, "-I", "-S", supervise, "one", "it's two"]
    done = here.run(
        argv, b"given", str(tmp_path), {"MINE": "yes", "GONE_1": "no"}, timeout_s=30, forks=forks
    ).result(WAIT_S)  # fmt: skip

    assert (done.rc, done.err) == (7, b"")
    assert json.loads(done.out) == {
        "argv": ["one", "it's two"], "cwd": str(tmp_path), "mine": "yes", "gone": "no", "fds": [0, 1, 2], "leads": True,
        "stdin": "given", "forked": forks,
    }  # fmt: skip


def test_a_fork_of_the_agent_says_what_it_raises_and_is_killed_after_its_time(
    here: HostConnection, supervise: str
) -> None:
    argv = [here.facts.python, "-I", "-S", supervise]

    failed = here.run([*argv, "raise"], forks=True).result(WAIT_S)
    assert failed.rc == 1 and failed.err.endswith(b"OSError: no room\n")
    with pytest.raises(HostError, match="did not end within"):
        here.run([*argv, "wait"], timeout_s=0.2, forks=True).result(WAIT_S)
    assert here.run([*argv, "on"], forks=True).result(WAIT_S).rc == 7, "the agent serves on"


def telling_bridge(folder: Path, loads: Path) -> str:
    """The supervise.py of a bridge whose modules note when they are loaded; it prints which one it is."""
    package = folder / "_clusterfn" / "bridge" / "supervisor"
    package.mkdir(parents=True)
    for each in (package, package.parent, package.parent.parent):
        (each / "__init__.py").touch()
    for module in ("program", "commands"):
        told = f"open({str(loads)!r}, 'a').write('{module} of {folder.name}\\n')"
        (package / f"{module}.py").write_text(f"{told}\ndef main(argv):\n    print({folder.name!r})\n    return 0\n")
    (folder / "supervise.py").touch()
    return str(folder / "supervise.py")


def test_forks_of_the_agent_load_one_bridge_once_and_take_no_other_for_it(here: HostConnection, tmp_path: Path) -> None:
    loads = tmp_path / "loads"
    one, other = (telling_bridge(tmp_path / name, loads) for name in ("one", "other"))

    said = []
    for path in (one, one, one, one, other, other, one):
        done = here.run([here.facts.python, "-I", "-S", path], forks=True).result(WAIT_S)
        said.append((done.out.decode().strip(), done.err))

    assert said == [(name, b"") for name in ("one", "one", "one", "one", "other", "other", "one")]
    loaded = loads.read_text().splitlines()
    # The first fork loads what it needs, then the agent itself all; another bridge is loaded by each fork.
    assert {each: loaded.count(each) for each in loaded} == {
        "program of one": 2, "commands of one": 1, "program of other": 2,
    }  # fmt: skip
    shutil.rmtree(tmp_path / "one")
    assert b"can't open file" in here.run([here.facts.python, "-I", "-S", one], forks=True).result(WAIT_S).err


def test_a_fork_whose_agent_was_killed_is_no_second_agent(
    connect_to: Connect, local_host: Host, supervise: str, tmp_path: Path
) -> None:
    there = connect_to(local_host)
    other = there.run(["sh", "-c", f"echo $$ > '{tmp_path}/other'; exec sleep 600"], timeout_s=600)
    argv = [there.facts.python, "-I", "-S", supervise, "print late", str(tmp_path)]
    there.run(argv, forks=True, timeout_s=600)
    until(lambda: all((tmp_path / name).exists() and (tmp_path / name).read_text() for name in ("other", "fork")))
    fork, pid = int((tmp_path / "fork").read_text()), int((tmp_path / "other").read_text())

    os.kill(there.facts.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    until(lambda: not is_running(fork))

    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pytest.fail("the fork has ended the program of another request")
    other.cancel()


def size_of_pipe(pid: int, fd: int) -> int:
    end = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK if fd == 0 else os.O_WRONLY | os.O_NONBLOCK)
    try:
        return fcntl.fcntl(end, 1032)  # F_GETPIPE_SZ
    finally:
        os.close(end)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has larger pipes")
def test_pipes_become_larger_with_the_first_large_transfer(
    connect_to: Connect, local_host: Host, tmp_path: Path
) -> None:
    there = connect_to(local_host)
    reads, writes = os.pipe()
    usual = fcntl.fcntl(reads, 1032)
    os.close(reads)
    os.close(writes)
    there.put(f"{tmp_path}/small", b"x" * 1000).result(WAIT_S)
    assert [size_of_pipe(there.facts.pid, fd) for fd in (0, 1)] == [usual, usual], "a user may have few larger ones"

    there.put(f"{tmp_path}/large", b"x" * 2**24).result(WAIT_S)
    assert [size_of_pipe(there.facts.pid, fd) for fd in (0, 1)] == [max(usual, 2**19), usual]

    came = bytearray()
    there.get(f"{tmp_path}/large", came.extend).result(WAIT_S)
    assert [size_of_pipe(there.facts.pid, fd) for fd in (0, 1)] == [max(usual, 2**19)] * 2 and len(came) == 2**24


# sockets


def test_bytes_travel_both_ways_through_a_socket_of_the_host(here: HostConnection) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/s")
        listener.listen()
        listener.settimeout(WAIT_S)
        came, sent = bytearray(), os.urandom(3_000_000)
        connected = here.connect_socket(f"{folder}/s", b"hello ", came.extend)
        end, _ = listener.accept()
        with end:
            end.settimeout(WAIT_S)
            assert end.recv(100) == b"hello "
            end.sendall(sent)
            until(lambda: bytes(came) == sent)
            here.write(connected, sent)
            heard = bytearray()
            while len(heard) < len(sent):
                heard += end.recv(1 << 20)
            assert bytes(heard) == sent
        assert connected.result(WAIT_S) is None, "closed by the host"

        other = here.connect_socket(f"{folder}/s", b"", came.extend)
        end, _ = listener.accept()
        other.cancel()
        with end:
            end.settimeout(WAIT_S)
            assert end.recv(1) == b"", "closed by the client"

    with pytest.raises(HostError, match="does not exist"):
        here.connect_socket(f"{folder}/s", b"", came.extend).result(WAIT_S)


_IN_ITS_OWN_TMP = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1] + "/s")
listener.listen()
print("listens", flush=True)
listener.accept()[0].sendall(b"from elsewhere")
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root mounts file systems")
def test_a_socket_in_a_tmp_that_only_another_session_sees_is_reached(here: HostConnection, tmp_path: Path) -> None:
    program, came = [sys.executable, "-c", _IN_ITS_OWN_TMP, str(tmp_path)], bytearray()
    apart = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {tmp_path} && exec {shlex.join(program)}"]
    with subprocess.Popen(apart, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"listens\n"
        assert not (tmp_path / "s").exists()
        here.connect_socket(f"{tmp_path}/s", b"", came.extend).result(WAIT_S)
    assert bytes(came) == b"from elsewhere"


def test_bytes_travel_both_ways_through_a_program_of_the_host(here: HostConnection, tmp_path: Path) -> None:
    came, sent = bytearray(), os.urandom(3_000_000)
    echo = here.converse(["sh", "-c", f"echo $$ > '{tmp_path}/pid'; exec cat"], b"hello ", came.extend)
    until(lambda: bytes(came) == b"hello ")
    here.write(echo, sent)
    until(lambda: len(came) == 6 + len(sent))
    assert bytes(came[6:]) == sent

    process = Path("/proc", (tmp_path / "pid").read_text().strip())
    assert process.exists()
    echo.cancel()
    until(lambda: not process.exists())

    deaf = here.converse(["sh", "-c", f"echo $$ > '{tmp_path}/deaf'; exec sleep 600"], b"", bytes)
    until(lambda: (tmp_path / "deaf").exists() and (tmp_path / "deaf").read_text().endswith("\n"))
    process = Path("/proc", (tmp_path / "deaf").read_text().strip())
    deaf.cancel()
    until(lambda: not process.exists())  # although it does not read that its input has ended

    came.clear()
    here.converse(["printf", "%s", "last"], b"", came.extend).result(WAIT_S)
    assert bytes(came) == b"last"


NUDGED = """
import fcntl, os, select, termios, time
for size in (1024, 100, 2048):
    while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))):  # until the agent has read what was said before
        time.sleep(0.01)
    os.write(1, b"x" * size)
    ready, _, _ = select.select([0], [], [], 0.3 if size % 1024 else 60)
    os.write(1, os.read(0, 100) if ready else b"-")
"""


@pytest.mark.parametrize("nudge", [b"go on\0", b""])
def test_a_program_whose_output_comes_in_pieces_of_srun_is_nudged_after_each_full_one(
    here: HostConnection, nudge: bytes
) -> None:
    came, program = bytearray(), NUDGED if nudge else NUDGED.replace("60", "0.3")

    here.converse([here.facts.python, "-c", program], b"", came.extend, nudge=nudge).result(WAIT_S)

    said = nudge or b"-"
    assert bytes(came) == b"x" * 1024 + said + b"x" * 100 + b"-" + b"x" * 2048 + said


@pytest.mark.parametrize(("status", "kind"), [(3, "program"), (os.EX_UNAVAILABLE, "unavailable")])
def test_a_program_that_fails_says_what_it_said_last(here: HostConnection, status: int, kind: str) -> None:
    failing = here.converse(["sh", "-c", f"echo no way >&2; exit {status}"], b"", bytes)

    with pytest.raises(HostError, match=f"sh ended with status {status}: no way") as raised:
        failing.result(WAIT_S)
    assert raised.value.kind == kind
    with pytest.raises(HostError, match="does not exist"):
        here.converse(["/no/such/program"], b"", bytes).result(WAIT_S)


# programs


def test_arguments_arrive_as_given(here: HostConnection) -> None:
    done = here.run(["printf", "%s\\0", *ODD]).result(WAIT_S)

    assert done.out == b"\0".join(word.encode() for word in [*ODD, ""])


def test_a_program_has_its_input_its_variables_and_its_exit_status(here: HostConnection) -> None:
    argv = ["sh", "-c", 'cat; printf "%s" "$A$SLURM_X" >&2; exit 3']
    data = os.urandom(300_000)

    done = here.run(argv, stdin=data, env={"A": "bü"}, unset=["SLURM_"]).result(WAIT_S)

    assert (done.rc, done.signal, done.out == data, done.err) == (3, None, True, "bü".encode())


def test_a_program_is_killed_once_it_says_that_it_will_repeat_itself(here: HostConnection) -> None:
    argv = ["sh", "-c", "echo 12; echo 'full, will re' >&2; printf 'peat\\n' >&2; sleep 600"]

    done = here.run(argv, timeout_s=WAIT_S * 10, stop_at="full, will re").result(WAIT_S)

    assert (done.rc, done.signal, done.out) == (None, signal.SIGKILL, b"12\n")
    assert done.err.startswith(b"full, will re")


def test_a_program_that_takes_too_long_is_killed_with_its_children(here: HostConnection, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    argv = ["sh", "-c", f"sleep 600 & echo $! > '{mark}'; wait"]

    with pytest.raises(HostError, match="did not end within 5 s"):
        here.run(argv, timeout_s=5).result(WAIT_S)

    until(lambda: not Path(f"/proc/{mark.read_text().strip()}/fd").exists() or is_zombie(mark.read_text().strip()))


def is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:  # gone since
        return True


def test_a_look_with_more_output_than_four_megabytes_is_none(here: HostConnection) -> None:
    looks: list[CommandLook] = []
    asked = here.repeat(["head", "-c", "5000000", "/dev/zero"], 60.0, None, looks.append)
    until(lambda: looks)
    asked.cancel()

    assert (looks[0].rc, looks[0].out) == (None, "")
    assert "more than the 4 MB" in looks[0].err


def test_more_output_than_four_megabytes_is_no_answer(here: HostConnection) -> None:
    with pytest.raises(HostError, match="`head` printed more than the 4 MB that clusterfn reads"):
        here.run(["head", "-c", "5000000", "/dev/zero"]).result(WAIT_S)

    assert len(here.run(["head", "-c", "4000000", "/dev/zero"]).result(WAIT_S).out) == 4_000_000


def test_a_child_that_keeps_the_output_open_does_not_delay_the_end(here: HostConnection) -> None:
    child = int(here.run(["sh", "-c", "sleep 600 & echo $!"]).result(WAIT_S).out)

    assert not is_zombie(str(child)), "it has ended before"
    os.kill(child, signal.SIGKILL)


def test_a_spawned_program_tells_its_pid_and_its_raw_status(here: HostConnection, tmp_path: Path) -> None:
    log = tmp_path / "deep" / "log"
    reply = here.spawn(["sh", "-c", "echo $$ $PWD; exit 5"], str(tmp_path), str(log))

    spawned = reply.result(WAIT_S)
    assert os.WEXITSTATUS(reply.exited.result(WAIT_S) or 0) == 5
    assert log.read_text().split() == [str(spawned.pid), str(tmp_path)]
    assert mode_of(log) == 0o600


def test_a_spawned_program_outlives_the_agent(connect_to: Connect, local_host: Host, tmp_path: Path) -> None:
    here = connect_to(local_host)
    done = tmp_path / "done"
    here.spawn(["sh", "-c", f"while [ -d /proc/{here.facts.pid} ]; do sleep 0.01; done; touch '{done}'"],
               str(tmp_path), str(tmp_path / "log")).result(WAIT_S)  # fmt: skip

    here.close()

    until(done.exists)


def test_a_run_ends_with_the_agent(connect_to: Connect, local_host: Host, tmp_path: Path) -> None:
    here = connect_to(local_host)
    mark = tmp_path / "pid"
    here.run(["sh", "-c", f"echo $$ > '{mark}'; exec sleep 600"])
    pid = until(lambda: mark.exists() and mark.read_text().strip())

    here.close()

    until(lambda: not Path(f"/proc/{pid}").exists())


# files


def test_a_file_is_put_whole_with_its_mode_and_its_folders(here: HostConnection, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "ü"
    data = os.urandom(700_001)

    assert here.put(str(path), data, mode=0o640).result(WAIT_S)

    assert path.read_bytes() == data
    assert (mode_of(path), mode_of(path.parent)) == (0o640, 0o700)


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 256 * 1024 + 1, 9 * 2**20])
def test_any_size_goes_up_and_comes_down(here: HostConnection, tmp_path: Path, size: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(size))
    got: list[bytes] = []

    here.put(str(tmp_path / "there"), source).result(WAIT_S)
    answered = here.get(str(tmp_path / "there"), got.append).result(WAIT_S)

    assert (answered, b"".join(got)) == (size, source.read_bytes())


def test_a_file_is_whole_although_another_takes_its_name(here: HostConnection, tmp_path: Path) -> None:
    file, got = tmp_path / "state", bytearray()
    file.write_bytes(b"1" * 2**20 * 64)

    def sink(piece: bytes) -> None:
        if not got:
            (tmp_path / "new").write_bytes(b"2" * 2**20 * 64)
            (tmp_path / "new").replace(file)
        got.extend(piece)

    here.get(str(file), sink).result(WAIT_S)
    assert bytes(got) == b"1" * 2**20 * 64


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(here: HostConnection, tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(b"1" * 2**20 * 64)

    with pytest.raises(HostError, match="became shorter while it was read"):
        here.get(str(file), lambda _: os.truncate(file, 2**20)).result(WAIT_S)


def test_hundreds_of_large_files_come_at_once(here: HostConnection, tmp_path: Path) -> None:
    got = [bytearray() for _ in range(200)]
    for number in range(200):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 300_000)

    replies = [here.get(str(tmp_path / str(number)), each.extend) for number, each in enumerate(got)]
    for reply in replies:
        reply.result(WAIT_S)

    assert got == [bytes([number]) * 300_000 for number in range(200)]
    open_files = os.listdir(f"/proc/{here.facts.pid}/fd")
    assert len(open_files) < 30, "each file was closed"


def test_only_regular_files_are_listed_and_read(here: HostConnection, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("a")
    (tmp_path / "link").symlink_to("folder/a")
    (tmp_path / "latest").symlink_to("folder")
    (tmp_path / "broken").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")

    entries = here.list(str(tmp_path), "**").result(WAIT_S)
    assert [(entry.name, entry.size) for entry in entries] == [("folder/a", 1), ("link", 1)]

    with pytest.raises(HostError, match="not a regular file"):
        here.get(str(tmp_path / "pipe"), bytes).result(WAIT_S)
    with pytest.raises(HostError, match="Is a directory"):
        here.get(str(tmp_path / "latest"), bytes).result(WAIT_S)


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


def test_small_files_come_together_and_whole_or_are_left_to_a_request_of_their_own(
    here: HostConnection, tmp_path: Path
) -> None:
    contents = {f"folder/{number}": os.urandom(number) for number in range(2000)}  # several frames
    (tmp_path / "folder").mkdir()
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    sizes = {name: len(content) for name, content in contents.items()}
    (tmp_path / "link").symlink_to("folder/3")
    (tmp_path / "cost_$HOME ü").write_bytes(b"abc")
    (tmp_path / "large").write_bytes(bytes(2**20))
    (tmp_path / "grown").write_bytes(b"abcd")
    (tmp_path / "shorter").write_bytes(b"ab")
    os.mkfifo(tmp_path / "pipe")
    whole = {"link": contents["folder/3"], "cost_$HOME ü": b"abc", "shorter": b"ab"}
    pipes = [f"{'./' * number}pipe" for number in range(50)]
    left = ["large", "grown", *pipes, "folder", "missing", "folder/3/x", "no\0name"]
    came: list[tuple[str, bytes | None]] = []

    asked = {**sizes, **dict.fromkeys((*whole, *left), 3), "large": 2**20}
    here.get_each(str(tmp_path), asked, lambda *file: came.append(file)).result(WAIT_S)

    assert came == [*contents.items(), *whole.items(), *((name, None) for name in left)]
    here.get_each(str(tmp_path), {}, lambda *file: came.clear()).result(WAIT_S)
    assert came, "no file, no call"
    here.get_each(str(tmp_path / "missing"), {"a": 1}, lambda *file: came.append(file)).result(WAIT_S)
    assert came[-1] == ("a", None)
    assert len(os.listdir(f"/proc/{here.facts.pid}/fd")) < 30, "each file was closed"


@pytest.mark.skipif(sys.platform != "linux", reason="these files have more bytes than they say, and give some of them")
def test_a_file_that_gives_a_part_of_itself_is_not_taken_for_whole(here: HostConnection) -> None:
    came: list[tuple[str, bytes | None]] = []

    asked = dict.fromkeys(("cpuinfo", "self/maps", "kallsyms"), 200_000)
    here.get_each("/proc", asked, lambda *file: came.append(file)).result(WAIT_S)

    assert came == [(name, None) for name in asked]


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


@pytest.mark.parametrize("name", ["cost_$HOME.csv", "ü" * 120])
def test_a_file_may_have_any_name(here: HostConnection, tmp_path: Path, name: str) -> None:
    got = bytearray()
    for size in (3, 2**20):  # the second one could be resumed
        here.put(f"{tmp_path}/{size}/{name}", b"x" * size).result(WAIT_S)
        here.get(f"{tmp_path}/{size}/{name}", got.extend).result(WAIT_S)
        assert os.listdir(tmp_path / str(size)) == [name]

    assert bytes(got) == b"x" * (3 + 2**20)


def test_a_blob_that_is_there_is_left_as_it_is(here: HostConnection, tmp_path: Path) -> None:
    crc = zlib.crc32(b"abc")
    first = here.put(str(tmp_path / "blob"), b"abc", crc=crc).result(WAIT_S)
    before = (tmp_path / "blob").stat().st_ino

    second = here.put(str(tmp_path / "blob"), b"abc", crc=crc).result(WAIT_S)

    assert (first, second, (tmp_path / "blob").stat().st_ino) == (True, False, before)


def test_damaged_bytes_are_refused_and_leave_nothing(here: HostConnection, tmp_path: Path) -> None:
    folder = tmp_path / "blobs"

    with pytest.raises(HostError, match="another checksum"):
        here.put(str(folder / "blob"), b"abd", crc=zlib.crc32(b"abc")).result(WAIT_S)

    assert list(folder.iterdir()) == []


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


def test_what_a_killed_agent_left_is_removed_when_it_is_a_day_old(here: HostConnection, tmp_path: Path) -> None:
    old = [tmp_path / "b" / name for name in ("x.part-7-3", "tree.part-7-4", "tree.part-7-4/d", "blob", "x.part-7")]
    new = [tmp_path / "b" / name for name in ("x.part-7-5", "tree.part-7-6", "tree.part-7-6/d")]
    for path in (*old, *new):
        path.mkdir(parents=True) if "tree" in path.name else path.parent.mkdir(exist_ok=True)
        path.exists() or path.write_bytes(b"x")
    for path in (*reversed(old), new[1]):
        os.utime(path, (0, time.time() - 25 * 3600))

    here.put(str(tmp_path / "b" / "y"), b"y").result(WAIT_S)

    until(lambda: not old[0].exists() and not old[1].exists())
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "blob", "tree.part-7-6", "x.part-7", "x.part-7-5", "y",
    ]  # fmt: skip


def test_an_upload_elsewhere_removes_an_old_part_of_the_bridge(here: HostConnection, tmp_path: Path) -> None:
    bridge = Path(here.host.root).expanduser() / "bridge"
    bridge.mkdir(parents=True, exist_ok=True)
    old = bridge / f"{tmp_path.name}.part-7-3"
    old.write_bytes(b"x")
    os.utime(old, (0, time.time() - 25 * 3600))

    here.put(str(tmp_path / "y"), b"y").result(WAIT_S)

    until(lambda: not old.exists())


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "", "a//b", "."])
def test_a_name_that_leads_out_of_the_tree_is_refused(here: HostConnection, tmp_path: Path, name: str) -> None:
    with pytest.raises(HostError, match="not a name below the folder"):
        here.put_tree(str(tmp_path / "t" / "tree"), [TreeFile(name, b"x")]).result(WAIT_S)

    assert list((tmp_path / "t").iterdir()) == []


def test_have_and_paths_with_tilde_and_variables(here: HostConnection, tmp_path: Path) -> None:
    answer = here.have([str(tmp_path), str(tmp_path / "no"), "~/", "$HOME"]).result(WAIT_S)

    assert answer == [True, False, True, True]


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


def test_a_missing_file_is_named(here: HostConnection) -> None:
    with pytest.raises(HostError, match="/no/such/file does not exist on here") as caught:
        here.get("/no/such/file", print).result(WAIT_S)

    assert caught.value.kind == "missing"  # type: ignore[attr-defined]


# what comes after what


def test_what_comes_after_a_failure_is_skipped_with_its_reason(here: HostConnection, tmp_path: Path) -> None:
    failing = here.run(["/no/such/program"])
    put = here.put(str(tmp_path / "d" / "file"), b"x", after=[failing])
    run = here.run(["touch", str(tmp_path / "ran")], after=[put])

    with pytest.raises(HostError, match="No such file") as caught:
        run.result(WAIT_S)
    first = failing.exception(WAIT_S)
    assert isinstance(first, HostError)
    assert (str(caught.value), caught.value.kind) == (str(first), first.kind)
    assert not (tmp_path / "ran").exists()
    assert list((tmp_path / "d").iterdir()) == []


def test_what_waits_for_something_that_fails_later_is_skipped_too(here: HostConnection, tmp_path: Path) -> None:
    failing = here.run(["sleep", "10"], timeout_s=0.3)
    run = here.run(["touch", str(tmp_path / "ran")], after=[failing])
    last = here.run(["touch", str(tmp_path / "ran")], after=[run])

    with pytest.raises(HostError, match="did not end within 0.3 s"):
        last.result(WAIT_S)
    assert not (tmp_path / "ran").exists()


def test_what_a_program_makes_is_private(here: HostConnection, tmp_path: Path) -> None:
    here.run(["touch", "made"], cwd=str(tmp_path)).result(WAIT_S)

    assert mode_of(tmp_path / "made") == 0o600


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
