"""Functions on the way to another minor version of Python: sent by one interpreter, loaded by the other.

`functions.py send BRIDGE OUT EVERY LIST` packs functions of the files in a list, as if they stood in the user's script,
for each of the versions. `functions.py load BRIDGE IN RESULT` loads what one version got, and compares it with what that Python
compiles from the whole file. Needs nothing but the bridge, as the files are only read.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import pickle
import sys
import textwrap
import types
import warnings

VERSIONS = ((3, 9), (3, 11), (3, 13))
_NOT_COUNTED = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
_OPTIMIZED = 1  # a flag of the code of functions: that of classes and modules lacks it


def _names(bridge):
    sys.path.insert(0, bridge)
    from _clusterfn_wire import container, source

    del sys.path[0]
    return container, source


def functions(code, inside=""):
    """Yield the code of each function in another, with its dotted path."""
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            path = "%s.%s:%d" % (inside, part.co_name, part.co_firstlineno)
            if part.co_flags & _OPTIMIZED and part.co_name not in _NOT_COUNTED and not part.co_name.startswith("<generic"):
                yield path, part
            # What a version has a code of its own for, another has not: neither is a part of the path.
            passed = part.co_name in _NOT_COUNTED or part.co_name.startswith("<generic")
            yield from functions(part, inside if passed else path)


def read(file):
    """Return the text of a file as Python reads it; "" if it cannot be compiled."""
    try:
        with open(file, "rb") as opened:
            return "".join(linecache.getlines(file)) if opened.read(1) else ""
    except OSError:
        return ""


def compiled(text, file):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(text, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None


def send(bridge, out, every, files):
    """Pack the functions of files for each version; write one file for each of these."""
    container, source = _names(bridge)
    here = sys.version_info[:2]
    outs = {version: open(os.path.join(out, "to-%d.%d" % version), "wb") for version in VERSIONS}
    number = 0
    for file in files:
        text = read(file)
        code = compiled(text, file) if text else None
        for path, each in functions(code) if code else ():
            number += 1
            if number % every:
                continue
            scope = {"__name__": "__main__"}
            function = types.FunctionType(each, scope, each.co_name, None, tuple(types.CellType() for _ in each.co_freevars))
            for version in VERSIONS:
                try:
                    data, why = b"".join(container.pack(function, target=version).pieces()), ""
                except Exception as error:
                    data, why = b"", "%s: %s" % (type(error).__name__, error)
                own = "" if data else _own_text(text, each)
                pickle.dump((file, path, each.co_firstlineno, data, why, own), outs[version])
    for opened in outs.values():
        opened.close()


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
    with open(given, "rb") as opened:
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
    with open(result, "w") as written:
        json.dump({"counts": counts, "failures": failures}, written)


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
        return "does not load", "%s: %s" % (type(error).__name__, error)
    if known is None:
        return "not compared", ""
    wanted = known.get(path)
    if wanted is None:
        return "not compared", "this Python has no function of that name at that line"
    return ("equal", "") if source.same(function.__code__, wanted) else ("differs", "")


if __name__ == "__main__":
    if sys.argv[1] == "send":
        with open(sys.argv[5]) as listed:
            send(sys.argv[2], sys.argv[3], int(sys.argv[4]), listed.read().split("\n"))
    else:
        load(*sys.argv[2:5])
