"""What a function and those that it calls look up in the user's modules, set there, and change in place.

Read from byte code. Methods of objects are followed as far as the class is known by a name.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import weakref
from collections.abc import Collection, Iterator
from typing import Any

from clusterfn.bridge.attributes import attribute
from clusterfn.packing import inner_calls
from clusterfn.packing.source_settings import DYNAMIC, MUTATORS

# At most this many functions are read.
_MOST = 300
# The key of an item is computed by so many steps at most, before the item is set.
_STEPS = 8
_CONTAINERS = (dict, list, set)
_known: weakref.WeakKeyDictionary[Any, Uses] = weakref.WeakKeyDictionary()


class Uses:
    """What code uses.

    Attributes:
        read: Names of modules with what is looked up in them.
        attributes: What is looked up in anything.
        stored: Attributes and globals that are set.
        filled: Names of containers that are changed in place.
        passed: Names of modules that the code passes on as objects.
        is_dynamic: Whether the code may set attributes that it does not name.
    """

    def __init__(self) -> None:
        self.read: set[tuple[str, str]] = set()
        self.attributes: set[str] = set()
        self.stored: set[str] = set()
        self.filled: set[str] = set()
        self.passed: set[str] = set()
        self.is_dynamic = False

    def add(self, other: Uses) -> None:
        """Take over what other code uses."""
        self.read |= other.read
        self.attributes |= other.attributes
        self.stored |= other.stored
        self.filled |= other.filled
        self.passed |= other.passed
        self.is_dynamic |= other.is_dynamic

    def reads(self, module: str, name: str) -> bool:
        """Whether the code looks up a name of a module."""
        return (module, name) in self.read or (module in self.passed and name in self.attributes)

    def may_set_any(self, module: str) -> bool:
        """Whether the code may set names of a module that it does not name."""
        return (self.is_dynamic and module in self.passed) or (module, "__dict__") in self.read


def uses_of(roots: Collection[Any], own: Collection[str]) -> Uses:
    """Return what functions and classes use, with all that they call.

    Args:
        own: The modules whose functions are followed, by name.
    """
    whole = Uses()
    for root in roots:
        if root not in _known:
            _known[root] = _UseFinder(own).read(root)
        whole.add(_known[root])
    return whole


class _UseFinder:
    """Follows a function to those that it calls."""

    def __init__(self, own: Collection[str]) -> None:
        self._own = own
        self._uses = Uses()
        self._waiting: list[types.FunctionType] = []
        self._seen: set[types.FunctionType] = set()

    def read(self, root: Any) -> Uses:
        self._visit(root, is_root=True)
        while self._waiting and len(self._seen) < _MOST:
            function = self._waiting.pop()
            if function not in self._seen:
                self._seen.add(function)
                modules: dict[str, types.ModuleType] = {}
                for code in _codes(function.__code__):
                    _Code(self._uses, function, modules, self._visit).follow(code)
        return self._uses

    def _visit(self, value: Any, is_root: bool = False) -> None:
        """Note the functions to read for a value that code has looked up."""
        kind = type(value)
        if issubclass(kind, (types.ModuleType, *_CONTAINERS, str, int, float)):
            return
        function = inner_calls.plain_function(value)
        if function is not None:
            if is_root or self._is_own(function):
                self._waiting.append(function)
            return
        # An object with a name calls the methods of its class.
        cls = value if issubclass(kind, type) else kind
        for base in cls.__mro__:
            if self._is_own(base) or (is_root and base is cls):
                for each in list(vars(base).values()):
                    method = inner_calls.plain_function(each.fget if type(each) is property else each)
                    if method is not None and self._is_own(method):
                        self._waiting.append(method)

    def _is_own(self, obj: Any) -> bool:
        module = attribute(obj, "__module__")
        return isinstance(module, str) and (module == "__main__" or module in self._own)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


class _Code:
    """Reads one code object, instruction by instruction.

    Args:
        uses: Where to note what it uses.
        function: What it belongs to.
        modules: Variables that hold modules, because the function imports them.
        visit: Called with each object that is looked up.
    """

    def __init__(self, uses: Uses, function: types.FunctionType, modules: dict[str, types.ModuleType], visit: Any):
        self._uses, self._visit = uses, visit
        self._scope = inner_calls.scope_of(function)
        self._home = str(function.__globals__.get("__name__"))
        self._package = function.__globals__.get("__package__") or ""
        self._modules = modules
        # The module that lies on the stack, and the one that names are imported from.
        self._held: types.ModuleType | None = None
        self._imported: types.ModuleType | None = None
        # The container that was looked up, with the steps for which it may be changed, and whether its item was.
        self._container, self._left, self._has_item = "", 0, False

    def follow(self, code: types.CodeType) -> None:
        self._uses.is_dynamic |= not DYNAMIC.isdisjoint(code.co_names)
        before: list[Any] = [0, 0]
        for step in inner_calls.steps(code):
            name, argument, held = step.opname, step.argval, self._held
            self._held = None
            self._see_change(name, argument)
            if name in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                self._attribute(held, argument)
            elif name == "IMPORT_FROM":
                self._attribute(held or self._imported, argument)
            elif name == "IMPORT_NAME":
                self._import(argument, *before)
            elif name in ("SWAP", "ROT_TWO", "POP_TOP"):
                # `import a.b as c` comes from `a` to `b` so.
                self._held = held
            elif name in ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"):
                self._uses.stored.add(argument)
            elif "FAST" in name or "DEREF" in name or "GLOBAL" in name or name == "LOAD_NAME":
                self._variable(name, argument, held)
            elif held is not None:
                self._uses.passed.add(held.__name__)
                if name == "LOAD_CONST" and isinstance(argument, str):
                    self._uses.read.add((held.__name__, argument))
            before = [before[1], argument]

    def _variable(self, name: str, argument: Any, held: types.ModuleType | None) -> None:
        # One instruction may store a variable and load another, or load two.
        first, last = (argument[0], argument[-1]) if isinstance(argument, tuple) else (argument, argument)
        if name.startswith("STORE") and held is not None:
            self._modules[first] = held
        elif held is not None:
            self._uses.passed.add(held.__name__)
        if "LOAD" not in name:
            return
        if last in self._modules:
            self._held = self._modules[last]
        elif "FAST" not in name and last in self._scope:
            if "DEREF" not in name:
                self._uses.read.add((self._home, last))
            self._look_up(last, self._scope[last])

    def _attribute(self, held: types.ModuleType | None, name: str) -> None:
        self._uses.attributes.add(name)
        if held is not None:
            self._uses.read.add((held.__name__, name))
            if name in vars(held):
                self._look_up(name, vars(held)[name])

    def _look_up(self, name: str, value: Any) -> None:
        if type(value) is types.ModuleType:
            self._held = value
        elif type(value) in _CONTAINERS:
            self._container, self._left, self._has_item = name, _STEPS, False
        else:
            self._visit(value)

    def _import(self, name: str, level: Any, names: Any) -> None:
        if level and isinstance(level, int):
            try:
                name = importlib.util.resolve_name("." * level + name, self._package)
            except ImportError:
                return
        # `import a.b` gives `a`, and `from a.b import c` begins with `b`.
        self._held = self._imported = sys.modules.get(name if names else name.partition(".")[0])

    def _see_change(self, name: str, argument: Any) -> None:
        """Note that an item of the container is set or removed, or that a method changes it."""
        if not self._left:
            return
        self._left -= 1
        is_method = name in ("LOAD_ATTR", "LOAD_METHOD") and argument in MUTATORS
        if is_method or name in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            self._uses.filled.add(self._container)
        is_other = self._has_item and name.startswith(("LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"))
        if is_method or is_other or name.startswith(("STORE", "RETURN", "POP_TOP")):
            self._left = 0
        self._has_item = self._has_item or name.startswith("BINARY")
