"""Values of pandas that its documentation shows first: "10 minutes", "Intro to data structures" and others."""

import datetime
import io

import numpy as np
import pandas as pd


def in_nanoseconds(value):
    """Return the value with its times in nanoseconds: pandas 2 and 3 choose other units."""
    if isinstance(value, pd.DataFrame):
        columns = {n: in_nanoseconds(value.iloc[:, n]) for n in range(value.shape[1])}
        made = pd.DataFrame(columns, index=in_nanoseconds(value.index))
        return made.set_axis(value.columns, axis=1)
    if isinstance(value, pd.Series):
        index = in_nanoseconds(value.index)
        values = in_nanoseconds(pd.Index(value)) if value.dtype.kind in "mM" else value.array
        return pd.Series(values, index=index, name=value.name)
    if isinstance(value, pd.MultiIndex):
        return value.set_levels([in_nanoseconds(level) for level in value.levels])
    return value.as_unit("ns") if hasattr(value, "as_unit") else value


COMPARISONS = (
    (pd.DataFrame, pd.testing.assert_frame_equal),
    (pd.Series, pd.testing.assert_series_equal),
    (pd.Index, pd.testing.assert_index_equal),
    (pd.api.extensions.ExtensionArray, pd.testing.assert_extension_array_equal),
)


def same(a, b):
    """Compare what pandas has, by its own comparison."""
    if type(a).__name__ != type(b).__name__:
        return False
    if isinstance(a, pd.DatetimeIndex) and a.freq != b.freq:
        return False
    for kind, compare in COMPARISONS:
        if isinstance(a, kind):
            compare(in_nanoseconds(a), in_nanoseconds(b))
            return True
    return bool(a == b)


def by(look):
    """Compare what `look` sees of both."""
    return lambda a, b: type(a).__name__ == type(b).__name__ and bool(np.all(look(a) == look(b)))


DATES = ["2013-01-01", "2013-01-02", "2013-01-03", "2013-01-04"]
CSV = "date,a,b\n2013-01-01,1,x\n2013-01-02,2,y\n"


def frame():
    return pd.DataFrame({"A": ["foo", "bar", "foo", "bar"], "B": ["one", "one", "two", "three"], "C": [1.0, 2, 3, 4]})


def times(**options):
    return pd.date_range("2013-01-01", periods=4, **options)


def dated():
    return pd.DataFrame(np.arange(8.0).reshape(4, 2), index=times(), columns=list("AB"))


def mixed():
    return pd.DataFrame(
        {
            "A": 1.0,
            "B": pd.Timestamp("20130102"),
            "C": pd.Series(1, index=range(4), dtype="float32"),
            "D": np.array([3] * 4, dtype="int32"),
            "E": pd.Categorical(["test", "train", "test", "train"]),
            "F": "foo",
        }
    )


def zoned():
    return pd.DataFrame({"a": times(tz="UTC"), "b": times(tz="UTC"), "c": times(tz="Europe/Berlin")})


