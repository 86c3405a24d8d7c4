"""Between numpy 1.26 and 2: what its documentation shows first."""

from collections import namedtuple

import numpy as np
from numpy.random import normal

Point = namedtuple("Point", "x y")


class Tagged(np.ndarray):
    def __new__(cls, data, tag=None):
        made = np.asarray(data).view(cls)
        made.tag = tag
        return made

    def __array_finalize__(self, other):
        self.tag = getattr(other, "tag", None)

    def __reduce__(self):
        return Tagged, (np.asarray(self), self.tag)


def drawn():
    return normal(size=3).shape


def typed():
    return [np.float64, np.bool_, np.int32, np.str_, np.ndarray, np.generic]


def computed():
    a = np.arange(6).reshape(2, 3)
    return {"sum": a.sum(), "mean": a.mean(axis=0), "max": a.max(), "any": np.any(a > 3), "t": a.T}


def linear():
    return np.linalg.svd(np.eye(3)), np.linalg.eigh(np.eye(2)), np.linalg.qr(np.eye(2))


def failing():
    try:
        np.linalg.inv(np.zeros((2, 2)))
    except np.linalg.LinAlgError as error:
        return error


def cases():
    a = np.arange(12.0).reshape(3, 4)
    simple = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "S3", "U3", ">i4", "g", "G"]
    for kind in simple:
        yield f"array of {kind}", np.ones(3, kind), None
        yield f"scalar of {kind}", np.ones(3, kind)[1], None
        yield f"dtype {kind}", np.dtype(kind), None
    for unit in ("Y", "D", "s", "ns"):
        yield f"datetime64[{unit}]", np.array(["2024-01-01", "NaT"], f"M8[{unit}]"), None
        yield f"scalar of datetime64[{unit}]", np.datetime64("2024-01-01", unit), None
        yield f"timedelta64[{unit}]", np.array([1, 2], f"m8[{unit}]"), None
    yield "two dimensions", a, None
    yield "Fortran order", np.asfortranarray(a), lambda back: back.flags.f_contiguous and (back == a).all()
    yield "a view with steps", a[::2, 1:], None
    yield "a transposed view", a.T, None
    yield "no dimension", np.array(3.5), None
    yield "empty", np.array([]), None
    yield "read-only", _frozen(a), None
    yield "objects", np.array([1, "a", None, {"b": 2}], object), None
    yield "objects in two dimensions", np.array([[1, "a"], [None, 2.5]], object), None
    yield "a structure", np.array([(1, 2.5, "a")], [("x", "i4"), ("y", "f8"), ("z", "U5")]), None
    yield "an aligned structure", np.zeros(2, np.dtype([("x", "i1"), ("y", "f8")], align=True)), None
    yield "one record of a structure", np.array([(1, 2.5)], [("x", "i4"), ("y", "f8")])[0], None
    yield "a dtype of a structure", np.dtype([("x", "i4"), ("y", "f8", (2,))]), None
    yield "recarray", np.rec.array([(1, 2.0)], dtype=[("x", "i4"), ("y", "f8")]), None
    yield "masked array", np.ma.array([1, 2, 3], mask=[0, 1, 0]), lambda back: (back.mask == [0, 1, 0]).all()
    yield "masked constant", np.ma.masked, None
    yield "matrix", np.matrix([[1, 2], [3, 4]]), None
    yield "chararray", np.char.array(["a", "b"]), None
    yield "a subclass of ndarray", Tagged([1, 2], "t"), lambda back: back.tag == "t" and back.tolist() == [1, 2]
    yield "poly1d", np.poly1d([1, 2, 3]), None
    yield "Polynomial", np.polynomial.Polynomial([1, 2, 3]), None
    yield "Chebyshev", np.polynomial.Chebyshev([1, 2]), None
    yield "finfo", np.finfo(np.float32), lambda back: back.eps == np.finfo("f4").eps
    yield "iinfo", np.iinfo(np.int16), lambda back: back.max == 32767
    yield "vectorize", np.vectorize(abs), lambda back: back([-1]).tolist() == [1]
    yield "ix_", np.ix_([0, 1], [2]), None
    yield "s_", np.s_[1:3, ::2], None
    yield "nan and inf", [np.nan, np.inf, -np.inf, np.pi], None
    yield "newaxis", np.newaxis, None
    yield "default_rng", np.random.default_rng(1), lambda back: back.random() == np.random.default_rng(1).random()
    yield "RandomState", np.random.RandomState(1), lambda back: back.rand() == np.random.RandomState(1).rand()
    yield "SeedSequence", np.random.SeedSequence(1), lambda back: back.entropy == 1
    for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"):
        yield name, getattr(np.random, name)(1), lambda back: np.random.Generator(back).random() >= 0
        yield f"Generator({name})", np.random.Generator(getattr(np.random, name)(1)), lambda back: back.random() >= 0
    for name in ("add", "sin", "maximum", "logical_and", "matmul"):
        yield f"ufunc {name}", getattr(np, name), None
    for name in ("mean", "dot", "concatenate", "where", "linspace", "save", "histogram", "einsum"):
        yield f"function {name}", getattr(np, name), None
    for name in ("float64", "float32", "int64", "int32", "bool_", "str_", "bytes_", "complex128", "object_", "void",
                 "datetime64", "timedelta64", "generic", "number", "floating", "integer", "ndarray", "dtype", "matrix",
                 "memmap", "ufunc", "errstate", "nditer", "ndenumerate", "recarray", "record"):  # fmt: skip
        yield f"class {name}", getattr(np, name), None
    for name in ("norm", "inv", "LinAlgError"):
        yield f"linalg.{name}", getattr(np.linalg, name), None
    for name in ("normal", "rand", "choice", "shuffle", "Generator", "RandomState", "default_rng"):
        yield f"random.{name}", getattr(np.random, name), None
    yield "fft.fft", np.fft.fft, None
    yield "testing.assert_allclose", np.testing.assert_allclose, None
    yield "in a tuple of the script", Point(np.float64(1), np.arange(2)), lambda back: back.y.tolist() == [0, 1]
    yield "in a dict", {"a": a, np.int64(1): [np.float32(2)]}, None
    yield "a name of numpy.random in a function", drawn, lambda back: back == (3,)
    yield "classes from a job", typed, lambda back: back[1] is np.bool_ and back[0] is np.float64
    yield "results of a job", computed, lambda back: back["t"].shape == (3, 2) and bool(back["any"])
    yield "results of linalg", linear, lambda back: back[0][1].tolist() == [1, 1, 1]
    yield "an exception as a value", failing, lambda back: isinstance(back, np.linalg.LinAlgError)
    yield "ten megabytes", np.arange(1_300_000.0), None


def _frozen(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy
