"""`%%cluster`: run a cell on a host. Named variables go in and out, and what it displays appears below the cell.

Its line has options of a call as flags, and the variables that go in and out. What the text of a cell reads and sets is
found before anything of it is sent.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import re
import shlex
import symtable
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, NoReturn

from clusterfn.bridge.supervisor.text import printable
from clusterfn.calls import call
from clusterfn.config.host_text import reading
from clusterfn.config.option_checks import read_requeue
from clusterfn.config.options import CallOptions, Options, parse_options
from clusterfn.errors import ClusterfnError, ConfigError, did_you_mean
from clusterfn.hosts import serialization
from clusterfn.packing import code_facts
from clusterfn.public_api import public_api

_NAME = "cell"


def load(shell: Any) -> None:
    """Add `%%cluster` to an IPython shell."""

    @public_api
    def cluster(line: str, cell: str | None = None) -> None:
        run_cell(shell, line, cell)

    cluster.__doc__ = run_cell.__doc__
    shell.register_magic_function(cluster, "line_cell", "cluster")


def run_cell(shell: Any, line: str, cell: str | None) -> None:
    """Run the cell on a host, as a function of its own.

        %%cluster --host tensor01 --gpus 1 -i data -o result
        result = train(data)

    Options:
        -i NAME: Send this variable of the notebook; several as -i a -i b or -i a,b. Nothing else is sent.
        -o NAME: Set this variable of the notebook to its value in the cell.
        --host, --cores, --memory, --gpus, …: The options of `@cluster`, with their values behind them.

    Raises:
        ConfigError: Before anything is sent: an unknown option, a variable that does not exist or is never set.
        ClusterfnError: The cell ended without setting a variable that `-o` names.
        Exception: What the cell raises.
    """
    if cell is None or not cell.strip():
        raise ConfigError("%%cluster needs a cell", hint="write %%cluster … in the first line, and the code below it")
    request = parse_line(line)
    values = values_of(request.inputs, shell.user_ns)
    # The empty first line takes the place of the line of %%cluster, so that line numbers in tracebacks are right.
    file = _file_of_cell(shell.user_ns)
    source = "\n" + cell
    check_names(names_in(source, file), request.inputs, request.outputs, shell.user_ns)
    wire = serialization.part("cell")
    try:
        options = request.options if request.options.name else request.options._replace(name=_NAME)
        cell_call = (source, file, values, request.outputs)
        prepared = call.prepare(wire.run_cell, cell_call, {}, options, code_facts.of_text(source).imports)
        result = call.run(prepared, options.on_interrupt)
    except Exception as error:
        # The code of the cell may raise anything. What it displayed before is sent with the exception.
        _show(vars(error).pop(wire.SHOWN, ()))
        raise
    job = prepared.job
    values, shown = read_result(result, request.outputs, job.host.name, job.results.data_only)
    _show(shown)
    shell.user_ns.update(values)
    missing = [name for name in request.outputs if name not in values]
    if missing:
        problem = f"%%cluster -o: the cell ended without setting {', '.join(missing)}"
        raise ClusterfnError(problem, hint="set it on every path")


def read_result(
    result: Any, names: Sequence[str], host: str, is_data: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Take what a cell returned: the variables that were asked for and no others, and what it displayed.

    Args:
        result: As the host sent it.
        names: The names of the variables.
        host: Its name.
        is_data: Whether only plain data comes from it: then its HTML and JavaScript do not run in this notebook.

    Raises:
        HostError: It is nothing that a cell returns.
    """
    with reading(host, "the result of the cell"):
        values = {name: result["values"][name] for name in names if name in result["values"]}
        shown = [dict(bundle) for bundle in result["shown"]]
    if not is_data:
        return values, shown
    plain = [{kind: content for kind, content in bundle.items() if kind in _PICTURES} for bundle in shown]
    for bundle, whole in zip(plain, shown):
        text = whole.get("text/plain")
        bundle["text/plain"] = printable(text if type(text) is str else "(not shown: it is no text and no picture)")
    return values, plain


