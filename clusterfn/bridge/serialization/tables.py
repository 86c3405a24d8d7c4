"""Objects of pandas as the arguments of calls that make them in every version of pandas, from 1.3 on.

pandas pickles most of them by private parts that the next version has elsewhere or reads in another way. Arrays are
sent as those of numpy that they hold, so that large ones stay outside of the pickle. Where the text columns of the two
versions differ (`object` before pandas 3, `str` since), they arrive as the ones that pandas makes there.
"""

from __future__ import annotations

import datetime
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import stand_ins

numpy: Any = stand_ins.Library("numpy")
pandas: Any = stand_ins.Library("pandas")
internals: Any = stand_ins.Library("pandas._libs.internals")
pyarrow: Any = stand_ins.Library("pyarrow")


def reduce(obj: Any, _: object) -> Any:
    """Reduce an object whose class is of pandas; return NotImplemented if pandas' own way will do."""
    # pandas is being imported.
    if not hasattr(sys.modules.get("pandas"), "DataFrame"):
        return NotImplemented
    if obj is pandas.NaT:
        return stand_ins.by_name, ("pandas", "NaT")
    how = _HOW.get(type(obj).__name__)
    return NotImplemented if how is None else how(obj)


def _reduce_moments(array: Any) -> tuple[Any, ...]:
    kind, zone = ("M", array.tz) if type(array).__name__ == "DatetimeArray" else ("m", None)
    return moments, (array.asi8, kind, getattr(array, "unit", "ns"), _zone(zone), getattr(array, "freq", None))


def _zone(zone: Any) -> Any:
    """Return the name of a time zone, if this pandas makes the same of it: others make theirs."""
    if zone is None:
        return None
    name = str(zone)
    try:
        other = pandas.Timestamp(0, tz=name).tz
        # A fixed offset may have any name, even that of another one.
        return name if type(other) is type(zone) and (other == zone or type(zone) is not datetime.timezone) else zone
    except (LookupError, ValueError, TypeError, OSError):
        # The text is not the name of a time zone.
        return zone


def moment_in_zone(moment: Any, zone: Any) -> Any:
    """Make a moment in a time zone."""
    return pandas.Timestamp(moment).tz_localize("UTC").tz_convert(zone)


def dtype_of_moments(unit: str, zone: Any) -> Any:
    """Make the dtype of moments in a time zone; before pandas 2, all have nanoseconds."""
    try:
        return pandas.DatetimeTZDtype(unit, zone)
    except ValueError:
        return pandas.DatetimeTZDtype("ns", zone)


def moments(values: Any, kind: str, unit: str, zone: Any, freq: Any) -> Any:
    """Make an array of moments or time spans, of one or two axes."""
    if values.ndim == 2 and not values.flags.c_contiguous:
        return moments(values.T, kind, unit, zone, freq).T
    flat = values.reshape(-1).view(f"{kind}8[{unit}]")
    index: Any = (pandas.DatetimeIndex if kind == "M" else pandas.TimedeltaIndex)(flat, copy=False)
    if zone is not None:
        index = index.tz_localize("UTC").tz_convert(zone)
    array = index.array.reshape(values.shape)
    if hasattr(array, "freq"):
        array._freq = freq
    return array


def index_of_moments(array: Any, name: Any, freq: Any) -> Any:
    """Make an index of moments or time spans."""
    index = pandas.Index(array, name=name, copy=False)
    holder = index.array if hasattr(index.array, "freq") else index
    # The public setter would calculate all values again, to compare them.
    holder._freq = freq
    return index


def periods(ordinals: Any, freq: Any) -> Any:
    """Make an array of periods."""
    array = pandas.arrays.PeriodArray(ordinals.reshape(-1), dtype=pandas.PeriodDtype(freq))
    return array.reshape(ordinals.shape)


def categories(codes: Any, values: Any, ordered: bool) -> Any:
    """Make a categorical array."""
    return pandas.Categorical.from_codes(codes, values, ordered=ordered)


def intervals(left: Any, right: Any, closed: str) -> Any:
    """Make an array of intervals."""
    return pandas.arrays.IntervalArray.from_arrays(left, right, closed=closed)


def of_numpy(values: Any) -> Any:
    """Make the array of pandas that wraps one of numpy."""
    name = "NumpyExtensionArray" if hasattr(pandas.arrays, "NumpyExtensionArray") else "PandasArray"
    return getattr(pandas.arrays, name)(values)


