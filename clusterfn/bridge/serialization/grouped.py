"""What pandas returns from `groupby`, `rolling` and others, as the call of that method: its parts are private."""

from __future__ import annotations

import inspect
from typing import Any

_WINDOWS = {"Rolling": "rolling", "Window": "rolling", "Expanding": "expanding", "ExponentialMovingWindow": "ewm"}


def reduce(obj: Any) -> Any:
    """Reduce such an object to the table, the method and its arguments; else NotImplemented."""
    name = type(obj).__name__
    if name == "NamedAgg":
        more = getattr(obj, "args", ()), getattr(obj, "kwargs", {})
        return NotImplemented if any(more) else (type(obj), (obj.column, obj.aggfunc))
    if name in ("DataFrameGroupBy", "SeriesGroupBy"):
        return _reduce_groups(obj)
    if name in _WINDOWS:
        return _reduced(obj, _WINDOWS[name], obj)
    if name == "TimeGrouper":
        facts = {each: getattr(obj, each, None) for each in _OF_GROUPER}
        return grouper, ({each: value for each, value in facts.items() if value is not None},)
    if name == "DatetimeIndexResampler":
        held = getattr(obj, "_timegrouper", None) or obj.groupby
        return _reduced(obj, "resample", held, rule=held.freq, on=held.key)
    return NotImplemented


_OF_GROUPER = (
    "key", "level", "freq", "sort", "closed", "label", "convention", "origin", "offset", "dropna", "group_keys",
)  # fmt: skip
_GONE = ("axis", "squeeze")  # arguments that pandas 3 has no more


def grouper(facts: dict[str, Any]) -> Any:
    """Make what tells `groupby` how to group by times."""
    import pandas

    return pandas.Grouper(**facts)


def _reduced(obj: Any, method: str, facts: Any, **more: Any) -> tuple[Any, ...]:
    """Return the call of `method`, whose arguments are attributes of `facts`, without those that are defaults."""
    table = obj.obj
    given = dict(more)
    for name, parameter in inspect.signature(getattr(table, method)).parameters.items():
        value = given.get(name, getattr(facts, name, parameter.default))
        given[name] = value
        unset = value is None or value is parameter.default or (value is False and parameter.default is None)
        if name in _GONE or unset or type(value).__name__ == "_NoDefault":
            del given[name]
    selection = getattr(obj, "_selection", None)
    return call, (table, method, given, selection if getattr(table, "ndim", 1) == 2 else None)


def _reduce_groups(obj: Any) -> tuple[Any, ...]:
    by, level = obj.keys, obj.level
    if level is None and (by is None or obj.obj.ndim == 1):  # a column of a grouped table lacks the others
        import pandas

        grouper = getattr(obj, "_grouper", None) or obj.grouper
        columns = [pandas.Series(each.grouping_vector, obj.obj.index, name=each.name) for each in grouper.groupings]
        by = columns[0] if len(columns) == 1 else columns
    return _reduced(obj, "groupby", obj, by=by, level=level)


def call(table: Any, method: str, given: dict[str, Any], selection: Any) -> Any:
    """Call the method of the table, and select what was selected of the result."""
    made = getattr(table, method)(**given)
    return made if selection is None else made[selection]
