"""Where clusterfn unpickles: each place is known, with why a hostile host does not reach it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import clusterfn

LIBRARY = Path(clusterfn.__file__).parent

# Where clusterfn unpickles, or reads what may be pickled: function -> why a hostile host does not reach it.
# A new place must ask `ResultPolicy`, as `outcome` does, before it gets a line here.
UNPICKLES = {
    "bridge/serialization/container.py::_load_body": "refuses a pickle if `loads` gives it a `read`",
    "bridge/serialization/unpickler.py::loads": "what `container` and `exceptions` call",
    "bridge/serialization/unpickler.py::_load": "is called by `loads` and, for another version, `loads_without_code`",
    "bridge/serialization/unpickler.py::<module>": "its class",
    "integrations/hydra_launcher.py::_bring": "loads YAML, which makes no objects",
    "bridge/serialization/exceptions.py::_loads": "is called by `from_records` alone",
    "bridge/serialization/exceptions.py::_load": "the same",
    "bridge/serialization/exceptions.py::_unpickled": "the same",
    "bridge/serialization/exceptions.py::_without_constructor": "the same",
    "bridge/serialization/references.py::_load": "runs in jobs alone",
    "api/in_job.py::_read": "reads what a function saved, where the user calls it: usually in the job",
    "calls/outcome.py::value_of": "passes `data_reader.loads` with results=data",
    "calls/outcome_errors.py::_rebuilt": "is not called with results=data",
}
_READS = {
    "loads", "load", "Unpickler", "_Unpickler", "loads_without_code", "from_records", "_loads", "read_pickle",
    "from_pickle", "fromfile", "memmap",
}  # fmt: skip
_HARMLESS = {"cell_magic", "json", "config_file", "data_reader", "tomllib", "tomli", "toml", "yaml", "yamlfile"}


def _reading(tree: ast.AST, around: str = "<module>") -> Iterator[str]:
    """Yield the function around each use of a name that may unpickle."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else around
        of = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
        called = [node.func, *node.args[:1]] if isinstance(node, ast.Call) else []
        names = [each.id for each in called if isinstance(each, ast.Name) and each.id != "load"]
        names += [node.attr] if isinstance(node, ast.Attribute) and of not in _HARMLESS else []
        if _READS.intersection(names):
            yield around
        yield from _reading(node, inner)


def test_no_place_unpickles_but_those_that_are_known():
    found = set()
    for path in sorted(LIBRARY.rglob("*.py")):
        place = path.relative_to(LIBRARY).as_posix()
        if place.startswith("bridge/") and not place.startswith("bridge/serialization/"):
            continue  # what runs on the host alone
        found |= {f"{place}::{each}" for each in _reading(ast.parse(path.read_text(encoding="utf-8")))}

    assert found == set(UNPICKLES)
