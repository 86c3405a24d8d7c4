"""Find what this process has changed in the user's own modules since their import: a job imports their files again.

Only what the function uses counts, and only if neither importing the modules nor the function itself changes it so.
Where that is not certain, nothing is said. Why nothing of it is sent: docs/decisions/0069-changed-modules.md.
"""

from __future__ import annotations

import abc
import ast
import functools
import linecache
import re
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge.attributes import attribute
from clusterfn.packing import function_uses, module_sources, own_modules, source_settings

if TYPE_CHECKING:
    from clusterfn.hosts.bridge_bundle import FileBundle

_NUMBERS = (bool, int, float, complex)
_SIMPLE = frozenset([*_NUMBERS, str])
_CONTAINERS = (dict, list, set)
_PLAIN_CLASSES = (type, abc.ABCMeta)
_MAIN = ("__main__", "__mp_main__")
_MISSING = object()
_INSTEAD = "set it inside the function"
# So many members of a container are looked at.
_MOST = 100
# The names of each module that its source may set, with the file and its time.
_known_names: dict[str, tuple[tuple[Path, int], set[str]]] = {}
# Whether the modules with this digest may set a name of a module.
_set_elsewhere: dict[tuple[str, str, str], bool] = {}
# More code is not read for this: that would delay the call.
_MOST_CODE = 500_000


