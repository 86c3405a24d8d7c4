"""Solve conda's packages with py-rattler, in another process (`conda_program`), and make a lock of them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from clusterfn.bridge.builder.plan import masked
from clusterfn.environment import package_sources
from clusterfn.environment.lock import CONDA, LockedPackage
from clusterfn.environment.package_sources import without_password
from clusterfn.environment.specification import Specification
from clusterfn.errors import LockError

Say = Callable[[str], None]

_PROGRAM = Path(__file__).with_name("conda_program.py")
OLDEST_GLIBC = "2.17"
# The user hears of a program that takes longer, and so does not take it for dead.
PATIENCE_S = 15.0
# A solver may give hundreds of reasons, of which the first say enough.
MANY = 25


@dataclass(frozen=True)
class TorchChoice:
    """A build of PyTorch that fits.

    Attributes:
        cuda: Its version of CUDA, "12.8".
        torch: The minor version of PyTorch that it was chosen for, "2.8".
        backend: PyTorch's tag of its own index that has it, "cu128"; "" for the Python package index.
    """

    cuda: str
    torch: str
    backend: str


TorchChooser = Callable[[str], Optional[TorchChoice]]
"""Returns what to resolve with again, if a version of PyTorch does not run on the GPUs."""


@dataclass(frozen=True)
class SolveTarget:
    """The host that an environment is for.

    Attributes:
        platform: conda's name: "linux-64", "linux-aarch64".
        glibc: Its version, "2.28"; "" if unknown: then the oldest that wheels are built for is assumed.
        cuda: The newest that the driver of the GPUs runs, "12.8"; None without GPUs.
        python: The caller's minor, "3.11".
        torch: Chooses the build of a PyTorch that is not named; None if its version is fixed.
    """

    platform: str
    glibc: str
    cuda: str | None
    python: str
    torch: TorchChooser | None = field(default=None, compare=False)


def solve(spec: Specification, target: SolveTarget, say: Say) -> list[LockedPackage]:
    """Return conda's packages for the host; raise LockError if no Python solves, or no solver or channel answers."""
    settings = package_sources.read_condarc()
    specs = list[str]()
    for requirement in spec.conda:
        # py-rattler does not read the user's .condarc, so that a channel is given by its address.
        urls = package_sources.channel_urls(requirement.channel, settings) if requirement.channel else ()
        bare = requirement.text.removeprefix(f"{requirement.channel}::")
        specs.append(f"{urls[0]}::{bare}" if len(urls) == 1 else bare)
    job = {
        "channels": [url for name in spec.channels for url in package_sources.channel_urls(name, settings)],
        "platform": target.platform,
        "specs": specs,
        "python": None if spec.wants_python else target.python,
        "virtual": virtual_packages(target),
        "caller": os.getpid(),
    }
    ended = run_program(
        [find_interpreter(), str(_PROGRAM)],
        lambda seconds: say(f"still solving {spec.title} ({seconds:.0f} s): conda's packages"),
        given=json.dumps(job),
        variables={**package_sources.conda_proxies(settings), **os.environ},
    )
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        lines = masked(ended.stderr).strip().splitlines()
        what = f"{spec.title} could not be locked: the solver ended with {ended.returncode}"
        raise LockError(what, evidence=lines[-10:]) from None
    if "solved" in answer:
        solved = sorted(answer["solved"], key=lambda record: str(record["name"]))
        return [_locked(record, target.platform) for record in solved]
    said = masked(answer.get("failed") or answer["unreachable"]).splitlines()
    lines = [line.rstrip() for line in said if line.strip()][:MANY]
    if "unreachable" in answer:
        raise unreachable(spec.title, "a channel", lines, spec)
    if spec.exported:
        hint = "export only what you asked for: `conda env export --from-history > environment.yml`"
    elif any(requirement.name == "torch" for requirement in spec.conda):
        hint = 'conda calls it pytorch; or write torch below "- pip:"'
    else:
        of_pypi = "" if spec.file else '; write "pip:name" for one that only PyPI has'
        hint = f"loosen or correct the packages named above{of_pypi}"
    raise LockError(f"there is no solution for {spec.title}", evidence=lines, hint=hint)


def _locked(record: Mapping[str, Any], platform: str) -> LockedPackage:
    url, sha256 = public(record["url"]), record["sha256"]
    needs, md5 = record["dependencies"], record["md5"]
    return LockedPackage(record["name"], record["version"], CONDA, url, sha256, platform, dependencies=needs, md5=md5)


def run_program(
    argv: Sequence[str],
    report: Callable[[float], None],
    *,
    given: str = "",
    folder: Path | None = None,
    variables: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run conda's solver or uv to its end; never leave it behind. Report every 15 s the seconds that it has run."""
    began = time.monotonic()
    with subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=variables,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            while True:
                try:
                    out, err = process.communicate(given or None, timeout=PATIENCE_S)
                    return subprocess.CompletedProcess(argv, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    # The input is on its way already.
                    given = ""
                    report(time.monotonic() - began)
        except BaseException:
            # The program would go on without us, after Ctrl-C too.
            process.kill()
            raise


def find_interpreter() -> str:
    """Return an interpreter that has py-rattler: this one; raise LockError if it has none."""
    if importlib.util.find_spec("rattler") is None:
        what = "this Python has no py-rattler, which solves packages of conda and needs Python 3.10 or newer"
        other = "list the packages in a requirements.txt, which needs no solver"
        raise LockError(what, hint=f"pip install 'py-rattler>=0.28,<1'; or {other}")
    return sys.executable


def public(channel: str) -> str:
    """Return a name or an address without the user's password and token, /t/TOKEN: the lock is for everybody."""
    return without_password(re.sub(r"(://[^/]+)/t/[^/]+", r"\1", channel)) if "://" in channel else channel


def machine_of(platform: str) -> str:
    """Return the machine of a platform as uname says it, "x86_64" of "linux-64"."""
    arch = platform.partition("-")[2]
    return "x86_64" if arch == "64" else arch


def virtual_packages(target: SolveTarget) -> dict[str, str]:
    """Return what is assumed to be on the host."""
    versions = {"__archspec": f"1 {machine_of(target.platform)}", "__unix": "0", "__linux": "5.10"}
    versions["__glibc"] = target.glibc or OLDEST_GLIBC
    if target.cuda:
        versions["__cuda"] = target.cuda
    return versions


def unreachable(title: str, what: str, lines: Sequence[str], spec: Specification) -> LockError:
    """Return the error for a server that does not answer, so that it is unknown whether there is a solution."""
    hint = "check your network, proxy and certificate settings, and the address if it is yours, then call again"
    if spec.file:
        hint += f"; without network: run `clusterfn env lock {shlex.quote(spec.title)}` on another machine, and copy "
        hint += "its lock beside this file"
    elif spec.channels:
        hint += "; without conda: list the packages in a requirements.txt, and take wheels for a Python of the host: "
        hint += 'environment="requirements.txt[python:host]"'
    return LockError(f"{title} could not be locked: {what} cannot be reached", evidence=lines, hint=hint)
