"""What a call may be made of, there and back in this process: each kind of function, class and object that cloudpickle
promises to send, through our own way of pickling. `calls/` sends the same to a process that has the bridge alone.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import itertools
import json.decoder
import logging
import math
import operator
import sys
import textwrap
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import pytest

from clusterfn.calls import payload
from clusterfn.hosts import serialization

T = TypeVar("T")
container = serialization.part("container")


def sent(obj: Any) -> Any:
    """What a function finds as its argument on the host."""
    return container.loads(payload.pack(print, (obj,), {}).data)[1][0]


def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the call gives on the host, and what comes back of it."""
    there, given, named = container.loads(payload.pack(function, args, kwargs).data)
    return sent(there(*given, **named))


def main(source: str) -> Any:
    """The names of a script that was run as `__main__`, which a host does not have."""
    module = types.ModuleType("__main__")
    exec(compile(textwrap.dedent(source), "script.py", "exec"), vars(module))
    return module


# functions


def test_a_lambda_and_one_within_another():
    assert called(lambda x: (lambda y: x + y)(1), 2) == 3
    assert sent(lambda x: lambda y: x - y)(5)(3) == 2


def test_a_closure_that_refers_to_itself():
    def outer():
        def fact(n):
            return 1 if n == 0 else n * fact(n - 1)

        return fact

    assert called(outer(), 5) == 120 and sent(outer())(4) == 24


def test_two_functions_that_refer_to_each_other():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n > 0 and even(n - 1)

    assert called(even, 10) is True


def test_a_recursive_function_of_the_script():
    script = main("def fact(n):\n    return 1 if n < 2 else n * fact(n - 1)\n")

    assert called(script.fact, 5) == 120


def test_a_variable_of_a_closure_that_is_none_or_not_yet_there():
    nothing = None

    def empty():
        return later

    assert called(lambda: nothing) is None
    with pytest.raises(NameError, match="later"):
        sent(empty)()
    later = 1


def test_a_closure_over_what_cannot_be_hashed():
    values: list[Any] = [1, {2: [3]}]

    assert called(lambda: values) == values


def test_a_counter_in_a_closure_counts_on():
    def counter():
        count = 0

        def up():
            nonlocal count
            count += 1
            return count

        return up

    up = counter()
    up()
    there = sent(up)
    assert (there(), there(), up()) == (2, 3, 2)


def test_defaults_keywords_annotations_text_and_attributes_stay():
    def shown(a: int, /, b: str = "b", *rest: float, c: bool, d: Any = (1,), **more: Any) -> int:
        """The text."""
        return a

    shown.mark = [1]  # type: ignore[attr-defined]
    there = sent(shown)
    names = ("__name__", "__qualname__", "__doc__", "__defaults__", "__kwdefaults__", "__annotations__", "__module__")
    assert [getattr(there, name) for name in names] == [getattr(shown, name) for name in names]
    assert there.mark == [1] and there.mark is not shown.mark


def test_a_wrapped_function_knows_what_it_wraps():
    def twice(function):
        @functools.wraps(function)
        def inner(*args):
            return 2 * function(*args)

        return inner

    there = sent(twice(lambda x: x + 1))
    assert (there(1), there.__wrapped__(1), there.__name__) == (4, 2, "<lambda>")


def test_globals_of_a_script_go_as_they_are_and_are_one_for_its_functions():
    script = main(
        """
        LEVEL = 1
        def up():
            global LEVEL
            LEVEL += 1
            return LEVEL
        def level():
            return LEVEL
        """
    )
    script.LEVEL = 5

    up, level = sent((script.up, script.level))
    assert (up(), level(), script.LEVEL) == (6, 6, 5)


def test_a_global_that_a_closure_hides_is_not_mistaken_for_it():
    script = main("v = 'global'\ndef make():\n    v = 'closure'\n    return (lambda: v), (lambda: globals()['v'])\n")

    assert called(script.make()[0]) == "closure"


