"""Between attrs 23 and the newest: the classes that its documentation shows first."""

import functools
from typing import List, Optional

import attr
import attrs
from attrs import asdict, define, evolve, field, frozen, make_class, validators


@define
class SomeClass:
    a_number: int = 42
    list_of_numbers: List[int] = attrs.Factory(list)

    def hard_math(self, another_number):
        return self.a_number + sum(self.list_of_numbers) * another_number


@frozen
class Coordinates:
    x: int
    y: int = 0


@define(slots=False)
class Open:
    x: int = field(default=1, validator=validators.instance_of(int), converter=int)
    y: Optional[str] = field(default=None, repr=False, eq=False, metadata={"unit": "m"})

    @x.validator
    def positive(self, attribute, value):
        if value < 0:
            raise ValueError("negative")


@define(kw_only=True, order=True)
class Named:
    a: int
    b: int = 2


@define
class Child(SomeClass):
    more: str = "m"


@define
class Later:
    n: int
    doubled: int = field(init=False)

    def __attrs_post_init__(self):
        self.doubled = 2 * self.n

    @functools.cached_property
    def slow(self):
        return self.n + 1


@attr.s
class Old:
    x = attr.ib(default=1)
    y = attr.ib(factory=list)


@attr.s(auto_attribs=True, slots=True, frozen=True, hash=True)
class OldSlots:
    x: int = 1


@attr.dataclass
class OldData:
    x: int = 1


@define
class Node:
    value: int
    next: Optional["Node"] = None


@define
class Private:
    _x: int = 1
    name: str = field(alias="title", default="t") if attrs.__version__ > "22.2" else "t"


@define(eq=False)
class Identity:
    x: int = 1


@frozen(cache_hash=True)
class Hashed:
    x: int = 1


@define
class Fails(Exception):
    code: int


@attrs.define(on_setattr=attrs.setters.frozen)
class Fixed:
    x: int = 1


def used():
    one = SomeClass(1, [1, 2, 3])
    return one.hard_math(3), asdict(one), repr(one)


def evolved():
    return evolve(Coordinates(1, 2), y=5)


def refused():
    try:
        Open(-1)
    except ValueError as error:
        return str(error)


def fields():
    return [each.name for each in attrs.fields(SomeClass)]


def failed():
    try:
        raise Fails(3)
    except Fails as error:
        return error.code


def frozen_error():
    try:
        Coordinates(1).x = 2
    except attrs.exceptions.FrozenInstanceError as error:
        return error


def cases():
    made = [
        SomeClass(1, [2]), Coordinates(1), Open(3, "y"), Named(a=1), Child(1, [2], "x"), Later(3), Old(2), OldSlots(3),
        OldData(4), Node(1, Node(2)), Private(5), Hashed(2), Fixed(3),
    ]  # fmt: skip
    for value in made:
        name = type(value).__name__
        yield f"instance of {name}", value, lambda back, one=value: back == one and type(back) is type(one)
        yield f"list of {name}", [value, value], lambda back, one=value: back[0] is back[1] and back[0] == one
        yield f"class {name}", type(value), lambda back, one=type(value): back is one
    yield "instance of Identity", Identity(5), lambda back: back.x == 5
    yield "class Fails", Fails, lambda back: back is Fails
    yield "instance of Fails", Fails(3), lambda back: back.code == 3
    yield "make_class", make_class("Made", ["x", "y"]), lambda back: back(1, 2).y == 2
    yield "instance of make_class", make_class("Made", {"x": field(default=1)})(), lambda back: back.x == 1
    yield "attrs.fields", attrs.fields(SomeClass), lambda back: [each.name for each in back] == ["a_number", "list_of_numbers"]
    yield "Attribute", attrs.fields(Open).x, lambda back: back.name == "x"
    yield "Factory", attrs.Factory(list), lambda back: back.factory is list
    yield "NOTHING", attrs.NOTHING, lambda back: back is attrs.NOTHING
    yield "validator", validators.instance_of(int), lambda back: back == validators.instance_of(int)
    yield "validators together", validators.and_(validators.ge(1), validators.le(3)), lambda back: callable(back)
    yield "optional validator", validators.optional(validators.in_([1, 2])), lambda back: callable(back)
    yield "in a dict", {"a": Coordinates(1)}, lambda back: back["a"] == Coordinates(1)
    yield "a method", SomeClass(1, [2]).hard_math, lambda back: back(3) == 7
    yield "used in a job", used, lambda back: back[0] == 19
    yield "evolved in a job", evolved, lambda back: back == Coordinates(1, 5)
    yield "validator in a job", refused, lambda back: back == "negative"
    yield "fields in a job", fields, lambda back: back == ["a_number", "list_of_numbers"]
    yield "raised in a job", failed, lambda back: back == 3
    yield "FrozenInstanceError", frozen_error, lambda back: isinstance(back, attrs.exceptions.FrozenInstanceError)
    yield "cached_property of a slotted class", Later(3), lambda back: back.slow == 4
    yield "exceptions.NotAnAttrsClassError", attrs.exceptions.NotAnAttrsClassError("x"), lambda back: str(back) == "x"
