"""`clusterfn env verify`: whether an environment on a host is whole, and works.

It runs a program under the environment's own Python, from 3.9 on. The program imports what was asked for; with --gpus a
job also calculates on a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor.text import counted, in_one_line
from clusterfn.calls import call
from clusterfn.cli import screen
from clusterfn.cli.env.manage import environment_and_host, read_plan
from clusterfn.config.host_text import reading
from clusterfn.config.options import parse_options
from clusterfn.errors import EnvironmentBuildError
from clusterfn.hosts import environment_builder, environment_facts
from clusterfn.hosts.host_state import HostState

# The first import from a shared file system may take minutes.
_IMPORT_TIMEOUT_S = 600.0
_MOST_LINES = 20
REPORT_PREFIX = "clusterfn imports "

# The program finds the distribution of a package by its name, and the
# distribution lists its modules. conda calls torch "pytorch".
IMPORT_PROGRAM = r"""
import importlib, importlib.metadata as metadata, importlib.util, json, sys
NAMES = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cuda": "torch"}

def modules(name):
    name = NAMES.get(name, name)
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        plain = name.replace("-", "_")
        return [plain] if plain.isidentifier() and importlib.util.find_spec(plain) else []
    listed = (distribution.read_text("top_level.txt") or "").split()
    if not listed:
        files = [path for path in distribution.files or () if path.suffix in (".py", ".so")]
        places = [path.parts for path in files if len(path.parts) < 3]
        listed = [parts[0].partition(".")[0] for parts in places if parts[-1] in ("__init__.py", parts[0])]
    return sorted({each for each in listed if each.isidentifier() and not each.startswith("_")})

report = {"python": "%d.%d.%d" % sys.version_info[:3], "imported": [], "failed": {}}
for name in [each for package in sys.argv[1:] for each in modules(package) if package not in ("python", "pip")]:
    try:
        module = importlib.import_module(name)
    # Importing runs the code of a package, which may raise anything.
    except BaseException as error:
        report["failed"][name] = "%s: %s" % (type(error).__name__, error)
        continue
    version = getattr(module, "__version__", None)
    report["imported"].append("%s %s" % (name, version) if version else name)
    if name == "torch":
        report["cuda"] = module.version.cuda
print("\n" + PREFIX + json.dumps(report), flush=True)
""".replace("PREFIX", repr(REPORT_PREFIX))

# The correct result of the calculation below.
TOTAL = 4.0
OnGpu = tuple[str, str, str, bool, int, str, float]


def gpu_kernel() -> Callable[[], OnGpu | None]:
    """Return a function that calculates on a GPU with PyTorch and reports it; None where there is no PyTorch."""

    # A nested function has no name that a host could import, so it is sent by value.
    def kernel() -> OnGpu | None:
        import importlib
        import importlib.util
        import platform

        if importlib.util.find_spec("torch") is None:
            return None
        torch = importlib.import_module("torch")
        build = platform.node(), torch.__version__, torch.version.cuda
        if not torch.cuda.is_available():
            return (*build, False, 0, "", 0.0)
        capability = ".".join(map(str, torch.cuda.get_device_capability(0)))
        ones = torch.ones(2, device="cuda")
        return (*build, True, torch.cuda.device_count(), capability, float((ones + ones).sum()))

    return kernel


def verify_environment(args: argparse.Namespace) -> int:
    """Check that an environment is whole and works; print a line for each check."""
    built, session = environment_and_host(args, "verify")
    root = environment_facts.environments_root(session)
    prefix = layout.environment_dir(root, built.id)
    mended = environment_builder.repair_environment(session, root, built.id)
    plan = read_plan(session, prefix)
    report = _imported(session, prefix, plan.get("wanted") or [])
    lines = [f"files     {mended['files']} checked, {mended['relinked']} restored", *_modules(report)]
    if not args.json:
        print("\n".join(in_one_line(line) for line in lines))
    lost = mended["lost"]
    problems = [f"{counted(len(lost), 'lost file')}: {', '.join(lost[:_MOST_LINES])}"] if lost else []
    problems += [*(f"{name} cannot be imported: {why}" for name, why in report["failed"].items())]
    if problems:
        raise EnvironmentBuildError(
            f"the environment {built.id} does not work", host=session.host.name, stage="environment",
            evidence=problems, hint=f"clusterfn env remove {built.id[:8]} {session.host.name}, and build it again",
        )  # fmt: skip
    kernel = _run_on_gpu(session, prefix, args.gpus) if args.gpus else None
    if args.json:
        files = {"files": mended["files"], "restored": mended["relinked"]}
        print(screen.as_json({"id": built.id, **files, **report, "gpu": kernel}))
    elif kernel is not None:
        print(in_one_line(f"gpu       {kernel}"))
    return 0


def _imported(session: HostState, prefix: str, packages: list[str]) -> dict[str, Any]:
    """Import in its own Python what was asked for; return what came of it."""
    argv = [f"{prefix}/bin/python", "-I", "-c", IMPORT_PROGRAM, *packages]
    # Test the environment alone: variables of the login must not add libraries or modules to it.
    unset = (*session.scheduler.unset, "LD_LIBRARY_PATH", "PYTHON")
    answer = session.connection.run(argv, unset=unset, timeout_s=_IMPORT_TIMEOUT_S).result(_IMPORT_TIMEOUT_S)
    lines = (answer.out + answer.err).decode("utf-8", "replace").splitlines()
    reports = [line[len(REPORT_PREFIX) :] for line in lines if line.startswith(REPORT_PREFIX)]
    if not reports:
        raise EnvironmentBuildError(
            f"{prefix}/bin/python does not report what it imports", host=session.host.name, stage="environment",
            evidence=lines[-_MOST_LINES:], hint="remove it with clusterfn env remove, and build it again",
        )  # fmt: skip
    with reading(session.host.name, "what its environment imports"):
        return dict(json.loads(reports[-1]))


def _modules(report: dict[str, Any]) -> list[str]:
    modules = ", ".join(report["imported"]) or "nothing else, because no package was asked for by name"
    cuda = [f"cuda      {report['cuda'] or 'none'}, according to torch.version.cuda"] if "cuda" in report else []
    return [f"imports   Python {report['python']}, {modules}", *cuda]


def _run_on_gpu(session: HostState, prefix: str, gpus: int) -> str:
    """Run a kernel in an ordinary job, because only a job gets GPUs; say where it ran."""
    where = {"host": session.host.name, "environment": f"prefix:{prefix}", "gpus": gpus, "name": "verify"}
    probe = call.run_call(gpu_kernel(), (), {}, parse_options(where))
    node, torch, cuda, available, _, capability, total = probe or ("", "", "", False, 0, "", 0.0)
    if not available:
        raise EnvironmentBuildError(
            f"PyTorch {torch} sees no GPU on {node}" if probe else f"{prefix} has no PyTorch", host=session.host.name,
            stage="environment", hint="run nvidia-smi in a job on that host",
        )  # fmt: skip
    if total != TOTAL:
        raise EnvironmentBuildError(
            f"a kernel of PyTorch {torch} computes {total} instead of {TOTAL} on {node}", host=session.host.name,
            stage="environment", hint="ask the administrator to look at the GPU",
        )  # fmt: skip
    return f"{node}: a kernel of PyTorch {torch} for CUDA {cuda} ran, compute capability {capability}"
