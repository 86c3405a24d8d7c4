"""docs/architecture.md is true: packages, files and terms are those of the code, and so are the tables of states."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.job_states import CANCELLED, FINAL, JOB_STATES, OF_EVENT, RETURNED, UNKNOWN
from clusterfn.bridge.layout import RAISED
from clusterfn.bridge.queue import launch
from clusterfn.bridge.queue.tickets import TICKET_STATES, Queue, kept_aside
from clusterfn.bridge.supervisor.attempt import ATTEMPT_STATES, Attempt
from clusterfn.bridge.supervisor.job import JobFolder
from clusterfn.bridge.supervisor.verdict import Verdict
from clusterfn.calls.job import Job, run_of
from clusterfn.calls.outcome_errors import ERRORS
from clusterfn.errors import Cancelled, ClusterfnError
from tests.bridge.test_tickets import told
from tests.chaos.judge import CLASSES
from tests.fakes.job_spec import job_spec
from tests.fakes.taken import taken

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "clusterfn"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`((?:[a-z_]+/)*(?:[A-Za-z_]+\.(?:py|md))|(?:[a-z_]+/)+)`")


def rows(title: str) -> list[list[str]]:
    """The cells of the table in a section, without its head."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]


def packages() -> set[str]:
    folders = {path.parent.relative_to(LIBRARY).as_posix() for path in LIBRARY.rglob("*.py")}
    return {"`clusterfn/`" if folder == "." else f"`{folder}/`" for folder in folders}


def names_in(path: Path, text: str) -> set[str]:
    """The words of each name in a module: of its folders and itself, a class, function, argument or variable."""
    found = list(path.relative_to(LIBRARY).with_suffix("").parts)
    for node in ast.walk(ast.parse(text)):
        found += [getattr(node, kind) for kind in ("name", "arg", "id", "attr") if hasattr(node, kind)]
    spaced = (re.sub(r"([A-Z]+)", r" \1", str(name)).lower() for name in found if name)
    return {word for name in spaced for word in re.findall(r"[a-z]+", name)}


def test_each_package_has_one_row():
    assert sorted(row[0] for row in rows("Packages")) == sorted(packages())


def test_each_file_and_folder_that_the_page_names_exists():
    places = (LIBRARY, ROOT)
    named = [name for name in NAMED.findall(PAGE) if name != "clusterfn/"]

    assert len(named) > 80
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_each_term_of_the_glossary_is_a_name_in_the_code():
    terms = [row[0] for row in rows("Glossary")]
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(LIBRARY.rglob("*.py"))}

    assert 1 <= len(terms) <= 15
    for term in terms:  # the first modules with the word mostly have it as a name
        assert any(term in names_in(path, text) for path, text in texts.items() if term in text.lower()), term


ID = "7f3a" * 4


def states_of(table: str) -> dict[str, list[str]]:
    """The rows of a table of states in the page, by their first cell."""
    lines = PAGE.partition(f"(`{table}` in")[2].splitlines()
    rows = [line for line in lines[: next(i for i, line in enumerate(lines[2:], 2) if not line)] if line[:2] == "| "]
    return {cells[0]: cells[1:] for cells in ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows[1:])}


