"""The page of the protocol: it lists what the agent serves and the client sends, and what a reconnect does to each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fcntl")

import clusterfn
from clusterfn.bridge.agent.server import HANDLERS
from clusterfn.bridge.supervisor.commands import run_command
from clusterfn.bridge.supervisor.spec import Spec, SpecResources
from clusterfn.bridge.supervisor.verdict import Verdict, document
from clusterfn.errors import Unreachable
from clusterfn.hosts.connection import Followed, HostConnection, Needed, Reply, TreeFile
from clusterfn.hosts.rpc import boot, link
from tests.fakes.slurm_hosts import slurm_hosts
from tests.fakes.transport import FakeTransport, agent
from tests.unit.hosts.in_memory import HOST
from tests.waiting import WAIT_S, until

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
OF_ALL = {"id", "do", "after"}
NEEDS = Needed(["/a"], ["/a"], lambda *_: None)
ASK: dict[str, list[Callable[[HostConnection], Reply[Any]]]] = {
    "have": [lambda host: host.have(["/p"]), lambda host: host.list("/p"), lambda host: host.ping()],
    "put": [
        lambda host: host.put("/p", bytes(2**20), crc=0, sync="later"),
        lambda host: host.put_tree("/p", [TreeFile("a", b"", crc=0)], needs=NEEDS),
    ],
    "get": [lambda host: host.get("/p", print, until=9)],
    "follow": [
        lambda host: host.follow([Followed("/p", print)], "/q", [("/r", print)]),
        lambda host: host.still("/p", 1.0, print, unless="/q", within="/r"),
    ],
    "run": [lambda host: host.run(["x"], b"in", "/", ["C"], forks=True, stop_at="full")],
    "repeat": [lambda host: host.repeat(["x"], 1.0, print, ["C"])],
    "spawn": [lambda host: host.spawn(["x"], "/", "/log", ["C"])],
    "converse": [
        lambda host: host.connect_socket("/s", b"first", print),
        lambda host: host.converse(["x"], b"first", print, ["C"], b"nudge"),
    ],
}


def rows() -> dict[str, list[str]]:
    """The cells of each kind, in the order of the page: what it asks, what it answers, what a lost connection does."""
    found: dict[str, list[str]] = {}
    table = PAGE.partition("| do | request |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        kind, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        name = kind.strip(" `") or [*found][-1]
        before = found.get(name, ["", "", ""])
        found[name] = [f"{one} {other}" for one, other in zip(before, cells)]
    return found


def test_the_page_lists_the_ten_kinds_that_the_agent_serves() -> None:
    assert len(HANDLERS) == 10
    assert sorted(rows()) == sorted(HANDLERS)


class Silent(FakeTransport):
    """A host that keeps all requests, and gives a `spawn` its pid."""

    def __init__(self) -> None:
        self.lives = agent(
            lambda request, body: [({"pid": 1, "starttime": 1}, b"")] if request["do"] == "spawn" else []
        )
        super().__init__(self.lives)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[HostConnection, Silent]]:
    monkeypatch.setattr(link, "PAUSE_FIRST_S", 0.01)
    transport = Silent()
    connection = HostConnection(HOST, transport)
    yield connection, transport
    connection.close()


def test_each_field_that_a_client_sends_is_on_the_page(silent: tuple[HostConnection, Silent]) -> None:
    connection, transport = silent
    for ask in itertools.chain.from_iterable(ASK.values()):
        ask(connection)
    connection.wait("/p").cancel()
    until(lambda: any(request["do"] == "stop" for request in transport.lives.asked))

    sent: dict[str, set[str]] = {"hello": set(boot.greeting(HOST))}
    for request in transport.lives.asked:
        sent.setdefault(request["do"], set()).update(request)
    sent.pop("chunk", None)  # it comes behind all requests
    assert sorted(sent) == sorted(HANDLERS)
    for kind, fields in sent.items():
        words = set(re.findall(r"\w+", rows()[kind][0]))
        assert fields - OF_ALL <= words, f"{kind}: {fields - OF_ALL - words}"


@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind, forms in ASK.items() for form in range(len(forms))])
def test_a_lost_connection_does_to_a_request_what_the_page_says(kind, form, silent):
    connection, transport = silent
    reply = ASK[kind][form](connection)
    until(lambda: transport.lives.asked)
    if kind == "spawn":
        reply.result(WAIT_S)
    transport.drop()
    after = connection.ping()
    until(lambda: len(transport.commands) == 2 and any(request["id"] == after.id for request in transport.lives.asked))
    times = sum(request["do"] == kind and request["id"] == reply.id for request in transport.lives.asked)

    assert {"again": 2, "ends": 1}[rows()[kind][2].strip()] == times
    if kind == "converse":
        with pytest.raises(Unreachable):
            reply.result(WAIT_S)


def test_the_page_names_each_command_and_field_of_the_supervisor(capfd: pytest.CaptureFixture[str]) -> None:
    run_command([])
    commands = set(re.findall(r"(?:supervise\.py|\|) ([a-z]+)", capfd.readouterr().err))
    fields = {*SpecResources.__annotations__, *Spec.__annotations__}

    assert len(commands) > 10 and commands - {"bury"} <= words_of("Commands of `supervise.py`", "## ")
    # The workers of a session add this field.
    assert fields - {"syncs_later"} - words_of("## spec.json", "## ") == set()
    assert {*document("0" * 16, 1, Verdict("returned"))} - words_of("`outcome.json`: ", "## ") == set()


def words_of(begin: str, end: str) -> set[str]:
    """The words of a part of the page."""
    return set(re.findall(r"\w+", PAGE.partition(begin)[2].partition(f"\n{end}")[0]))


def test_a_call_asks_what_the_page_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn = PAGE.partition("## One call, as requests")[2].split("```")[1]
    steps = [line.split()[0] for line in drawn.splitlines()[1:] if "──▶" in line]
    with slurm_hosts(monkeypatch, tmp_path, 1, 70) as world:
        (node,) = world.nodes.values()
        job = clusterfn.Executor("node70").submit(abs, -7)
        until(lambda: "follow still" in node.log)
        node.end_all()
        assert job.result(WAIT_S) == 7
        until(lambda: "stop" in node.log)

    asked = [each.partition(" ")[0] for each in node.log if each not in ("chunk", "repeat", "have")]
    assert ["hello", *asked][: len(steps)] == steps
