"""Everything that a host sends, with damage in it: named errors only, and nobody waits for ever."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

from clusterfn.bridge import layout
from clusterfn.calls.job import Job
from clusterfn.calls.job_tracker import Tracker
from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError, HostError, ResultError
from clusterfn.hosts import serialization
from clusterfn.hosts.bridge_bundle import HostContents
from clusterfn.hosts.connection import Followed, HostConnection, Reply
from clusterfn.hosts.host_state import FollowWindow
from clusterfn.hosts.rpc import link
from clusterfn.hosts.rpc.frames import FrameReader, Header, pack
from tests.fakes.transport import HELLO, FakeTransport, Far, agent
from tests.fuzz import damaged, fuzzed, twisted
from tests.turns import settle
from tests.waiting import WAIT_S

HOST = Host("lab8", "lab8", "bare", "clusterfn.yml:3")
MUTE_S = 20.0  # some inputs have no answer to the last request, which is then waited for each time
FRAMES = [
    pack({"id": 2, "end": True, "ok": True, "existed": False}) + pack({"id": 3, "offset": 0}, b"some bytes"),
    pack({"id": 2, "end": True, "ok": False, "error": {"kind": "io", "message": "Input/output error", "path": "/p"}}),
    pack({"id": 4, "end": True, "ok": True, "files": [["a", 1, 0.5, 0o600]]}),
    pack({"id": 5, "same": False, "rc": 0, "out": 2, "took_s": 0.2}, b"outerr"),
    pack({"id": 6, "size": 200}, bytes(200)),
]


@fuzzed(data=damaged(FRAMES), sizes=st.binary(max_size=8))
def test_a_client_reads_frames_or_says_what_is_none(data: bytes, sizes: bytes) -> None:
    pieces = [data[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(len(sizes))] + [data[sum(sizes) :], b""]
    reader = FrameReader(lambda _: pieces.pop(0) if pieces else b"")

    with contextlib.suppress(HostError):
        while (frame := reader.frame()) is not None:
            assert isinstance(frame[0]["id"], int)


OK: Header = {"end": True, "ok": True}
ANSWERS: dict[str, list[Header]] = {
    "put": [{**OK, "existed": False}],
    "have": [{**OK, "have": [True, False]}],
    "get": [{"size": 4}, {**OK, "size": 4}],
    "follow": [{"file": 0, "offset": 0}, {"file": 0, "offset": 4}, OK],
    "follow until": [{"content": True}, {"file": 0, "size": 4}, OK],
    "follow still": [{"silent_s": 1.0}, OK],
    "run": [{**OK, "rc": 0, "signal": None, "out": 2, "err": 2, "truncated": False}],
    "spawn": [{"pid": 7, "starttime": 1}, {**OK, "status": 0}],
    "repeat": [{"rc": 0, "out": 2, "err": 2, "same": False, "took_s": 0.1}, {"same": True, "rc": 0, "took_s": 0.1}, OK],
    "have glob": [{**OK, "files": [["a", 1, 0.5, 0o600]], "truncated": False}],
    "ping": [{"end": True, "ok": False, "error": {"kind": "full", "message": "m", "free": 1, "needed": 2}}],
}
ASK: dict[str, Callable[[HostConnection], Reply[Any]]] = {
    "put": lambda host: host.put("/p", b"data"), "have": lambda host: host.have(["/a", "/b"]),
    "get": lambda host: host.get("/p", io.BytesIO().write), "follow": lambda host: host.follow([Followed("/p", len)]),
    "follow until": lambda host: host.follow([], "/p", [("/q", len)]),
    "follow still": lambda host: host.still("/p", 1.0, lambda: None), "run": lambda host: host.run(["x"]),
    "spawn": lambda host: host.spawn(["x"], "/", "/log"),
    "repeat": lambda host: host.repeat(["x"], 1.0, lambda look: f"{look.rc} {look.out}"),
    "have glob": lambda host: host.list("/p"), "ping": lambda host: host.ping(),
}  # fmt: skip


def form_of(request: Header) -> str:
    """Return which of the answers a request gets: a kind may have several forms."""
    if request.get("paths") == []:
        return "ping"
    field = next((name for name in ("until", "still", "glob", "files") if name in request), "")
    form = f"{request['do']} {field}".strip()
    return form if form in ASK else str(request["do"])


class Answering(agent):
    """Gives these answers to the first request of each kind, and refuses what is sent again."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(lambda request, body: ())
        self.answers = answers

    def answer(self, far: Far, header: Header, body: bytes) -> None:
        if header["do"] in ("hello", "chunk"):
            super().answer(far, header, body)
            return
        answers = self.answers.pop(form_of(header), None)
        if not isinstance(answers, list):
            answers = [{"end": True, "ok": False, "error": {"kind": "io", "message": "asked again"}}]
        for answer in answers:
            far.write(pack({"id": header["id"], **answer} if isinstance(answer, dict) else answer, b"data"))


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PAUSE_LAST_S", 0.001)


