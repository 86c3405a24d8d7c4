"""What a map does when an item fails: its exception takes the place of its value, or is raised, and is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from clusterfn.bridge import layout
from clusterfn.calls import outcome_errors
from clusterfn.errors import ConfigError, MapError

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState, ItemOutcome

OnError = Literal["collect", "raise"]
# Causes in an error, and items that each of them names.
_CAUSES = 10
_ITEMS = 8


def check_on_error(on_error: str) -> None:
    """Reject what is neither "collect" nor "raise", as to the exception of an item."""
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error={on_error!r} is not known", hint='use "collect" or "raise"')


def result_of(ended: ItemOutcome, *, raises: bool) -> Any:
    """Return the value of an item, or the exception in its place, or raise that."""
    if ended.error is not None and raises:
        raise ended.error
    return ended.result


def results_of(group: GroupState) -> list[Any]:
    """Return the value of each item, or the exception in its place; raise `MapError` if all of them failed."""
    errors = list(group.failed.values())
    if errors and len(errors) == len(group):
        raise MapError(
            f"none of the {len(group)} items returned",
            host=group.host,
            job=group.id,
            stage="function",
            evidence=causes(dict(enumerate(errors)), _CAUSES, named=False),
            hint="group.failed has each exception, group.logs(index) what that item printed",
            # On several hosts there is no such place.
            log=f"{group.host}:{group.folder}/{layout.ELEMENTS}" if group.queue is not None else None,
        ) from errors[0]
    return [group.end_of(index, None).result for index in range(len(group))]


def causes(errors: Mapping[int, BaseException], most: int, named: bool = True) -> list[str]:
    """List so many causes with their counts, the most frequent first, with the items of each if they are `named`.

    Example:
        >>> causes({7: ValueError("no"), 23: ValueError("no")}, most=5)
        ['2 x ValueError: no (items 7, 23)']
    """
    items: dict[str, list[int]] = {}
    for index, error in sorted(errors.items()):
        items.setdefault(outcome_errors.in_a_line(error), []).append(index)
    frequent = sorted(items.items(), key=lambda cause: -len(cause[1]))
    shown = [f"{len(which)} x {cause}{_items(which) if named else ''}" for cause, which in frequent[:most]]
    return shown + ([f"and {len(items) - most} other causes"] if len(items) > most else [])


def _items(which: Sequence[int]) -> str:
    more = ", …" if len(which) > _ITEMS else ""
    return f" (item{'s' if len(which) > 1 else ''} {', '.join(map(str, which[:_ITEMS]))}{more})"
