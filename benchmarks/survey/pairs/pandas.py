"""Between pandas 2 and 3, with numpy 1.26 and 2: what its documentation shows first."""

import numpy as np
import pandas as pd

FRAME = pd.DataFrame(
    {
        "A": 1.0, "B": pd.Timestamp("2013-01-02"), "C": pd.Series(1, index=list(range(4)), dtype="float32"),
        "D": np.array([3] * 4, dtype="int32"), "E": pd.Categorical(["test", "train", "test", "train"]), "F": "foo",
    }
)  # fmt: skip
KEEP = ["dtype", "columns"]


def grouped():
    return FRAME.groupby("E", observed=True)["D"].sum()


def described():
    return pd.DataFrame({"a": [1, 2], "b": [3.0, None]}).describe()


def merged():
    left = pd.DataFrame({"key": ["a", "b"], "x": [1, 2]})
    return left.merge(pd.DataFrame({"key": ["b", "c"], "y": [3, 4]}), how="outer")


def resampled():
    index = pd.date_range("2012-01-01", periods=100, freq="s")
    return pd.Series(range(100), index=index).resample("1min").sum()


def pivoted():
    return pd.DataFrame({"a": ["x", "y"], "b": ["u", "v"], "c": [1, 2]}).pivot_table("c", "a", "b")


def failing():
    try:
        FRAME["missing"]
    except KeyError as error:
        return error


def alike(value):
    """Compare the content: a version may choose another dtype for text, and another unit of time."""

    def check(back):
        one, other = (pd.DataFrame(each) if not isinstance(each, pd.DataFrame) else each for each in (value, back))
        pd.testing.assert_frame_equal(one, other, check_dtype=False, check_index_type=False, check_column_type=False,
                                      check_freq=False, check_categorical=False)  # fmt: skip
        return type(back) is type(value)

    return check


