"""Functions on the way to another minor version of Python: sent by one interpreter, loaded by the other.

`functions.py send BRIDGE OUT EVERY LIST` packs functions of the files in a list, as if they were in the user's script,
for each of the versions. `functions.py load BRIDGE IN RESULT` loads what one version got, and compares it with what
that Python compiles from the whole file. It needs nothing but the bridge: the files are only read.
"""

from __future__ import annotations

import ast
import contextlib
import json
import linecache
import pickle
import sys
import textwrap
import types
import warnings
from pathlib import Path

VERSIONS = ((3, 9), (3, 11), (3, 13))
_NOT_COUNTED = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
_OPTIMIZED = 1  # a flag of the code of functions: that of classes and modules lacks it


def _names(bridge):
    sys.path.insert(0, bridge)
    from _clusterfn_wire import container, source

    del sys.path[0]
    return container, source


def functions(code, inside="", seen=None):
    """Yield the code of each function in another, with its dotted path; of several in one line, each has a number."""
    seen = {} if seen is None else seen
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            # One version has a code of its own for what another has not: it is no part of the path.
            passed = part.co_name in _NOT_COUNTED or part.co_name.startswith("<generic")
            path = inside if passed else f"{inside}.{part.co_name}:{part.co_firstlineno}"
            if not passed:
                seen[path] = seen.get(path, 0) + 1
                path = path if seen[path] == 1 else f"{path}#{seen[path]}"
            if part.co_flags & _OPTIMIZED and not passed:
                yield path, part
            yield from functions(part, path, seen)


def read(file):
    """Return the text of a file as Python reads it; "" if it cannot be compiled."""
    return "".join(linecache.getlines(file))


def compiled(text, file):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(text, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None


def send(bridge, out, every, files):
    """Pack the functions of files for each version; write one file for each of these."""
    container, _ = _names(bridge)
    with contextlib.ExitStack() as stack:
        paths = {version: Path(out, "to-{}.{}".format(*version)) for version in VERSIONS}
        outs = {version: stack.enter_context(path.open("wb")) for version, path in paths.items()}
        _send_all(container, outs, every, files)


def _send_all(container, outs, every, files):
    number = 0
    for file in files:
        text = read(file)
        code = compiled(text, file) if text else None
        for path, each in functions(code) if code else ():
            number += 1
            if number % every:
                continue
            cells = tuple(types.CellType() for _ in each.co_freevars)
            function = types.FunctionType(each, {"__name__": "__main__"}, each.co_name, None, cells)
            for version in VERSIONS:
                try:
                    data, why = b"".join(container.pack(function, target=version).pieces()), ""
                except Exception as error:
                    data, why = b"", f"{type(error).__name__}: {error}"
                own = "" if data else _own_text(text, each)
                pickle.dump((file, path, each.co_firstlineno, data, why, own), outs[version])


def _own_text(text, code):
    """Return the text of a function alone, without its decorators, found anew and not by clusterfn."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if code.co_firstlineno in (first, node.lineno):
                return textwrap.dedent("\n".join(text.split("\n")[node.lineno - 1 : node.end_lineno]))
    return ""


def load(bridge, given, result):
    """Load functions, compare them, and write how many were what, with each failure."""
    container, source = _names(bridge)
    counts = {}
    failures = []
    known = {}
    with Path(given).open("rb") as opened:
        while True:
            try:
                file, path, line, data, why, own = pickle.load(opened)
            except EOFError:
                break
            if file not in known:
                known.clear()
                text = read(file)
                code = compiled(text, file)
                known[file] = dict(functions(code)) if code else None
            verdict, said = _judge(container, source, known[file], file, path, line, data, why, own)
            counts[verdict] = counts.get(verdict, 0) + 1
            if verdict != "equal":
                failures.append([verdict, file, path, line, said])
    Path(result).write_text(json.dumps({"counts": counts, "failures": failures}))


def _judge(container, source, known, file, path, line, data, why, own):
    if not data:
        if known is not None or "its source" in why:
            return "rejected wrongly", why
        if compiled(own, file) is not None:
            return "rejected wrongly", why
        return ("rejected" if "line " in why else "rejected without a line"), why
    try:
        function = container.loads(data)
    except BaseException as error:
        return "does not load", f"{type(error).__name__}: {error}"
    if known is None:
        return "not compared", ""
    wanted = known.get(path)
    if wanted is None:
        return "not compared", "this Python has no function of that name at that line"
    return ("equal", "") if source.same(function.__code__, wanted) else ("differs", "")


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]).read_text().split("\n"))
    else:
        load(*sys.argv[2:5])
