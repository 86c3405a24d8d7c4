"""The open requests of a link, and those that have failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterfn.hosts.rpc import link_stream


def test_of_many_failures_the_last_ones_are_known_to_later_requests() -> None:
    requests = link_stream.PendingRequests()
    for number in range(1, 20_001):
        requests.remove(number, {"kind": "missing", "message": str(number)})

    def failed(after: int) -> Any:
        return requests.failed_before(SimpleNamespace(after=[after]))  # type: ignore[arg-type]

    assert failed(1) is None
    assert failed(20_000)["message"] == "20000"
