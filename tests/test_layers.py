"""The directions of docs/architecture.md, read from the sources: who may import whom, and what stands nowhere."""

from __future__ import annotations

import ast
import configparser
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterfn

LIBRARY = Path(clusterfn.__file__).parent
FILES = sorted(path.relative_to(LIBRARY).as_posix() for path in LIBRARY.rglob("*.py"))

# From the bottom up. A module may import what stands below it and what stands beside it, without a cycle.
ROOMS = [
    ["bridge", "errors"],
    ["config", "gpu", "public_api"],
    ["scheduler", "environment"],
    ["hosts"],
    ["calls"],
    ["jupyter"],
    ["api"],
    ["__init__"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, room in enumerate(ROOMS) for name in room}

# Where a blind `except` ends, with what it is for: everything that runs code of the user's, and outermost frames.
BLIND = {
    "bridge/agent/handler.py": "the agent's outermost frame",
    "bridge/attributes.py": "attributes of the user's objects",
    "bridge/builder/build.py": "the builder's outermost frame",
    "bridge/agent/forked.py": "after a fork nothing may run on",
    "bridge/supervisor/worker_process.py": "after a fork nothing may run on",
    "calls/session_stream.py": "calls functions of the caller, as those that show a transfer",
    "bridge/session/runner.py": "after a fork nothing may run on",
    "api/session_map.py": "what a call raised takes the place of its value",
    "bridge/serialization/container.py": "code of the user's, which is pickled again without its hints",
    "bridge/serialization/hints.py": "attributes of the user's objects",
    "bridge/serialization/exception_parts.py": "calls the user's constructors, __reduce__ and __str__",
    "bridge/worker/payload.py": "runs the user's function",
    "bridge/worker/devices.py": "asks PyTorch for what no release promises",
    "bridge/worker/execute.py": "runs the user's function",
    "cli/command_line.py": "the command's outermost frame",
    "cli/selection.py": "a thread's outermost frame",
    "cli/output.py": "shows what the user's function raised, and goes on with the next job",
    "gpu/guards.py": "the probes that promise never to raise",
    "gpu/cuda_errors.py": "calls an error's own __str__",
    "hosts/rpc/link.py": "a thread's outermost frames; calls listeners of others",
    "hosts/rpc/request_queue.py": "closes a stream that is of no use any more",
    "calls/payload_items.py": "pickles the user's arguments",
    "jupyter/kernel_proxy.py": "a thread's outermost frame",
    "calls/job.py": "a thread's outermost frame; loads the user's value",
    "calls/item_results.py": "the same, for the items of a map",
    "calls/session_job.py": "a thread's outermost frame",
    "calls/worker_limit.py": "sends a call on behalf of a caller who has gone on",
    "api/joblib_backend.py": "gives joblib the exception as that of the batch",
    "api/sweep/run.py": "calls the user's way of scoring",
    "api/sweep/store.py": "pickles and loads the user's values",
}
BUILT_IN = {"__future__", *getattr(sys, "stdlib_module_names", ())}
# Where the value itself is the library's, or the program that is started, or the table of errors is that of the library
# beside the bridge.
LIBRARIES = {
    "bridge/kernel/dask_program.py": [
        "dask",
        "distributed",
        "distributed.http.routing",
        "distributed.security",
        "distributed.utils",
        "tornado.httpserver",
        "tornado.netutil",
    ],
    "bridge/kernel/launch.py": ["ipykernel", "zmq", "zmq.eventloop.zmqstream"],
    "bridge/worker/execute.py": ["clusterfn.gpu.cuda_errors"],
    "bridge/worker/warning.py": ["clusterfn.api.in_job.ending"],
    "bridge/serialization/cell_figures.py": ["matplotlib.backends.backend_agg"],
    "bridge/serialization/numpy_random.py": ["numpy.random"],
    "bridge/serialization/pickler.py": ["numpy"],
    "bridge/serialization/tables.py": ["numpy", "pandas", "pandas._libs", "pandas._libs.internals", "pyarrow"],
    "bridge/serialization/grouped.py": ["pandas"],
    "bridge/serialization/models.py": ["pydantic", "pydantic.fields", "pydantic_core"],
    "bridge/serialization/factories.py": ["attr"],
    "bridge/serialization/tensors.py": ["torch"],
    "bridge/serialization/indexes.py": ["faiss", "numpy"],
}
THERE = [name for name in FILES if name.startswith("bridge/")]


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse((LIBRARY / name).read_text(encoding="utf-8"))


def module(name: str) -> str:
    """`clusterfn.x.y` for a file."""
    return ".".join(["clusterfn", *Path(name).with_suffix("").parts]).removesuffix(".__init__")


def statements(node: ast.AST, late: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Every import, and whether it runs only when a function does; those for types alone are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, late
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from (found for part in child.orelse for found in statements(ast.Module([part], []), late))
        else:
            yield from statements(child, late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


def imported(name: str, late: bool = False) -> set[str]:
    """The modules that a file imports, by their full names; within clusterfn the module, not the name in it."""
    return {
        each for statement, is_late in statements(tree(name)) if is_late == late for each in targets(name, statement)
    }


def followed(name: str) -> set[str]:
    """All that a reader follows: the late imports too, and those for types alone."""
    found = (node for node in ast.walk(tree(name)) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return {each for statement in found for each in targets(name, statement)}


def targets(name: str, statement: ast.stmt) -> set[str]:
    """The modules that an import of this file names."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    assert isinstance(statement, ast.ImportFrom)
    package = module(name).split(".") if name.endswith("__init__.py") else module(name).split(".")[:-1]
    base = package[: len(package) - statement.level + 1] if statement.level else []
    origin = ".".join([*base, *([statement.module] if statement.module else [])])
    return {f"{origin}.{alias.name}" if is_module(f"{origin}.{alias.name}") else origin for alias in statement.names}


def is_module(name: str) -> bool:
    path = LIBRARY.joinpath(*name.split(".")[1:])
    return name.startswith("clusterfn.") and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


def room(name: str) -> str:
    """The part of a module's name that the rooms know; "__init__" for clusterfn itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


OURS = [name for name in FILES if not name.startswith("bridge/")]


@pytest.mark.parametrize("name", OURS)
def test_every_module_has_a_room(name):
    assert room(module(name)) in RANK, "put it into a room of docs/architecture.md, and here"


@pytest.mark.parametrize("name", OURS)
def test_imports_lead_downwards(name):
    upward = {
        target
        for target in imported(name)
        if target.split(".")[0] == "clusterfn" and RANK.get(room(target), -1) > RANK[room(module(name))]
    }
    assert not upward


def test_every_package_is_installed():
    settings = configparser.ConfigParser()
    settings.read(LIBRARY.parent / "setup.cfg", encoding="utf-8")
    folders = {".".join(["clusterfn", *Path(name).parts[:-1]]) for name in FILES}

    assert folders | {"clusterfn.templates", "hydra_plugins"} == set(settings["options"]["packages"].split())


def test_there_is_no_cycle():
    """Imports that are late or for types alone count too: a reader follows them all the same."""
    graph = {
        module(name): {target for target in followed(name) if is_module(target)} - {module(name)} for name in FILES
    }
    while graph:
        leaves = {name for name, targets in graph.items() if not targets & graph.keys()}
        assert leaves, f"these import each other: {sorted(graph)}"
        graph = {name: targets for name, targets in graph.items() if name not in leaves}


@pytest.mark.skipif(sys.version_info < (3, 10), reason="older Pythons do not list their standard library")
@pytest.mark.parametrize("name", THERE)
def test_what_travels_imports_the_standard_library_and_itself(name):
    for target in imported(name) | imported(name, late=True):
        top = target.split(".")[0]
        allowed = target.startswith(("clusterfn.bridge", "clusterfn.bridge.layout"))
        borrowed = "bridge/serialization" in name and target in ("cloudpickle", "cloudpickle.cloudpickle")
        arrays = target in LIBRARIES.get(name, ())
        own = top in ("_clusterfn", "_clusterfn_wire")
        assert allowed or borrowed or arrays or own or top in sys.stdlib_module_names or top == "__future__", target


@pytest.mark.skipif(sys.version_info < (3, 10), reason="older Pythons do not list their standard library")
@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("gpu/")])
def test_gpu_needs_the_standard_library_alone(name):
    """And the reader of nvidia-smi, which is the host's too and needs nothing else itself."""
    targets = {each for each in imported(name) | imported(name, late=True) if each.split(".")[0] not in BUILT_IN}

    there = {"clusterfn.errors", "clusterfn.bridge.supervisor.nvidia_smi"}
    assert {each for each in targets if not each.startswith("clusterfn.gpu")} <= there
    assert imported("bridge/supervisor/nvidia_smi.py") <= BUILT_IN


@pytest.mark.parametrize("name", [name for name in FILES if "bridge/serialization/" in name])
def test_wire_knows_nothing_of_its_surroundings(name):
    targets = imported(name) | imported(name, late=True)

    assert not {
        target for target in targets if target.startswith("clusterfn.") and ".bridge.serialization" not in target
    }


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("bridge/agent/")])
def test_the_agent_knows_itself_alone_and_stays_small(name):
    """Nothing else is there when it starts; and by relative names, as its package has another name there."""
    targets = imported(name) | imported(name, late=True)
    functions = [node for node in ast.walk(tree(name)) if isinstance(node, ast.FunctionDef)]

    assert not {each for each in targets if each.startswith("clusterfn") and ".bridge.agent" not in each}
    assert not {each for each in targets if each.startswith("_clusterfn")}
    assert "clusterfn" not in {
        each.module.split(".")[0] for each, _ in statements(tree(name)) if getattr(each, "module", None)
    }
    assert len((LIBRARY / name).read_text(encoding="utf-8").splitlines()) <= 300
    assert max((each.end_lineno - each.lineno + 1 for each in functions), default=0) <= 60


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("environment/solve/")])
def test_the_solver_imports_itself_by_relative_names(name):
    """Its interpreter may have no clusterfn: it runs as the package `clusterfn_solve`."""
    modules = [
        getattr(each, "module", None) or "" for each, _ in statements(tree(name)) if not getattr(each, "level", 0)
    ]

    assert not [each for each in modules if each.startswith("clusterfn")]