@fuzzed(weight=0.1, answers=twisted([ANSWERS]))
def test_every_request_ends_well_or_with_a_named_error_whatever_its_host_answers(answers: Any, no_pauses: None) -> None:
    host = HostConnection(HOST, FakeTransport(Answering(answers if isinstance(answers, dict) else {})))
    replies = []
    with contextlib.suppress(HostError):  # it was given up meanwhile
        replies += [ask(host) for ask in ASK.values()]
        host.ping().exception(MUTE_S)  # and with it all that was answered before
    host.close()

    for reply in replies:
        error = reply.exception(WAIT_S)
        assert error is None or isinstance(error, (ClusterfnError, concurrent.futures.CancelledError)), repr(error)
        assert "broke on this machine" not in str(error)  # an error of ours that ended the connection


@fuzzed(weight=0.2, hello=twisted([{"id": 1, **OK, **HELLO, "now": 1e9}]))
def test_a_hello_is_understood_or_an_error_of_its_host(hello: Any) -> None:
    class Greeting(agent):
        def answer(self, far: Far, header: Header, body: bytes) -> None:
            far.write(pack(hello))
            far.output.close()

    try:
        host = HostConnection(HOST, FakeTransport(Greeting(lambda request, body: ())))
    except HostError as error:
        assert error.host == "lab8"
    else:
        assert host.facts.root.startswith("/") and host.facts.version >= (0, 0, 0)
        host.close()


container = serialization.part("container")


def value_file(value: object) -> tuple[bytes, dict[str, int]]:
    out = io.BytesIO()
    size = container.dump(value, out)
    return out.getvalue(), size


VALUE, SIZE = value_file({"score": 0.5})
HEADER, BODY = VALUE.partition(b"\n")[::2]


@fuzzed(data=damaged([VALUE, value_file(bytes(3))[0]]))
def test_a_damaged_value_is_called_damaged_and_not_unpickled(data: bytes) -> None:
    with contextlib.suppress(container.Damaged):
        container.loads(data)


@fuzzed(header=twisted([{name: part for name, part in json.loads(HEADER).items() if name != "crc"}]))
def test_a_value_whose_header_makes_no_sense_is_called_damaged_though_its_check_sum_is_right(header: Any) -> None:
    facts = json.dumps(header).encode()[:-1]
    if not isinstance(header, dict) or not header:
        return
    sealed = container.seal(facts, container.checksum([BODY]))

    with contextlib.suppress(container.Damaged, container.OtherPython):
        assert container.loads(sealed + BODY) in ({"score": 0.5}, b"")


KNOWN: Header = {
    "format": 1, "job": "7f3a" * 4, "attempt": 1, "kind": "returned", "final": True, "stage": None, "message": "",
    "code": None, "signal": None, "evidence": [], "hint": None, "exception": None, "value": SIZE, "notes": ["a note"],
    "usage": {"wall_s": 1.0, "cpu_s": 0.5, "peak_memory_bytes": 10, "gpus": []}, "node": "n1", "by": "supervisor",
    "superseded_by": None, "left": [["a.txt", 3]], "retried": None, "earlier": [],
}  # fmt: skip
ERROR = {"type": "ValueError", "message": "no", "traceback": "Traceback …", "missing": {"module": "a", "python": "/p"}}
OUTCOMES = [
    KNOWN,
    {**KNOWN, "kind": "raised", "exception": ERROR, "value": None},
    {**KNOWN, "kind": "signal", "signal": "SIGKILL", "stage": "run", "evidence": ["a", "b"], "earlier": ["1", "2"]},
    {**KNOWN, "kind": "exited", "code": 3, "stage": "run", "hint": "look", "message": "it exited"},
    {**KNOWN, "kind": "environment", "stage": "start", "message": "no python"},
    {**KNOWN, "kind": "superseded", "final": False, "superseded_by": 2, "retried": {"kind": "lost"}},
]


class Nothing:
    """A host that answers nothing, and what a tracker asks of its session."""

    def __init__(self) -> None:
        self.connection = self.link = self.scheduler = self.bridge = self.environments = self
        self.knows_all = True
        self.root, self.settings, self.contents = "/r", HOST, HostContents()
        self.state = SimpleNamespace(name="connected", cause="")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: Reply(lambda: None)

    def on_state(self, listener: object) -> Callable[[], None]:
        return lambda: None


@fuzzed(weight=0.3, published=twisted(OUTCOMES), value=st.sampled_from([VALUE, b"", VALUE[:-1], VALUE + b"x"]))
def test_every_outcome_settles_its_job_with_a_value_or_a_named_error(published: Any, value: bytes) -> None:
    host: Any = Nothing()
    tracker = Tracker(host, "7f3a" * 4, "train")
    job: Job[Any] = Job(tracker.run, tracker.source)
    reply: Reply[bytes] = Reply(lambda: None)
    host.follow, host.follow_window = lambda *_, **__: reply, FollowWindow()
    tracker.follow()
    settled = threading.Event()
    job.add_done_callback(lambda _: settled.set())
    content = json.dumps(published).encode()
    try:
        tracker.source.arriving.announce(content)
        tracker.source.arriving.write(value)
        reply.resolve(content)
    except ResultError as error:
        reply.reject(error)

    settle()

    if tracker.run.at.attempt != 1:  # another attempt has it
        assert published["kind"] in layout.NOT_FINAL
        return
    assert settled.wait(WAIT_S)
    error = job.exception(0)
    assert error is None or isinstance(error, ClusterfnError), repr(error)
    assert "could not be received" not in str(error)  # an error of ours
    assert f"{job.status} {job.usage} {list(job.notes)} {error}"
