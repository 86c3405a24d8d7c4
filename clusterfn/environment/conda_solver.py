"""Solve a specification by conda-lock, in another process (`clusterfn.environment.solve`)."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import clusterfn.environment.solve
from clusterfn.bridge.builder.fetch import masked
from clusterfn.environment import lock as locks
from clusterfn.environment import reach, solver_tools
from clusterfn.environment.lock import EnvironmentLock, Unsolved
from clusterfn.environment.solve import condarc
from clusterfn.environment.specification import Specification
from clusterfn.errors import LockError

Say = Callable[[str], None]

PATIENCE_S = 15  # between two messages while it is solving
_ARCHES = {"64": "x86_64", "aarch64": "aarch64", "ppc64le": "ppc64le", "arm64": "arm64"}
OLDEST_GLIBC = "2.17"
MANY = 25  # at most so many lines of a solver's reasons
# Start the program under another name: its interpreter may have no clusterfn, or another one.
_START = (
    "import sys, importlib.util as u\n"
    "sys.path[:] = [p for p in sys.path if p]\n"
    "s = u.spec_from_file_location('clusterfn_solve', sys.argv[1] + '/__init__.py', "
    "submodule_search_locations=[sys.argv[1]])\n"
    "m = u.module_from_spec(s); sys.modules[s.name] = m; s.loader.exec_module(m)\n"
    "from clusterfn_solve.program import main; main()"
)


class TorchChooser(Protocol):
    """Chooses a build of PyTorch for GPUs, once uv says that some PyTorch comes in."""

    @property
    def cuda(self) -> str | None:
        """The newest that the driver runs; None if no PyTorch has come in."""

    def narrow(self, version: str) -> tuple[Mapping[str, str], Sequence[str]] | None:
        """Return versions and indexes to resolve with again, if that version does not run on the GPUs."""


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


def solve(
    spec: Specification, target: SolveTarget, platforms: list[str], keeps: EnvironmentLock | None, say: Say
) -> tuple[bytes, dict[str, str]]:
    """Return the content of a new lock, and the version of Python for each platform.

    Args:
        platforms: What to solve for.
        keeps: A lock whose other platforms stay.

    Raises:
        Unsolved: There is no solution.
        LockError: There is no solver, or a channel does not answer.
    """
    executable = solver_tools.find_conda(say)
    command = solver_tools.find_interpreter(not executable, say)
    with tempfile.TemporaryDirectory(prefix="clusterfn-lock-") as folder:
        made = Path(folder) / "made.conda-lock.yml"
        if keeps:
            shutil.copyfile(keeps.path, made)
        job = _job(spec, target, platforms, executable, keeps)
        solved = _run(command, {**job, "lock": str(made), "folder": folder}, spec, say)
        return made.read_bytes(), solved


def refuse_unreachable(spec: Specification) -> None:
    """Raise if a channel does not answer within five seconds.

    Raises:
        LockError: One does not.
    """
    settings = condarc.settings()
    proxies = {name.partition("_")[0].lower(): value for name, value in condarc.proxies(settings).items()}
    why = reach.why_unreachable([url for name in spec.channels for url in condarc.urls(name, settings)], proxies)
    if why:
        raise LockError(f"a conda channel does not answer, {why}")


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, to compare it with others."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def virtual_packages(platform: str, target: SolveTarget) -> dict[str, str]:
    """Return what is assumed to be on a host of that platform."""
    system, _, arch = platform.partition("-")
    found = {"__archspec": f"1 {_ARCHES.get(arch, arch)}"}
    if system == "linux":
        found |= {"__unix": "0", "__linux": "5.10", "__glibc": target.glibc or OLDEST_GLIBC}
    elif system == "osx":
        found |= {"__unix": "0", "__osx": "11.0"}
    else:
        found |= {"__win": "0"}
    cuda = target.cuda or (target.torch.cuda if target.torch else None)
    if platform == target.platform and cuda:
        found["__cuda"] = cuda
    return found


def _job(
    spec: Specification, target: SolveTarget, platforms: list[str], executable: str, before: EnvironmentLock | None
) -> dict[str, Any]:
    """Make the job for `clusterfn.environment.solve.program`, except the path of the lock."""
    virtual = {platform: virtual_packages(platform, target) for platform in platforms}
    kept = {platform: before.virtual_packages(platform) for platform in before.platforms} if before else {}
    return {
        "channels": list(spec.channels),
        "conda": [[each.text, each.selector] for each in spec.conda],
        "python": None if spec.wants_python else target.python,
        "platforms": platforms,
        "virtual": virtual,
        "executable": executable,
        "source": spec.file.name if spec.file else "packages",
        "custom": locks.custom_metadata(spec.input_hash, {**kept, **virtual}),
    }


def _run(command: tuple[str, ...], job: dict[str, Any], spec: Specification, say: Say) -> dict[str, str]:
    """Start the program, and kill it with all its children if we are interrupted."""
    folder = str(job["folder"])
    own_place = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder)  # conda-lock leaves files behind
    variables = {**os.environ, **own_place}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*command, "-c", _START, str(Path(clusterfn.environment.solve.__file__).parent)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=variables, start_new_session=True,
        )  # fmt: skip
        try:
            out = _conversation(process, {**job, "attended": True}, spec, say)
        except BaseException:  # Ctrl-C too: the solver is in a session of its own and would run on
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        said.seek(0)
        return _answer(out, said.read(), process.returncode, spec)


def _conversation(process: subprocess.Popen[bytes], job: Mapping[str, Any], spec: Specification, say: Say) -> bytes:
    """Send the job, and hold the pipe open until the answer comes: the program ends when it is closed."""
    began = time.monotonic()
    line, process.stdin = process.stdin, None
    if line is None:
        raise AssertionError("it was started with a pipe")
    with contextlib.suppress(BrokenPipeError), line:
        line.write(json.dumps(job).encode() + b"\n")
        line.flush()
        while True:
            try:
                return process.communicate(timeout=PATIENCE_S)[0]
            except subprocess.TimeoutExpired:
                doing = "conda-lock starts"
                with contextlib.suppress(OSError):  # it has written nothing yet
                    doing = Path(job["folder"], "doing").read_text(encoding="utf-8")
                say(f"still solving {spec.title} ({time.monotonic() - began:.0f} s): {doing}")
    return process.communicate()[0]


def _answer(out: bytes, said: bytes, status: int, spec: Specification) -> dict[str, str]:
    try:
        answer = json.loads(out)
    except ValueError:
        lines = said.decode("utf-8", "replace").strip().splitlines()
        raise LockError(
            f"{spec.title} could not be locked: conda-lock ended with {status}", evidence=lines[-10:]
        ) from None
    if "solved" in answer:
        return dict(answer["solved"])
    said_there = masked(answer.get("failed") or answer["unreachable"])
    lines = [line.rstrip() for line in said_there.splitlines() if line.strip()][:MANY]
    if "unreachable" in answer:
        raise LockError(
            f"{spec.title} could not be locked: a channel cannot be reached", evidence=lines,
            hint="check your network, proxy and certificate settings, and the address if it is yours, then call again"
            + (f"; without network: run `clusterfn env lock {shlex.quote(spec.title)}` on another machine, and copy "
               "its lock beside this file" if spec.file else ""),
        )  # fmt: skip
    raise Unsolved(LockError(f"there is no solution for {spec.title}", evidence=lines, hint=_hint(spec)))


def _hint(spec: Specification) -> str:
    if spec.exported:
        return "export only what you asked for: `conda env export --from-history > environment.yml`"
    if any(each.name == "torch" for each in spec.conda):
        return 'conda calls it pytorch; or write torch below "- pip:"'
    if spec.file:
        return "loosen or correct the packages named above"
    return 'loosen or correct the packages named above; write "pip:name" for one that only PyPI has'