@pytest.mark.parametrize("name", [name for name in OURS if not name.startswith("cli/")])
def test_nothing_prints_outside_the_command(name):
    assert "print" not in {node.func.id for node in calls(name) if isinstance(node.func, ast.Name)}


@pytest.mark.parametrize("name", [name for name in OURS if not name.startswith("gpu/")])
def test_only_the_places_that_clean_their_words_write_to_a_terminal(name):
    text = (LIBRARY / name).read_text(encoding="utf-8")

    assert "stderr.write(" not in text or name == "calls/console.py"
    assert "\\x1b" not in text or name in ("calls/console.py", "cli/screen.py")


def calls(name: str) -> list[ast.Call]:
    return [node for node in ast.walk(tree(name)) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("name", FILES)
def test_no_blind_except_but_where_it_is_explained(name):
    swallowing = [
        handler.lineno
        for handler in ast.walk(tree(name))
        if isinstance(handler, ast.ExceptHandler) and is_blind(handler.type) and not ends_in_raise(handler)
    ]
    assert not swallowing or name in BLIND


REASON = re.compile(r":\s*#\s*(?:noqa: [A-Z0-9, ]+ - )?(?P<reason>\S.*)$")


@pytest.mark.parametrize("name", FILES)
def test_each_except_that_takes_everything_says_on_its_line_whose_code_may_raise_anything(name):
    lines = (LIBRARY / name).read_text(encoding="utf-8").splitlines()
    blind = [lines[each.lineno - 1] for each in ast.walk(tree(name)) if takes_everything(each)]

    assert [line for line in blind if not (found := REASON.search(line)) or len(found["reason"]) < 8] == []


def takes_everything(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler):
        return False
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(is_blind(kind) for kind in kinds)


def is_blind(kind: ast.expr | None) -> bool:
    return kind is None or ast.unparse(kind) in ("Exception", "BaseException")


def ends_in_raise(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


@pytest.mark.parametrize("name", sorted(clusterfn.__all__))
def test_every_public_name_can_be_imported_and_explains_itself(name):
    found = getattr(importlib.import_module("clusterfn"), name)

    assert name == "__version__" or inspect.getdoc(found)


def test_what_is_public_stands_in_order_and_nothing_else_is():
    assert clusterfn.__all__ == sorted(clusterfn.__all__) == dir(clusterfn)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        clusterfn.nothing


def test_every_error_is_public():
    from clusterfn import errors

    ours = {
        name for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, errors.ClusterfnError)
    }
    assert ours <= set(clusterfn.__all__)
