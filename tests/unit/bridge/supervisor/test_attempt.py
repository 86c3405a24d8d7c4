"""How an attempt ends, what it leaves of its job, and what a function may write into the job's folder."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

pytest.importorskip("fcntl", reason="of hosts, which are Unix")

from clusterfn.bridge.layout import (
    CHECKPOINT,
    EXIT_PUBLISHED,
    EXIT_QUEUED,
    EXIT_RETURNED,
    JOURNAL,
    LOST,
    RETURNED,
    TIME,
    VALUES,
    job_dir,
)
from clusterfn.bridge.supervisor import job as bridge_job
from clusterfn.bridge.supervisor.attempt import Attempt
from clusterfn.bridge.supervisor.checkpoint import resume
from clusterfn.bridge.supervisor.classify_exit import classify_report, parse_report_line
from clusterfn.bridge.supervisor.group_files import Chunks, ItemJournal, journal_line
from clusterfn.bridge.supervisor.job import JOB_SPEC, DamagedFile, JobFolder, checked, read_spec
from clusterfn.bridge.supervisor.spec import Spec, SpecBuilding, SpecGroup, SpecResources
from clusterfn.bridge.supervisor.verdict import (
    EXIT_LEFT_TO_AFTER,
    AttemptEnded,
    Verdict,
    concluded_by_another,
    document,
    exit_code,
    requested,
)
from clusterfn.config.job_spec import KernelSpec, SessionSpec
from clusterfn.config.spec import ResultPolicy
from tests.fakes.job_spec import job_spec
from tests.unit.calls.test_mapping import SENT


def test_a_job_that_is_to_end_while_it_copies_a_checkpoint_leaves_none(tmp_path: Path):
    theirs, own = Path(job_dir(str(tmp_path), "before")) / CHECKPOINT, tmp_path / "own"
    theirs.mkdir(parents=True)
    own.mkdir()
    (theirs / "model.pt").write_bytes(b"x" * 100)
    job: Any = SimpleNamespace(spec={"resume": "before"}, root=str(tmp_path), has_checkpoint=lambda: False)
    job.path = lambda name: str(own / name)

    def look() -> None:
        raise AttemptEnded(Verdict("cancelled"))

    with pytest.raises(AttemptEnded):
        resume(job, look)
    assert not list(own.iterdir())
    assert resume(job, lambda: None) == [] and (own / CHECKPOINT / "model.pt").stat().st_size == 100


def test_the_checkpoint_that_another_element_has_copied_meanwhile_stays(tmp_path: Path):
    theirs, own = Path(job_dir(str(tmp_path), "before")) / CHECKPOINT, tmp_path / "own"
    theirs.mkdir(parents=True)
    (theirs / "model.pt").write_bytes(b"theirs")
    job: Any = SimpleNamespace(spec={"resume": "before"}, root=str(tmp_path), has_checkpoint=lambda: False)
    job.path = lambda name: str(own / name)

    def look() -> None:
        (own / CHECKPOINT).mkdir(exist_ok=True)
        (own / CHECKPOINT / "model.pt").write_bytes(b"of the first")

    own.mkdir()
    assert resume(job, look) == []
    assert [path.read_bytes() for path in own.rglob("*") if path.is_file()] == [b"of the first"]


BUILDING = {"id": "7f3a", "root": "/scratch/me/.clusterfn", "purged": False, "cuda": ""}


@pytest.mark.parametrize("building", [None, BUILDING])
def test_machine_driver_and_environment_are_named(monkeypatch, tmp_path, building):
    job = SimpleNamespace(node="n01", spec={"python": "/opt/bin/python", "building": building})
    monkeypatch.setattr(bridge_job, "DRIVER_FILE", str(tmp_path / "version"))
    assert bridge_job.describe_place(job)["driver"] is None  # type: ignore[arg-type]

    (tmp_path / "version").write_text("575.57.08\n")
    facts = bridge_job.describe_place(job)  # type: ignore[arg-type]

    assert (facts["node"], facts["driver"], facts["python"]) == ("n01", "575.57.08", "/opt/bin/python")
    assert facts["environment"] == (building and "7f3a")
    assert facts["lock"] == (building and "/scratch/me/.clusterfn/envs/7f3a/.clusterfn/plan.json")


def test_outcome_json_has_every_field_and_nothing_of_the_supervisor_alone():
    verdict = Verdict(TIME, "too long", transient={"retry": "same"}, asked=True, exception_at=("/v", 0, 9))
    outcome = document("7f3a", 2, verdict)

    assert outcome["final"] and (outcome["kind"], outcome["attempt"], outcome["message"]) == (TIME, 2, "too long")
    assert outcome["hint"] is None and outcome["evidence"] == outcome["notes"] == outcome["left"] == []
    assert not {"transient", "asked", "exception_at", "kept", "exit_status"} & set(outcome)


def test_no_outcome_is_made_of_a_verdict_that_nothing_may_be_published_for():
    with pytest.raises(ValueError, match="no such kind"):
        document("7f3a", 1, concluded_by_another())


@pytest.mark.parametrize(
    "verdict, won, code",
    [
        (Verdict(RETURNED), True, EXIT_RETURNED),
        (Verdict(TIME), True, EXIT_PUBLISHED),
        (Verdict(TIME), False, EXIT_RETURNED),
        (Verdict(TIME, exit_status=EXIT_QUEUED), True, EXIT_QUEUED),
        (Verdict(None, exit_status=EXIT_LEFT_TO_AFTER), False, EXIT_LEFT_TO_AFTER),
        (concluded_by_another(), False, EXIT_RETURNED),
    ],
)
def test_job_sh_learns_from_the_exit_code_what_comes_next(verdict: Verdict, won: bool, code: int):
    assert exit_code(verdict, won) == code


def test_what_is_raised_shows_its_message_and_a_request_of_an_older_client_may_leave_fields_out():
    ended = AttemptEnded(Verdict(TIME, "too long"))
    assert str(ended) == "too long" and ended.verdict.kind == TIME
    assert requested({"message": "gone"}).kind == LOST
    assert requested({"kind": TIME, "withdraw": True}).message == ""


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[1]",
        b'{"done": "nothing"}',
        b'{"done": "returned", "size": 3}',
        b'{"done": "returned", "size": 3, "crc": null}',
        b'{"done": "returned", "size": "3", "crc": 1}',
        b'{"done": "raised", "message": 1}',
        b'{"stage": null}',
        b'{"done": "returned", "usage": {"cpu_s": "1"}}',
        b'{"note": "n", "exception": {"a": {"b": {"c": {"d": {}}}}}}',
    ],
)
def test_a_line_that_no_worker_writes_says_nothing(line: bytes):
    assert parse_report_line(line) == {}


def test_a_last_word_is_a_verdict():
    found = classify_report(parse_report_line(b'{"done": "returned", "size": 3, "crc": 7, "message": null}'))

    assert (found.kind, found.message, found.stage, found.value) == ("returned", "", "result", {"size": 3, "crc": 7})


@pytest.mark.parametrize(
    ("read", "written"), [("\udcc3\udcbc.csv", "ü.csv"), ("\udcff.csv", "\udcff.csv"), ("\ud800\udcff", "\ud800\udcff")]
)
def test_a_name_that_the_locale_could_not_read_is_text_in_outcome_json(read: str, written: str):
    assert document("7f3a", 1, Verdict(TIME, read))["message"] == written


JOB = "7f3a000011112222"
SPEC = job_spec(Path("/r/jobs") / JOB)
OUTCOME = {"kind": "returned", "final": True, "message": "", "earlier": []}


def lay(root: Path, spec: Any = None, outcome: Any = None) -> Path:
    folder = root / "jobs" / JOB
    (folder / "attempts" / "1").mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(SPEC if spec is None else spec))
    if outcome is not None:
        (folder / "attempts" / "1" / "outcome.json").write_text(json.dumps(outcome))
    return folder


@pytest.mark.parametrize(
    "spec, says",
    [
        ([], "spec.json is of the type list"),
        ({**SPEC, "root": None}, "spec.json has no root"),
        ({**SPEC, "root": "/r\0"}, "root holds a zero byte"),
        ({**SPEC, "keep_days": "14"}, "keep_days is of the type str"),
        ({**SPEC, "keep_days": 10**400}, "keep_days is 1000"),
        ({**SPEC, "resources": {"gpus": [1]}}, "resources: gpus is of the type list"),
        ({**SPEC, "after": {JOB: {"items": [1]}}}, f"after: {JOB} has no name"),
        ({**SPEC, "after": {JOB: {"name": "f", "items": ["1"]}}}, "items is of the type str"),
        ({**SPEC, "sys_path": ["\ud800"]}, "half of a character"),
    ],
)
def test_a_spec_that_no_client_has_written_is_damaged_and_says_where(tmp_path: Path, spec: Any, says: str):
    with pytest.raises(DamagedFile, match=says):
        JobFolder(str(lay(tmp_path, spec)))


@pytest.mark.parametrize("text", ["", "{", "[" * 10**5, "garb\0age", "null"])
def test_a_spec_that_is_no_json_object_is_damaged(tmp_path: Path, text: str):
    folder = lay(tmp_path)
    (folder / "spec.json").write_text(text)

    with pytest.raises(DamagedFile):
        read_spec(str(folder))


@pytest.mark.parametrize(
    "outcome",
    [{"kind": "returned"}, {**OUTCOME, "kind": 7}, {**OUTCOME, "usage": {"gpus": [7]}}, {**OUTCOME, "value": 5}],
)
def test_an_outcome_that_no_supervisor_has_published_is_damaged(tmp_path: Path, outcome: Any):
    job = JobFolder(str(lay(tmp_path, outcome=outcome)))

    with pytest.raises(DamagedFile):
        Attempt(job, 1).outcome()


def test_what_another_version_writes_in_addition_and_any_text_of_the_users_is_read(tmp_path: Path):
    outcome = {**OUTCOME, "final": True, "message": "a\0b \ud800", "later": [1]}
    job = JobFolder(str(lay(tmp_path, {**SPEC, "host": "\ud800", "later": {"a": 1}}, outcome)))

    assert job.spec["host"] == "\ud800" and Attempt(job, 1).outcome() == outcome


def test_the_types_of_the_host_have_the_fields_that_the_client_writes():
    host = SENT.host._replace(scheduler_options={"clusters": "far"}, gpus_only=("GPU-1",))
    held = {"serving": SessionSpec(60.0, (3, 11)), "kernel": KernelSpec("ipykernel", 60.0, 60.0, (3, 11))}
    data = ResultPolicy(data_only=True)
    sent = json.loads(SENT._replace(host=host, keep_value=True, results=data, **held).to_json())

    assert set(sent) == set(get_type_hints(Spec)) - {"syncs_later"}
    for part, kind in ("resources", SpecResources), ("building", SpecBuilding), ("group", SpecGroup):
        assert set(sent[part]) == set(get_type_hints(kind)), part
    assert checked(sent, JOB_SPEC, "spec.json") == sent
    assert {name.rstrip("?") for name in JOB_SPEC} <= set(sent)


def broken_in_its_midst(write: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
    """A disk that takes a part of what is written first, refuses the rest, and takes all after that."""
    calls = iter(["part", "refusal"])

    def either(fd: int, data: bytes) -> int:
        answer = next(calls, "all")
        if answer == "refusal":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(fd, data[:3] if answer == "part" else data)

    return either


@pytest.mark.parametrize("what", ["value", "line"])
def test_what_follows_a_write_that_failed_in_its_midst_is_whole(what, tmp_path, monkeypatch):
    journal = ItemJournal(str(tmp_path), sync=False)
    value = tmp_path / "value.pkl"
    value.write_bytes(b"a value, and the end of a longer one before it")
    verdict = Verdict(RETURNED, "", value={"size": 7})

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken_in_its_midst(os.write))
        with pytest.raises(OSError, match="Input/output"):
            journal.end(0, verdict, str(value)) if what == "value" else journal.begin(0)
    journal.end(0, verdict, str(value))
    journal.end(1, verdict, str(value))

    found = [line for line in map(journal_line, (tmp_path / JOURNAL).read_bytes().split(b"\n")) if line is not None]
    assert [line["index"] for line in found] == [0, 1]
    values = (tmp_path / VALUES).read_bytes()
    assert [values[line["at"] : line["at"] + 7] for line in found] == [b"a value"] * 2
    assert values.endswith(b"a valuea value")


def test_a_chunk_that_its_element_finishes_while_another_looks_is_not_taken_over(tmp_path, monkeypatch):
    chunks = Chunks(str(tmp_path), {"count": 2, "chunk": 2, "elements": 2})
    chunks.make_folders()
    assert chunks.take(1, 2) == 0
    monkeypatch.setattr(chunks, "end_of", lambda element: chunks.finish(0) or {"final": True})

    assert chunks.take_over(2) is None
