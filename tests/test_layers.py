"""The directions of docs/architecture.md, read from the sources: who may import whom, and what stands nowhere."""

from __future__ import annotations

import ast
import configparser
import functools
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
    ["bridge", "errors"], ["config", "public_api"], ["scheduler", "environment"], ["hosts"], ["display", "packing"],
    ["calls"], ["api"], ["gpu", "integrations", "sweeps"], ["__init__"], ["cli"], ["__main__"],
]  # fmt: skip
RANK = {name: rank for rank, room in enumerate(ROOMS) for name in room}
BUILT_ON_THE_CORE = ("clusterfn.gpu", "clusterfn.integrations", "clusterfn.sweeps")
# They name the rest: the list of public names, and the commands for Jupyter.
NAMES_ALL = ("__init__.py", "cli/jupyter.py", "cli/kernel.py", "cli/shell.py")

# Where a blind `except` ends, with what it is for: everything that runs code of the user's, and outermost frames.
BLIND = {
    "bridge/agent/handler.py": "the agent's outermost frame",
    "bridge/attributes.py": "attributes of the user's objects",
    "bridge/builder/build.py": "the builder's outermost frame",
    "bridge/agent/forked.py": "after a fork nothing may run on; a damaged bridge: its fork says what is wrong",
    "bridge/supervisor/worker_process.py": "after a fork nothing may run on",
    "bridge/worker/keeper.py": "after a fork nothing may run on",
    "display/at_once.py": "a thread's outermost frame: who takes the answer gets the error",
    "calls/following.py": "such as no memory for a value: who waits for the job gets the error",
    "calls/submission_line.py": "what a scheduler's answer becomes: others wait behind this one",
    "hosts/exit_flush.py": "a thread's outermost frame: it does the next work too",
    "hosts/loop.py": "the outermost frame of a thread: who waits for it gets the error",
    "hosts/rpc/file_requests.py": "the caller's own function: its error goes to its reply",
    "display/labels.py": "the user's own `__repr__` and properties",
    "calls/session_stream.py": "calls functions of the caller, as those that show a transfer",
    "bridge/session/runner.py": "after a fork nothing may run on",
    "api/executor.py": "sends a call on behalf of a caller who has gone on",
    "bridge/serialization/settings.py": "a library's own code, in whatever version",
    "bridge/serialization/container.py": "code of the user's, which is pickled again without its hints",
    "bridge/serialization/load_failure.py": "modules of the user's, which are loaded again to say which one failed",
    "bridge/serialization/hints.py": "attributes of the user's objects",
    "bridge/serialization/exception_parts.py": "calls the user's constructors, __reduce__ and __str__",
    "bridge/worker/descriptors.py": "flushes streams that the user's function may have replaced",
    "bridge/worker/payload.py": "runs the user's function",
    "bridge/worker/devices.py": "asks PyTorch for what no release promises",
    "bridge/worker/execute.py": "runs the user's function",
    "cli/command_line.py": "the command's outermost frame",
    "hosts/spoken_wait.py": "a thread's outermost frame",
    "cli/output.py": "shows what the user's function raised, and goes on with the next job",
    "gpu/guards.py": "the probes that promise never to raise",
    "bridge/worker/cuda_table.py": "calls an error's own __str__",
    "hosts/rpc/link.py": "a thread's outermost frames; calls listeners of others",
    "hosts/rpc/requests.py": "calls functions of the caller, as those that show output",
    "hosts/rpc/link_stream.py": "closes a useless stream; calls functions of the caller; reads what a host leaves out",
    "integrations/jupyter/near_end.py": "a thread's outermost frame",
    "calls/settling.py": "a thread's outermost frame; loads the user's value",
    "calls/item_results.py": "the same, for the items of a map",
    "calls/session_job.py": "a thread's outermost frame",
    "integrations/joblib_backend.py": "gives joblib the exception as that of the batch",
    "sweeps/run.py": "calls the user's way of scoring",
}
BUILT_IN = {"__future__", *getattr(sys, "stdlib_module_names", ())}
# Where the value itself is the library's, or the program that is started.
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
    "bridge/worker/warning.py": ["clusterfn.api.in_job"],
    "bridge/serialization/cell_figures.py": ["matplotlib.backends.backend_agg"],
    "bridge/serialization/arrays.py": ["numpy", "numpy.random"],
    "bridge/serialization/tables.py": ["numpy", "pandas", "pandas._libs.internals", "pyarrow"],
    "bridge/serialization/tensors.py": ["torch"],
    "bridge/serialization/indexes.py": ["faiss", "numpy"],
}


def text_of(name: str) -> str:
    return (LIBRARY / name).read_text(encoding="utf-8")


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse(text_of(name))


