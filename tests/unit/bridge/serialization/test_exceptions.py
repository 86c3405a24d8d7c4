"""Exceptions as records and back: their own type and text, or the nearest of both."""

from __future__ import annotations

import pickle
import sys
import typing

import pytest

try:
    import pydantic
except ImportError:
    pydantic = None  # type: ignore[assignment]
from tests.sent import CannotRebuild, raised, records_of, sent


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


def error_of_its_own_kind():
    pydantic, core = pytest.importorskip("pydantic"), pytest.importorskip("pydantic_core")

    def check(value):
        raise core.PydanticCustomError("odd", "{n} is odd", {"n": value})

    try:
        pydantic.create_model("Model", n=(typing.Annotated[int, pydantic.AfterValidator(check)], ...))(n=3)
    except pydantic.ValidationError as error:
        return error


class PoolError(Exception):
    """As `urllib3.exceptions.MaxRetryError`, which leaves its pool out of its pickle."""

    def __init__(self, pool, message):
        super().__init__(f"{pool}: {message}")
        self.message = message

    def __reduce__(self):
        return type(self), (None, self.message)


class HasItsArguments(Exception):
    """Has a property that cannot be set."""

    args = property(lambda self: ("own",))

    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text


class Made(type):
    def __call__(cls, *args, ok=False):
        if not ok:
            raise RuntimeError("it is made by a factory")
        return super().__call__(*args)


class OnlyByAFactory(Exception, metaclass=Made):
    pass


MADE = [
    (error_of_its_own_kind, "a kind of errors that the user made"),
    (lambda: PoolError("host:80", "refused"), "a pickle that makes another text"),
    (lambda: ConnectionError(PoolError("host:80", "refused")), "such a one among its arguments"),
    (lambda: HasItsArguments("x"), "arguments that cannot be set"),
    (lambda: OnlyByAFactory("x", ok=True), "a metaclass that calls no constructor"),
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
    back = raised(error)

    assert type(back) is type(error)
    assert str(back) == str(error)


def test_in_a_value_an_exception_arrives_whose_constructor_does_not_take_its_arguments():
    error = WantsAKeyword("x", code=5)
    error.__notes__ = ["a note"]

    back = sent({"failed": [error]})["failed"][0]

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
    back = sent([error])[0]

    assert (type(back), str(back), back.args, vars(back)) == (type(error), str(error), error.args, vars(error))


def test_a_constructor_that_is_not_needed_is_not_called():
    raised(Prints("x"))

    assert Prints.calls == 1


class LosesItsKey(KeyError):
    """Pickles itself without its arguments, and shows its only one by `repr`."""

    def __reduce__(self):
        return LosesItsKey, ()


def test_a_text_that_an_exception_does_not_take_leaves_it_as_it_is():
    back = sent([LosesItsKey("x")])[0]

    assert type(back) is LosesItsKey and back.args == ()


class SlowToSay(Exception):
    """Ctrl-C comes while it describes itself."""

    def __str__(self):
        raise KeyboardInterrupt


def test_ctrl_c_while_an_exception_describes_itself_is_no_fault_of_it():
    with pytest.raises(KeyboardInterrupt):
        records_of(SlowToSay())


class Batch:
    def __init__(self):
        self.data = bytes(17 << 20)


class HoldsMuch(Exception):
    pass


def test_an_exception_does_not_bring_a_large_object_that_hangs_on_it():
    error = HoldsMuch("x")
    error.batch = Batch()  # type: ignore[attr-defined]

    assert len(pickle.dumps(records_of(error))) < 10_000


def test_no_name_is_suggested_that_only_this_machine_has():
    error = NameError("name 'x' is not defined")
    error.name = "x"  # type: ignore[attr-defined]
    error.__suppress_context__ = True
    back = raised(error)

    assert getattr(back, "name", None) is None and back.__suppress_context__


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
    back = raised(error, without_class)

    assert isinstance(back, nearest)
    assert str(back) == str(error)
    assert "which cannot be rebuilt here" in back.__notes__[-1]


def test_without_a_base_that_says_something_there_is_none():
    class Plain(Exception):
        pass

    with pytest.raises(CannotRebuild):
        raised(Plain("x"), without_class)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups are of Python 3.11")
def test_a_group_keeps_the_other_arguments_of_its_class():
    class Coded(ExceptionGroup):  # type: ignore[name-defined]  # noqa: F821
        def __new__(cls, text, members, code):
            return super().__new__(cls, text, members)

    back = raised(Coded("several", [ValueError(1)], 5))

    assert back.args[0] == "several" and back.args[2:] == (5,) and back.exceptions[0].args == (1,)


@pytest.mark.skipif(pydantic is None, reason="pydantic is not installed")
def test_a_model_in_an_exception_goes_as_its_statement_does():
    """Between two versions of a library, the parts of its classes cannot be read."""

    class Failed(Exception):
        pass

    class Model(pydantic.BaseModel):
        n: int = 1

    pickled = records_of(Failed(Model()))[0]["args"][0]

    assert b"Model" in pickled and b"__pydantic_core_schema__" not in pickled


class Shown:
    """An object that shows itself by its address."""


def test_arguments_that_show_themselves_by_their_addresses_stay():
    back = raised(OnlyByAFactory(Shown(), "x", ok=True))

    assert type(back.args[0]) is Shown and back.args[1] == "x"
