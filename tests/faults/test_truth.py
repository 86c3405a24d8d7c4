"""The first promise: each job ends with exactly one truthful outcome, whatever died. The rows stand in `rows`."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator

import pytest

from clusterfn import ClusterfnError
from tests.faults.bench import Bench
from tests.faults.case import NOTHING, Case, Row
from tests.faults.fault_table import PROPERTY
from tests.faults.rows import ROWS, folder_is_gone
from tests.fixtures.hidden import hide
from tests.lab import Lab

_LATE = pytest.mark.filterwarnings("ignore:.*was not fetched")  # a warning, and no error, to whoever has filters
pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(1000), _LATE]

CASES = [
    pytest.param(
        row, host, id=f"{row.name}-{host}", marks=[pytest.mark.long] if row.long or host in row.long_on else []
    )
    for row in ROWS
    for host in row.hosts
]


@pytest.fixture(scope="module")
def bench(
    lab: Lab, clean_environment: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Bench]:
    """All cases of this run, started."""
    from tests.faults.hosts import World

    world = World(lab, tmp_path_factory.mktemp("faults"))
    world.build()
    wanted = [item.callspec.params for item in request.session.items if item.path == request.path]
    cases = [Case(each["row"], each["host"], world) for each in wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLUSTERFN_CONFIG", str(world.config))
        hide(patch, "numpy")  # a row returns what this machine cannot import
        bench = Bench(cases)
        yield bench
        bench.close()
    for case in cases:
        if case.job is not None and (len(case.final()) != 1 or case.processes()):
            world.end(case.job.name, case.job.id)
    world.remove()


@pytest.mark.parametrize(("row", "host"), CASES)
def test_it_ends_with_one_truthful_outcome(bench: Bench, row: Row, host: str, record_property: Callable[..., None]):
    check(bench.ended(f"{row.name}-{host}"), record_property)


def check(case: Case, record_property: Callable[..., None]) -> None:
    """All that must hold of a case that has ended; what it adds to the table of faults is recorded in any case."""
    try:
        check_the_end(case)
        check_what_is_left(case)
        if case.row.check is not None:
            case.row.check(case)
    finally:
        record_property(PROPERTY, case.tally())


def check_the_end(case: Case) -> None:
    """The class, the text, the evidence, the stage, and the time that it took."""
    row = case.row
    if row.expect is None:
        assert case.error is None, case.rendered() + case.describe()
        assert row.value is NOTHING or case.value == row.value
        return
    assert type(case.error) is row.expect, (case.rendered() if case.error else repr(case.value)) + case.describe()
    shown = case.rendered()
    assert "result_raw.pkl" not in shown
    assert [text for text in row.text if text not in str(case.error)] == [], shown
    assert case.seconds <= row.within_s, f"{case.seconds} s"
    if isinstance(case.error, ClusterfnError):
        check_the_facts(case, case.error)


def check_the_facts(case: Case, error: ClusterfnError) -> None:
    """What an error of ours says beside its message."""
    evidence = "\n".join(error.evidence)
    assert [text for text in case.row.seen if text not in evidence] == [], evidence
    stage = case.row.stage
    assert error.stage in (stage if isinstance(stage, tuple) else (stage,))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    if case.final():
        assert (error.job, error.host.split(" ")[0]) == (case.job.id, case.host)


def check_what_is_left(case: Case) -> None:
    """One final outcome, the same for ever; no process."""
    if case.job is None or not case.folder.exists():
        return
    deadline = time.monotonic() + case.row.left_s
    while (left := case.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [case.command(pid) for pid in left] == [], case.describe()
    if case.row.check is folder_is_gone:
        # sbatch has refused it, and the folder may be half removed.
        return
    assert len(case.final()) == 1, case.describe()
    assert case.outcomes() == case.published, "an outcome changed"
    check_a_second_reader(case)


def check_a_second_reader(case: Case) -> None:
    """Whoever asks later is told the same."""
    standing = case.final()[0]
    later = case.attached()
    if standing["kind"] == "returned" and later is None:  # what was damaged on the way here may be whole again
        return
    assert isinstance(later, type(case.error)), f"{later!r}\n{json.dumps(standing)}"
