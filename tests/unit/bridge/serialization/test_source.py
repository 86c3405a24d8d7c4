"""The text of functions and classes: it is the one that runs, or there is none."""

from __future__ import annotations

import copyreg
import enum
import linecache
import sys
import types

import pytest

from clusterfn import PayloadError
from clusterfn.hosts import serialization
from clusterfn.packing import payload

source = serialization.part("source")
statement = serialization.part("statement")
CELL = "/tmp/ipykernel_1/2.py"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Run a text as a script's, under a file's name; what it defines."""
    path = tmp_path / "script.py"

    def run(text, file=None):
        if file is None:
            path.write_text(text)
        else:
            entry = (len(text), None, text.splitlines(keepends=True), file)
            monkeypatch.setitem(linecache.cache, file, entry)
        module = types.ModuleType("__main__")
        module.__file__ = file or str(path)
        monkeypatch.setitem(sys.modules, "__main__", module)
        exec(compile(text, file or str(path), "exec", dont_inherit=True), vars(module))
        return module

    run.path = path
    return run


def text_of(function):
    return source.of_code(function.__code__).text.strip()


FUNCTION = "def f(x):\n    return x + 1\n"


def test_a_function_that_moved_in_its_file_is_found(load):
    f = load(FUNCTION).f
    load.path.write_text("import os\n\n\n" + FUNCTION)

    assert source.of_code(f.__code__).line == 4


def test_a_function_whose_file_was_changed_has_no_source(load):
    f = load(FUNCTION).f
    load.path.write_text(FUNCTION.replace("1", "2"))

    with pytest.raises(source.NoSource, match=r"f \(.*script.py, line 1\): its source is not what runs"):
        source.of_code(f.__code__)


@pytest.mark.parametrize("file", ["<stdin>", "<string>"])
def test_what_was_typed_at_a_prompt_has_no_source(file):
    scope = {}
    exec(compile(FUNCTION, file, "exec"), scope)

    with pytest.raises(source.NoSource, match="not available"):
        source.of_code(scope["f"].__code__)


def test_a_text_that_warns_when_it_is_compiled_is_not_reported_again(load):
    with pytest.warns():
        f = load("def f(x):\n    return x is 1\n").f

    assert text_of(f).startswith("def f")


def test_a_module_that_names_super_has_methods_that_call_it(load):
    text = "class A:\n    def f(self):\n        return super().__repr__()\nmade = super(A, A()).__repr__\n"

    assert text_of(load(text).A.f).startswith("def f")


def test_a_syntax_error_there_has_the_line_of_the_file():
    snippet = source.Snippet("f", "script.py", 40, 39, "def f():\n    x = 1\n    return x x\n")

    with pytest.raises(SyntaxError) as error:
        source.compiled(snippet)

    assert (error.value.filename, error.value.lineno) == ("script.py", 42)
    assert error.value.text.strip() == "return x x"


CLASSES = """
import dataclasses, enum, typing

