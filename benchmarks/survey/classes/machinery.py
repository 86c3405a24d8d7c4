"""Descriptors, __init_subclass__, metaclasses, slots, context variables and structures of ctypes."""

import contextvars
import ctypes
import functools

REQUEST = contextvars.ContextVar("request", default="none")
REQUEST.set("set")
REGISTRY = {}


class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name)

    def __set__(self, obj, value):
        if value <= 0:
            raise ValueError(value)
        setattr(obj, self.name, value)


class Meta(type):
    def __new__(mcs, name, bases, space, **options):
        cls = super().__new__(mcs, name, bases, space)
        cls.options = options
        return cls

    def __init__(cls, name, bases, space, **options):
        super().__init__(name, bases, space)


class ByMeta(metaclass=Meta, unit="m"):
    size = Positive()

    def __init__(self, size):
        self.size = size


class Plugin:
    def __init_subclass__(cls, key="", **more):
        super().__init_subclass__(**more)
        REGISTRY[key] = cls


class Json(Plugin, key="json"):
    def read(self):
        return "json"


class Slotted:
    __slots__ = ("a", "__weakref__")

    def __init__(self, a):
        self.a = a

    @functools.cached_property
    def never(self):
        return 1

    def __eq__(self, other):
        return type(other) is Slotted and other.a == self.a


class Cached:
    @functools.cached_property
    def value(self):
        return 41 + 1

    @functools.lru_cache(maxsize=None)
    def twice(self, n):
        return 2 * n

    @functools.singledispatchmethod
    def shown(self, value):
        return "other"

    @shown.register
    def _(self, value: int):
        return "number"


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_double), ("y", ctypes.c_int * 2)]


def uses(made=ByMeta(2)):
    try:
        made.size = -1
    except ValueError:
        pass
    cached = Cached()
    return made.size, ByMeta.options, REGISTRY["json"]().read(), cached.value, cached.twice(2), cached.shown(1), REQUEST.get()


def structure():
    point = Point(1.5)
    point.y[1] = 3
    return point.x, list(point.y), ctypes.sizeof(Point)


def cases():
    yield "an instance of a class with a metaclass", ByMeta(3), lambda got: type(got) is ByMeta and got.size == 3
    yield "an instance with slots", Slotted(1), lambda got: got == Slotted(1)
    yield "a subclass that registered itself", Json(), lambda got: type(got) is Json
    for cls in (ByMeta, Json, Slotted, Cached, Positive, Meta):
        yield f"the class {cls.__name__}", cls, lambda got, cls=cls: got is cls
    yield "default and global", uses, lambda got: got == uses()
    yield "a structure made there", structure, lambda got: got == structure()
    yield "a structure", Point(2.5), lambda got: got.x == 2.5
