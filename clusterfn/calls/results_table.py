"""A table of the items of a map, as a DataFrame of pandas, which is optional."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from clusterfn.calls import outcome_errors

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState

# A table has these columns, whatever items have ended.
_COLUMNS = ("item", "state", "error", "wall_s", "cpu_s", "peak_memory_bytes", "gpus")


def to_dataframe(group: GroupState) -> Any:
    """Return a pandas DataFrame with a row for each item, in their order."""
    pandas = import_pandas("results()")
    ends = [ended for index in range(len(group)) if (ended := group.ended(index)) is not None]
    taken = {*_COLUMNS, *(name for ended in ends for name in ended.usage)}
    rows = [_row(group, index, taken) for index in range(len(group))]
    return pandas.DataFrame(rows, index=pandas.RangeIndex(len(group)))


def import_pandas(otherwise: str) -> Any:
    """Import pandas, which is optional.

    Args:
        otherwise: What gives the same without it, for the message.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError as missing:
        if missing.name != "pandas":
            raise
        message = f"to_dataframe() needs pandas, which is not installed here: pip install pandas, or take {otherwise}"
        raise ModuleNotFoundError(message, name="pandas") from None
    return pandas


def _row(group: GroupState, index: int, taken: Collection[str]) -> dict[str, Any]:
    """Return the columns of an item; arguments give way to columns that have their name."""
    ended = group.ended(index)
    row: dict[str, Any] = {"item": group.label(index), "state": group.states[index], "error": None}
    arguments = dict(group.arguments[index]) if group.arguments else {}
    row.update({f"argument_{name}" if name in taken else name: value for name, value in arguments.items()})
    if ended is None:
        return row
    row.update(ended.usage)
    if ended.error is not None:
        row["error"] = outcome_errors.in_a_line(ended.error)
        return row
    found = ended.value if isinstance(ended.value, dict) else {"result": ended.value}
    return {**row, **{f"result_{key}" if key in row else key: value for key, value in found.items()}}
