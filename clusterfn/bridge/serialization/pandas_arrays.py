"""Pickle objects of pandas by its public names, so that another version of pandas can load them.

A frame is blocks of arrays and two indexes, which versions 2 and 3 pickle alike. The arrays of times, categories and
text, their types and indexes, and NaT are what each version pickles by private functions of its own.
"""

from __future__ import annotations

import sys
from typing import Any


def reduce(obj: Any) -> Any:
    """Return the reduction of such an object; NotImplemented for any other."""
    pandas: Any = sys.modules["pandas"]
    kind = type(obj).__name__
    if obj is pandas.NaT:
        return named, ("NaT",)
    if kind == "StringDtype":
        return string_type, ("python" if obj.storage == "python" else "pyarrow", obj.na_value is not pandas.NA)
    if kind in ("DatetimeIndex", "TimedeltaIndex"):
        return index, (kind, obj.array, obj.name, obj.freq)
    if kind == "NamedAgg":
        return named_aggregation, (obj.column, obj.aggfunc, getattr(obj, "args", ()), getattr(obj, "kwargs", {}))
    if kind in _TEXT and hasattr(obj, "_pa_array"):
        return text, (obj.dtype, obj._pa_array)
    if not hasattr(obj, "_ndarray"):
        return NotImplemented
    if kind in _TEXT:
        return text, (obj.dtype, obj._ndarray)
    if kind == "NumpyExtensionArray":
        return plain_array, (obj._ndarray,)
    if kind == "Categorical":
        return categories, (obj.dtype, obj._ndarray)
    if kind in ("DatetimeArray", "TimedeltaArray", "PeriodArray"):
        return times, (obj.dtype, obj._ndarray, getattr(obj, "_freq", None))
    return NotImplemented


_TEXT = ("StringArray", "StringArrayNumpySemantics", "ArrowStringArray", "ArrowStringArrayNumpySemantics")


# What a pickle calls:


def named(name: str) -> Any:
    """Return what pandas has under this name."""
    import pandas

    return getattr(pandas, name)


def string_type(storage: str, is_nan: bool) -> Any:
    """Return the type of text; before pandas 2.3, the one with nan for what is missing needs pyarrow."""
    import pandas

    try:
        return pandas.StringDtype(storage, float("nan") if is_nan else pandas.NA)
    except TypeError:
        return pandas.StringDtype("pyarrow_numpy" if is_nan and storage == "pyarrow" else storage)


def text(dtype: Any, values: Any) -> Any:
    """Make an array of text, of numpy's objects or of arrow's."""
    import pandas

    return pandas.array(values, dtype=dtype)


def plain_array(values: Any) -> Any:
    """Make the array that wraps one of numpy."""
    import pandas

    return pandas.arrays.NumpyExtensionArray(values)


def categories(dtype: Any, codes: Any) -> Any:
    """Make an array of categories."""
    import pandas

    return pandas.Categorical.from_codes(codes, dtype=dtype)


def times(dtype: Any, values: Any, freq: Any) -> Any:
    """Make an array of times, differences or periods, in one or two dimensions."""
    import pandas

    made = pandas.array([], dtype=dtype)._from_backing_data(values)
    if freq is not None and hasattr(made, "_freq"):  # pandas 3 keeps it in the index alone
        made._freq = freq
    return made


def index(kind: str, values: Any, name: Any, freq: Any) -> Any:
    """Make an index of times or differences."""
    import pandas

    made = getattr(pandas, kind)(values, name=name)
    if made.freq != freq:
        made.freq = freq
    return made


def named_aggregation(column: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a NamedAgg, which is a tuple up to pandas 2."""
    import pandas

    return pandas.NamedAgg(column, function, *args, **kwargs)
