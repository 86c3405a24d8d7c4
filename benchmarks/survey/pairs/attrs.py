"""Values of attrs that its documentation shows first: the pages "by example", "overview" and "extending"."""

import typing

import attr
import attrs


def same(a, b):
    """Compare two instances."""
    return type(a).__name__ == type(b).__name__ and bool(a == b)


def fields_of(value):
    """Return what an instance holds, by name."""
    return attr.asdict(value)


@attrs.define
class Coordinates:
    x: int
    y: int


@attrs.define(kw_only=True)
class Keywords:
    a: int
    b: int = 1


@attrs.frozen
class Frozen:
    x: int
    y: list = attrs.field(factory=list)


@attrs.define(slots=False)
class WithDict:
    x: int


@attrs.define
class Defaults:
    x: int = 42
    y: dict = attrs.Factory(dict)
    z: int = attrs.field()

    @z.default
    def _z(self):
        return self.x * 2


@attrs.define
class Validated:
    x: int = attrs.field(validator=[attrs.validators.instance_of(int), attrs.validators.ge(0)])
    name: str = attrs.field(default="a", validator=attrs.validators.matches_re("[a-z]+"))
    kind: str = attrs.field(default="u", validator=attrs.validators.in_(["u", "v"]))

    @x.validator
    def _small(self, attribute, value):
        if value > 255:
            raise ValueError("too large")


@attrs.define
class Converted:
    x: int = attrs.field(converter=int)
    y: typing.Optional[int] = attrs.field(default=None, converter=attrs.converters.optional(int))


@attrs.define
class Hidden:
    _x: int
    secret: str = attrs.field(default="s", repr=False, eq=False, metadata={"a": 1})


@attrs.define(order=True)
class Child(Coordinates):
    z: int = 0


@attrs.define
class Node:
    value: int
    children: list["Node"] = attrs.field(factory=list)


@attrs.define
class PostInit:
    x: int
    y: int = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.y = self.x + 1


@attrs.define(eq=True, hash=True)
class Hashable:
    x: int
    aliased: int = attrs.field(default=1)


@attr.s
class Old:
    x = attr.ib(default=1)
    y = attr.ib(factory=list)


@attr.s(auto_attribs=True, frozen=True)
class OldTyped:
    x: int = attr.ib(converter=int)


@attrs.define
class Failing(Exception):
    code: int


T = typing.TypeVar("T")


@attrs.define
class Box(typing.Generic[T]):
    held: T


Made = attrs.make_class("Made", ["x", "y"])
MadeTyped = attrs.make_class("MadeTyped", {"x": attrs.field(type=int, default=3), "y": attrs.field(factory=list)})
MadeOld = attr.make_class("MadeOld", {"a": attr.ib(default=42)})
MadeChild = attrs.make_class("MadeChild", {"z": attrs.field(default=1)}, bases=(WithDict,))
MadeFrozen = attrs.make_class("MadeFrozen", ["x"], frozen=True, slots=True)

INSTANCES = {
    "defined": lambda: Coordinates(1, 2),
    "by keywords": lambda: Keywords(a=3),
    "frozen": lambda: Frozen(1, [2]),
    "with a dict": lambda: WithDict(3),
    "with defaults": lambda: Defaults(2),
    "with validators": lambda: Validated(3),
    "with converters": lambda: Converted("3", "4"),
    "with private fields": lambda: Hidden(3),
    "of a child": lambda: Child(1, 2, 3),
    "in each other": lambda: Node(1, [Node(2)]),
    "made after init": lambda: PostInit(1),
    "hashable": lambda: {Hashable(1): 2},
    "old": lambda: Old(2),
    "old and typed": lambda: OldTyped("3"),
    "generic": lambda: Box(3),
    "evolved": lambda: attrs.evolve(Coordinates(1, 2), y=5),
    "as a dict": lambda: attrs.asdict(Node(1, [Node(2)])),
    "as a tuple": lambda: attrs.astuple(Coordinates(1, 2)),
    "made by a call": lambda: Made(1, 2),
    "made by a call with fields": lambda: MadeTyped(),
    "made by an old call": lambda: MadeOld(),
    "made by a call with bases": lambda: MadeChild(1),
    "made frozen by a call": lambda: MadeFrozen(3),
    "several": lambda: [Coordinates(1, 2), Made(1, Frozen(2))],
}
OTHERS = {
    "a class": (lambda: Coordinates, lambda a, b: b(1, 2).x == 1),
    "a made class": (lambda: Made, lambda a, b: b(1, 2).y == 2 and b.__name__ == "Made"),
    "fields": (lambda: attrs.fields(Coordinates), lambda a, b: [f.name for f in a] == [f.name for f in b]),
    "a field": (lambda: attrs.fields(Validated).x, lambda a, b: (a.name, a.type) == (b.name, b.type)),
    "a field with a converter": (lambda: attrs.fields(Converted).y, lambda a, b: b.converter("3") == 3),
    "NOTHING": (lambda: attrs.NOTHING, lambda a, b: b is attrs.NOTHING),
    "a factory": (lambda: attrs.Factory(list), lambda a, b: b.factory is list),
    "a validator": (lambda: attrs.validators.instance_of(int), lambda a, b: b.type is int),
    "a validator of both": (
        lambda: attrs.validators.and_(attrs.validators.gt(1), attrs.validators.lt(4)),
        lambda a, b: True,
    ),
    "a validator of texts": (lambda: attrs.validators.matches_re("a+"), lambda a, b: b.pattern.pattern == "a+"),
    "a converter": (lambda: attrs.converters.default_if_none(3), lambda a, b: b(None) == 3),
    "an exception class": (lambda: Failing(3), lambda a, b: b.code == 3),
    "a method": (lambda: Validated(3).__repr__, lambda a, b: b() == a()),
    "filters": (lambda: attrs.filters.include(int), lambda a, b: callable(b)),
}


def cases():
    """Yield a name, what makes a value, and what compares two of them."""
    for name, maker in INSTANCES.items():
        yield name, maker, same
    for name, (maker, compare) in OTHERS.items():
        yield name, maker, compare
