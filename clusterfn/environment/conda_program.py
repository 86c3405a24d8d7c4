"""Solve conda's packages with py-rattler: reads a job from stdin as JSON, and answers with JSON on stdout.

Runs as a program of its own, in an interpreter that has py-rattler and need not have clusterfn, so it imports nothing
of the rest. py-rattler 0.28 may crash when its interpreter shuts down, so that it ends by os._exit.

The job:
    channels     addresses, the strongest first
    platform     of the host, "linux-64"
    specs        what is wanted, ["numpy >=2", …]
    python       "3.11" to be added, with the nearest that solves in its place; null: the specs name one
    caller       the id of the process that started this one
    virtual      what the host has, {"__glibc": "2.28", …}
The answer is {"solved": [package, …]}, or {"failed": the solver's own sentences}, or {"unreachable": the
same} where a channel does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

# Of Python 3; functions run on no older one.
_MINORS = range(9, 20)
_LOOK_S = 0.5


def main() -> None:
    """Do the job, and end this process whatever its library wants to do afterwards."""
    job = json.loads(sys.stdin.buffer.read())
    # A process of Windows keeps the number of its parent, even if that is gone.
    if os.name != "nt":
        threading.Thread(target=_end_with_caller, args=(job["caller"],), daemon=True).start()
    sys.stdout.write(json.dumps(asyncio.run(answer(job))) + "\n")
    sys.stdout.flush()
    os._exit(0)


def _end_with_caller(caller: int) -> None:
    """End this process once the one that started it is gone, even if that was killed."""
    while os.getppid() == caller:
        time.sleep(_LOOK_S)
    os._exit(1)


async def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Solve for the wanted Python, or else for the nearest."""
    import rattler
    import rattler.exceptions

    kinds = {name: kind for name, kind in vars(rattler.exceptions).items() if name.endswith("Error")}
    attempt = functools.partial(_solve, rattler.Gateway(), job)
    wanted = job["python"]
    try:
        found = await _nearest(attempt, wanted) if wanted else await attempt("")
    except tuple(kinds.values()) as error:
        silent = tuple(kinds[name] for name in ("GatewayError", "FetchRepoDataError", "IoError") if name in kinds)
        return {"unreachable" if isinstance(error, silent) else "failed": str(error)}
    return {"solved": [_facts(record) for record in found]}


async def _nearest(attempt: Callable[[str], Awaitable[list[Any]]], wanted: str) -> list[Any]:
    """Solve with the wanted Python; if that does not solve, with the nearest that does."""
    from rattler.exceptions import SolverError

    try:
        return await attempt(f"python {wanted}.*")
    except SolverError as failure:
        try:
            found = await attempt("python")
        except SolverError:
            raise failure from None
    near = int(wanted.split(".")[1])
    for minor in sorted(set(_MINORS) - {near}, key=lambda minor: (abs(minor - near), -minor)):
        with contextlib.suppress(SolverError):
            return await attempt(f"python 3.{minor}.*")
    return found


def _facts(record: Any) -> dict[str, Any]:
    """Return what a lock needs of a package."""
    needs = (str(text).partition(" ") for text in record.depends)
    return {
        "name": record.name.normalized,
        "version": str(record.version),
        "url": record.url,
        "md5": (record.md5 or b"").hex(),
        "sha256": (record.sha256 or b"").hex(),
        "dependencies": {name: versions for name, _, versions in needs if not name.startswith("__")},
    }


async def _solve(gateway: Any, job: Mapping[str, Any], python: str) -> list[Any]:
    import rattler
    from rattler.package.build_string import BuildString

    triples = ((rattler.PackageName(name), *text.partition(" ")) for name, text in job["virtual"].items())
    specs = [rattler.MatchSpec(text) for text in (python, *job["specs"]) if text]
    virtual = [
        rattler.GenericVirtualPackage(name, rattler.Version(version), BuildString(build or "0"))
        for name, version, _, build in triples
    ]
    platforms = [job["platform"], "noarch"]
    return list(
        await rattler.solve(job["channels"], specs, gateway=gateway, platforms=platforms, virtual_packages=virtual)
    )


if __name__ == "__main__":
    main()
