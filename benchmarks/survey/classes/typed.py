"""What typing makes: NamedTuple, TypedDict, Protocol, Generic, NewType, and functools' dispatch."""

import abc
import collections
import functools
import typing

T = typing.TypeVar("T")
Id = typing.NewType("Id", int)
Pair = collections.namedtuple("Pair", "left right", defaults=[2])


class Row(typing.NamedTuple):
    name: str
    size: int = 3

    def label(self):
        return f"{self.name}:{self.size}"


class Settings(typing.TypedDict, total=False):
    rate: float
    inner: "Settings"


@typing.runtime_checkable
class Closes(typing.Protocol):
    def close(self) -> None: ...


class Shape(abc.ABC):
    @property
    @abc.abstractmethod
    def area(self): ...


class Square(Shape):
    area = 4

    def close(self):
        return None


class Box(typing.Generic[T]):
    def __init__(self, item: T):
        self.item = item

    def __eq__(self, other):
        return type(other) is Box and other.item == self.item


class IntBox(Box[int]):
    pass


@functools.singledispatch
def shown(value):
    return repr(value)


@shown.register
def _(value: Row):
    return value.label()


def uses(row=Row("a")):
    return row.label(), shown(row), shown(1), isinstance(Square(), Closes), Square().area, Pair(1), Settings(rate=1.0), Id(3)


def refuses():
    try:
        Shape()
    except TypeError:
        return True


def parameters():
    return IntBox.__orig_bases__[0].__args__, Box[int](1).__orig_class__.__args__


def cases():
    for value in (Row("a", 1), Pair(1), Box([1]), Box[int](2)):
        yield f"an instance like {value!r}"[:40], value, lambda got, value=value: got == value and type(got) is type(value)
    for cls in (Row, Pair, Settings, Closes, Shape, Square, Box, IntBox):
        yield f"the class {cls.__name__}", cls, lambda got, cls=cls: got is cls
    yield "default and global", uses, lambda got: got == uses()
    yield "an abstract class refuses", refuses, bool
    yield "parameters of a generic class", parameters, lambda got: got == ((int,), (int,))
    yield "an annotation", typing.Dict[str, typing.List[Box[int]]], lambda got: got == typing.Dict[str, typing.List[Box[int]]]
