"""Enumerations of every kind, with methods."""

import enum
import sys

TEXT = (enum.StrEnum,) if sys.version_info >= (3, 11) else (str, enum.Enum)


class Color(enum.Enum):
    RED = 1
    GREEN = enum.auto()
    ALIAS = 1

    @property
    def other(self):
        return Color.GREEN if self is Color.RED else Color.RED

    @classmethod
    def first(cls):
        return next(iter(cls))


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE


class Bits(enum.IntFlag):
    A = 1
    B = 2


Text = TEXT[-1]("Text", {"A": "a", "B": "b"}) if len(TEXT) == 1 else None


class Word(str, enum.Enum):
    A = "a"

    def __str__(self):
        return self.value


class Planet(enum.Enum):
    EARTH = (5.97e24, 6.37e6)

    def __init__(self, mass, radius):
        self.mass = mass


@enum.unique
class Unique(enum.Enum):
    A = "x"


def uses(color=Color.GREEN):
    return color.other, Color.first(), Color(1) is Color.ALIAS, Level.HIGH > 1, Access.BOTH & Access.READ, str(Word.A)


def cases():
    members = [Color.GREEN, Level.LOW, Access.READ | Access.WRITE, Bits.A | Bits.B, Word.A, Planet.EARTH, Unique.A]
    for member in members + ([Text.B] if Text else []):
        yield f"a member of {type(member).__name__}", member, lambda got, member=member: got is member or got == member
        yield f"the class {type(member).__name__}", type(member), lambda got, member=member: got is type(member)
    yield "default and global", uses, lambda got: got == uses() and got[0] is Color.RED
    yield "what a member's own __init__ set", lambda: Planet.EARTH.mass, lambda got: got == Planet.EARTH.mass
    yield "a table by members", {Color.RED: [Level.HIGH]}, lambda got: got == {Color.RED: [Level.HIGH]}
