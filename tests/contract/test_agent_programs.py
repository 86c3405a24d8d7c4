"""Programs and sockets that the agent runs and opens for its client, under each Python. All processes are real."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from clusterfn import HostError
from tests.contract.conftest import ODD, Connect, mode_of
from tests.processes import is_running
from tests.waiting import WAIT_S, until

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
    told = {"argv": argv, "cwd": os.getcwd(), "home": os.environ.get("HOME"), "path": "PATH" in os.environ}
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
    here: Any, supervise: str, tmp_path: Path, forks: bool
) -> None:
    argv = [here.facts.python, "-I", "-S", supervise, "one", "it's two"]
    done = here.run(argv, b"given", str(tmp_path), ("HOM",), timeout_s=WAIT_S, forks=forks).result(WAIT_S)

    assert (done.rc, done.err) == (7, b"")
    assert json.loads(done.out) == {
        "argv": ["one", "it's two"], "cwd": str(tmp_path), "home": None, "path": True, "fds": [0, 1, 2], "leads": True,
        "stdin": "given", "forked": forks,
    }  # fmt: skip


def test_a_fork_of_the_agent_says_what_it_raises_and_is_killed_after_its_time(here: Any, supervise: str) -> None:
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
    (folder / "supervise.py").write_text("import sys\n")
    return str(folder / "supervise.py")


def test_forks_of_the_agent_load_one_bridge_once_and_take_no_other_for_it(here: Any, tmp_path: Path) -> None:
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


OUTLOOK = "starts_now = lambda root, question: {'known': question, '': None}[root]\n"


def test_the_agent_answers_outlook_without_a_fork_if_it_can(here: Any, tmp_path: Path) -> None:
    one, other = (telling_bridge(tmp_path / name, tmp_path / "loads") for name in ("one", "other"))
    (queue := tmp_path / "one" / "_clusterfn" / "bridge" / "queue").mkdir()
    (queue / "__init__.py").touch()
    (queue / "outlook.py").write_text(OUTLOOK)
    with (queue.parent / "supervisor" / "commands.py").open("a") as file:
        file.write("from ..queue import outlook\n")

    def said(command: str, root: str, path: str = one, forks: bool = True) -> str:
        argv = [here.facts.python, "-I", "-S", path, command, root]
        done = here.run(argv, stdin=b"itself", forks=forks).result(WAIT_S)
        assert (done.rc, done.signal, done.err) == (0, None, b"")
        return str(done.out.decode().strip())

    # The bridge is here from its second use on; without an answer, and for all else, there is a fork as before.
    assert [said("outlook", "known") for _ in range(3)] == ["one", "one", "itself"]
    assert {said("outlook", ""), said("outlook", "damaged"), said("list", "known")} == {"one"}
    assert (said("outlook", "known", other), said("outlook", "known", forks=False)) == ("other", "")
    assert said("outlook", "known") == "itself"
    (tmp_path / "one" / "supervise.py").write_bytes(bytes(20))
    # What a crash leaves of a file is run by an interpreter of its own, which may take it for an error.
    assert here.run([here.facts.python, "-I", "-S", one, "outlook", "known"], forks=True).result(WAIT_S).out == b""


def test_a_fork_whose_agent_was_killed_is_no_second_agent(
    connect_to: Connect, local_host: Any, supervise: str, tmp_path: Path
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
    connect_to: Connect, local_host: Any, tmp_path: Path
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


def test_bytes_travel_both_ways_through_a_socket_of_the_host(here: Any) -> None:
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


def test_bytes_travel_both_ways_through_a_program_of_the_host(here: Any, tmp_path: Path) -> None:
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
def test_a_program_whose_output_comes_in_pieces_of_srun_is_nudged_after_each_full_one(here: Any, nudge: bytes) -> None:
    came, program = bytearray(), NUDGED if nudge else NUDGED.replace("60", "0.3")

    here.converse([here.facts.python, "-c", program], b"", came.extend, nudge=nudge).result(WAIT_S)

    said = nudge or b"-"
    assert bytes(came) == b"x" * 1024 + said + b"x" * 100 + b"-" + b"x" * 2048 + said


@pytest.mark.parametrize(("status", "kind"), [(3, "program"), (os.EX_UNAVAILABLE, "unavailable")])
def test_a_program_that_fails_says_what_it_said_last(here: Any, status: int, kind: str) -> None:
    failing = here.converse(["sh", "-c", f"echo no way >&2; exit {status}"], b"", bytes)

    with pytest.raises(HostError, match=f"sh ended with status {status}: no way") as raised:
        failing.result(WAIT_S)
    assert raised.value.kind == kind
    with pytest.raises(HostError, match="does not exist"):
        here.converse(["/no/such/program"], b"", bytes).result(WAIT_S)


# programs


def test_arguments_arrive_as_given(here: Any) -> None:
    done = here.run(["printf", "%s\\0", *ODD]).result(WAIT_S)

    assert done.out == b"\0".join(word.encode() for word in [*ODD, ""])


def test_a_program_has_its_input_and_its_exit_status(here: Any) -> None:
    argv = ["sh", "-c", 'cat; printf "%s" "bü$SLURM_X" >&2; exit 3']
    data = os.urandom(300_000)

    done = here.run(argv, stdin=data, unset=["SLURM_"]).result(WAIT_S)

    assert (done.rc, done.signal, done.out == data, done.err) == (3, None, True, "bü".encode())


def test_a_program_is_killed_once_it_says_that_it_will_repeat_itself(here: Any) -> None:
    argv = ["sh", "-c", "echo 12; echo 'full, will re' >&2; printf 'peat\\n' >&2; sleep 600"]

    done = here.run(argv, timeout_s=WAIT_S * 10, stop_at="full, will re").result(WAIT_S)

    assert (done.rc, done.signal, done.out) == (None, signal.SIGKILL, b"12\n")
    assert done.err.startswith(b"full, will re")


def test_a_program_that_takes_too_long_is_killed_with_its_children(here: Any, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    argv = ["sh", "-c", f"sleep 600 & echo $! > '{mark}'; wait"]

    with pytest.raises(HostError, match="did not end within 5 s"):
        here.run(argv, timeout_s=5).result(WAIT_S)

    # Where the shell has not come so far within these 5 s, no child is there.
    until(lambda: not mark.exists() or not is_running(int(mark.read_text() or 0)))


def test_a_look_with_more_output_than_four_megabytes_is_none(here: Any) -> None:
    looks: list[Any] = []
    asked = here.repeat(["head", "-c", "5000000", "/dev/zero"], 60.0, looks.append)
    until(lambda: looks)
    asked.cancel()

    assert (looks[0].rc, looks[0].out) == (None, "")
    assert "more than the 4 MB" in looks[0].err


def test_more_output_than_four_megabytes_is_no_answer(here: Any) -> None:
    with pytest.raises(HostError, match="`head` printed more than the 4 MB that clusterfn reads"):
        here.run(["head", "-c", "5000000", "/dev/zero"]).result(WAIT_S)

    assert len(here.run(["head", "-c", "4000000", "/dev/zero"]).result(WAIT_S).out) == 4_000_000


def test_a_child_that_keeps_the_output_open_does_not_delay_the_end(here: Any) -> None:
    child = int(here.run(["sh", "-c", "sleep 600 & echo $!"]).result(WAIT_S).out)

    assert is_running(child), "it has ended before"
    os.kill(child, signal.SIGKILL)


def test_a_spawned_program_tells_its_pid_and_its_raw_status(here: Any, tmp_path: Path) -> None:
    log = tmp_path / "deep" / "log"
    reply = here.spawn(["sh", "-c", "echo $$ $PWD; exit 5"], str(tmp_path), str(log))

    spawned = reply.result(WAIT_S)
    assert os.WEXITSTATUS(reply.exited.result(WAIT_S) or 0) == 5
    assert log.read_text().rstrip().split(" ", 1) == [str(spawned.pid), str(tmp_path)]
    assert mode_of(log) == 0o600


def test_a_spawned_program_outlives_the_agent(connect_to: Connect, local_host: Any, tmp_path: Path) -> None:
    here = connect_to(local_host)
    done = tmp_path / "done"
    here.spawn(["sh", "-c", f"while [ -d /proc/{here.facts.pid} ]; do sleep 0.01; done; touch '{done}'"],
               str(tmp_path), str(tmp_path / "log")).result(WAIT_S)  # fmt: skip

    here.close()

    until(done.exists)


def test_a_run_ends_with_the_agent(connect_to: Connect, local_host: Any, tmp_path: Path) -> None:
    here = connect_to(local_host)
    mark = tmp_path / "pid"
    here.run(["sh", "-c", f"echo $$ > '{mark}'; exec sleep 600"])
    pid = until(lambda: mark.exists() and mark.read_text().strip())

    here.close()

    until(lambda: not Path(f"/proc/{pid}").exists())
