"""Who is asked, what a question looks like, and where the answers' connections lie. No lab, no terminal but our own."""

from __future__ import annotations

import contextlib
import errno
import os
import pty
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest

from clusterfn.config.spec import Host
from clusterfn.errors import AuthenticationError, ConfigError
from clusterfn.hosts.transports import Transport, held_connections, paramiko_login, shared_login
from clusterfn.hosts.transports.held_connections import HeldConnection
from clusterfn.hosts.transports.openssh import AskPass
from clusterfn.hosts.transports.prompts import Asker, LoginQuestion
from clusterfn.hosts.transports.shared_login import ReusingTransport
from clusterfn.hosts.transports.ssh_config import Settings, resolve
from tests.waiting import WAIT_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="terminals and sockets of Unix")
HELD = HeldConnection("0123456789abcdef", "lab", "ada@lab:22", os.getpid(), 1.0, 60.0, True, "/nowhere")


def test_a_host_cannot_write_to_the_terminal_by_its_question():
    question = LoginQuestion("Code\x1b[2J\r: ", "ada@lab", "1. push\x07\n2. call\n")

    assert str(question) == "1. push\n2. call\n(ada@lab) Code: "
    assert len(str(LoginQuestion("a" * 10**6, "ada@lab", "b" * 10**6))) < 10**4


def test_the_prompt_says_who_asks_whatever_the_host_writes():
    another = LoginQuestion("\n" * 50 + "(ada@bank) Password: \n", "ada@lab", "")
    menu = LoginQuestion("1. push\n2. call\nWhich: ", "ada@lab", "Two steps")

    assert str(another).splitlines()[-1] == "(ada@lab) (ada@bank) Password: "
    assert str(menu) == "Two steps\n1. push\n2. call\n(ada@lab) Which: "
    assert str(LoginQuestion("\u202e:drowssaP\u202c ", "ada@lab")) == "(ada@lab) :drowssaP "


ASK = """
import multiprocessing, os, sys
from clusterfn.hosts.transports.prompts import LoginQuestion, person
def told():
    print("somebody" if person() else "nobody", flush=True)
if __name__ == "__main__":
    if "worker" in sys.argv:
        worker = multiprocessing.get_context("spawn").Process(target=told); worker.start(); worker.join()
    elif "background" in sys.argv:
        os.setpgid(0, 0) if os.getpid() != os.getsid(0) else os.fork() or (os.setpgid(0, 0), told(), os._exit(0))
        os.wait()
    else:
        told()
        asked = (("A: ", True), ("B: ", False))
        print("got", [person()(LoginQuestion(text, "lab", secret=secret)) for text, secret in asked])
"""


def in_terminal(tmp_path: Path, *words: str, typed: bytes = b"") -> str:
    """What a program says in a terminal of its own, whose stdin is a pipe that is never written to."""
    (tmp_path / "ask.py").write_text(ASK)
    reader, _writer = os.pipe()
    pid, fd = pty.fork()
    if not pid:
        os.dup2(reader, 0)
        os.execv(sys.executable, [sys.executable, str(tmp_path / "ask.py"), *words])
    said = b""
    try:
        while piece := os.read(fd, 4096):
            said += piece
            if typed and said.endswith(b": "):  # it may come in two pieces
                line, typed = typed.split(b"\n", 1)
                os.write(fd, line + b"\n")
    except OSError:  # the program has ended
        pass
    os.waitpid(pid, 0)
    for each in (fd, reader, _writer):
        os.close(each)
    return said.decode().replace("\r", "")


def test_the_terminal_is_asked_though_stdin_is_a_pipe_and_a_secret_stays_unseen(tmp_path):
    said = in_terminal(tmp_path, typed=b"first\nsecond\n")

    assert said == "somebody\n(lab) A: \n(lab) B: second\ngot ['first', 'second']\n"


@pytest.mark.parametrize("where", ["worker", "background"])
def test_a_program_that_is_not_in_the_foreground_has_nobody(tmp_path, where: str):
    assert in_terminal(tmp_path, where) == "nobody\n"


# keyboard-interactive in several rounds, as a menu of ways to confirm has them


class Menu(paramiko.ServerInterface):
    """Asks which way, then says something that needs no answer."""

    def __init__(self) -> None:
        self.heard: list[list[str]] = []

    def get_allowed_auths(self, username: str) -> str:
        return "keyboard-interactive"

    def check_auth_interactive(self, username: str, submethods: str) -> paramiko.InteractiveQuery:
        return paramiko.InteractiveQuery("Two steps", "1. push\n2. call", ("Way: ", True), ("PIN: ", False))

    def check_auth_interactive_response(self, responses: list[str]) -> int | paramiko.InteractiveQuery:
        self.heard.append(list(responses))
        if responses == ["1", "1234"]:
            return paramiko.InteractiveQuery("", "Success. Logging you in")
        return paramiko.AUTH_FAILED if responses else paramiko.AUTH_SUCCESSFUL


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "config").write_text("Host *\nIdentityFile none\nIdentityAgent none\nNumberOfPasswordPrompts 2\n")
    return resolve(Host("lab", "ada@lab", "bare", "x", ssh_config=str(tmp_path / "config")))