def cases():
    days = pd.date_range("2013-01-01", periods=6)
    frames = {
        "the first frame of the tour": FRAME,
        "numbers by days": pd.DataFrame(np.arange(24.0).reshape(6, 4), index=days, columns=list("ABCD")),
        "text": pd.DataFrame({"name": ["a", "b", None], "n": [1, 2, 3]}),
        "text of dtype string": pd.DataFrame({"name": pd.array(["a", None], dtype="string")}),
        "text of dtype object": pd.DataFrame({"name": pd.array(["a", "b"], dtype=object)}),
        "nullable numbers": pd.DataFrame({"n": pd.array([1, None], dtype="Int64"), "x": pd.array([1.5, None], dtype="Float64")}),
        "nullable booleans": pd.DataFrame({"b": pd.array([True, None], dtype="boolean")}),
        "times with a zone": pd.DataFrame({"t": pd.date_range("2024", periods=3, tz="Europe/Berlin")}),
        "times in seconds": pd.DataFrame({"t": pd.date_range("2024", periods=3).astype("datetime64[s]")}),
        "differences of times": pd.DataFrame({"d": pd.to_timedelta(["1 days", "2 days"])}),
        "periods": pd.DataFrame({"p": pd.period_range("2024-01", periods=3, freq="M")}),
        "intervals": pd.DataFrame({"i": pd.cut([1, 2, 3], 3)}),
        "categories in order": pd.DataFrame({"c": pd.Categorical(["a", "b"], ["b", "a"], ordered=True)}),
        "several levels": pd.DataFrame({"x": [1, 2]}, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["l", "n"])),
        "columns in levels": pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_product([["a"], ["x", "y"]])),
        "sparse": pd.DataFrame({"s": pd.arrays.SparseArray([0, 0, 1])}),
        "arrow": pd.DataFrame({"n": pd.array([1, None], dtype="int64[pyarrow]")}),
        "lists as objects": pd.DataFrame({"l": [[1, 2], [3]]}),
        "empty": pd.DataFrame(),
        "a copy of columns": FRAME[["A", "D"]],
        "rows": FRAME.loc[1:2],
        "with attributes": _with_attributes(),
        "a million numbers": pd.DataFrame({"x": np.arange(1_000_000.0), "n": np.arange(1_000_000)}),
        "a hundred thousand texts": pd.DataFrame({"x": [f"row {n % 100}" for n in range(100_000)]}),
    }  # fmt: skip
    for name, frame in frames.items():
        yield f"frame: {name}", frame, alike(frame)
        if len(frame.columns) and not isinstance(frame.columns, pd.MultiIndex):
            series = frame.iloc[:, 0]
            yield f"series: {name}", series, alike(series)
            yield f"array: {name}", series.array, lambda back, one=series: list(back.isna()) == list(one.isna())
    indexes = {
        "range": pd.RangeIndex(3), "numbers": pd.Index([1, 5]), "decimals": pd.Index([1.5, 2]), "text": pd.Index(["a", "b"]),
        "objects": pd.Index([1, "a"], dtype=object), "times": days, "zone": days.tz_localize("UTC"),
        "differences": pd.to_timedelta(["1 days"]), "periods": pd.period_range("2024", periods=2, freq="Y"),
        "categories": pd.CategoricalIndex(["a", "b"]), "intervals": pd.interval_range(0, 3),
        "levels": pd.MultiIndex.from_product([[1, 2], ["a"]]), "booleans": pd.Index([True, False]),
    }  # fmt: skip
    for name, index in indexes.items():
        yield f"index: {name}", index, lambda back, one=index: list(back) == list(one) and type(back) is type(one)
    scalars = {
        "Timestamp": pd.Timestamp("2024-01-01 12:00"), "with a zone": pd.Timestamp("2024-01-01", tz="Europe/Berlin"),
        "Timedelta": pd.Timedelta("1 days 2 hours"), "Period": pd.Period("2024-01", "M"), "Interval": pd.Interval(0, 1),
        "NaT": pd.NaT, "NA": pd.NA, "DateOffset": pd.DateOffset(months=1), "Day": pd.offsets.Day(2),
        "MonthEnd": pd.offsets.MonthEnd(), "BusinessDay": pd.offsets.BDay(3), "Week": pd.offsets.Week(weekday=1),
        "CategoricalDtype": pd.CategoricalDtype(["a", "b"]), "StringDtype": pd.StringDtype("python"),
        "Int64Dtype": pd.Int64Dtype(), "DatetimeTZDtype": pd.DatetimeTZDtype(tz="UTC"), "PeriodDtype": pd.PeriodDtype("M"),
        "IntervalDtype": pd.IntervalDtype("int64"), "BooleanDtype": pd.BooleanDtype(), "IndexSlice": pd.IndexSlice[1:2],
    }  # fmt: skip
    for name, value in scalars.items():
        yield f"value: {name}", value, lambda back, one=value: str(back) == str(one) and type(back) is type(one)
    for name in ("DataFrame", "Series", "Index", "MultiIndex", "Timestamp", "Timedelta", "Categorical", "Grouper",
                 "DatetimeIndex", "ExcelWriter", "NamedAgg", "CategoricalDtype"):  # fmt: skip
        yield f"class {name}", getattr(pd, name), None
    for name in ("concat", "merge", "read_csv", "to_datetime", "date_range", "isna", "get_dummies", "cut"):
        yield f"function {name}", getattr(pd, name), None
    yield "Grouper", pd.Grouper(freq="D"), lambda back: str(back.freq) == str(pd.Grouper(freq="D").freq)
    yield "NamedAgg", pd.NamedAgg("a", "sum"), lambda back: back.aggfunc == "sum"
    yield "groupby", FRAME.groupby("D"), lambda back: len(back) == 1
    yield "rolling", FRAME["A"].rolling(2), lambda back: back.sum().iloc[1] == 2
    yield "styler", FRAME.style if _has_jinja() else 1, None
    yield "groups of a job", grouped, lambda back: back.tolist() == [6, 6]
    yield "describe in a job", described, lambda back: back.loc["mean", "a"] == 1.5
    yield "merge in a job", merged, lambda back: len(back) == 3
    yield "resample in a job", resampled, lambda back: len(back) == 2
    yield "pivot in a job", pivoted, lambda back: back.shape == (2, 2)
    yield "an exception as a value", failing, lambda back: isinstance(back, KeyError)
    yield "in a dict", {"a": FRAME, "b": [days]}, lambda back: len(back["a"]) == 4
    yield "pd.errors.EmptyDataError", pd.errors.EmptyDataError("none"), lambda back: str(back) == "none"


def _with_attributes():
    frame = pd.DataFrame({"a": [1]})
    frame.attrs["source"] = "here"
    return frame


def _has_jinja():
    try:
        return bool(FRAME.style)
    except (ImportError, AttributeError):
        return False