def test_a_function_with_more_constants_than_a_byte_can_count():
    names = [f"v{number}" for number in range(400)]
    body = "".join(f"    {name} = {number}.5\n" for number, name in enumerate(names))
    script = main(f"G = 7\ndef much():\n{body}    return v399 + G\n")

    assert called(script.much) == 406.5


def test_imports_inside_a_function_and_submodules_as_attributes():
    def inside():
        import xml.etree.ElementTree

        return xml.etree.ElementTree.Element("a").tag

    import concurrent.futures as futures_module

    assert called(inside) == "a"
    assert sent(lambda: futures_module.Future)() is futures_module.Future


def test_a_coroutine_function_and_an_async_generator_function():
    async def later(x):
        return x + 1

    async def several():
        yield 1

    with pytest.raises(StopIteration) as returned:
        sent(later)(1).send(None)
    assert returned.value.value == 2
    with pytest.raises(StopIteration):
        sent(several)().__anext__().send(None)


def test_a_generator_function_goes_and_a_generator_is_refused():
    def count(n):
        yield from range(n)

    assert list(sent(count)(3)) == [0, 1, 2]
    with pytest.raises(payload.PayloadError, match="cannot pickle 'generator'"):
        sent(count(3))


def test_a_partial_keeps_its_arguments_and_attributes():
    made = functools.partial(lambda a, b, c: (a, b, c), 1, c=3)
    made.mark = "m"  # type: ignore[attr-defined]

    assert called(made, 2) == (1, 2, 3) and sent(made).mark == "m"


def test_a_partial_that_holds_itself():
    made: Any = functools.partial(lambda **kwargs: None)
    made.keywords["me"] = made

    there = sent(made)
    assert there.keywords["me"] is there


@pytest.mark.parametrize(
    "function",
    [len, math.sqrt, str.upper, "a".upper, list.append, [].append, dict.fromkeys, object.__new__, int.__add__,
     operator.itemgetter(1), operator.attrgetter("real"), operator.methodcaller("upper"),
     itertools.chain.from_iterable],
)  # fmt: skip
def test_what_is_built_in(function):
    there = sent(function)

    assert type(there) is type(function) and repr(there).partition(" at 0x")[0] == repr(function).partition(" at 0x")[0]


def test_a_function_of_a_module_is_found_there_by_name():
    assert sent(textwrap.dedent) is textwrap.dedent and sent(sent) is sent


@pytest.mark.parametrize("base", [object, types.ModuleType])
@pytest.mark.parametrize("module", ["_missing_module", None])
def test_a_module_that_raises_at_every_question_disturbs_no_other(base, module, monkeypatch):
    class Faulty(base):
        def __getattr__(self, name):
            raise RuntimeError(f"nobody asks me for {name}")

    monkeypatch.setitem(sys.modules, "_faulty_module", Faulty("_faulty_module") if base is not object else Faulty())
    unnamed = types.ModuleType("unnamed")
    unnamed.__name__ = None  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "_unnamed_module", unnamed)

    def works():
        return "it works"

    class Works:
        def does(self):
            return "it works"

    works.__module__ = Works.__module__ = Works.does.__module__ = module  # type: ignore[assignment]
    assert called(works) == called(Works().does) == "it works"


def test_a_module_that_raises_is_named_where_it_is_sent(monkeypatch):
    class Faulty(types.ModuleType):
        def __getattr__(self, name):
            raise RuntimeError(name)

    faulty = Faulty("_faulty_module")
    with pytest.raises(payload.PayloadError, match="global|closure variable faulty"):
        sent(lambda: faulty)


# classes


