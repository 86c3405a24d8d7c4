"""Codes and passwords: asked once and in the right place, held for all programs, and never given twice by a machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.config.spec import Host
from clusterfn.errors import AuthenticationError, ConfigError, Unreachable
from clusterfn.hosts.transports import held_connections, shared_login, transport_for
from clusterfn.hosts.transports.prompts import LoginQuestion, NotAnswered
from tests.contract.conftest import WAYS, Connect, Counted, Person
from tests.lab.network import DelayProxy
from tests.programs import main
from tests.waiting import WAIT_S, until

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("runtime")]
ENDS_S = 150.0  # of a process that connects: one that asks would never end
MINOR = f"3.{sys.version_info[1]}"


@pytest.mark.parametrize("way", WAYS)
def test_a_question_that_is_closed_is_no_answer(totp: Any, way: str) -> None:
    def closed(question: LoginQuestion) -> str:
        raise NotAnswered

    with pytest.raises(AuthenticationError):
        transport_for(totp(way, "NumberOfPasswordPrompts 1")).open("true", closed)


# where nobody can be asked, and where somebody can

CALL = """
import sys
from clusterfn.errors import AuthenticationError
from clusterfn.hosts.connection import connect
from clusterfn.config.spec import Host
try:
    there = connect(Host("totp-second", "totp-second", "bare", "x", transport=sys.argv[2], ssh_config=sys.argv[1]))
    print("by", there.via, there.run(["echo", "hi"]).result(150).out)
except AuthenticationError as error:
    print("refused", error)
"""


def argv(host: Host, text: str = CALL) -> list[str]:
    return [sys.executable, "-c", text, str(host.ssh_config), host.transport]


@pytest.mark.fault("49")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stdin", ["pipe", "null"])
def test_without_a_terminal_nothing_is_asked(totp: Any, prompts: Counted, stdin: str, way: str) -> None:
    reader, writer = os.pipe()
    given = reader if stdin == "pipe" else subprocess.DEVNULL
    ran = subprocess.run(
        argv(totp(way)), stdin=given, capture_output=True, text=True, timeout=ENDS_S, start_new_session=True
    )
    os.close(reader)
    os.close(writer)

    assert "but also wants a password (or a code)" in ran.stdout
    assert "clusterfn login totp-second" in ran.stdout
    assert prompts() == 0


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, words: list[str]) -> None:
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execv(words[0], words)
        self.said = ""

    def until(self, words: str, timeout_s: float = WAIT_S) -> str:
        """Read until it has said this; what it said."""
        deadline = time.monotonic() + timeout_s
        while words not in self.said:
            assert time.monotonic() < deadline, self.said
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self.fd, 4096).decode()
                except OSError:
                    break
        assert words in self.said, self.said
        return self.said

    def type(self, line: str) -> None:
        os.write(self.fd, f"{line}\n".encode())

    def end(self) -> int:
        """Take the terminal away; the status."""
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize("way", WAYS)
def test_a_terminal_is_asked_and_shows_no_answer(lab: Any, totp: Any, prompts: Counted, way: str) -> None:
    terminal = Terminal(argv(totp(way)))
    terminal.until("(cfsecond@127.0.0.1) Verification code: ")
    code = lab.totp.code()
    terminal.type(code)

    assert code not in terminal.until(f"by {way} b'hi")
    terminal.end()
    assert prompts() == 1


KERNEL = """
from clusterfn.hosts.connection import connect
from clusterfn.config.spec import Host
host = Host("totp-second", "totp-second", "bare", "x", transport={way!r}, ssh_config={config!r})
def call():
    there = connect(host)
    print("by", there.via, there.run(["echo", "hi"]).result(150).out)
    there.close()
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Any]:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def in_cell(client: Any, code: str, answers: Callable[[], str] | None) -> tuple[str, list[str]]:
    """What a cell says, and what it asks; None: the front end cannot ask."""
    said, asked = "", []
    client.execute(code, allow_stdin=answers is not None)
    while True:
        with contextlib.suppress(Exception):
            question = client.get_stdin_msg(timeout=0.05)["content"]
            asked.append(question["prompt"])
            assert question["password"]
            client.input(answers())
        with contextlib.suppress(Exception):
            message = client.get_iopub_msg(timeout=0.05)
            content = message["content"]
            said += content.get("text", "") + content.get("evalue", "")
            if content.get("execution_state") == "idle" and message["parent_header"]["msg_type"] == "execute_request":
                return said, asked


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_notebook_is_asked_below_the_cell(lab: Any, totp: Any, kernel: Any, prompts: Counted) -> None:
    in_cell(kernel, KERNEL.format(way="auto", config=totp().ssh_config), None)
    there = "\nimport threading; one = threading.Thread(target=call); one.start(); one.join()"

    asked_there = in_cell(kernel, "call()", lab.totp.code)
    asked_in_thread = in_cell(kernel, there, lab.totp.code)
    before = prompts()
    cannot_ask = in_cell(kernel, "call()", None)

    question = ["(cfsecond@127.0.0.1) Verification code: "]
    assert asked_there == ("by openssh b'hi\\n'\n", question)
    assert asked_in_thread == ("by openssh b'hi\\n'\n", question)
    assert "clusterfn login totp-second" in cannot_ask[0]
    assert (cannot_ask[1], before, prompts()) == ([], 2, 2)