class Color(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Point:
    x: int
    y: int = 2

class Row(typing.NamedTuple):
    size: int = 3

class Plain:
    def get(self):
        return 4
"""


@pytest.mark.parametrize("file", [None, CELL])
def test_the_statements_of_classes_are_found_in_files_and_cells(load, file):
    module = load(CLASSES, file)

    found = [statement.of_class(getattr(module, name)).text for name in ("Color", "Point", "Row", "Plain")]

    assert [text.split("\n")[0] for text in found] == [
        "class Color(enum.Enum):", "@dataclasses.dataclass", "class Row(typing.NamedTuple):", "class Plain:",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("Color", "RED = 1", "RED = 2"),
        ("Point", "x: int", "z: int"),
        ("Point", "y: int = 2", "y: int = 3"),
        ("Point", "    x: int\n", ""),
        ("Row", "size: int = 3", "size: int = 4"),
        ("Plain", "return 4", "return 5"),
    ],
)
def test_a_statement_that_was_changed_is_not_that_of_the_class(load, name, old, new):
    module = load(CLASSES)
    load.path.write_text(CLASSES.replace(old, new))

    assert statement.of_class(getattr(module, name)) is None


def test_of_two_cells_the_one_that_made_the_class_is_found(load):
    first = load(CLASSES, CELL).Point
    load(CLASSES.replace("y: int", "z: int"), CELL.replace("2", "3"))

    assert "y: int" in statement.of_class(first).text


TWINS = """
import dataclasses, enum, functools, logging, random, threading

class IntEnum(enum.IntEnum):
    OWN = 1

class Thread(threading.Thread):
    pass

class Logger(logging.Logger):
    debug = logging.Logger.debug

@dataclasses.dataclass
class Field:
    "OWN"

def branches(wanted):
    for own in (True, False):
        if own:
            class Same(random.Random):
                def get(self): return 1
        else:
            class Same(dict):
                def get(self): return 1
        if own == wanted:
            return Same

def bare(wanted):
    if wanted:
        class Twin(dict): "OWN"
    else:
        class Twin(list): "OTHER"
    return Twin

class Outer:
    class Twin(list): "OTHER"
"""


def test_a_statement_is_that_of_the_class_and_not_one_of_its_name(load):
    module = load(TWINS)
    of = {name: statement.of_class(getattr(module, name)) for name in ("IntEnum", "Thread", "Logger", "Field")}
    assert {name: found.file for name, found in of.items()} == dict.fromkeys(of, str(load.path))
    twins = (module.branches(True), module.branches(False), module.bare(True), module.bare(False))
    assert [text.partition(":")[0].split()[1] for text in (statement.of_class(each).text for each in twins)] == [
        "Same(random.Random)", "Same(dict)", "Twin(dict)", "Twin(list)",
    ]  # fmt: skip


def test_a_class_that_cannot_go_is_refused_by_its_name():
    class Made(enum.Enum):
        A = 1

        def __init__(self, value):
            self.twice = 2 * value

    Made.__qualname__ = "Made"
    with pytest.raises(PayloadError, match="the class Made: its statement is not found"):
        payload.pack(print, (Made.A,), {}, (3, 9 if sys.version_info[:2] != (3, 9) else 10))


WITH_A_NAME = """
import sys
class Owner:
    meanwhile()
    seen = vars(sys.modules["__main__"]).get("Kind")
"""


def test_a_module_has_the_names_of_a_statement_while_it_is_executed_and_keeps_its_own(load, monkeypatch):
    monkeypatch.setattr("builtins.meanwhile", lambda: None, raising=False)
    snippet = statement.of_class(load(WITH_A_NAME, CELL).Owner)
    main = sys.modules["__main__"]

    def seen(**names):
        scope = {"__name__": "__main__", "sys": sys, "Kind": int, **names}
        return statement.execute(snippet, scope, {}).seen

    assert seen(meanwhile=lambda: None) is int and not hasattr(main, "Kind")
    seen(meanwhile=lambda: setattr(main, "Kind", "the user's own"))
    assert main.Kind == seen(meanwhile=lambda: None) == "the user's own"


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_a_module_has_registered_in_copyreg_is_registered_by_its_import_there(monkeypatch, is_kept):
    teller = types.ModuleType("_teller")  # as numpy does, which deletes the function's name
    exec("class Kind: ...\ndef reduce(kind): return Kind, ()", vars(teller))
    monkeypatch.setitem(sys.modules, "_teller", teller)
    monkeypatch.setitem(copyreg.dispatch_table, teller.Kind, teller.reduce)
    if not is_kept:
        del teller.reduce
    classes = serialization.part("classes")

    assert teller.Kind not in classes.copyreg_entries()
    monkeypatch.delitem(sys.modules, "_teller")
    assert teller.Kind in classes.copyreg_entries()