@pytest.fixture
def server() -> Iterator[tuple[Menu, paramiko.Transport]]:
    """A server in this process, and a connection to it that is not logged in."""
    near, far = socket.socketpair()
    there, here, menu = paramiko.Transport(far), paramiko.Transport(near), Menu()
    there.add_server_key(paramiko.RSAKey.generate(2048))
    for each in (there, here):
        each.banner_timeout = each.handshake_timeout = each.auth_timeout = WAIT_S
    there.start_server(threading.Event(), menu)
    here.start_client(timeout=WAIT_S)
    yield menu, here
    here.close()
    there.close()


def test_all_questions_of_a_round_are_asked_and_a_word_without_a_question_is_none(server, settings):
    asked: list[LoginQuestion] = []
    answers = iter(["1", "1234"])

    def ask(question: LoginQuestion) -> str:
        asked.append(question)
        return next(answers)

    paramiko_login.log_in(server[1], settings, "lab", ask)

    assert server[0].heard == [["1", "1234"], []]
    assert [(each.text, each.secret, each.about) for each in asked] == [
        ("Way: ", False, "Two steps\n1. push\n2. call"),
        ("PIN: ", True, ""),
    ]


@pytest.mark.parametrize("method", ["password", "keyboard-interactive"])
def test_what_was_typed_is_in_no_log_and_no_error(server, settings, caplog, monkeypatch, method: str):
    caplog.set_level(1)
    typed = secrets.token_hex(8)
    monkeypatch.setattr(server[0], "get_allowed_auths", lambda username: method)

    with pytest.raises(AuthenticationError) as caught:
        paramiko_login.log_in(server[1], settings, "lab", lambda question: typed)

    told = "".join(traceback.format_exception(None, caught.value, caught.value.__traceback__))
    assert f"tried {method}: refused" in told
    assert typed not in told + repr(vars(caught.value)) + caplog.text


# where held connections lie


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = Path("/tmp") / f"cf-{os.getpid()}-own"  # tests before have left another one
    monkeypatch.setenv("CLUSTERFN_RUNTIME", str(path))
    yield path
    if path.is_dir():
        for each in path.iterdir():
            each.unlink()
        path.rmdir()


def test_the_folder_of_sockets_is_for_its_owner_alone(folder: Path):
    assert (held_connections.runtime_folder().stat().st_mode & 0o777) == 0o700

    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="is not private to you"):
        held_connections.runtime_folder()
    assert not held_connections.has_records()  # and it is in nobody's way


def test_what_another_has_made_is_no_folder_of_sockets(folder: Path, tmp_path):
    tmp_path.chmod(0o700)
    folder.symlink_to(tmp_path)  # made by another, perhaps, to a folder of ours
    with pytest.raises(ConfigError, match="is not private to you"):
        held_connections.runtime_folder()
    folder.unlink()
    for other in (lambda: folder.symlink_to("/nowhere/at/all"), folder.touch):
        other()
        with pytest.raises(ConfigError, match="is not private to you"):
            held_connections.runtime_folder()
        assert not held_connections.has_records()
        folder.unlink()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_none_though_nobody_else_may_use_it(folder: Path):
    folder.mkdir(mode=0o700)
    os.chown(folder, 1, 1)

    with pytest.raises(ConfigError, match="is not private to you"):
        held_connections.runtime_folder()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_another_user_who_makes_the_usual_folder_first_leaves_all_programs_another_one(folder: Path, monkeypatch):
    place = held_connections.runtime_folder()  # its path is short
    monkeypatch.delenv(held_connections.VARIABLE)
    monkeypatch.setattr(held_connections, "PLACE", place)
    theirs = [place / f"clusterfn-{os.getuid()}", place / f"clusterfn-{os.getuid()}-0"]
    for path in theirs:
        path.mkdir(mode=0o777)
        os.chown(path, 1, 1)

    chosen = held_connections.runtime_folder()

    assert chosen.stat().st_uid == os.getuid() and chosen.stat().st_mode & 0o777 == 0o700
    assert chosen not in theirs and held_connections.runtime_folder() == chosen
    for path in (*theirs, chosen):
        path.rmdir()