def test_the_page_shows_the_states_of_jobs_attempts_and_tickets():
    shown = {state: ["any" if len(then) > 1 else ", ".join(then), how] for state, (then, how) in JOB_STATES.items()}
    assert states_of("JOB_STATES") == shown
    assert {*OF_EVENT.values(), *FINAL.values()} <= set(JOB_STATES)

    shown = {state: [file, ", ".join(then), who] for state, (file, _, then, who) in ATTEMPT_STATES.items()}
    assert states_of("ATTEMPT_STATES") == shown

    shown = {state: [folder, ", ".join(then), who] for state, (folder, then, who) in TICKET_STATES.items()}
    assert states_of("TICKET_STATES") == shown


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ends does so before the call returns."""
    monkeypatch.setattr("clusterfn.hosts.exit_flush.run_in_thread", lambda run, name: run())


def bring(job: Job[Any], state: str) -> None:
    """Let what brings a job into this state happen."""
    if state in OF_EVENT.values():
        run_of(job).set_state(state)
    elif state == RETURNED:
        run_of(job).settle({"kind": "returned"}, None)
    elif state == UNKNOWN:
        run_of(job).lose(ClusterfnError("the host is gone"))
    else:
        kind = next((kind for kind, final in FINAL.items() if final == state), "lost")
        run_of(job).fail(Cancelled("stopped") if state == CANCELLED else ClusterfnError("refused"), kind)


@pytest.mark.parametrize("before", JOB_STATES)
def test_a_job_takes_the_steps_of_its_table_and_no_other(before: str):
    for after in JOB_STATES:
        job = taken(ID, keeps=True)
        bring(job, before)
        assert job.state == before

        bring(job, after)

        assert job.state == (after if after in JOB_STATES[before][0] else before), after


def test_the_kinds_and_classes_of_the_judge_are_those_that_users_see():
    theirs = {**{kind: error.__name__ for kind, error in ERRORS.items()}, RAISED: "ValueError"}
    assert {kind: theirs[kind] for kind in CLASSES} == CLASSES


STEPS: dict[str, Callable[[Attempt], object]] = {
    "waiting": lambda attempt: attempt.wait("for a GPU"),
    "begun": lambda attempt: attempt.begin(),
    "withdrawn": lambda attempt: attempt.withdraw(),
    "followed": lambda attempt: attempt.follow(),
    "overtaken": lambda attempt: attempt.supersede(2),
    "ended": lambda attempt: attempt.publish(Verdict("time", "too long")),
}
WAYS = {
    "open": (), "waiting": ("waiting",), "begun": ("waiting", "begun"), "withdrawn": ("waiting", "withdrawn"),
    "followed": ("followed",), "overtaken": ("overtaken",), "ended": ("ended",),
}  # fmt: skip


def state_of(attempt: Attempt) -> str:
    """The last state of the table whose file is there."""
    found = ""
    for state, (file, content, _, _) in ATTEMPT_STATES.items():
        path = Path(attempt.folder, file)
        found = state if path.exists() and content in path.read_bytes() else found
    return found


@pytest.mark.parametrize("before", ATTEMPT_STATES)
def test_an_attempt_takes_the_steps_of_its_table_and_no_other(tmp_path, before: str):
    for step, take in STEPS.items():
        folder = tmp_path / step / "jobs" / ID
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text(json.dumps(job_spec(folder)))
        attempt = Attempt.new(JobFolder(str(folder)))
        for each in WAYS[before]:
            STEPS[each](attempt)
        assert state_of(attempt) == before

        take(attempt)

        is_allowed = step in ATTEMPT_STATES[before][2]
        assert state_of(attempt) == (step if is_allowed else before), step


def ticket(root: Path) -> dict[str, Any]:
    """What is written on the ticket of a job, whose folder this makes."""
    folder = root / "jobs" / ID
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(job_spec(folder)))
    return {**told(10**9, None), "job": ID, "folder": str(folder), "home": str(folder), "element": None}


def take_away(root: Path) -> None:
    Queue(str(root)).remove(ID)
    kept_aside(str(root)).remove(ID)


TICKET_STEPS: dict[str, Callable[[Path], object]] = {
    "queued": lambda root: Queue(str(root)).write(ticket(root)),
    "kept": lambda root: kept_aside(str(root)).write(ticket(root)),
    "gone": take_away,
}
TICKET_WAYS = {"queued": ("queued",), "kept": ("kept",), "gone": ()}


def folder_of(root: Path) -> str:
    """The folder of the table in which the ticket is; "" for none."""
    machine = Path(Queue(str(root)).folder).parent
    return next((each for each, _, _ in TICKET_STATES.values() if each and (machine / each / ID).exists()), "")


@pytest.mark.parametrize(
    ("before", "after"), [(before, after) for before, (_, then, _) in TICKET_STATES.items() for after in then]
)
def test_a_ticket_takes_the_steps_of_its_table(tmp_path, monkeypatch, before: str, after: str):
    for each in TICKET_WAYS[before]:
        TICKET_STEPS[each](tmp_path)
    assert folder_of(tmp_path) == TICKET_STATES[before][0]

    if (before, after) == ("kept", "queued"):
        monkeypatch.setattr(launch, "boot_id", lambda: "another start of the machine")
        launch.requeue_interrupted(str(tmp_path))
    else:
        TICKET_STEPS[after](tmp_path)

    assert folder_of(tmp_path) == TICKET_STATES[after][0]
