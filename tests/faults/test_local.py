"""Ways to end on this machine, without a lab: the cheap rows of the same table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.faults.bench import Bench
from tests.faults.case import Case, Row
from tests.faults.rows import local_rows
from tests.faults.test_truth import check

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks into /proc"),
    pytest.mark.filterwarnings("ignore:.*was not fetched"),
]


@pytest.fixture(scope="module")
def bench(
    clean_environment: None,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bench]:
    """All cases of this run, started."""
    root = tmp_path_factory.mktemp("local")
    config = root / "clusterfn.yml"
    config.write_text(f"hosts:\n  local:\n    scheduler: local\n    root: {root}/root\n")
    wanted = [item.callspec.params["row"] for item in request.session.items if item.path == request.path]
    cases = [Case(row, "local", None) for row in wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLUSTERFN_CONFIG", str(config))
        bench = Bench(cases)
        yield bench
        bench.close()


@pytest.mark.parametrize("row", local_rows(), ids=lambda row: row.name)
def test_it_ends_truthfully_on_this_machine_too(bench: Bench, row: Row, record_property: Callable[..., None]):
    check(bench.ended(f"{row.name}-local"), record_property)
