"""Dataclasses, with their options."""

import dataclasses
import sys
import typing

NEWER = {"slots": True, "kw_only": True} if sys.version_info >= (3, 10) else {}


@dataclasses.dataclass
class Plain:
    x: int
    tags: list = dataclasses.field(default_factory=list, compare=False)
    kind: typing.ClassVar[str] = "plain"
    start: dataclasses.InitVar[int] = 1

    def __post_init__(self, start):
        self.total = self.x + start


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    x: int = 1
    y: float = dataclasses.field(default=2.0, metadata={"unit": "m"})


@dataclasses.dataclass(**NEWER)
class Newer:
    x: int = 1


@dataclasses.dataclass
class Child(Plain):
    z: "typing.Optional[Frozen]" = None


DEFAULT = Child(3)


def uses(child=Child(1, z=Frozen(2))):
    return child.total, DEFAULT.total, dataclasses.asdict(child), Frozen() < Frozen(2), Plain.kind


def missing():
    return [each.default is dataclasses.MISSING for each in dataclasses.fields(Plain)]


def hints():
    return sorted(typing.get_type_hints(uses)), typing.get_type_hints(Frozen.__init__)


def cases():
    for value in (Plain(1, [2]), Frozen(), Newer(), Child(2, z=Frozen())):
        yield f"an instance of {type(value).__name__}", value, lambda got, value=value: got == value and type(got) is type(value)
    for cls in (Plain, Frozen, Newer, Child):
        yield f"the class {cls.__name__}", cls, lambda got, cls=cls: got is cls
    yield "default and global", uses, lambda got: got == uses()
    yield "fields without a default", missing, lambda got: got == missing()
    yield "made there", lambda: Child(5, z=Frozen(1)), lambda got: got == Child(5, z=Frozen(1))
    yield "changed there", lambda: dataclasses.replace(Frozen(), x=7), lambda got: got == Frozen(7)
