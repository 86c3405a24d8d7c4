"""Values of numpy that its documentation shows first: the user guide's "basics" and the reference of each part."""

import numpy as np


def same(a, b):
    """Compare arrays and scalars by dtype and content."""
    if type(a).__name__.rstrip("_") != type(b).__name__.rstrip("_"):
        return False
    if getattr(a, "dtype", None) != getattr(b, "dtype", None):
        return False
    if isinstance(a, np.ndarray) and a.dtype.names is None:
        return a.shape == b.shape and np.array_equal(np.asarray(a).astype(object), np.asarray(b).astype(object))
    return bool(np.all(a == b))


def by(look):
    """Compare what `look` sees of both."""
    return lambda a, b: bool(np.all(look(a) == look(b)))


RECORDS = [("name", "U10"), ("age", "i4"), ("weight", "f4")]
ARRAYS = {
    "integers": lambda: np.arange(15).reshape(3, 5),
    "floats": lambda: np.linspace(0, 2, 9),
    "complex numbers": lambda: np.array([[1, 2], [3, 4]], dtype=complex),
    "booleans": lambda: np.array([True, False]),
    "halves": lambda: np.ones(3, "f2"),
    "long doubles": lambda: np.ones(3, np.longdouble),
    "big-endian": lambda: np.arange(3, dtype=">i4"),
    "no axes": lambda: np.array(3.0),
    "empty": lambda: np.empty((0, 3)),
    "texts": lambda: np.array(["abc", "é"]),
    "bytes": lambda: np.array([b"abc", b"d"]),
    "dates": lambda: np.arange("2005-02", "2005-03", dtype="datetime64[D]"),
    "spans": lambda: np.array([1, 2], "m8[h]"),
    "not a time": lambda: np.array(["NaT", "2020"], "M8[s]"),
    "objects": lambda: np.array([{1: 2}, None, "x"], object),
    "records": lambda: np.array([("Rex", 9, 81.0), ("Fido", 3, 27.0)], dtype=RECORDS),
    "aligned records": lambda: np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "nested records": lambda: np.zeros(2, [("a", [("x", "f4")]), ("b", "i4", (2, 2))]),
    "records with objects": lambda: np.array([(1, "x")], [("a", "i4"), ("o", object)]),
    "Fortran's order": lambda: np.asfortranarray(np.ones((2, 3))),
    "a slice": lambda: np.arange(10)[::-2],
    "a transposed array": lambda: np.arange(6).reshape(2, 3).T,
    "a broadcast": lambda: np.broadcast_to(np.arange(3), (2, 3)),
    "a large array": lambda: np.ones(300_000),
    "a matrix": lambda: np.matrix([[1, 2], [3, 4]]),
    "an integer": lambda: np.int64(3),
    "a float": lambda: np.float32(0.5),
    "a complex number": lambda: np.complex128(1j),
    "True": lambda: np.True_,
    "a text": lambda: np.str_("abc"),
    "a bytes": lambda: np.bytes_(b"abc"),
    "a date": lambda: np.datetime64("2005-02-25"),
    "a span": lambda: np.timedelta64(1, "D"),
    "a long double": lambda: np.longdouble(1) / 3,
    "a record": lambda: np.array([("Rex", 9, 81.0)], dtype=RECORDS)[0],
    "a void": lambda: np.void(b"abcd"),
    "a dtype": lambda: np.dtype("f4"),
    "a dtype of records": lambda: np.dtype(RECORDS),
    "a dtype of dates": lambda: np.dtype("M8[ns]"),
    "a dtype of objects": lambda: np.dtype(object),
    "a dtype of texts": lambda: np.dtype("U7"),
    "an aligned dtype": lambda: np.dtype([("a", "i1"), ("b", "f8")], align=True),
    "a dtype with an axis": lambda: np.dtype(("f4", (2, 3))),
    "a dtype with metadata": lambda: np.dtype("f4", metadata={"a": 1}),
    "characters": lambda: np.char.array(["ab", "c"]),
    "old characters": lambda: np.char.asarray([b"ab"]),
    "a memory map": lambda: _map(),
    "indices": lambda: np.nonzero(np.eye(2))[0],
}
OTHERS = {
    "masked": (lambda: np.ma.array([1, 2, 3], mask=[0, 1, 0]), by(lambda m: str(m))),
    "masked records": (lambda: np.ma.array([(1, 2.0)], mask=[(0, 1)], dtype="i4,f4"), by(str)),
    "the masked constant": (lambda: np.ma.masked, lambda a, b: b is np.ma.masked),
    "a record array": (lambda: np.rec.array([(1, 2.0)], names="a,b"), lambda a, b: b.a[0] == 1 and b.dtype == a.dtype),
    "a row of a record array": (lambda: np.rec.array([(1, 2.0)], names="a,b")[0], lambda a, b: b.a == 1),
    "a generator": (lambda: np.random.default_rng(3), lambda a, b: b.random() == np.random.default_rng(3).random()),
    "an old generator": (lambda: np.random.RandomState(3), lambda a, b: b.rand() == np.random.RandomState(3).rand()),
    "seeds": (lambda: np.random.SeedSequence(4), by(lambda s: s.generate_state(2))),
    "bits": (lambda: np.random.PCG64(3), lambda a, b: b.random_raw() == np.random.PCG64(3).random_raw()),
    "other bits": (lambda: np.random.Philox(3), lambda a, b: b.random_raw() == np.random.Philox(3).random_raw()),
    "a method of a generator": (lambda: np.random.default_rng(3).normal, lambda a, b: np.isfinite(b())),
    "a function of random numbers": (lambda: np.random.normal, lambda a, b: callable(b)),
    "a ufunc": (lambda: np.add, lambda a, b: b is np.add),
    "a ufunc's method": (lambda: np.add.reduce, lambda a, b: b([1, 2]) == 3),
    "a function": (lambda: np.linalg.norm, lambda a, b: b is np.linalg.norm),
    "a compiled function": (lambda: np.dot, lambda a, b: b is np.dot),
    "a private function": (lambda: np.nan_to_num, lambda a, b: b is np.nan_to_num),
    "a transform": (lambda: np.fft.fft, lambda a, b: b is np.fft.fft),
    "vectorize": (lambda: np.vectorize(abs), lambda a, b: b([-1]).tolist() == [1]),
    "poly1d": (lambda: np.poly1d([1, 2]), lambda a, b: b(2) == 4),
    "a polynomial": (lambda: np.polynomial.Polynomial([1, 2]), lambda a, b: a == b),
    "a Chebyshev series": (lambda: np.polynomial.Chebyshev([1, 2]), lambda a, b: a == b),
    "limits of floats": (lambda: np.finfo("f4"), by(lambda i: i.eps)),
    "limits of integers": (lambda: np.iinfo("i4"), by(lambda i: i.max)),
    "a class of scalars": (lambda: np.float64, lambda a, b: b is np.float64),
    "the class of booleans": (lambda: np.bool_, lambda a, b: b is np.bool_),
    "the class of arrays": (lambda: np.ndarray, lambda a, b: b is np.ndarray),
    "the class of dtypes": (lambda: type(np.dtype("f4")), lambda a, b: b is type(np.dtype("f4"))),
    "an index": (lambda: np.s_[1:2, ..., None], lambda a, b: a == b),
    "a constant": (lambda: (np.nan, np.inf, np.pi, np.newaxis), lambda a, b: a[1:] == b[1:] and a[0] != b[0]),
    "an error": (lambda: np.linalg.LinAlgError("Singular matrix"), by(str)),
    "an error of axes": (lambda: _axis_error(), lambda a, b: type(a) is type(b) and str(a) == str(b)),
    "the result of a decomposition": (lambda: np.linalg.svd(np.eye(2)), lambda a, b: all(map(np.array_equal, a, b))),
    "eigenvalues": (lambda: np.linalg.eigh(np.eye(2)), lambda a, b: all(map(np.array_equal, a, b))),
    "a saved file": (lambda: _saved(), lambda a, b: a == b),
    "the module": (lambda: np, lambda a, b: b is np),
    "print options": (np.get_printoptions, lambda a, b: a["precision"] == b["precision"]),
    "arrays in a dict": (
        lambda: {"x": np.ones(2), "y": [np.int8(1)]},
        lambda a, b: same(a["x"], b["x"]) and same(a["y"][0], b["y"][0]),
    ),
    "a subclass": (
        lambda: Unit([1.0, 2.0]),
        lambda a, b: type(b) is Unit and b.unit == a.unit and np.array_equal(a, b),
    ),
}


class Unit(np.ndarray):
    """The subclass of numpy's guide, with an attribute."""

    def __new__(cls, values, unit="m"):
        made = np.asarray(values).view(cls)
        made.unit = unit
        return made

    def __array_finalize__(self, obj):
        self.unit = getattr(obj, "unit", None)

    def __reduce__(self):
        make, args, state = super().__reduce__()
        return make, args, (*state, self.unit)

    def __setstate__(self, state):
        super().__setstate__(state[:-1])
        self.unit = state[-1]


def _map():
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        made = np.memmap(file, dtype="f4", mode="w+", shape=3)
    made[:] = 2
    return made


def _saved():
    import io

    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()


def _axis_error():
    try:
        np.sum(np.ones(2), axis=3)
    except ValueError as error:
        return error


def cases():
    """Yield a name, what makes a value, and what compares two of them."""
    for name, maker in ARRAYS.items():
        yield name, maker, same
    for name, (maker, compare) in OTHERS.items():
        yield name, maker, compare