class ChangedName(NamedTuple):
    """A name of a module whose value is not the one that importing the module gives it.

    Attributes:
        module, name: What was changed; the name may be such as "Model.SIZE".
        here: Its value in this process.
        there: Its value by the source; None if `is_new`.
        path: Of the module.
        is_new: Whether the source does not set it at all.
    """

    module: str
    name: str
    here: object
    there: object
    path: Path
    is_new: bool = False

    @property
    def key(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def is_in_place(self) -> bool:
        """Whether a container was probably changed in place."""
        return type(self.here) in _CONTAINERS and type(self.here) is type(self.there)

    @property
    def is_of_class(self) -> bool:
        return "." in self.name

    @property
    def is_function(self) -> bool:
        return self.there is source_settings.FUNCTION

    def describe(self) -> str:
        """Say what the job finds, and what to do. A string may be a password, so only numbers are shown."""
        source = f"which imports {self.module} from its file: {_INSTEAD}"
        if self.is_new:
            return f"{self.key} does not exist in the job, {source}"
        if self.is_function:
            return f"{self.key} is replaced on this machine, but not in the job, {source}"
        if all(value is None or type(value) in _NUMBERS for value in (self.here, self.there)):
            return f"{self.key} is {self.here!r} on this machine, and {self.there!r} in the job, {source}"
        return f"{self.key} was changed on this machine, but not in the job, {source}"


def find(
    modules: Collection[str], sources: FileBundle, roots: Collection[Any], texts: Mapping[str, str]
) -> dict[str, str]:
    """Return what a call would find changed on this machine but not in its job, such as "conf.LR", with a sentence.

    Args:
        modules: The user's own modules that are sent.
        sources: Their files.
        roots: The functions and classes of the call.
        texts: The sources of functions that are sent by value, by file.
    """
    try:
        changes = [change for name in modules for change in _changes(name)]
        if changes and _script_is_sent(sources):
            # What the script does at its top level, such as to register a function, the modules may do in the job too.
            changes = [each for each in changes if not (each.is_in_place or each.is_of_class or each.is_function)]
        if not changes:
            return {}
        uses = function_uses.uses_of(roots, frozenset(modules))
        by_script = _changed_by_script(roots, texts)
        return {each.key: each.describe() for each in changes if _is_missed(each, uses, by_script, sources)}
    except Exception:  # noqa: BLE001 - the user's modules, classes and values, whose code may raise anything
        return {}


def _changes(name: str) -> Iterator[ChangedName]:
    module = sys.modules.get(name)
    # A module of a class of its own may compute what it has.
    if type(module) is not types.ModuleType or name in own_modules.differing:
        return
    path = Path(attribute(module, "__file__") or "")
    if path.suffix != ".py":
        return
    scope, mtime_ns = vars(module), path.stat().st_mtime_ns
    for key, there in module_sources.read(path, mtime_ns).settings.items():
        here = scope.get(key, _MISSING) if "." not in key else _attribute_of_class(name, scope, key)
        kind = type(here)
        # Most values are found to be the same by these, at each call.
        if here is there or here is _MISSING or (kind in _SIMPLE and kind is type(there) and here == there):
            continue
        if not _is_same(here, there, scope):
            yield ChangedName(name, key, here, there, path)
    for key in scope.keys() - _names_in_source(name, path, mtime_ns, scope):
        is_usual = key.isascii() and key.isidentifier() and not key.startswith("__")
        if is_usual and not issubclass(type(scope[key]), types.ModuleType):
            yield ChangedName(name, key, scope[key], None, path, is_new=True)


def _attribute_of_class(module: str, scope: Mapping[str, object], key: str) -> object:
    outer, _, inner = key.rpartition(".")
    cls = scope.get(outer)
    if type(cls) in _PLAIN_CLASSES and cls.__module__ == module:
        here = vars(cls).get(inner, _MISSING)
        # The class of a named tuple, for example, has descriptors in place of the literals.
        return _MISSING if hasattr(type(here), "__get__") else here
    return _MISSING


def _names_in_source(name: str, path: Path, mtime_ns: int, scope: Mapping[str, object]) -> set[str]:
    """Return the names of a module that its source may set: those that stand in it anywhere."""
    before, names = _known_names.get(name, (None, set()))
    if before != (path, mtime_ns):
        text = path.read_bytes()
        takes_all = re.search(rb"\bimport\s*\(?\s*\*", text)
        names = {each for each in list(scope) if takes_all or each.startswith("__") or each.encode() in text}
        _known_names[name] = (path, mtime_ns), names
    return names


def _is_same(here: Any, there: Any, scope: object) -> bool:
    """Whether a value is that of the source. It calls no code of the user's."""
    if there is source_settings.FUNCTION:
        if type(here) is types.FunctionType:
            return here.__globals__ is scope or here.__globals__.get("__name__") not in _MAIN
        # Tools may wrap a function, but nothing except a test puts a mock in its place.
        return type(here).__module__ != "unittest.mock"
    if type(here) in _NUMBERS and type(there) in _NUMBERS:
        return bool(here == there)
    # A float of NumPy is a float, too.
    kind: Any = type(there)
    if kind in _SIMPLE and issubclass(type(here), kind):
        return kind.__eq__(here, there) is True
    if type(here) is not type(there):
        return False
    if type(here) is dict:
        return len(here) == len(there) and all(
            key in here and _is_same(here[key], value, scope) for key, value in there.items()
        )
    if type(here) in (list, tuple):
        return len(here) == len(there) and all(_is_same(*pair, scope) for pair in zip(here, there))
    return bool(here == there)


def _is_missed(change: ChangedName, uses: function_uses.Uses, by_script: Collection[str], sources: FileBundle) -> bool:
    """Whether the function uses what was changed, and nothing that runs in the job changes it so."""
    name = change.name.rpartition(".")[2]
    is_used = name in uses.attributes if change.is_of_class else _is_read(change, uses)
    if not is_used or name in uses.stored or uses.may_set_any(change.module):
        return False
    if change.is_in_place:
        # The module's own functions often fill a container, so it must be certain that the script does.
        return name not in uses.filled and (name in by_script or _has_part_of_script(change.here))
    if change.is_of_class and name not in by_script:
        return False
    sets_it_otherwise = _may_set(change.path.read_bytes(), change.name, change.is_new)
    return not (sets_it_otherwise or _is_set_elsewhere(change, name, sources))


@functools.lru_cache(maxsize=512)
def _may_set(source: bytes, key: str, is_new: bool) -> bool:
    """Whether the source of the module itself may set the name to another value than that of its literal."""
    tree = _parsed(source)
    if is_new:
        return source_settings.is_dynamic(tree) or source_settings.imports_all(tree)
    return not source_settings.sets_once(tree, key)


def _is_read(change: ChangedName, uses: function_uses.Uses) -> bool:
    if uses.reads(change.module, change.name):
        return True
    # Another module may have taken the same container: from conf import SETTINGS.
    return change.is_in_place and any(
        name == change.name and vars(sys.modules[module]).get(name) is change.here
        for module, name in uses.read
        if module in sys.modules and module not in _MAIN
    )


def _is_set_elsewhere(change: ChangedName, name: str, sources: FileBundle) -> bool:
    """Whether another module that is sent may set the attribute when it is imported."""
    asked = (sources.digest, change.module, name)
    if asked not in _set_elsewhere:
        code = [data for file, data in sources.files.items() if file.endswith(".py")]
        _set_elsewhere[asked] = _may_set_any(code, change.module) or _may_set_attribute(code, name)
    return _set_elsewhere[asked]


def _may_set_any(code: Iterable[bytes], module: str) -> bool:
    """Whether code may set attributes of a module that it does not name."""
    last = module.rpartition(".")[2].encode()
    return any(last in data and any(way in data for way in (b"setattr(", b"__dict__", b"vars(")) for data in code)


def _may_set_attribute(code: Collection[bytes], name: str) -> bool:
    """Whether importing code may set an attribute of that name."""
    near = (data for data in code if b"." + name.encode() in data)
    if not any(source_settings.sets_attribute(_parsed(data), name) for data in near):
        return False
    return sum(map(len, code)) > _MOST_CODE or source_settings.may_set_attribute(list(map(_parsed, code)), name)


@functools.lru_cache(maxsize=512)
def _parsed(source: bytes | str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        # A cell of a notebook may have magics.
        return ast.Module([], [])


def _script_is_sent(sources: FileBundle) -> bool:
    """Whether the script is one of the modules, as with `python -m package.train`."""
    file = attribute(sys.modules["__main__"], "__file__", "")
    return bool(file) and Path(file).is_file() and Path(file).read_bytes() in sources.files.values()


def _changed_by_script(roots: Iterable[Any], texts: Mapping[str, str]) -> frozenset[str]:
    """Return the names that code of the script or the notebook changes, except for the functions that are sent."""
    main = sys.modules["__main__"]
    file = attribute(main, "__file__", "")
    # A notebook keeps the text of its cells in `In`.
    cells = [each for each in vars(main).get("In") or () if isinstance(each, str)]
    scripts = [text for text in ("".join(linecache.getlines(file)) if file else "", *cells) if text.strip()]
    lines: dict[str, set[int]] = {}
    for root in roots:
        if type(root) is types.FunctionType:
            text = texts.get(root.__code__.co_filename, "").strip()
            lines.setdefault(text, set()).add(root.__code__.co_firstlineno)
    return frozenset().union(*(_changed_names(text, frozenset(lines.get(text.strip(), ()))) for text in scripts))


@functools.lru_cache(maxsize=512)
def _changed_names(text: str, without: frozenset[int]) -> frozenset[str]:
    return source_settings.changed_names(_parsed(text), without)


def _has_part_of_script(container: Any) -> bool:
    """Whether a container has a function or class of the script, as one that it has registered."""
    members = list(container.values() if type(container) is dict else container)[:_MOST]
    kinds = (types.FunctionType, type)
    return any(type(each) in kinds and attribute(each, "__module__") in _MAIN for each in members)
