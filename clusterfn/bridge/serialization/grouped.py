"""What pandas returns from `groupby`, `rolling` and others, as the call of that method: its parts are private."""

from __future__ import annotations

import inspect
from typing import Any

from . import stand_ins

pandas: Any = stand_ins.Library("pandas")
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
    # pandas 3 writes `GroupBy` in these names, and earlier versions `Groupby`.
    plain = name[: -len("Groupby")] if name.lower().endswith("groupby") else ""
    if plain in _WINDOWS:
        return _reduce_windows_of_groups(obj, _WINDOWS[plain])
    if plain == "DatetimeIndexResampler":
        return _reduce_resampled_groups(obj)
    if name == "TimeGrouper":
        facts = {each: getattr(obj, each, None) for each in _OF_GROUPER}
        return grouper, ({each: value for each, value in facts.items() if value is not None},)
    if name == "DatetimeIndexResampler":
        return _reduce_resampler(obj)
    return NotImplemented


_OF_GROUPER = (
    "key", "level", "freq", "sort", "closed", "label", "convention", "origin", "offset", "dropna", "group_keys",
)  # fmt: skip
# pandas 3 no longer takes these arguments, so they are left out where they have no effect.
_GONE = ("axis", "squeeze")


def grouper(facts: dict[str, Any]) -> Any:
    """Make what tells `groupby` how to group by times."""
    return pandas.Grouper(**facts)


def _reduced(obj: Any, method: str, facts: Any, **more: Any) -> tuple[Any, ...]:
    """Return the call of `method`, whose arguments are attributes of `facts`, without those that are defaults."""
    table = obj.obj
    arguments = dict(more)
    for name, parameter in inspect.signature(getattr(table, method)).parameters.items():
        values = (each for each in (getattr(facts, name, None), getattr(obj, name, None)) if each is not None)
        arguments[name] = value = arguments.get(name, next(values, parameter.default))
        unset = value is None or value is parameter.default or (value is False and parameter.default is None)
        if unset or type(value).__name__ == "_NoDefault" or (name in _GONE and not value):
            del arguments[name]
    selection = getattr(obj, "_selection", None)
    return call, (table, method, arguments, selection if getattr(table, "ndim", 1) == 2 else None)


def _reduce_resampler(obj: Any) -> tuple[Any, ...]:
    held = getattr(obj, "_timegrouper", None) or obj.groupby
    return _reduced(obj, "resample", held, rule=held.freq, on=held.key)


def _reduce_resampled_groups(obj: Any) -> Any:
    groups = obj._groupby
    make, (table, method, arguments, selection) = _reduce_resampler(obj)
    # A column was also selected from the groups, and the call needs the other columns.
    if groups.obj.ndim < table.ndim:
        table = _in_order_of(groups.obj.index, table, arguments)
        keys = None if table is None else _key_columns(_grouper_of(groups), table.index)
        if keys is None:
            return NotImplemented
        facts = {name: getattr(groups, name) for name in ("as_index", "sort", "group_keys", "observed", "dropna")}
        groups = table.groupby(keys, **facts)
    return make, (groups, method, arguments, selection)


def _in_order_of(index: Any, table: Any, arguments: Any) -> Any:
    """Return the rows of a table that was sorted by times in their first order; None if nothing says what it was."""
    if index.is_unique:
        return table.take(table.index.get_indexer(index))
    if arguments.get("on") is not None or arguments.get("level") is not None:
        return None
    return table.take(index.argsort(kind="stable").argsort())


def _reduce_windows_of_groups(obj: Any, method: str) -> Any:
    grouper = _grouper_of(obj)
    keys = _key_columns(grouper, obj.obj.index)
    if keys is None:
        return NotImplemented
    facts = {"sort": getattr(grouper, "_sort", True), "dropna": getattr(grouper, "dropna", True)}
    make, (table, *args) = _reduced(obj, method, obj)
    return make, (table.groupby(keys, as_index=obj._as_index, **facts), *args)


def _grouper_of(groups: Any) -> Any:
    # pandas before 2.2 calls it `grouper`.
    return groups._grouper if hasattr(groups, "_grouper") else groups.grouper


def _key_columns(grouper: Any, index: Any) -> Any:
    """Return the key of each row, for all columns by which is grouped; None if no key says all."""
    keys = [_keys_of(each) for each in grouper.groupings]
    # Bins of times may be empty, and the keys of the rows do not show an empty bin.
    if _are_bins(grouper) or any(map(_are_bins, keys)):
        return None
    return [pandas.Series(key, index, name=each.name) for key, each in zip(keys, grouper.groupings)]


def _reduce_groups(obj: Any) -> Any:
    by, level = obj.keys, obj.level
    # A column of a grouped table lacks the columns by which the table was grouped.
    if level is None and (by is None or obj.obj.ndim == 1):
        columns = _key_columns(_grouper_of(obj), obj.obj.index)
        if columns is None:
            return NotImplemented
        if not obj.as_index:
            return _beside_keys(obj, columns, isinstance(by, list))
        by = columns if isinstance(by, list) or len(columns) > 1 else columns[0]
    return _reduced(obj, "groupby", obj, by=by, level=level)


def _beside_keys(obj: Any, keys: Any, is_list: bool) -> Any:
    """Reduce a column whose keys stand beside it in what it gives: as that column of a table with both."""
    column = obj.obj
    names = [key.name for key in keys]
    if not isinstance(column, pandas.Series) or None in names or len({*names, column.name}) <= len(names):
        return NotImplemented
    by = names if is_list or len(names) > 1 else names[0]
    given = ((name, getattr(obj, name, None)) for name in ("sort", "dropna", "observed"))
    options = {name: value for name, value in given if value is not None}
    table = pandas.concat([*keys, column], axis=1)
    return call, (table, "groupby", {"by": by, "as_index": False, **options}, column.name)


def _keys_of(grouping: Any) -> Any:
    """Return the key of each row; of categories all that there were, not those alone that occur."""
    keys, every = grouping.grouping_vector, getattr(grouping, "_orig_cats", None)
    return keys if every is None else keys.set_categories(every)


def _are_bins(keys: Any) -> bool:
    return type(keys).__name__ == "BinGrouper"


def call(table: Any, method: str, arguments: dict[str, Any], selection: Any) -> Any:
    """Call the method of the table, and select what was selected of the result."""
    result = getattr(table, method)(**arguments)
    return result if selection is None else result[selection]