def test_a_class_of_a_function_its_methods_and_super():
    class Base:
        def __init__(self, x):
            self.x = x

        def doubled(self):
            return 2 * self.x

    class Child(Base):
        made: ClassVar[int] = 7

        def __init__(self, x):
            super().__init__(x + 1)

        @classmethod
        def of(cls, x):
            return cls(x)

        @staticmethod
        def still():
            return "still"

        @property
        def tripled(self):
            return 3 * self.x

        @functools.cached_property
        def cached(self):
            return self.x

    there = sent(Child(1))
    assert (there.doubled(), there.tripled, there.cached, there.still(), type(there).of(2).x) == (4, 6, 2, "still", 3)
    assert called(Child.of, 4).x == 5 and called(Child(1).doubled) == 4 and sent(Child).made == 7


def test_a_bound_method_keeps_its_object_and_an_unbound_one_its_class():
    class Box:
        def __init__(self):
            self.items = []

        def add(self, item):
            self.items.append(item)
            return self.items

    box = Box()
    held, add = sent((box, box.add))
    assert add(1) is held.items and sent(Box.add)(Box(), 2) == [2]


def test_one_class_sent_twice_is_one_class():
    class Once:
        pass

    assert sent(Once) is sent(Once) and sent([Once, Once()])[0] is type(sent(Once()))


def test_a_class_that_holds_itself_and_its_instances():
    class Own:
        instances: ClassVar[list[Any]] = []

    Own.me = Own  # type: ignore[attr-defined]
    Own.instances.append(Own())

    there = sent(Own)
    assert there.me is there and type(there.instances[0]) is there


@pytest.mark.parametrize("slots", [("a",), ("a", "__weakref__"), ("a", "__dict__"), "a"])
def test_slots(slots):
    slotted = type("Slotted", (), {"__slots__": slots})
    made = slotted()
    made.a = 1

    there = sent(made)
    assert there.a == 1 and hasattr(there, "__dict__") == ("__dict__" in slots)


def test_an_abstract_class_its_checks_and_what_was_registered():
    class Shape(abc.ABC):
        @property
        @abc.abstractmethod
        def area(self): ...

        @classmethod
        @abc.abstractmethod
        def make(cls): ...

    Shape.register(int)

    class Square(Shape):
        area = 4  # type: ignore[assignment]

        @classmethod
        def make(cls):
            return cls()

    base, child = sent((Shape, Square))
    assert isinstance(3, base) and issubclass(child, base) and child.make().area == 4
    with pytest.raises(TypeError, match="abstract"):
        base()


def test_a_metaclass_and_what_it_does():
    class Meta(type):
        def __call__(cls, *args):
            made = super().__call__(*args)
            made.by_meta = cls.__name__
            return made

    class Made(metaclass=Meta):
        pass

    assert sent(Made)().by_meta == "Made" and type(sent(Made)).__name__ == "Meta"


def test_enumerations_with_values_methods_and_mixins():
    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2
        TOP = 2

        @property
        def next(self):
            return Level(self + 1)

    class Access(enum.Flag):
        READ = enum.auto()
        WRITE = enum.auto()

    class Text(str, enum.Enum):
        A = "a"

    assert sent(Level.LOW) is sent(Level).LOW and sent(Level).LOW.next is sent(Level.HIGH)
    assert sent(Level).TOP is sent(Level).HIGH and list(sent(Level)) == [1, 2]
    assert sent(Access.READ | Access.WRITE) == sent(Access).READ | sent(Access).WRITE
    assert sent(Text.A) == "a" and sent(enum.Enum("Made", "X Y")).Y.value == 2


def test_named_tuples_and_dataclasses():
    old = collections.namedtuple("old", "a b", defaults=(2,))

    class New(NamedTuple):
        a: int
        b: str = "x"

        def both(self):
            return f"{self.a}{self.b}"

    @dataclasses.dataclass(order=True)
    class Point:
        x: int
        tags: list[int] = dataclasses.field(default_factory=list)
        kind: ClassVar[str] = "point"
        start: dataclasses.InitVar[int] = 0

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        x: int

    assert sent(old(1)) == (1, 2) and type(sent(old(1)))._fields == ("a", "b") and sent(New(1)).both() == "1x"
    there = sent(Point(1, [2]))
    assert dataclasses.asdict(there) == {"x": 1, "tags": [2]} and there < type(there)(2) and there.kind == "point"
    assert [each.name for each in dataclasses.fields(there)] == ["x", "tags"] and Point(1, [2]) == there
    with pytest.raises(dataclasses.FrozenInstanceError):
        sent(Frozen(1)).x = 2


