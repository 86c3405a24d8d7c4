"""The connection of a kernel: what a client asks of it, a lost one that is opened again, and the wait for a holder."""

from __future__ import annotations

import concurrent.futures
import json
import queue
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.cli import main
from clusterfn.config.config_file import CallHost
from clusterfn.config.options import Options
from clusterfn.errors import ClusterfnError, ConfigError, HostError, Unsatisfiable, WorkerLost
from clusterfn.hosts import spoken_wait
from clusterfn.hosts.rpc.reply import Reply, RequestCancelled
from clusterfn.integrations.jupyter import kernel_job, kernel_link
from clusterfn.integrations.jupyter.jupyter_files import absolute_environment, listen, read_connection_file
from clusterfn.integrations.jupyter.kernel_link import HolderLink
from tests.waiting import WAIT_S


class Host:
    """A host on which the scheduler's command fails as the test says.

    Args:
        answers: For each start, whether the holder answers before the command fails.
        kind: Of the failures.
    """

    def __init__(self, answers: list[bool], kind: str) -> None:
        self.answers = answers
        self.kind = kind

    def converse(self, argv: Any, hello: bytes, on_data: Callable[[bytes], Any], unset: Any) -> Reply[None]:
        assert (list(argv), hello, list(unset)) == (["srun", "attach"], b"hello", ["SLURM_"])
        if self.answers.pop(0):
            on_data(b"frames")
        error = HostError("srun ended with status 1: unrecognized option")
        error.kind = self.kind
        reply: Reply[None] = Reply(lambda: None)
        reply.reject(error)
        return reply


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What a proxy hears until it is told that the holder is gone, or the command has no further answer."""
    monkeypatch.setattr(kernel_link, "SCHEDULER_S", 0.0)

    def played(answers: list[bool], kind: str = "program") -> list[str]:
        host: Any = Host(answers, kind)
        events: queue.Queue[tuple[str, Any]] = queue.Queue()
        link = HolderLink(lambda: host, "/s", lambda *event: events.put(event), ["srun", "attach"], ["SLURM_"])
        heard: list[str] = []
        while answers and "gone" not in heard:
            link.open(b"hello")
            heard.append(events.get(timeout=WAIT_S)[0])
            if heard[-1] == "data":
                heard.append(events.get(timeout=WAIT_S)[0])
        return heard

    return played


def test_a_command_that_never_reaches_the_holder_is_given_up(play: Callable[..., list[str]]):
    assert play([False] * 9) == ["lost"] * 4 + ["gone"]


def test_a_link_that_has_worked_is_opened_again_and_again(play: Callable[..., list[str]]):
    assert play([False, True, *[False] * 9]) == ["lost", "data", *["lost"] * 10]


def test_a_holder_that_does_not_listen_is_gone_at_once(play: Callable[..., list[str]]):
    assert play([False] * 9, kind="unavailable") == ["gone"]


CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
ASKED = {"transport": "tcp", "ip": "127.0.0.1", "key": "k", **{f"{name}_port": 0 for name in CHANNELS}}


def written(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({**ASKED, **changes}))
    return path


def test_the_ports_are_listened_on_in_the_order_of_the_channels(tmp_path: Path):
    with socket.socket() as keeps:  # the port from other processes, as long as it does not listen
        keeps.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeps.bind(("127.0.0.1", 0))
        taken = keeps.getsockname()[1]
        wanted = read_connection_file(written(tmp_path / "file", stdin_port=taken))
        with socket.create_server(keeps.getsockname()), pytest.raises(ConfigError, match=f"port {taken} of 127.0.0.1"):
            listen(wanted)

        listeners = list(listen(wanted).values())

    assert [listener.getsockname()[1] == taken for listener in listeners] == [False, False, True, False, False]
    assert {listener.getsockname()[0] for listener in listeners} == {"127.0.0.1"}
    assert (wanted.key, wanted.signature_scheme) == ("k", "hmac-sha256")
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"transport": "ipc"}, "its transport is 'ipc'"),
        ({"ip": "0.0.0.0"}, "not a loopback address"),
        ({"ip": "tensor01"}, "not a loopback address"),
        ({"key": ""}, "it has no key"),
        ({"curve_publickey": "x"}, "CurveZMQ"),
        ({"hb_port": None}, "TypeError"),
    ],
)
def test_what_others_could_reach_is_rejected(changes: dict[str, object], why: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=why):
        read_connection_file(written(tmp_path / "file", **changes))


def test_a_file_that_is_missing_or_no_json_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_connection_file(tmp_path / "missing")
    (tmp_path / "text").write_text("no")
    with pytest.raises(ConfigError, match="text cannot be used: JSONDecodeError"):
        read_connection_file(tmp_path / "text")


FACTS = json.dumps({"socket": "/run/holder", "submission": "77", "attach": ["attach", "77"]}).encode()


class WaitingJob(concurrent.futures.Future[None]):
    """A job that waits for a GPU."""

    id, host, folder, reason = "7f3a000011112222", "lab8", "/jobs/7f3a", "waiting for a GPU"

    status_since = "PENDING"


@pytest.fixture
def coming() -> Reply[bytes]:
    reply: Reply[bytes] = Reply(lambda: reply.reject(RequestCancelled("it was cancelled")))
    return reply


def awaited(job: Any, coming: Reply[bytes]) -> kernel_job.KernelJob:
    host = SimpleNamespace(name="lab8")
    scheduler = SimpleNamespace(has_nodes=True, join_command=lambda submission: ["srun", submission])
    connection = SimpleNamespace(wait=lambda path: coming)
    host_state: Any = SimpleNamespace(connection=connection, settings=host, scheduler=scheduler)
    return kernel_job.await_holder(job, host_state)


def test_a_job_that_ends_before_its_holder_listens_says_why_and_is_asked_no_more(coming: Reply[bytes]):
    job = WaitingJob()
    job.set_exception(WorkerLost("its node has died"))

    with pytest.raises(ClusterfnError, match="its node has died"):
        awaited(job, coming)

    assert isinstance(coming.exception(0), RequestCancelled)


def test_a_wait_says_what_for(coming: Reply[bytes], monkeypatch, capsys):
    def comes(_: object) -> str:
        if not coming.done():
            coming.resolve(FACTS)
        return "PENDING since 14:03:11 (waiting for a GPU)"

    monkeypatch.setattr(WaitingJob, "status_since", property(comes))
    monkeypatch.setattr(spoken_wait, "SPEAK_AFTER_S", 0.01)

    assert awaited(WaitingJob(), coming).address == "/run/holder"
    assert capsys.readouterr().err == "clusterfn: 7f3a is PENDING since 14:03:11 (waiting for a GPU)\n"


@pytest.mark.parametrize(("name", "shown"), [(None, "kernel"), ("mine", "mine")])
def test_a_kernel_is_prepared_under_a_name_that_users_know(name: str | None, shown: str, tmp_path, monkeypatch):
    named: list[str | None] = []

    def unsatisfiable(chosen: CallHost) -> None:
        named.append(chosen.options.name)
        raise Unsatisfiable("no such environment")

    monkeypatch.delenv("CLUSTERFN_CONFIG")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kernel_job, "prepare_held", unsatisfiable)

    with pytest.raises(Unsatisfiable):
        kernel_job.JobSearch("key", Options(host="local", name=name), 60.0).run()

    assert named == [shown]


def test_a_file_is_named_by_its_whole_path_with_its_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)

    assert absolute_environment("pyproject.toml[gpu]") == f"{tmp_path}/pyproject.toml[gpu]"
    assert absolute_environment("conda:torch") == "conda:torch"
    with pytest.raises(ConfigError, match="there is no file"):
        absolute_environment("absent.toml[gpu]")


def test_a_kernel_in_an_image_starts_with_each_of_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "clusterfn.yml").write_text("hosts:\n  bare: {scheduler: bare}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))

    assert main(["kernel", "add", "--environment", "bwrap:/image", "--binds", "/a", "--binds", "/b:/c"]) == 0

    words = json.loads((tmp_path / "kernels/bare/kernel.json").read_text())["argv"]
    assert words[-7:-1] == ["--environment", "bwrap:/image", "--binds", "/a", "--binds", "/b:/c"]
