"""Every row can fail: for each there is a change to the library that turns it red. Run on copies, three at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.mutations import MUTATIONS, Mutation
from tests.faults.rows import ROWS
from tests.lab import Lab

AT_ONCE = 4
_ROOT = Path(__file__).parents[2]
_TEST = "tests/faults/test_truth.py::test_it_ends_with_one_truthful_outcome"
# These take down a daemon of the lab, so they run alone, after the others.
_ALONE = ("slurmd killed", "node lost", "slurmctld dead", "preempted")


def mutated(mutation: Mutation) -> dict[str, str]:
    """File -> its changed text; fail unless the text to be replaced is there once."""
    texts: dict[str, str] = {}
    for file, old, new in mutation.edits:
        source = _ROOT / file if file.startswith("templates/") else _ROOT / "clusterfn" / file
        text = texts.get(file) or source.read_text()
        assert text.count(old) == 1, f"{mutation.name}: {old!r} stands {text.count(old)} times in {file}"
        texts[file] = text.replace(old, new)
    return texts


def copy_of_the_library(target: Path, mutation: Mutation) -> Path:
    """A checkout in which `clusterfn` is a mutated copy, and found first."""
    # Byte code stays valid, except that of files which are changed, and that which others write just now.
    clean = shutil.ignore_patterns("*.egg-info", "*.pyc.*")
    shutil.copytree(_ROOT / "clusterfn", target / "clusterfn", ignore=clean)
    shutil.copytree(_ROOT / "templates", target / "clusterfn" / "templates", ignore=clean)
    shutil.copytree(_ROOT / "tests", target / "tests", ignore=clean)
    for name in ("setup.cfg", "pyproject.toml"):
        shutil.copy(_ROOT / name, target / name)
    for file, text in mutated(mutation).items():
        (target / "clusterfn" / file).write_text(text)
    return target


def green_rows(folder: Path, mutation: Mutation) -> list[str]:
    """Which of the mutation's rows pass all the same."""
    checkout, report = copy_of_the_library(folder / "checkout", mutation), folder / "report.xml"
    nodes = [f"{_TEST}[{row}]" for row in mutation.rows]
    options = ["-q", "--long", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]  # which has properties of tests
    argv = [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *nodes]
    env = {**os.environ, "FAULTS_LIMIT_S": "100" if "-tiny" in mutation.rows[0] else "45"}
    ran = subprocess.run(argv, cwd=checkout, env=env, capture_output=True, text=True, timeout=500)
    assert f"clusterfn from {checkout}/" in ran.stdout, ran.stdout[-3000:] + ran.stderr[-3000:]
    cases = list(ElementTree.parse(report).iter("testcase"))
    names = {str(case.get("name")) for case in cases}
    assert len(names) == len(mutation.rows), ran.stdout[-3000:]
    return sorted(names - {str(case.get("name")) for case in cases if case.find("failure") is not None})


@pytest.fixture(scope="module")
def results(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[list[str]]]]:
    """All mutations of this run, started: mutation -> rows that stayed green."""
    name = test_a_mutated_library_turns_its_rows_red.__name__
    wanted = [
        item.callspec.params["mutation"] for item in request.session.items if getattr(item, "originalname", "") == name
    ]
    alone = [each for each in wanted if any(row.startswith(_ALONE) for row in each.rows)]
    beside = [each for each in wanted if each not in alone]
    with ThreadPoolExecutor(AT_ONCE) as pool, ThreadPoolExecutor(1) as one:
        started = {each.name: pool.submit(green_rows, tmp_path_factory.mktemp("mutant"), each) for each in beside}

        def after_the_others(mutation: Mutation) -> list[str]:
            for each in beside:
                started[each.name].exception()
            return green_rows(tmp_path_factory.mktemp("mutant"), mutation)

        started.update({each.name: one.submit(after_the_others, each) for each in alone})
        yield started
        pool.shutdown(cancel_futures=True)


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutated_library_turns_its_rows_red(results: dict[str, Future[list[str]]], mutation: Mutation):
    assert results[mutation.name].result() == []


def test_the_mutations_fit_the_library():
    assert all(mutated(mutation) for mutation in MUTATIONS)


def test_the_changes_to_central_functions_fit_the_library_and_their_tests_exist():
    from tests.faults.central import changes  # which imports this module

    for change in changes():
        file, _, name = change.test.partition("::")
        assert change.applied() and f"def {name}(" in (_ROOT / file).read_text(), f"{change}: there is no {change.test}"


def test_every_row_has_a_mutation():
    killed = {row for mutation in MUTATIONS for row in mutation.rows}

    assert [row.name for row in ROWS if not killed & {f"{row.name}-{host}" for host in row.hosts}] == []
    assert killed <= {f"{row.name}-{host}" for row in ROWS for host in row.hosts}