def _reduce_arrow(array: Any) -> Any:
    """Reduce an array of Arrow; texts go as their parts, as the other side may have no Arrow."""
    held = array.__arrow_array__()
    if type(array.dtype).__name__ != "StringDtype":
        return of_arrow, (held, array.dtype)
    chunks = getattr(held, "chunks", [held])
    return texts_of_arrow, ([_parts_of_texts(chunk) for chunk in chunks], *_facts_of_text(array.dtype))


def of_arrow(held: Any, dtype: Any) -> Any:
    """Make an array of this dtype over one of Arrow."""
    return dtype.__from_arrow__(held)


def _parts_of_texts(chunk: Any) -> tuple[Any, Any, Any]:
    """Return where each text ends, all of them in one, and which exist, as arrays of numpy."""
    if chunk.type != pyarrow.large_string():
        chunk = chunk.cast(pyarrow.large_string())
    valid, ends, data = chunk.buffers()
    ends = numpy.frombuffer(ends, "i8")[chunk.offset : chunk.offset + len(chunk) + 1] if ends else numpy.zeros(1, "i8")
    begin, end = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
    used = numpy.frombuffer(data, "u1")[begin:end] if data else numpy.empty(0, "u1")
    if valid is not None:
        bits = numpy.unpackbits(numpy.frombuffer(valid, "u1"), bitorder="little")
        valid = numpy.packbits(bits[chunk.offset : chunk.offset + len(chunk)], bitorder="little")
    return (ends - begin if begin else ends), used, valid


def texts_of_arrow(chunks: Sequence[tuple[Any, Any, Any]], storage: str | None, missing: str, natural: str) -> Any:
    """Make an array of texts of the parts that Arrow has of them."""
    dtype = dtype_of_text(storage, missing, natural)
    if getattr(dtype, "storage", "") in ("pyarrow", "pyarrow_numpy"):
        kind = pyarrow.large_string()
        parts = []
        for ends, data, valid in chunks:
            buffers = [None if part is None else pyarrow.py_buffer(part) for part in (valid, ends, data)]
            parts.append(pyarrow.Array.from_buffers(kind, len(ends) - 1, buffers))
        return dtype.__from_arrow__(pyarrow.chunked_array(parts, type=kind))
    values: list[Any] = []
    for ends, data, valid in chunks:
        every = data.tobytes()
        places = ends.tolist()
        texts: list[Any] = [str(every[at:to], "utf-8") for at, to in zip(places, places[1:])]
        if valid is not None:
            exist = numpy.unpackbits(valid, bitorder="little")[: len(texts)].tolist()
            gap = pandas.NA if missing == "NA" else numpy.nan
            texts = [text if here else gap for text, here in zip(texts, exist)]
        values += texts
    return _of_texts(numpy.array([*values, None], object)[:-1], dtype)


def _reduce_texts(array: Any) -> tuple[Any, ...]:
    return texts, (array.to_numpy(dtype=object, na_value=array.dtype.na_value), *_facts_of_text(array.dtype))


def texts(values: Any, storage: str | None, missing: str, natural: str) -> Any:
    """Make an array of texts."""
    return _of_texts(values, dtype_of_text(storage, missing, natural))


def _of_texts(values: Any, dtype: Any) -> Any:
    is_object = getattr(dtype, "kind", "") == "O" and not hasattr(dtype, "storage")
    return values if is_object else pandas.array(values, dtype=dtype)


def _facts_of_text(dtype: Any) -> tuple[str | None, str, str]:
    natural, storage = _made_here()
    missing = "NA" if dtype.na_value is pandas.NA else "nan"
    return None if dtype.storage == storage else dtype.storage, missing, natural


@functools.cache
def _made_here() -> tuple[str, str]:
    """Return what this pandas makes of a list of texts, "object" or "str", and where it stores texts."""
    return str(pandas.Series(["text"]).dtype), pandas.StringDtype().storage


def dtype_of_text(storage: str | None, missing: str, natural: str) -> Any:
    """Make the dtype of texts, or the nearest one that this pandas has.

    Args:
        storage: Where the texts are stored; None: in the place that this pandas prefers.
        missing: What stands for a missing one, "nan" or "NA".
        natural: What the other pandas makes of a list of texts.
    """
    here, preferred = _made_here()
    if missing == "nan" and natural == "str" and here == "object":
        return numpy.dtype(object)
    for place in dict.fromkeys([storage or preferred, "python"]):
        try:
            return pandas.StringDtype(place, *([numpy.nan] if missing == "nan" else []))
        except TypeError:
            # pandas before 2.3 does not take the second argument.
            return pandas.StringDtype("pyarrow_numpy") if place == "pyarrow" else numpy.dtype(object)
        except ImportError:
            # This Python has no pyarrow.
            continue
    raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")


