"""What a whole group comes to: a table of its items, and the one error where none of them returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.calls import outcome
from clusterfn.errors import MapError

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState

_CAUSES = 10
_ITEMS = 8


def table(group: GroupState) -> Any:
    """A pandas DataFrame with a row for each item, in their order."""
    pandas = imported_pandas("results()")
    return pandas.DataFrame([_row(group, index) for index in range(len(group))], index=pandas.RangeIndex(len(group)))


def imported_pandas(otherwise: str) -> Any:
    """pandas, which nothing else here needs.

    Args:
        otherwise: Where the same stands without it.

    Raises:
        ModuleNotFoundError: It is not installed here.
    """
    try:
        import pandas
    except ModuleNotFoundError as missing:
        if missing.name != "pandas":
            raise
        message = f"to_dataframe() needs pandas, which is not installed here: pip install pandas, or take {otherwise}"
        raise ModuleNotFoundError(message, name="pandas") from None
    return pandas


def _row(group: GroupState, index: int) -> dict[str, Any]:
    ended = group.ended(index)
    row: dict[str, Any] = {"item": group.label(index), "state": group.states[index], "error": None}
    if ended is None:
        return row
    row.update(ended.usage)
    if ended.error is not None:
        row["error"] = outcome.in_a_line(ended.error)
        return row
    found = ended.value if isinstance(ended.value, dict) else {"result": ended.value}
    return {**row, **{f"result_{key}" if key in row else key: value for key, value in found.items()}}


def causes(errors: Mapping[int, BaseException], most: int, named: bool = True) -> list[str]:
    """Each distinct cause with its count, the most frequent first.

    Args:
        errors: Index of an item -> why it failed.
        most: How many causes are listed.
        named: Whether each cause names its items.

    Example:
        >>> causes({7: ValueError("no"), 23: ValueError("no")}, most=5)
        ['2 x ValueError: no (items 7, 23)']
    """
    items: dict[str, list[int]] = {}
    for index, error in sorted(errors.items()):
        items.setdefault(outcome.in_a_line(error), []).append(index)
    frequent = sorted(items.items(), key=lambda each: -len(each[1]))
    shown = [f"{len(which)} x {cause}{_items(which) if named else ''}" for cause, which in frequent[:most]]
    return shown + ([f"and {len(items) - most} other causes"] if len(items) > most else [])


def _items(which: Sequence[int]) -> str:
    more = ", …" if len(which) > _ITEMS else ""
    return f" (item{'s' if len(which) > 1 else ''} {', '.join(map(str, which[:_ITEMS]))}{more})"


def none_succeeded(group: GroupState, errors: Sequence[BaseException]) -> MapError:
    """The error of a group without any value."""
    error = MapError(
        f"none of the {len(group)} items returned", host=group.host, job=group.id, stage="function",
        evidence=causes(dict(enumerate(errors)), _CAUSES, named=False),
        hint="group.failed has each exception, group.logs(index) what that item printed",
        log=f"{group.host}:{group.folder}/{layout.ELEMENTS}",
    )  # fmt: skip
    error.__cause__ = errors[0]
    return error