# held connections


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


VIA = "openssh (clusterfn login)"


@pytest.fixture
def logged_in(totp: Any, lab: Any, prompts: Counted) -> Host:
    """A host to which a connection is held."""
    host = totp()
    shared_login.log_in(host, Person(lab.totp.code))
    assert prompts() == 1
    return host


def test_five_processes_need_one_code(logged_in: Host, prompts: Counted) -> None:
    running = [subprocess.Popen(argv(logged_in), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for _ in range(5)]

    said = [process.communicate(timeout=WAIT_S)[0].decode() for process in running]

    assert said == [f"by {VIA} b'hi\\n'\n"] * 5
    assert prompts() == 1


def test_logout_leaves_no_process_and_no_socket(logged_in: Host, runtime: Path, connect_to: Connect) -> None:
    there = connect_to(logged_in)
    held_by = next(shared_login.all_held()).pid

    assert shared_login.log_out(logged_in)

    assert list(runtime.iterdir()) == []
    assert not held_connections.is_running(held_by)
    assert not shared_login.log_out(logged_in)
    until(lambda: not there.link.line.connected)
    with pytest.raises(AuthenticationError, match="connection to totp-second needs you"):
        there.ping().result(WAIT_S)


def test_a_master_that_was_killed_is_noticed_and_cleared_away(
    logged_in: Host, runtime: Path, lab: Any, prompts: Counted
) -> None:
    os.kill(next(shared_login.all_held()).pid, signal.SIGKILL)

    with pytest.raises(AuthenticationError, match="clusterfn login totp-second"):
        until(lambda: transport_for(logged_in).open("true").close())

    assert list(runtime.iterdir()) == []
    assert shared_login.log_in(logged_in, Person(lab.totp.code))[1]
    assert prompts() == 2


def test_of_logins_at_once_one_is_held_and_logout_leaves_none(totp: Any, runtime: Path) -> None:
    host = totp(alias="py36-dash")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        made = [each.result()[0] for each in [pool.submit(shared_login.log_in, host, None) for _ in range(3)]]

    until(lambda: sum(held_connections.is_running(pid) for pid in {each.pid for each in made}) == 1)
    transport_for(host).open("true").close()
    assert shared_login.log_out(host)

    until(lambda: not any(held_connections.is_running(each.pid) for each in made))
    assert list(runtime.iterdir()) == []


def test_a_login_that_comes_while_another_is_just_made_joins_it(totp: Any, runtime: Path) -> None:
    host = totp("auto", alias="py36-dash")
    first, _ = shared_login.log_in(host, None)
    (runtime / f"{first.key}.json").unlink()  # as it is before its record is written

    assert shared_login.log_in(host, None)[0].pid == first.pid


def test_a_login_that_nobody_can_answer_does_not_lead_to_itself(totp: Any, runtime: Path, prompts: Counted) -> None:
    with pytest.raises(AuthenticationError, match="also wants a password") as refused:
        shared_login.log_in(totp(), None)

    assert refused.value.hint == "this program has no terminal: type clusterfn login totp-second in one"
    assert prompts() == 0 and list(runtime.iterdir()) == []


def test_what_cannot_be_remembered_is_not_held(totp: Any, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(held_connections, "publish", SimpleNamespace(replace=full))

    with pytest.raises(ConfigError, match="No space left"):
        shared_login.log_in(totp(alias="py36-dash"), None)

    until(lambda: list(runtime.iterdir()) == [])


def test_a_session_too_many_is_reported_as_that(lab: Any, totp: Any) -> None:
    host = totp(alias="onesession-bash")
    made, _ = shared_login.log_in(host, None)
    first = transport_for(host)
    stream = first.open("cat")

    other = transport_for(host)
    beside = other.open("cat")  # a key was enough for the login, so it is for one more
    held_connections.write_record(made._replace(asked=True))
    with pytest.raises(
        Unreachable, match=r"The held connection to 127.0.0.1:22025 accepts no further session"
    ) as caught:
        transport_for(host).open("true")

    assert (first.via, other.via) == (VIA, "openssh")
    assert "MaxSessions" in (caught.value.hint or "")
    stream.close()
    beside.close()


@pytest.fixture
def in_clusterfn_yml(totp: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Host]:
    """A host in clusterfn.yml."""

    def write(host: Host, more: str = "") -> Host:
        python = f"/opt/clusterfn-lab/python/{MINOR}/bin/python"
        (tmp_path / "clusterfn.yml").write_text(
            f"hosts:\n  {host.name}: {{scheduler: bare, ssh_config: {host.ssh_config}, transport: {host.transport}, "
            f"environment: 'python:{python}'{more}}}\n"
        )
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
        return host

    return write


COMMAND = [str(Path(sys.executable).with_name("clusterfn"))]


def test_the_command_asks_and_what_it_holds_outlives_its_terminal(
    totp: Any, in_clusterfn_yml: Any, lab: Any, prompts: Counted, capsys: Any
) -> None:
    host = in_clusterfn_yml(totp(), ", login_ttl: 30min")
    terminal = Terminal([*COMMAND, "login", "totp-second"])
    terminal.until("Verification code: ")
    terminal.type(lab.totp.code())
    terminal.until(
        "logged in as cfsecond@127.0.0.1:22027, for all your programs on this machine, until it is unused for 30 min"
    )
    terminal.end()

    transport_for(host).open("true").close()
    assert [main(["login"]), main(["login", "totp-second"]), main(["logout", "totp-second"])] == [0, 0, 0]
    listed, again, ended = capsys.readouterr().out.split("\ntotp-second: ")
    assert re.search(r"totp-second +cfsecond@127.0.0.1:22027 +[\d.]+ (s|min) ago +30 min", listed)
    assert again.startswith("already logged in as cfsecond@127.0.0.1:22027")
    assert ended == "logged out; jobs on the host keep running\n"
    assert main(["logout", "totp-second"]) == 1
    assert prompts() == 1


# a cable that is pulled

JOB = """
import os, time
def wait(gate):
    print("began", flush=True)
    end = time.monotonic() + 90  # a test that fails must leave no job that holds a core
    while not os.path.exists(gate) and time.monotonic() < end:
        time.sleep(0.02)
    return "the value"
"""


@pytest.mark.parametrize("before", ["login", pytest.param("prompt", marks=pytest.mark.long)])
def test_after_the_cable_was_pulled_nothing_is_asked_until_a_person_logs_in(
    totp: Any,
    in_clusterfn_yml: Any,
    lab: Any,
    person: Person,
    prompts: Counted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
) -> None:
    from clusterfn import cluster

    monkeypatch.setattr("clusterfn.hosts.rpc.link.LOCAL_LOOK_S", 0.1)

    gate = lab.home("second") / f"gate-{tmp_path.name}"
    with DelayProxy(0, lab.host("totp-second").port) as cable:
        key = "HostKeyAlias [127.0.0.1]:22027"
        host = in_clusterfn_yml(totp(lines=f"Host totp-second\nPort {cable.port}\n{key}"))
        if before == "login":
            shared_login.log_in(host, person)
        space: dict[str, Any] = {}
        exec(JOB, space)
        job = cluster(host="totp-second")(space["wait"]).submit(str(gate))
        until(lambda: job.state == "RUNNING")
        assert prompts() == 1

        knocks = cable.accepted
        cable.refuse()
        cable.cut()
        until(lambda: "again" in job.reason or "needs you" in job.reason)
        cable.refuse(refusing=False)
        until(
            lambda: (
                job.reason == "connection to totp-second needs you: clusterfn login totp-second; your jobs keep running"
            )
        )
        with pytest.raises(AuthenticationError, match="connection to totp-second needs you"):
            job.logs()
        gate.touch()
        with pytest.raises(TimeoutError):
            job.result(1)
        assert (prompts(), cable.accepted) == (1, knocks)  # not even the key was tried

        shared_login.log_in(host, person)
        assert job.result(WAIT_S) == "the value"
        assert prompts() == 2
    gate.unlink()


def test_where_nothing_can_be_held_a_broken_connection_ends_the_wait_and_asks_nobody(
    totp: Any, in_clusterfn_yml: Any, lab: Any, person: Person, prompts: Counted, tmp_path: Path
) -> None:
    from clusterfn import attach, cluster

    gate = lab.home("second") / f"gate-{tmp_path.name}"
    with DelayProxy(0, lab.host("totp-second").port) as cable:
        key = "HostKeyAlias [127.0.0.1]:22027"
        in_clusterfn_yml(totp("paramiko", f"Host totp-second\nPort {cable.port}\n{key}"))
        space: dict[str, Any] = {}
        exec(JOB, space)
        job = cluster(host="totp-second")(space["wait"]).submit(str(gate))
        until(lambda: job.state == "RUNNING")

        cable.cut()

        with pytest.raises(AuthenticationError, match="totp-second needs you: the next call or attach asks") as caught:
            job.result(WAIT_S)
        assert f"clusterfn.attach('{job.id}')" in (caught.value.hint or "")
        assert prompts() == 1  # and no thread in the background asks

        gate.touch()
        assert attach(job.id).result(WAIT_S) == "the value"
        assert prompts() == 2
    gate.unlink()