def test_generic_classes_type_variables_and_hints():
    U = TypeVar("U", int, str)
    bound = TypeVar("bound", bound=int, covariant=True)

    class Box(Generic[T]):
        item: T

    class Child(Box[int]):
        pass

    assert sent(T) is T and sent([U, U])[0] is sent(U) and sent(U).__constraints__ == (int, str)
    assert (sent(bound).__bound__, sent(bound).__covariant__) == (int, True)
    assert sent(Box[int]).__args__ == (int,) and sent(Child).__orig_bases__[0].__args__ == (int,)
    for hint in (list[int], typing.Optional[T], typing.Union[int, str], typing.Callable[[int], str], typing.Any):
        assert sent(hint) == hint
    assert sent(typing.NewType("Id", int))(3) == 3


def test_annotations_that_refer_to_classes_of_the_function():
    class Local:
        pass

    def takes(one: Local, several: list[Local]) -> None: ...

    takes.__annotations__.update(one=Local, several=list[Local])
    there = sent(takes)
    assert there.__annotations__["one"].__name__ == "Local"
    assert there.__annotations__["several"].__args__ == (there.__annotations__["one"],)


def test_protocols_and_typed_dicts():
    class Closes(typing.Protocol):
        def close(self) -> None: ...

    class Row(typing.TypedDict, total=False):
        a: int

    assert sent(typing.runtime_checkable(Closes)).__name__ == "Closes"
    assert sent(Row)(a=1) == {"a": 1} and sent(Row).__optional_keys__ == {"a"}


def test_an_object_whose_class_has_no_module_goes():
    assert type(sent(type("Made", (), {"__module__": None})())).__name__ == "Made"


def test_a_module_that_must_not_be_imported_hinders_no_object_of_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "json.decoder.none", None)
    kind = type("Unset", (), {"__module__": "json.decoder", "__qualname__": "Unset"})
    monkeypatch.setattr("json.decoder.Unset", kind, raising=False)
    monkeypatch.setattr("json.decoder.UNSET", kind(), raising=False)

    assert sent([json.decoder.UNSET])[0] is json.decoder.UNSET  # type: ignore[attr-defined]


def test_an_object_that_says_itself_how_it_is_pickled():
    class Own:
        def __init__(self, x):
            self.x = x

        def __reduce__(self):
            return type(self), (self.x + 1,)

    class Stateful:
        def __getstate__(self):
            return {"kept": 1}

        def __setstate__(self, state):
            self.state = state

    assert sent(Own(1)).x == 2 and sent(Stateful()).state == {"kept": 1}


def test_what_reduces_to_a_name_is_found_there(monkeypatch):
    class Single:
        def __reduce__(self):
            return "SINGLE"

    single = Single()
    monkeypatch.setattr(sys.modules[__name__], "SINGLE", single, raising=False)
    Single.__module__ = __name__
    assert sent(single) is single


def test_exceptions_of_a_function_with_their_cause():
    class Own(Exception):
        def __init__(self, code):
            super().__init__(f"code {code}")
            self.code = code

        def __reduce__(self):
            return type(self), (self.code,)

    there = sent(Own(3))
    assert (there.code, str(there)) == (3, "code 3")


# modules and other objects


def test_modules_go_by_name_and_those_made_by_hand_by_value():
    made = types.ModuleType("made_by_hand")
    exec("X = 1\ndef up():\n    global X\n    X += 1\n    return X\n", vars(made))

    there, up = sent((made, made.up))
    assert sent(math) is math and there.__name__ == "made_by_hand" and up() == 2 and there.up() == 3
    assert made.X == 1 and "__builtins__" not in {name for name in vars(there) if name != "__builtins__"}


