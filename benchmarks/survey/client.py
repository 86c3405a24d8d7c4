"""The survey of one package, or of one script with cases, in a process of its own.

`python -m benchmarks.survey.client FACTS`, where FACTS are JSON: what to survey, the environment of the other side, and
the file for the results, to which it adds a line for each object. Started again after its end, it goes on behind the
object at which it ended.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import socket
import sys
import tempfile
import types
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.survey import objects
from benchmarks.survey.objects import within
from benchmarks.survey.same import difference
from benchmarks.survey.trip import TOOLS, TripFailed, Worker

_MOST = 1200  # classes of one package
_OBJECT_S = 60
# Raised on the caller's machine, these would end the program or a loop: they arrive as FunctionError.
_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration, asyncio.CancelledError)
# What is in the user's script. It is executed as `__main__`, in a file of its own.
_SCRIPT = """
import importlib

KEPT = None

def of_argument(value):
    return value

def of_global():
    return KEPT

def of_default(value=None):
    return value

def raise_it(module, name, args, kwargs):
    made = importlib.import_module(module)
    for part in name.split("."):
        made = getattr(made, part)
    error = made(*args, **kwargs)
    try:
        error.add_note("a note")
    except Exception:
        pass
    raise error from ValueError("the cause")
"""


class Facts(NamedTuple):
    """What to survey, and with whom.

    Attributes:
        name: A package, or the path of a script with `cases()`.
        python: The interpreter of the other side.
        version: (major, minor) of it.
        bridge: The folder with the files that a host has.
        results: The file for the results.
        tools: The ways to go.
    """

    name: str
    python: str
    version: tuple[int, int]
    bridge: str
    results: str
    tools: tuple[str, ...] = TOOLS


class Results:
    """The file with one line for each object; the one at which this process ended before is named there."""

    def __init__(self, path: Path) -> None:
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.done = {line["name"] for line in lines}
        self._file = path.open("a")
        begun = path.with_suffix(".begun")
        self._survey = os.getppid()
        self._begun = begun.open("a+")
        self._begun.seek(0)
        earlier = self._begun.read().splitlines()
        for name in earlier[-1:]:
            if name not in self.done:
                self.add({"name": name, "kind": "ended", "clusterfn": "the process ended"})
        self.done.update(earlier)

    def begin(self, name: str) -> bool:
        """Note that an object is begun; return whether it is new. A process whose survey was killed ends here."""
        if os.getppid() != self._survey:
            os._exit(1)
        if name in self.done:
            return False
        self._begun.write(name + "\n")
        self._begun.flush()
        return True

    def add(self, line: dict[str, Any]) -> None:
        """Add what became of an object."""
        self.done.add(line["name"])
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def main(facts: Facts) -> None:
    """Survey, and write the results."""
    results = Results(Path(facts.results))
    socket.getaddrinfo = _find_no_host
    with tempfile.TemporaryDirectory(prefix="survey-") as folder:
        script = _as_script(Path(folder), _SCRIPT)
        os.chdir(folder)
        worker = Worker(facts.python, tuple(facts.version), facts.bridge, Path(folder) / "call")  # type: ignore[arg-type]
        try:
            if facts.name.endswith(".py"):
                for line in _cases(facts, worker, Path(folder), results):
                    results.add(line)
            else:
                for line in _package(facts, worker, script, results):
                    results.add(line)
        finally:
            worker.close()
    results.add({"name": "*", "kind": "end"})


def _find_no_host(*_: object, **__: object) -> Any:
    """Refuse at once: where no network is, a search of a name takes minutes, and no signal ends it."""
    raise OSError("a survey connects to nothing")


def _as_script(folder: Path, text: str) -> types.ModuleType:
    """Execute a text as the user's `__main__`."""
    path = folder / "script.py"
    path.write_text(text)
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    sys.argv = [str(path)]
    exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    return module


def _package(facts: Facts, worker: Worker, script: Any, results: Results) -> Iterator[dict[str, Any]]:
    for number, (name, cls) in enumerate(objects.classes_of(facts.name)):
        if number == _MOST:
            return
        if results.begin(name):
            found = objects.made(cls)
            if found is None or issubclass(cls, _ENDS) or cls is CancelledError:
                results.done.add(name)
            elif issubclass(cls, BaseException):
                yield {"name": name, "kind": "exception", **_exception(facts, worker, script, name, found)}
            else:
                yield {"name": name, "kind": "value", **_value(facts, worker, script, found[0])}


