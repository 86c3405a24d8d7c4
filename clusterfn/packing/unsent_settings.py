"""Find calls by which a script sets what cannot be sent, such as `np.random.seed(0)`: `settings.NAMED` has them.

They hold for the process of the script, and its jobs are others. Only those count that the code of the call may use.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import types
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from clusterfn.bridge.attributes import attribute
from clusterfn.hosts import serialization

# Code with one of these seeds itself.
_SEEDS = frozenset(["manual_seed", "seed", "seed_everything", "set_random_seed", "set_seed"])
# Code with one of these has a generator of its own.
_GENERATORS = frozenset(["Generator", "RandomState", "default_rng"])


class _Call(NamedTuple):
    line: int
    function: str
    text: str


def find(packages: Collection[str], names: Collection[str]) -> Iterator[str]:
    """Yield what the script sets for its own process only, as sentences.

    Args:
        packages: What the code that is sent uses.
        names: The names in that code.
    """
    script = sys.modules["__main__"]
    text = "".join(linecache.getlines(attribute(script, "__file__") or ""))
    named, used = serialization.part("settings").NAMED, set(packages)
    # Most code that uses NumPy draws no random numbers.
    if "random" not in names or not _GENERATORS.isdisjoint(names):
        used.discard("numpy")
    is_likely = any(name.partition("(")[0].rpartition(".")[2] in text for name in named)
    for line, function, shown in _calls(text) if is_likely else ():
        first, _, rest = function.partition(".")
        last = function.rpartition(".")[2]
        module = vars(script).get(first)
        full = f"{module.__name__}.{rest}" if rest and type(module) is types.ModuleType else function
        argument = shown[len(function) :].partition(",")[0].rstrip(")")
        sets = next((named[key] for key in (full, last, full + argument) if key in named), None)
        is_set_there = not (_SEEDS if last in _SEEDS else {last}).isdisjoint(names)
        if sets is not None and (not sets or not sets.isdisjoint(used)) and not is_set_there:
            yield f"{shown} in line {line} of your script has no effect in a job: call it in the function, too"


@functools.lru_cache(maxsize=8)
def _calls(text: str) -> tuple[_Call, ...]:
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return ()
    statements = (each.value for each in _statements(body) if isinstance(each, ast.Expr))
    calls = [each for each in statements if isinstance(each, ast.Call)]
    return tuple(_Call(each.lineno, ast.unparse(each.func), ast.unparse(each)) for each in calls)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run whenever the script does; many scripts have them in a function `main`."""
    for each in body:
        yield each
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or each.name == "main":
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(each, part, ()))