def _reduce_index(index: Any) -> Any:
    # A dtype without `isbuiltin` is not numpy's.
    if not hasattr(index.dtype, "isbuiltin"):
        return NotImplemented
    return index_of_array, (index.to_numpy(), index.name, _made_here()[0])


def index_of_array(values: Any, name: Any, natural: str) -> Any:
    """Make an index of objects or numbers; of texts, what this pandas makes of them."""
    if natural == "object" and _are_texts(values):
        return pandas.Index(texts(values, None, "nan", "str"), name=name)
    return pandas.Index(values, dtype=values.dtype, name=name, copy=False)


def sparse_dtype(subtype: Any, fill_value: Any) -> Any:
    """Make the dtype of a sparse array."""
    return pandas.SparseDtype(subtype, fill_value)


def _are_texts(values: Any) -> bool:
    """Return whether this pandas has a dtype of its own for these objects, in which none of them changes."""
    if values.dtype.kind != "O" or _made_here()[0] == "object":
        return False
    are_texts = pandas.api.types.infer_dtype(values, skipna=True) == "string"
    return are_texts and all(type(value) is float for value in values[pandas.isna(values)])


def _reduce_manager(held: Any) -> tuple[Any, ...]:
    blocks = [(block.values, block.mgr_locs.indexer) for block in held.blocks]
    return manager, (type(held), blocks, list(held.axes), _made_here()[0])


def manager(cls: Any, parts: Sequence[tuple[Any, Any]], axes: Sequence[Any], natural: str) -> Any:
    """Make what holds the arrays of a table, or of a column."""
    blocks = []
    for values, places in parts:
        rows, rest = _texts_apart(values, places, natural)
        blocks += [internals._unpickle_block(row, place, len(axes)) for row, place in rows]
        if rest is not None:
            values, places = rest
            # The values were not an array of numpy in the other pandas, so they lack a dimension that this one needs.
            if len(axes) > values.ndim and isinstance(values, numpy.ndarray):
                values = values.reshape(1, -1)
            blocks.append(internals._unpickle_block(values, places, len(axes)))
    return cls(blocks[0], axes[0]) if len(axes) == 1 else cls(tuple(blocks), list(axes))


def _texts_apart(values: Any, places: Any, natural: str) -> tuple[list[tuple[Any, Any]], tuple[Any, Any] | None]:
    """Return the rows of a block of objects that are texts here, each with its place, and the rest of the block."""
    if natural != "object" or not isinstance(values, numpy.ndarray) or values.dtype != object:
        return [], (values, places)
    if values.ndim == 1:
        return ([(texts(values, None, "nan", "str"), places)], None) if _are_texts(values) else ([], (values, places))
    taken = [number for number, row in enumerate(values) if _are_texts(row)]
    where = numpy.arange(places.start, places.stop, places.step) if isinstance(places, slice) else places
    rows = [(texts(values[number], None, "nan", "str"), where[number : number + 1]) for number in taken]
    others = [number for number in range(len(values)) if number not in set(taken)]
    return rows, (values[others], where[others]) if others else None


_HOW: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("DatetimeArray", "TimedeltaArray"), _reduce_moments),
    "Timestamp": lambda at: NotImplemented if at.tz is None else (moment_in_zone, (at.asm8, _zone(at.tz))),
    "DatetimeTZDtype": lambda dtype: (dtype_of_moments, (dtype.unit, _zone(dtype.tz))),
    "PeriodArray": lambda array: (periods, (array.asi8, array.dtype.freq)),
    "Categorical": lambda array: (categories, (array.codes, array.categories, array.ordered)),
    "IntervalArray": lambda array: (intervals, (array.left, array.right, array.closed)),
    **dict.fromkeys(("NumpyExtensionArray", "PandasArray"), lambda array: (of_numpy, (array.to_numpy(),))),
    **dict.fromkeys(("StringArray", "StringArrayNumpySemantics"), _reduce_texts),
    **dict.fromkeys(("ArrowStringArray", "ArrowStringArrayNumpySemantics", "ArrowExtensionArray"), _reduce_arrow),
    "StringDtype": lambda dtype: (dtype_of_text, _facts_of_text(dtype)),
    "SparseDtype": lambda dtype: (sparse_dtype, (dtype.subtype, dtype.fill_value)),
    **dict.fromkeys(("Index", "Int64Index", "UInt64Index", "Float64Index"), _reduce_index),
    **dict.fromkeys(
        ("DatetimeIndex", "TimedeltaIndex"), lambda index: (index_of_moments, (index.array, index.name, index.freq))
    ),
    **dict.fromkeys(("BlockManager", "SingleBlockManager"), _reduce_manager),
}
