"""Exceptions as records and back: their own type and text, or the nearest of both."""

from __future__ import annotations

import pickle

import pytest

from clusterfn.hosts import serialization

exceptions = serialization.part("exceptions")


class ReadError(ValueError, OSError):
    """Only the second of its bases can make it."""


class LosesItsText(Exception):
    """Pickles itself, without what its text needs."""

    def __init__(self, what):
        super().__init__("given")
        self.what = what

    def __str__(self):
        return f"{self.what}!"

    def __reduce__(self):
        return _bare, ()


def _bare():
    return LosesItsText.__new__(LosesItsText)


class Prints(Exception):
    """Has a constructor that must not be called again, and a default pickle that calls it."""

    calls = 0

    def __init__(self, text):
        type(self).calls += 1
        super().__init__(text)


class NeedsItsConstructor(Exception):
    """Keeps its text where only its constructor puts it."""

    texts: dict[int, str] = {}

    def __init__(self, number):
        super().__init__(number)
        self.texts[self] = f"number {number}"

    def __str__(self):
        return self.texts[self]


def there_and_back(error, change=None):
    records = exceptions.to_records(error)
    if change is not None:
        change(records[0])
    return exceptions.from_records(records)


def pydantic_error():
    pydantic = pytest.importorskip("pydantic")
    try:
        pydantic.TypeAdapter(int).validate_python("x")
    except pydantic.ValidationError as error:
        return error


class Unset:
    """Of libraries that compare by identity with the only one that they make."""


UNSET = Unset()


class NeedsItsSentinel(Exception):
    """As `jsonschema.ValidationError`."""

    def __init__(self, text):
        super().__init__(text)
        self.instance = UNSET

    def __str__(self):
        return self.args[0] if self.instance is UNSET else f"{self.args[0]}: {self.instance!r}"


class PickledAsItsBase(ValueError):
    """As the errors of botocore."""

    def __reduce__(self):
        return ValueError, self.args


class WantsAKeyword(ValueError):
    """As `pydantic.PydanticUserError`."""

    def __init__(self, text, *, code):
        self.text, self.code = text, code

    def __str__(self):
        return f"{self.text} {self.code}"


MADE = [
    (lambda: NeedsItsSentinel("x"), "a sentinel"),
    (lambda: PickledAsItsBase(3), "a pickle of another type"),
    (lambda: WantsAKeyword("x", code=5), "a keyword"),
    (lambda: ReadError(2, "gone"), "two built-in bases"),
    (lambda: LosesItsText("why"), "a pickle that loses the text"),
    (lambda: NeedsItsConstructor(3), "a text that only the constructor makes"),
    (pydantic_error, "a class in C that pickles itself"),
    (lambda: pickle.UnpicklingError("x", 1), "the standard library"),
    (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), "a built-in type"),
]


@pytest.mark.parametrize("make", [make for make, _ in MADE], ids=[name for _, name in MADE])
def test_it_arrives_with_its_own_type_and_text(make):
    error = make()
    back = there_and_back(error)

    assert type(back) is type(error)
    assert str(back) == str(error)


def test_in_a_value_an_exception_arrives_whose_constructor_does_not_take_its_arguments():
    error = WantsAKeyword("x", code=5)
    error.__notes__ = ["a note"]
    pickler = serialization.part("pickler")

    back = pickler.loads(pickler.dumps({"failed": [error]}))["failed"][0]

    assert (type(back), str(back), back.args, back.__notes__) == (WantsAKeyword, "x 5", ("x",), ["a note"])


class MakesItsText(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


class OfAFile(OSError):
    def __init__(self, number, file):
        super().__init__(number, "gone", file)


@pytest.mark.parametrize("error", [MakesItsText(5), OfAFile(2, "/x")])
def test_in_a_value_no_constructor_makes_another_text_of_the_arguments(error):
    pickler = serialization.part("pickler")
    back = pickler.loads(pickler.dumps([error]))[0]

    assert (type(back), str(back), back.args, vars(back)) == (type(error), str(error), error.args, vars(error))


def test_a_constructor_that_is_not_needed_is_not_called():
    there_and_back(Prints("x"))

    assert Prints.calls == 1


def without_class(record):
    record["class"] = pickle.dumps(5)
    record["pickled"] = record["pickled_plainly"] = None


def numpy_error():
    numpy = pytest.importorskip("numpy")
    try:
        numpy.add(numpy.array("a"), 1.0)
    except TypeError as error:
        return error


@pytest.mark.parametrize(
    ("make", "nearest"),
    [
        (lambda: ReadError(2, "gone"), ValueError),
        (lambda: ModuleNotFoundError("no x", name="x"), ImportError),
        (numpy_error, TypeError),
    ],
)
def test_where_its_class_is_missing_the_nearest_base_takes_its_place(make, nearest):
    error = make()
    back = there_and_back(error, without_class)

    assert isinstance(back, nearest)
    assert str(back) == str(error)
    assert "which cannot be rebuilt here" in back.__notes__[-1]


def test_without_a_base_that_says_something_there_is_none():
    class Plain(Exception):
        pass

    with pytest.raises(exceptions.CannotRebuild):
        there_and_back(Plain("x"), without_class)
