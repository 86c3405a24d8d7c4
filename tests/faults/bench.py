"""Runs cases beside each other, the longest first, and keeps what came of them for the matrix."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tests.faults.case import Case

AT_ONCE = 8
NODES = "nodes"  # rows that break what the others need: after those, one after another


class Bench:
    """Starts all cases that are wanted at once; `ended(case)` waits for one of them."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="case")
        self._last = ThreadPoolExecutor(1, thread_name_prefix="case")
        self._alone: dict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        ordered = sorted(cases, key=lambda case: -case.row.takes_s)
        breaking = [case for case in ordered if case.row.alone == NODES]
        self._running: dict[str, Future[Case]] = {
            str(case): self._pool.submit(self._run, case) for case in ordered if case not in breaking
        }
        beside = list(self._running.values())
        self._running.update({str(case): self._last.submit(self._after, beside, case) for case in breaking})

    def _after(self, others: list[Future[Case]], case: Case) -> Case:
        wait(others)
        return self._run(case)

    def _run(self, case: Case) -> Case:
        if not case.row.alone:
            case.run()
            return case
        with self._alone[case.row.alone]:
            case.run()
        return case

    def ended(self, name: str) -> Case:
        """The case of that name, at its end."""
        return self._running[name].result(900)

    def close(self) -> None:
        """Wait for what runs; start no more."""
        self._last.shutdown(cancel_futures=True)
        self._pool.shutdown(cancel_futures=True)