# Of the types that a notebook shows, these run no code.
_PICTURES = ("image/png", "image/jpeg")


def _file_of_cell(variables: Any) -> str:
    """Return the name under which tracebacks know the cell that runs."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is variables:
            return frame.f_code.co_filename
        frame = frame.f_back
    return "<cell>"


def _show(bundles: Any) -> None:
    from IPython.display import display

    for bundle in bundles:
        display(bundle, raw=True)


_GIVEN = frozenset([*vars(builtins), "display", "__name__", "__file__", "__builtins__"])


@dataclass(frozen=True)
class CellNames:
    """The global names of a cell.

    Attributes:
        reads: Those that it reads and does not set anywhere.
        sets: Those that it sets somewhere.
        is_certain: Whether it sets no others: it has no `from x import *`, `exec` or `globals`.
    """

    reads: frozenset[str]
    sets: frozenset[str]
    is_certain: bool


def names_in(source: str, file: str) -> CellNames:
    """Find the global names of a cell; raise SyntaxError if it is no Python."""
    tree = ast.parse(source, file)
    stars = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))
    reads, sets = set(), set()
    for table in _tables(symtable.symtable(source, file, "exec")):
        for symbol in table.get_symbols():
            is_global = table.get_type() == "module" or symbol.is_global()
            if is_global and symbol.is_referenced():
                reads.add(symbol.get_name())
            if is_global and (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()):
                sets.add(symbol.get_name())
    certain = not stars and reads.isdisjoint(["exec", "globals", "vars", "locals"])
    return CellNames(frozenset(reads - sets - _GIVEN), frozenset(sets), certain)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def check_names(
    cell_names: CellNames, inputs: Collection[str], outputs: Collection[str], variables: Mapping[str, Any]
) -> None:
    """Reject a cell that reads what only the notebook has, or never sets what it should return.

    Raises:
        ConfigError: The message names the variables, and says how to pass them.
    """
    if not cell_names.is_certain:
        return
    unsent = sorted(name for name in cell_names.reads if name in variables and name not in inputs)
    if unsent:
        modules = [name for name in unsent if isinstance(variables[name], ModuleType)]
        others = [name for name in unsent if name not in modules]
        paths = {name: variables[name].__name__ for name in modules}
        imports = [f"import {path}" + (f" as {name}" if name != path else "") for name, path in paths.items()]
        hints = [f"send variables: {' '.join(f'-i {name}' for name in others)}"] if others else []
        hints += [f"import modules in the cell: {'; '.join(imports)}"] if imports else []
        verb = "exist" if len(unsent) > 1 else "exists"
        problem = f"%%cluster: the cell uses {', '.join(unsent)}, which {verb} only in the notebook"
        raise ConfigError(problem, hint="; ".join(hints))
    for name in outputs:
        if name not in cell_names.sets and name not in inputs:
            near = did_you_mean(name, cell_names.sets)
            raise ConfigError(f"%%cluster -o {name}: the cell never sets {name!r}{near}", hint=f"assign it: {name} = …")


# The annotations decide how each option is read, so that a new one needs no line here.
_KINDS = {name: getattr(kind, "__forward_arg__", str(kind)) for name, kind in CallOptions.__annotations__.items()}
# notify= is a line of shell, too, and that is what a cell has room for.
_PAIRS = frozenset(name for name, kind in _KINDS.items() if "Mapping[" in kind) - {"notify"}
_LISTS = frozenset(name for name, kind in _KINDS.items() if "Sequence[" in kind)
_NUMBERS = frozenset(name for name, kind in _KINDS.items() if re.search(r"\bint\b", kind))
_FLAGS = frozenset(name for name, kind in _KINDS.items() if re.search(r"\bbool\b", kind)) - _PAIRS
_EXAMPLE = "%%cluster --host tensor01 --gpus 1 -i data -o result"
# Between two values of a list; not inside `torch>=2.4,<2.8` or `foo[a,b]`.
_COMMA = re.compile(r",(?!\s*[<>=!~])(?![^\[]*\])")


@dataclass(frozen=True)
class CellOptions:
    """What the line of a cell says.

    Attributes:
        options: Of the call.
        inputs: Variables of the notebook that the cell gets.
        outputs: Variables of the cell that the notebook gets.
    """

    options: Options
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def parse_line(line: str) -> CellOptions:
    """Read the words after `%%cluster`.

    Raises:
        ConfigError: An unknown option, a missing or wrong value, something that is no name of a variable.

    Example:
        >>> parse_line("--gpus 1 -i x,y -o z").inputs
        ('x', 'y')
    """
    try:
        words = shlex.split(line)
    except ValueError as unclosed:
        # A quotation mark is not closed.
        raise ConfigError(f"%%cluster {line}: {unclosed}", hint=f"write it like {_EXAMPLE}") from None
    keywords = vars(_line_parser().parse_args(words))
    inputs, outputs = (_names(f"-{name[0]}", keywords.pop(name)) for name in ("input", "output"))
    for keyword in _LISTS & keywords.keys():
        keywords[keyword] = [word for value in keywords[keyword] for word in _COMMA.split(value)]
    for keyword in _PAIRS & keywords.keys():
        pairs = keywords[keyword]
        is_cause = keyword == "requeue"
        keywords[keyword] = read_requeue(pairs) if is_cause else dict(_pair(keyword, pair) for pair in pairs)
    for keyword in _NUMBERS & keywords.keys():
        if isinstance(text := keywords[keyword], str) and text.removeprefix("-").isdecimal():
            keywords[keyword] = int(text)
    return CellOptions(parse_options(keywords), inputs, outputs)


class _LineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = f"write it like {_EXAMPLE}; the options are -i, -o and those of @cluster"
        raise ConfigError(f"%%cluster: {message}", hint=hint)


def _line_parser() -> argparse.ArgumentParser:
    parser = _LineParser(prog="%%cluster", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name in ("input", "output"):
        parser.add_argument(f"-{name[0]}", f"--{name}", action="append", default=[])
    for keyword in _KINDS:
        action = "append" if keyword in _LISTS or keyword in _PAIRS else "store"
        if keyword in _FLAGS:
            action = "store_true"
        parser.add_argument(f"--{keyword.replace('_', '-')}", action=action)
    return parser


def _names(word: str, values: Sequence[str]) -> tuple[str, ...]:
    names = [name for value in values for name in value.split(",")]
    for name in names:
        if not name.isidentifier():
            hint = f"give the name alone, several as {word} a,b"
            raise ConfigError(f"%%cluster: {word} {name}: {name!r} is not the name of a variable", hint=hint)
    return tuple(dict.fromkeys(names))


def _pair(keyword: str, pair: str) -> tuple[str, Any]:
    """Read NAME=VALUE, or what a name alone means."""
    name, equals, text = pair.partition("=")
    if keyword == "env" and not equals:
        raise ConfigError(f"%%cluster: --env {pair} has no value", hint="write --env NAME=VALUE")
    if keyword == "slurm":
        if not equals:
            # Some options of sbatch have no value, so a name alone means True.
            return name, True
        return name, None if text == "None" else text
    return name, text


def values_of(names: tuple[str, ...], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of these names; raise ConfigError if one of them does not exist."""
    for name in names:
        if name not in variables:
            near = did_you_mean(name, [variable for variable in variables if not variable.startswith("_")])
            message = f"%%cluster -i {name}: the notebook has no variable {name!r}{near}"
            raise ConfigError(message, hint="run the cell that sets it, or leave it out")
    return {name: variables[name] for name in names}
