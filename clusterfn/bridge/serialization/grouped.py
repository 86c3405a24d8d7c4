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
_GONE = ("axis", "squeeze")  # arguments that pandas 3 has no more, which are left out where they say nothing


def grouper(facts: dict[str, Any]) -> Any:
    """Make what tells `groupby` how to group by times."""
    import pandas

    return pandas.Grouper(**facts)


def _reduced(obj: Any, method: str, facts: Any, **more: Any) -> tuple[Any, ...]:
    """Return the call of `method`, whose arguments are attributes of `facts`, without those that are defaults."""
    table = obj.obj
    given = dict(more)
    for name, parameter in inspect.signature(getattr(table, method)).parameters.items():
        said = (each for each in (getattr(facts, name, None), getattr(obj, name, None)) if each is not None)
        given[name] = value = given.get(name, next(said, parameter.default))
        unset = value is None or value is parameter.default or (value is False and parameter.default is None)
        if unset or type(value).__name__ == "_NoDefault" or (name in _GONE and not value):
            del given[name]
    selection = getattr(obj, "_selection", None)
    return call, (table, method, given, selection if getattr(table, "ndim", 1) == 2 else None)


def _reduce_groups(obj: Any) -> Any:
    by, level = obj.keys, obj.level
    if level is None and (by is None or obj.obj.ndim == 1):  # a column of a grouped table lacks the others
        import pandas

        grouper = getattr(obj, "_grouper", None) or obj.grouper
        keys = [_keys_of(each) for each in grouper.groupings]
        # Bins of times may be empty, which no key says; and a column alone has no place for the keys beside it.
        if _are_bins(grouper) or any(map(_are_bins, keys)) or not obj.as_index:
            return NotImplemented
        columns = [pandas.Series(key, obj.obj.index, name=each.name) for key, each in zip(keys, grouper.groupings)]
        by = columns if isinstance(by, list) or len(columns) > 1 else columns[0]
    return _reduced(obj, "groupby", obj, by=by, level=level)


def _keys_of(grouping: Any) -> Any:
    """Return the key of each row; of categories all that there were, not those alone that occur."""
    keys, every = grouping.grouping_vector, getattr(grouping, "_orig_cats", None)
    return keys if every is None else keys.set_categories(every)


def _are_bins(keys: Any) -> bool:
    return type(keys).__name__ == "BinGrouper"


def call(table: Any, method: str, given: dict[str, Any], selection: Any) -> Any:
    """Call the method of the table, and select what was selected of the result."""
    made = getattr(table, method)(**given)
    return made if selection is None else made[selection]