@functools.cache
def handlers(name: str) -> list[ast.ExceptHandler]:
    """Each `except` of a file; in an expression there is none."""
    nodes: list[ast.AST] = [tree(name)]
    for node in nodes:
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
    return [node for node in nodes if isinstance(node, ast.ExceptHandler)]


def module(name: str) -> str:
    """`clusterfn.x.y` for a file."""
    return ".".join(["clusterfn", *Path(name).with_suffix("").parts]).removesuffix(".__init__")


def statements(node: ast.AST, late: bool = False, types: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Every import, and whether it runs only when a function does; those for types alone only with `types`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, late
        elif not types and isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from (found for part in child.orelse for found in statements(ast.Module([part], []), late))
        elif not isinstance(child, ast.expr):  # in which no statement is
            inner = late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from statements(child, inner, types)


@functools.cache
def imported(name: str, late: bool = False) -> set[str]:
    """The modules that a file imports, by their full names; within clusterfn the module, not the name in it."""
    return {
        each for statement, is_late in statements(tree(name)) if is_late == late for each in targets(name, statement)
    }


def of_files(folder: str) -> list[tuple[str, str]]:
    """Each module that a file of this folder imports at any time, with the file."""
    names = (name for name in FILES if name.startswith(folder))
    return [(name, each) for name in names for each in sorted(imported(name) | imported(name, late=True))]


@functools.cache
def followed(name: str) -> set[str]:
    """All that a reader follows: the late imports too, and those for types alone."""
    return {each for statement, _ in statements(tree(name), types=True) for each in targets(name, statement)}


def targets(name: str, statement: ast.stmt) -> set[str]:
    """The modules that an import of this file names."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    assert isinstance(statement, ast.ImportFrom)
    package = module(name).split(".") if name.endswith("__init__.py") else module(name).split(".")[:-1]
    base = package[: len(package) - statement.level + 1] if statement.level else []
    origin = ".".join([*base, *([statement.module] if statement.module else [])])
    return {f"{origin}.{alias.name}" if is_module(f"{origin}.{alias.name}") else origin for alias in statement.names}


@functools.cache
def is_module(name: str) -> bool:
    path = LIBRARY.joinpath(*name.split(".")[1:])
    return name.startswith("clusterfn.") and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


def room(name: str) -> str:
    """The part of a module's name that the rooms know; "__init__" for clusterfn itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


OURS = [name for name in FILES if not name.startswith("bridge/")]


def test_every_module_has_a_room():
    homeless = [name for name in OURS if room(module(name)) not in RANK]
    assert homeless == [], "put it into a room of docs/architecture.md, and here"


def test_imports_lead_downwards():
    upward = [
        (name, target)
        for name in OURS
        for target in imported(name)
        if target.split(".")[0] == "clusterfn" and RANK.get(room(target), -1) > RANK[room(module(name))]
    ]
    assert upward == []


CORE = [name for name in FILES if not module(name).startswith(BUILT_ON_THE_CORE) and name not in NAMES_ALL]


def test_the_core_knows_nothing_that_is_built_on_it():
    """Not even late, or for types alone."""
    known = {name: [each for each in followed(name) if each.startswith(BUILT_ON_THE_CORE)] for name in CORE}

    assert {name: found for name, found in known.items() if found} == {}


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
def test_what_travels_imports_the_standard_library_and_itself():
    foreign = []
    named = ((name, each) for name in FILES for each in re.findall(r'Library\("([\w.]+)"\)', text_of(name)))
    for name, target in (*of_files("bridge/"), *named):
        top = target.split(".")[0]
        borrowed = "bridge/serialization" in name and target in ("cloudpickle", "cloudpickle.cloudpickle")
        own = target.startswith("clusterfn.bridge") or top in ("_clusterfn", "_clusterfn_wire") or top in BUILT_IN
        foreign += [] if own or borrowed or target in LIBRARIES.get(name, ()) else [(name, target)]

    assert foreign == []


@pytest.mark.skipif(sys.version_info < (3, 10), reason="older Pythons do not list their standard library")
def test_gpu_needs_the_standard_library_alone():
    """And what is the host's too: the reader of nvidia-smi, CUDA's errors, and sizes and durations in words."""
    targets = {each for _, each in of_files("gpu/") if each.split(".")[0] not in BUILT_IN}

    of_hosts = ("supervisor/nvidia_smi", "supervisor/text", "worker/cuda_table")
    there = {"clusterfn.errors", *(f"clusterfn.bridge.{each.replace('/', '.')}" for each in of_hosts)}
    assert {each for each in targets if not each.startswith("clusterfn.gpu")} <= there
    assert all(imported(f"bridge/{each}.py") <= BUILT_IN for each in of_hosts)


def test_wire_knows_nothing_of_its_surroundings():
    ours = [each for each in of_files("bridge/serialization/") if each[1].startswith("clusterfn.")]

    assert [each for each in ours if ".bridge.serialization" not in each[1]] == []


def test_the_agent_knows_itself_alone_and_stays_small():
    """Nothing else is there when it starts; and by relative names, as its package has another name there."""
    ours = [each for each in of_files("bridge/agent/") if each[1].startswith(("clusterfn", "_clusterfn"))]
    assert [each for each in ours if not each[1].startswith("clusterfn.bridge.agent")] == []

    for name in (name for name in FILES if name.startswith("bridge/agent/")):
        functions = [node for node in ast.walk(tree(name)) if isinstance(node, ast.FunctionDef)]
        modules = [getattr(each, "module", None) or "" for each, _ in statements(tree(name))]
        assert "clusterfn" not in {each.split(".")[0] for each in modules}, name
        assert len(text_of(name).splitlines()) <= 300, name
        assert max((each.end_lineno - each.lineno + 1 for each in functions), default=0) <= 60, name


def test_the_solver_imports_nothing_of_ours():
    """Its interpreter may have no clusterfn."""
    modules = [getattr(each, "module", None) or "" for each, _ in statements(tree("environment/conda_program.py"))]

    assert not [each for each in modules if each.startswith("clusterfn")]


def test_nothing_prints_outside_the_command():
    calls = (
        (name, node.lineno)
        for name in OURS
        if "print(" in text_of(name)
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    )
    assert [each for each in calls if not each[0].startswith("cli/")] == []


def test_only_the_places_that_clean_their_words_write_to_a_terminal():
    texts = {name: text_of(name) for name in OURS if not name.startswith("gpu/")}

    assert {name for name, text in texts.items() if "stderr.write(" in text} <= {"display/live.py"}
    assert {name for name, text in texts.items() if "\\x1b" in text} <= {"display/live.py"}


# What one module does for all others, by words that nobody else needs; with those that have a reason of their own.
ONE_PLACE = {
    "--query-": {"bridge/supervisor/nvidia_smi.py": "the reader of nvidia-smi"},
    "os.replace(": {
        "bridge/supervisor/publish.py": "writes a file whole or not at all",
        "bridge/kernel/dask_program.py": "is a program of the environment's Python, and has no bridge",
        "api/in_job.py": "writes as it saves, because a state may not fit into memory twice",
        "environment/download.py": "gives what was downloaded its name",
    },
    '"TB"': {"bridge/supervisor/text.py": "writes sizes for people"},
    "or use less at a time": {"bridge/supervisor/classify_exit.py": "what to do about OutOfMemory"},
    "have one built": {"config/environment_kinds.py": "how a call gets an environment"},
}  # fmt: skip


@pytest.mark.parametrize("words", ONE_PLACE)
def test_what_one_module_does_for_all_is_done_nowhere_else(words: str):
    assert {name for name in FILES if words in text_of(name)} == set(ONE_PLACE[words])


def test_no_blind_except_but_where_it_is_explained():
    swallowing = [
        (name, handler.lineno)
        for name in FILES
        for handler in handlers(name)
        if is_blind(handler.type) and not ends_in_raise(handler)
    ]
    assert [each for each in swallowing if each[0] not in BLIND] == []


REASON = re.compile(r":\s*#\s*(?:noqa: [A-Z0-9, ]+ - )?(?P<reason>\S.*)$")


def test_each_except_that_takes_everything_says_why_on_its_line_or_in_a_comment_below():
    blind = [
        (name, text_of(name).splitlines()[each.lineno - 1 : each.lineno + 1])
        for name in FILES
        for each in handlers(name)
        if takes_everything(each)
    ]
    assert [(name, lines) for name, lines in blind if not gives_a_reason(*lines)] == []


def gives_a_reason(line: str, below: str) -> bool:
    found = REASON.search(line + below.strip() if below.strip().startswith("#") else line)
    return found is not None and len(found["reason"]) >= 8


def takes_everything(node: ast.ExceptHandler) -> bool:
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(is_blind(kind) for kind in kinds)


def is_blind(kind: ast.expr | None) -> bool:
    return kind is None or ast.unparse(kind) in ("Exception", "BaseException")


def ends_in_raise(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


def test_every_public_name_can_be_imported_and_explains_itself():
    named = {name: inspect.getdoc(getattr(clusterfn, name)) for name in clusterfn.__all__}

    assert [name for name, explained in named.items() if not explained] == []


def test_what_is_public_is_in_order_and_nothing_else_is():
    assert clusterfn.__all__ == sorted(clusterfn.__all__) == dir(clusterfn)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        clusterfn.nothing


def test_every_error_is_public():
    from clusterfn import errors

    ours = {
        name for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, errors.ClusterfnError)
    }
    assert ours <= set(clusterfn.__all__)
