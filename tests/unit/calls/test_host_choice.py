"""Which of several hosts a call goes to, by what they have said."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from clusterfn import HostError, Unsatisfiable
from clusterfn.calls import call, host_choice
from clusterfn.calls.host_choice import NOW, Outlook, first_to_start
from clusterfn.config.config_file import LOCAL
from clusterfn.config.options import parse_options
from clusterfn.errors import ConfigError
from clusterfn.hosts.host_state import HostState
from tests.waiting import WAIT_S


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_choice, "PATIENCE_S", 2 * WAIT_S)  # a busy machine passes over no host


def answer(chance: random.Random) -> Outlook | Unsatisfiable | HostError:
    """What a server or a scheduler says of a job, or why it cannot run it."""
    never, silent = Unsatisfiable("gpus=9 is more than it has: 8"), HostError("no answer within 5 s")
    fits = chance.choice([NOW, NOW, *(Outlook(wait_s, "later") for wait_s in (60.0, 180.0, 600.0, 3600.0, 7200.0))])
    return chance.choice([fits, fits, fits, never, silent])


@pytest.mark.parametrize("seed", range(200))
def test_the_choice_can_run_the_call_and_by_what_the_hosts_said_none_starts_it_sooner(seed):
    chance = random.Random(seed)
    said = {f"host{number}": answer(chance) for number in range(chance.randint(2, 20))}

    chosen = first_to_start(said)

    able = {name: outlook for name, outlook in said.items() if isinstance(outlook, Outlook)}
    assert (chosen is None) == (not able)
    if chosen is not None:
        waits = {name: outlook.wait_s for name, outlook in able.items()}
        assert waits[chosen] == min(waits.values())
        assert chosen == next(name for name in said if waits.get(name) == waits[chosen])
        free = [name for name, outlook in able.items() if outlook == NOW]
        assert not free or chosen == free[0]


def test_an_environment_that_would_have_to_be_built_counts_as_its_build(tmp_path, monkeypatch, capsys):
    (tmp_path / "environment.yml").write_text("dependencies: [python, numpy]\n")
    hosts = (f"  {name}: {{scheduler: local, limits: {{cores: 64}}, root: {tmp_path / name}" for name in "ab")
    text = f", environment: {tmp_path / 'environment.yml'}}}\n".join(hosts) + "}\n"
    (tmp_path / "clusterfn.yml").write_text(f"hosts:\n{text}")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))

    assert chosen("a,b") == "b"
    assert "train on b (a: can start it now, once its environment is built)" in capsys.readouterr().err


def test_a_host_that_connects_for_long_keeps_no_other_waiting(tmp_path, monkeypatch):
    slow, free = (HostState(LOCAL._replace(name=name, root=str(tmp_path / name))) for name in "ab")
    connects, go = threading.Event(), threading.Event()
    monkeypatch.setattr(slow, "connect", lambda: connects.set() or go.wait(WAIT_S) and free.connect())
    threading.Thread(target=lambda: slow.scheduler).start()
    connects.wait(WAIT_S)

    reached = threading.Event()
    threading.Thread(target=lambda: free.scheduler and reached.set()).start()
    assert reached.wait(WAIT_S)
    go.set()


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Outlook | Exception | threading.Event]:
    """What the hosts a, b and c of `lab` say; one that says an event says nothing before that is set."""
    hosts = "".join(f"  {name}: {{scheduler: local, root: {tmp_path / name}}}\n" for name in "abc")
    (tmp_path / "clusterfn.yml").write_text(f"hosts:\n{hosts}  lab: {{any: [a, b, c]}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    says: dict[str, Outlook | Exception | threading.Event] = {name: Outlook() for name in "abc"}

    def ask(chosen, name):
        said = says[chosen.host.name]
        if isinstance(said, threading.Event):
            said.wait(WAIT_S)
            said.set()
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, Outlook) else Outlook()

    monkeypatch.setattr(host_choice, "ask", ask)
    return says


def chosen(host="lab"):
    return call.host_of(parse_options({"host": host}), "train").host.name


def test_of_hosts_that_can_start_it_now_the_first_is_taken_and_later_ones_are_not_waited_for(three, monkeypatch):
    three["c"] = threading.Event()

    assert (chosen(), chosen(["b", "a", "c"]), three["c"].is_set()) == ("a", "b", False)
    monkeypatch.setattr(host_choice, "PATIENCE_S", 0.1)
    assert chosen("c,b") == "b"
    three["c"].set()


def test_the_line_says_where_and_why(three, capsys):
    three.update(
        a=Outlook(7200.0, "8 of 8 GPUs held by ada (8)"), b=Outlook(7200.0, "about 2 h"), c=Outlook(60.0, "soon")
    )

    assert chosen() == "c"
    reasons = "soon; a: 8 of 8 GPUs held by ada (8); b: about 2 h"
    assert f"clusterfn: train on c ({reasons})\n" in capsys.readouterr().err


def test_an_error_of_the_call_itself_is_raised_as_for_one_host(three):
    three.update(dict.fromkeys("abc", ConfigError("secrets= names TOKEN, which is not set in this process")))
    with pytest.raises(ConfigError, match="names TOKEN"):
        chosen()


def test_where_one_host_could_not_be_asked_nothing_is_called_impossible(three):
    never = Unsatisfiable("gpus=9 is more than it has: 8")
    three.update(a=never, b=never, c=HostError("no route to c"))
    with pytest.raises(HostError, match="no host can take train now") as caught:
        chosen()
    assert caught.value.evidence == (*(f"{name}: gpus=9 is more than it has: 8" for name in "ab"), "c: no route to c")
