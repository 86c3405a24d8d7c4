"""Models of pydantic, attrs and msgspec."""

import typing

import attrs
import msgspec
import pydantic

NEEDS = ("attrs", "msgspec", "pydantic")
T = typing.TypeVar("T")


class Point(pydantic.BaseModel):
    x: float = pydantic.Field(1.0, gt=0)
    tags: typing.List[str] = []

    @pydantic.field_validator("tags")
    @classmethod
    def short(cls, value):
        return value[:LIMIT]


class Page(pydantic.BaseModel, typing.Generic[T]):
    items: typing.List[T]


class Child(Point):
    inner: typing.Optional[Point] = None


@attrs.define
class Size:
    n: int = attrs.field(default=1, validator=attrs.validators.instance_of(int))


@attrs.frozen(slots=False)
class Frozen:
    n: int = attrs.field(factory=int, converter=int)


class Message(msgspec.Struct, frozen=True):
    name: str
    sizes: typing.List[int] = []


LIMIT = 2


def uses(point=Child(inner=Point(x=2))):
    return point.inner.x, Point(tags=["a", "b", "c"]).tags, Page[int](items=["1"]).items, Size(2), Frozen("3").n


def fails():
    Point(x=-1)


def refused():
    try:
        Point(x=-1)
    except pydantic.ValidationError as error:
        return error.errors()[0]["loc"]


def cases():
    for value in (Point(x=2), Page[int](items=[1]), Child(inner=Point()), Size(3), Frozen(1), Message("a", [1])):
        yield f"an instance of {type(value).__name__}", value, lambda got, value=value: got == value and type(got) is type(value)
        yield f"the class {type(value).__name__}", type(value), lambda got, value=value: got is type(value)
    yield "default and global", uses, lambda got: got == uses()
    yield "a validator", refused, lambda got: got == ("x",)
    yield "msgspec there and back", lambda: msgspec.json.decode(b'{"name": "b"}', type=Message), lambda got: got == Message("b")