FRAMES = {
    "a frame": lambda: pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}),
    "an empty frame": pd.DataFrame,
    "a frame of texts": frame,
    "a frame with a missing text": lambda: pd.DataFrame({"a": ["x", np.nan], "b": [1, 2]}),
    "a frame of many dtypes": mixed,
    "a frame with dates": dated,
    "a frame with time zones": zoned,
    "a frame with naive dates": lambda: pd.DataFrame({"a": times(), "b": times(), "n": 1}),
    "a frame in Fortran's order": lambda: pd.DataFrame(np.asfortranarray(np.ones((4, 3)))),
    "a frame with spans": lambda: pd.DataFrame({"d": pd.to_timedelta([1, 2], unit="h")}),
    "a frame of objects": lambda: pd.DataFrame({"a": [{1: 2}, None], "b": ["x", 1]}),
    "a frame of two texts columns and an object": lambda: pd.DataFrame(
        {"a": ["x", "y"], "o": [1, "z"], "b": ["u", "v"]}
    ),
    "a frame with equal names": lambda: pd.DataFrame([["x", 1]], columns=["a", "a"]),
    "a frame by groups": lambda: frame().groupby("A")[["C"]].sum(),
    "a frame by two groups": lambda: frame().groupby(["A", "B"]).sum(),
    "a stacked frame": lambda: frame().set_index(["A", "B"]).stack(),
    "a pivot table": lambda: pd.pivot_table(frame(), values="C", index="A", columns="B"),
    "a merged frame": lambda: pd.merge(frame(), pd.DataFrame({"A": ["foo"], "D": [1]}), on="A", how="left"),
    "a read frame": lambda: pd.read_csv(io.StringIO(CSV)),
    "a read frame with dates": lambda: pd.read_csv(io.StringIO(CSV), parse_dates=["date"], index_col="date"),
    "described": lambda: frame().describe(),
    "a frame of nullable dtypes": lambda: frame().convert_dtypes(),
    "a frame with attributes": lambda: _attributes(),
    "a sparse frame": lambda: pd.DataFrame({"a": pd.arrays.SparseArray([0, 0, 1])}),
    "dummies": lambda: pd.get_dummies(pd.Series(["a", "b"])),
    "a crosstab": lambda: pd.crosstab(frame().A, frame().B),
    "a transposed frame": lambda: frame().T,
    "a large frame": lambda: pd.DataFrame(np.ones((70_000, 2)), pd.date_range("2020", periods=70_000, freq="min")),
    "a sliced frame": lambda: frame().iloc[1:3, ::2],
    "a series": lambda: pd.Series([1, 3, 5, np.nan, 6, 8]),
    "a series of texts": lambda: pd.Series(["A", "B", "Aaba", np.nan, "cat"], name="s"),
    "a sliced series of texts": lambda: pd.Series(["é" * n for n in range(30)])[3:21],
    "a series of None and texts": lambda: pd.Series(["a", None], dtype=object),
    "a series of strings": lambda: pd.Series(["a", "b", None], dtype="string"),
    "a series with an index of texts": lambda: pd.Series({"b": 1, "a": 0, "c": 2}),
    "a categorical series": lambda: pd.Series(["a", "b", "a"], dtype="category"),
    "an ordered series": lambda: pd.Series(pd.Categorical(["low", "high"], ["low", "high"], ordered=True)),
    "a series of integers and NA": lambda: pd.Series([1, 2, None], dtype="Int64"),
    "a series of booleans and NA": lambda: pd.Series([True, None], dtype="boolean"),
    "a series of floats and NA": lambda: pd.Series([0.5, None], dtype="Float64"),
    "a cut series": lambda: pd.cut(pd.Series([1, 2, 3]), 2),
    "a series by quantiles": lambda: pd.qcut(range(5), 4),
    "a series of dates": lambda: pd.Series(times()),
    "a series of zoned dates": lambda: pd.Series(times(tz="US/Eastern")),
    "a series with NaT": lambda: pd.Series([pd.Timestamp("2020"), pd.NaT]),
    "a series of spans": lambda: pd.Series(pd.timedelta_range("1 day", periods=3)),
    "a series of periods": lambda: pd.Series(pd.period_range("2020", periods=3, freq="D")),
    "a series of python dates": lambda: pd.Series([datetime.date(2020, 1, 1)]),
    "a resampled series": lambda: pd.Series(range(4), times(freq="s")).resample("2s").sum(),
    "value counts": lambda: frame().A.value_counts(),
    "a datetime index": lambda: pd.DatetimeIndex(DATES),
    "a datetime index with a zone": lambda: times(tz="Europe/Berlin"),
    "a business index": lambda: times(freq="B"),
    "an index of hours": lambda: times(freq="h"),
    "a timedelta index": lambda: pd.timedelta_range("1 day", periods=3, freq="h"),
    "a period index": lambda: pd.period_range("1990Q1", "1992Q4", freq="Q-NOV"),
    "a monthly index": lambda: pd.period_range("2020", periods=3, freq="M"),
    "an interval index": lambda: pd.interval_range(0, 5),
    "a categorical index": lambda: pd.CategoricalIndex(["a", "b"]),
    "a range index": lambda: pd.RangeIndex(3, name="r"),
    "an index of texts": lambda: pd.Index(["a", "b"], name="t"),
    "an index of objects": lambda: pd.Index(["a", 1]),
    "an index of integers": lambda: pd.Index([1, 5]),
    "an index of integers and NA": lambda: pd.Index([1, None], dtype="Int64"),
    "a multi-index": lambda: pd.MultiIndex.from_product([[1, 2], ["a", "b"]], names=["n", "t"]),
    "a multi-index of dates": lambda: pd.MultiIndex.from_product([times(), ["a"]]),
    "an array of integers": lambda: pd.array([1, 2, None], dtype="Int64"),
    "an array of strings": lambda: pd.array(["a", None], dtype="string"),
    "an array of dates": lambda: pd.array(times()),
    "an array of numpy": lambda: pd.Series([1, 2]).array,
    "a categorical": lambda: pd.Categorical([1, 2, 1]),
    "intervals": lambda: pd.arrays.IntervalArray.from_breaks([0, 1, 2]),
    "periods": lambda: pd.array(pd.period_range("2020", periods=2, freq="D")),
    "a sparse array": lambda: pd.arrays.SparseArray([0, 0, 1]),
}
SCALARS = {
    "a timestamp": lambda: pd.Timestamp("2012-05-01"),
    "a timestamp with a zone": lambda: pd.Timestamp("2012-05-01", tz="Europe/Berlin"),
    "a span": lambda: pd.Timedelta("1 day 2 hours"),
    "a period": lambda: pd.Period("2012-05", freq="M"),
    "an interval": lambda: pd.Interval(0, 5, closed="left"),
    "an interval of dates": lambda: pd.Interval(pd.Timestamp("2020"), pd.Timestamp("2021")),
    "a month's end": lambda: pd.offsets.MonthEnd(2),
    "a business day": lambda: pd.offsets.BDay(3),
    "a day": lambda: pd.offsets.Day(2),
    "an hour": lambda: pd.offsets.Hour(2),
    "a quarter": lambda: pd.offsets.QuarterEnd(startingMonth=11),
    "a date offset": lambda: pd.DateOffset(months=2, days=1),
    "a custom day": lambda: pd.offsets.CustomBusinessDay(weekmask="Mon Tue", holidays=["2020-01-06"]),
    "the dtype of categories": lambda: pd.CategoricalDtype(["a", "b"], ordered=True),
    "the dtype of zoned dates": lambda: pd.DatetimeTZDtype("ns", "UTC"),
    "the dtype of periods": lambda: pd.PeriodDtype("M"),
    "the dtype of intervals": lambda: pd.IntervalDtype("int64"),
    "the dtype of integers": lambda: pd.Int64Dtype(),
    "the dtype of strings": lambda: pd.StringDtype(),
    "the dtype of sparse arrays": lambda: pd.SparseDtype("float64", 0.0),
    "the dtype of booleans": lambda: pd.BooleanDtype(),
}
OTHERS = {
    "NaT": (lambda: pd.NaT, lambda a, b: b is pd.NaT),
    "NA": (lambda: pd.NA, lambda a, b: b is pd.NA),
    "texts": (lambda: frame().A.str, lambda a, b: same(a.upper(), b.upper())),
    "a slice": (lambda: pd.IndexSlice[:, "a"], by(lambda s: s)),
    "a function of pandas": (lambda: pd.read_csv, lambda a, b: b is pd.read_csv),
    "a class of pandas": (lambda: pd.DataFrame, lambda a, b: b is pd.DataFrame),
    "a method": (lambda: frame().head, lambda a, b: same(a(2), b(2))),
    "a row": (lambda: next(frame().itertuples()), by(tuple)),
    "an error of pandas": (lambda: pd.errors.EmptyDataError("no"), by(str)),
    "records": (lambda: frame().to_dict("records"), lambda a, b: a == b),
    "frames in a dict": (lambda: {"a": frame()}, lambda a, b: same(a["a"], b["a"])),
}


def _attributes():
    made = pd.DataFrame({"a": [1]})
    made.attrs["unit"] = "m"
    return made


def cases():
    """Yield a name, what makes a value, and what compares two of them."""
    for name, maker in {**FRAMES, **SCALARS}.items():
        yield name, maker, same
    for name, (maker, compare) in OTHERS.items():
        yield name, maker, compare
