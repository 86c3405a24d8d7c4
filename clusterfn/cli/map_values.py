"""What `clusterfn result` prints of a map of which some items failed or were cancelled."""

from __future__ import annotations

from typing import Any

from clusterfn.bridge.job_states import CANCELLED, SHORT
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls import console
from clusterfn.calls.group import JobGroup
from clusterfn.calls.outcome import in_a_line
from clusterfn.cli.complaint import error_facts
from clusterfn.errors import Cancelled, MapError


class NoValue:
    """Print the reason in place of the value that an item does not have."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        return "<cancelled>" if isinstance(self.error, Cancelled) else f"<{in_a_line(self.error)}>"


def values_of_map(group: JobGroup[Any, Any], as_json: bool) -> list[Any]:
    """Wait for a map, and return what to print in the place of each item; say how many have no value.

    Raises:
        Cancelled: No item has a value, and all were cancelled.
        MapError: No item has a value.
    """
    asked = f"clusterfn logs {group.id[:SHORT]} shows what each item printed"
    try:
        values = group.results()
    except MapError as error:  # its hint is for Python
        if all(isinstance(each, Cancelled) for each in group.failed.values()):
            message = f"{in_one_line(group.name)} was cancelled before any of its {len(group)} items returned"
            raise Cancelled(message, host=group.host, job=group.id, log=error.log) from None
        error.hint = asked
        raise
    failed = group.failed
    if failed:
        cancelled = " was cancelled" if group.state == CANCELLED else ""
        have = f"{len(failed)} of {len(group)} items {'has' if len(failed) == 1 else 'have'} no value"
        console.warn(f"{group.id[:SHORT]} {in_one_line(group.name)} on {group.host}{cancelled}: {have}; {asked}")
    for index, why in failed.items():
        values[index] = {"error": error_facts(why)} if as_json else NoValue(why)
    return values
