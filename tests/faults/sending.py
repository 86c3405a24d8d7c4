"""Calls that are sent in steps, with something that happens between two of them. Each takes the case that runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn import Job
from clusterfn.calls import call

if TYPE_CHECKING:
    from tests.faults.case import Case


def damaged_payload(change: Callable[[bytearray], bytearray]) -> Callable[[Case], Job[Any]]:
    """Send a call whose bytes were altered after they were made."""

    def send(case: Case) -> Job[Any]:
        prepared = call.prepare(case.row.call, tuple(case.row.args), {}, case.function.options)
        data = bytes(change(bytearray(prepared.payload.data)))
        return call.send_call(prepared._replace(payload=prepared.payload._replace(data=data)))

    return send


def interpreter(change: Callable[[Path], None]) -> Callable[[Case], Job[Any]]:
    """An environment that changes between the look at it and the job."""

    def send(case: Case) -> Job[Any]:
        assert case.world is not None
        folder = case.world.home / f"{case.world.session}-env-{case.row.name.replace(' ', '-')}-{case.host}"
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        link = folder / "bin" / "python"
        link.symlink_to(case.world.lab.python("3.11"))
        function = case.function.with_options(environment=f"python:{link}")
        prepared = call.prepare(case.row.call, tuple(case.row.args), {}, function.options)
        link.unlink()
        change(link)
        return call.send_call(prepared)

    return send