def _value(facts: Facts, worker: Worker, script: Any, value: Any) -> dict[str, str]:
    if difference(value, value):
        return {}
    return {tool: _carried(worker, tool, script, value, lambda back: difference(value, back)) for tool in facts.tools}


def _carried(worker: Worker, tool: str, script: Any, value: Any, wrong: Any) -> str:
    """Send a value as an argument, a global and a default, and return what was wrong with what came back."""
    for place in ("argument", "global", "default"):
        found = ""
        for _ in range(2):  # some objects change when they are compared or pickled for the first time
            found = _carried_once(worker, tool, script, value, wrong, place)
            if not found or "TookTooLong" in found:
                break
        if found:
            return f"{place}: {found}"
    return ""


def _carried_once(worker: Worker, tool: str, script: Any, value: Any, wrong: Any, place: str) -> str:
    script.KEPT = value if place == "global" else None
    script.of_default.__defaults__ = (value if place == "default" else None,)
    try:
        with within(_OBJECT_S):
            back = worker.call(tool, getattr(script, f"of_{place}"), *([value] if place == "argument" else []))
            return str(wrong(back))
    except BaseException as error:  # foreign code, and what clusterfn says of it
        return _said(error)


def _said(error: BaseException) -> str:
    hint = getattr(error, "hint", None)
    return f"{type(error).__name__}: {error}"[:500] + (f" [{hint}]" if hint and "[" not in str(error)[-80:] else "")


def _exception(facts: Facts, worker: Worker, script: Any, name: str, found: tuple[Any, Any]) -> dict[str, str]:
    one, (args, kwargs) = found
    module, _, attribute = name.rpartition(".")
    lines = {}
    for tool in (*facts.tools, "pickle"):
        try:
            with within(_OBJECT_S):
                worker.call(tool, script.raise_it, module, attribute, args, kwargs)
            lines[tool] = "nothing was raised"
        except TripFailed as failed:
            lines[tool] = str(failed)
        except BaseException as error:  # it is what was raised, or says what became of it
            lines[tool] = _unlike(error, one, chained=tool == "clusterfn")
    return lines


def _unlike(error: BaseException, one: BaseException, chained: bool) -> str:
    """Say what an exception that came lacks of the one that was raised."""
    if type(error) is not type(one):
        return f"it came as {_said(error)}"
    text, came = _text(one), _text(error)
    if text != came:
        return f"its text is {came!r:.150}, not {text!r:.150}"
    if difference(one.args, error.args):
        return f"args: {difference(one.args, error.args)}"
    if chained and not (isinstance(error.__cause__, ValueError) and str(error.__cause__) == "the cause"):
        return f"its cause is {error.__cause__!r:.100}"
    if chained and hasattr(one, "add_note") and "a note" not in getattr(error, "__notes__", ["a note"]):
        return "its note is lost"
    return ""


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:
        return f"<{type(broken).__name__}>"


def _cases(facts: Facts, worker: Worker, folder: Path, results: Results) -> Iterator[dict[str, Any]]:
    """Survey what `cases()` of a script yields: README.md beside the scripts says in which form."""
    script = _as_script(folder, Path(facts.name).read_text() + _SCRIPT)
    for name, value, check in script.cases():
        if not results.begin(name):
            continue
        runs = isinstance(value, types.FunctionType)
        if Path(facts.name).parent.name == "pairs":  # a maker, and how to compare two values
            runs = False
            try:
                value, alike = value(), check
            except Exception:  # this version has no such value
                results.done.add(name)
                continue
            check = functools.partial(alike, value)
        right = check or functools.partial(_is_same, value)
        lines = {}
        for tool in facts.tools:
            if runs:
                lines[tool] = _called(worker, tool, value, right)
            else:
                lines[tool] = _carried(worker, tool, script, value, functools.partial(_checked, right))
        yield {"name": name, "kind": "case", **lines}


def _is_same(value: Any, back: Any) -> bool:
    found = difference(value, back)
    if found:
        raise AssertionError(found)
    return True


def _called(worker: Worker, tool: str, function: Any, check: Any) -> str:
    try:
        with within(_OBJECT_S):
            return _checked(check, worker.call(tool, function))
    except BaseException as error:
        return _said(error)


def _checked(check: Any, back: Any) -> str:
    said = check(back)
    return "" if said is None or said else "the check says no"


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    main(Facts(**told))
    os._exit(0)  # threads of foreign code