def test_a_module_made_by_hand_that_is_found_by_its_name(monkeypatch):
    made = types.ModuleType("_made_and_found")
    exec("def f():\n    return 1\n", vars(made))
    monkeypatch.setitem(sys.modules, "_made_and_found", made)

    assert called(made.f) == 1


@pytest.mark.parametrize(
    "obj",
    [None, Ellipsis, NotImplemented, type(None), type(Ellipsis), type(NotImplemented), 10**40, -0.0, 1j, "\udc80é",
     b"\0", bytearray(b"a"), (), frozenset([1]), range(3), slice(1, 2), {1: {2: [3]}}, Path("a"),
     collections.OrderedDict(a=1), collections.Counter("aa"), collections.deque([1], 3),
     collections.ChainMap({1: 2}), logging.INFO],
    ids=repr,
)  # fmt: skip
def test_plain_objects(obj):
    there = sent(obj)

    assert there == obj and type(there) is type(obj)


def test_views_of_dicts_and_of_memory():
    content = {"a": 1, "b": 2}
    assert list(sent(content.keys())) == ["a", "b"] and list(sent(content.values())) == [1, 2]
    assert list(sent(content.items())) == [("a", 1), ("b", 2)]
    assert list(sent(collections.OrderedDict(content).keys())) == ["a", "b"]
    assert bytes(sent(memoryview(b"abc"))) == b"abc" and bytes(sent(memoryview(b"abcdef")[::2])) == b"ace"


def test_a_logger_is_the_one_of_its_name():
    assert sent(logging.getLogger("clusterfn.test")) is logging.getLogger("clusterfn.test")


def test_what_is_one_object_stays_one_and_cycles_close():
    shared: list[Any] = []
    cycle: dict[str, Any] = {"a": shared, "b": [shared]}
    cycle["me"] = cycle

    there = sent(cycle)
    assert there["a"] is there["b"][0] and there["me"] is there


def test_a_weak_set_of_classes_and_a_weak_reference_in_a_closure():
    class Kept:
        pass

    kinds = weakref.WeakSet([Kept])
    assert [each.__name__ for each in sent((Kept, kinds))[1]] == ["Kept"]


def test_a_figure_comes_without_its_place_in_pyplot(monkeypatch):
    """A figure of matplotlib tells in its state that pyplot shows it, which then shows it again where it is loaded."""

    class Figure:
        def __getstate__(self):
            return {"lines": 3, "_restore_to_pylab": True}

        def __setstate__(self, state):
            self.state = state

    module = types.ModuleType("matplotlib.figure")
    module.Figure = Figure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", module)

    assert sent(Figure()).state == sent(type("Mine", (Figure,), {})()).state == {"lines": 3}


def test_iterators_with_a_state_go_where_they_are():
    numbers = iter([1, 2, 3])
    next(numbers)

    assert list(sent(numbers)) == [2, 3] and list(sent(iter(range(2)))) == [0, 1]


def test_a_property_and_a_descriptor():
    made = property(lambda self: 1, doc="The text.")

    there = sent(made)
    assert there.fget(None) == 1 and there.__doc__ == "The text."
    assert sent(Path.parts) is not None and sent(types.FunctionType.__code__) is types.FunctionType.__code__


def test_fifty_functions_within_functions():
    def inner(n: int) -> Callable[[], int]:
        held = n if n == 0 else inner(n - 1)
        return lambda: 1 if n == 0 else 1 + held()

    assert called(inner(50)) == 51


def test_what_is_too_deep_is_refused_and_does_not_end_the_process():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(payload.PayloadError):
        sent(deep)


def closed(pairs: Iterator[Any]) -> dict[Any, Any]:
    return dict(pairs)


def test_a_function_of_this_module_with_a_value_of_a_local_class():
    class Key:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            return type(other) is type(self)

    assert called(closed, [(Key(), 1)]) == {Key(): 1}
