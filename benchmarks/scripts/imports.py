"""Import on the host argv[1], in the environment of the file argv[2], the modules of the projects argv[3:].

Prints {"seconds", "modules", "failed": {module: why}}, or {"error": the error as its user sees it, "kind": its class}.
"""

from __future__ import annotations

import json
import sys
import time

from clusterfn import ClusterfnError, cluster

# Of many a project beside its own module.
ASIDE = {
    "test", "tests", "testing", "doc", "docs", "example", "examples", "benchmark", "benchmarks", "scripts", "tools",
}  # fmt: skip


def import_modules(projects: list[str], aside: set[str]) -> dict[str, object]:
    import importlib
    import importlib.metadata
    import re

    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    of_project: dict[str, list[str]] = {}
    for module, names in importlib.metadata.packages_distributions().items():
        for name in names:
            if module.isidentifier() and module[0] != "_" and module not in aside:
                of_project.setdefault(normal(name), []).append(module)
    modules: list[str] = []
    for project in map(normal, projects):
        own = sorted(of_project.get(project, ()))
        modules += [each for each in own if normal(each) == project] or own
    failed = {}
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:
            failed[module] = f"{type(error).__name__}: {error}"[:600]
    return {"modules": modules, "failed": failed}


if __name__ == "__main__":
    began = time.monotonic()
    host, environment, *projects = sys.argv[1:]
    try:
        told = cluster(host=host, environment=environment)(import_modules)(projects, ASIDE)
    except ClusterfnError as error:
        told = {"kind": type(error).__name__, "error": f"{error.message} | {' | '.join(error.evidence)} | {error.hint}"}
    print(json.dumps({**told, "seconds": round(time.monotonic() - began, 1)}), flush=True)