def test_a_folder_that_cannot_be_made_or_written_to_is_an_error_that_says_what_to_do(folder: Path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(held_connections, "publish", SimpleNamespace(replace=full))
    with pytest.raises(ConfigError, match="No space left") as caught:
        held_connections.write_record(HELD)
    assert "CLUSTERFN_RUNTIME" in (caught.value.hint or "")
    assert list(folder.iterdir()) == []

    monkeypatch.setenv("CLUSTERFN_RUNTIME", "/proc/nothing/here")
    with pytest.raises(ConfigError, match="cannot be written to"):
        held_connections.runtime_folder()


def test_a_folder_with_a_long_name_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("CLUSTERFN_RUNTIME", str(tmp_path / ("x" * 80)))

    with pytest.raises(ConfigError, match="too long for a folder of sockets"):
        held_connections.runtime_folder()


def test_a_record_is_found_by_its_key_and_belongs_to_the_last_login(folder: Path):
    assert not held_connections.has_records()
    held_connections.write_record(HELD)

    assert (held_connections.find_record(HELD.key), list(held_connections.all_records())) == (HELD, [HELD])
    assert held_connections.has_records()
    assert (folder / f"{HELD.key}.json").stat().st_mode & 0o777 == 0o600
    held_connections.forget_record(HELD._replace(pid=1))  # another login has come meanwhile
    assert held_connections.find_record(HELD.key) == HELD
    held_connections.forget_record(HELD)
    assert held_connections.find_record(HELD.key) is None


def test_a_damaged_record_is_none(folder: Path):
    (held_connections.runtime_folder() / "x.json").write_text("{")

    assert list(held_connections.all_records()) == []


@pytest.mark.skipif(shutil.which("ssh") is None, reason="a connection is held by ssh")
def test_a_process_that_has_ended_does_not_run_although_its_parent_has_not_looked():
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

        assert not held_connections.is_running(process.pid)
    assert held_connections.is_running(os.getpid())


def test_a_record_whose_process_id_is_now_another_programs_is_forgotten_when_it_is_used(folder: Path, tmp_path):
    (tmp_path / "config").write_text("Host lab\n")
    host = Host("lab", "lab", "bare", "x", ssh_config=str(tmp_path / "config"))
    key = held_connections.key_of(resolve(host))
    held_connections.runtime_folder()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(held_connections.socket_path(key)))
    held_connections.write_record(
        HELD._replace(key=key, pid=os.getpid(), address=str(held_connections.socket_path(key)))
    )
    assert shared_login.is_held(host)

    class Refused(Transport):
        via = ""

        def open(self, command: str, asker: object = None) -> Any:
            raise AuthenticationError("no key", host="lab")

    with pytest.raises(AuthenticationError):
        ReusingTransport(host, Refused()).open("true")
    assert not shared_login.is_held(host)


def test_two_names_of_one_account_share_what_is_held_and_two_accounts_do_not(tmp_path):
    (tmp_path / "config").write_text("Host a b\nHostName lab.example.edu\nUser ada\nHost b c\nHostKeyAlias lab\n")

    def key(address: str) -> str:
        return held_connections.key_of(resolve(Host("x", address, "bare", "x", ssh_config=str(tmp_path / "config"))))

    assert key("a") == key("ada@lab.example.edu")
    assert len({key("a"), key("bob@a"), key("a:2222"), key("b")}) == 4


@pytest.mark.parametrize(
    ("transport", "platform", "message", "hint"),
    [
        ("auto", "linux", "Holding a connection needs the system's ssh, .* has none", "install OpenSSH's client"),
        ("auto", "win32", "Windows's ssh cannot hold .*: it has no ControlMaster", "use clusterfn inside WSL"),
        ("paramiko", "win32", "Windows's ssh cannot hold a connection", "use clusterfn inside WSL"),
        ("paramiko", "linux", "transport: paramiko of host lab cannot hold a connection", "transport: auto or openssh"),
    ],
)
def test_a_machine_or_a_transport_that_can_hold_nothing_says_so(
    folder: Path, tmp_path, monkeypatch, transport: str, platform: str, message: str, hint: str
) -> None:
    (tmp_path / "config").write_text("Host lab\n")
    host = Host("lab", "lab", "bare", "x", transport=transport, ssh_config=str(tmp_path / "config"))
    monkeypatch.setattr(
        "clusterfn.hosts.transports.openssh.has_ssh", lambda: platform == "win32" or transport == "paramiko"
    )
    monkeypatch.setattr(shared_login.sys, "platform", platform)

    with pytest.raises(ConfigError, match=message) as caught:
        shared_login.log_in(host, lambda question: pytest.fail("it asks"))

    assert hint in (caught.value.hint or "")
    assert not shared_login.log_out(host) and not shared_login.is_held(host) and not folder.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="clusterfn cannot answer ssh's questions on Windows")
def test_a_question_that_is_open_at_the_end_gets_no_answer_and_leaves_no_socket(folder: Path):
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(WAIT_S)
        with AskPass(lambda question: "", "lab") as asking:
            line.connect(str(Path(asking.env["SSH_ASKPASS"]).parent / "s"))

        with contextlib.suppress(ConnectionResetError):  # it was not even accepted
            assert line.recv(1) == b""


def test_a_login_that_a_person_has_made_is_not_tried_again_without_one(monkeypatch):
    monkeypatch.setattr(shared_login, "can_hold", lambda host: False)
    opened: list[str] = []

    class Own(Transport):
        via = "openssh"

        def open(self, command: str, asker: Asker | None = None) -> Any:
            opened.append(asker(LoginQuestion("Code: ", "me@lab8")) if asker else "nobody")

    transport = ReusingTransport(Host("lab8", "lab8", "bare", "clusterfn.yml:3"), Own())
    transport.open("true")
    transport.open("true", lambda _: "123456")

    with pytest.raises(AuthenticationError, match="lab8 needs you"):
        transport.open("true")
    assert opened == ["nobody", "123456"]
