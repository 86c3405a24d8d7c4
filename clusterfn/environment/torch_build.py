"""Give an environment a build of PyTorch that runs on a host's GPUs, and check the one in its lock.

`cuda` has the table and the choice; this module applies it to the user's specification and its locks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from clusterfn.config.spec import Host
from clusterfn.environment import cuda, solver
from clusterfn.environment.conda_solver import Say, SolveTarget
from clusterfn.environment.cuda import GpuCapabilities
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.project import version
from clusterfn.environment.specification import Specification
from clusterfn.errors import EnvironmentBuildError, LockError

AskGpus = Callable[[], "GpuCapabilities | None"]
# conda names its builds cuda128_… or py3.11_cuda12.1_….
_CONDA_BUILD = re.compile(r"cuda_?(\d\d)\.?(\d)")
# For GPUs of which nothing is known: what the oldest driver of CUDA 12 runs, which most machines have.
UNKNOWN_GPUS = GpuCapabilities("525.60.13", (), "is assumed while they are unknown; the first job on a GPU checks it")


@dataclass(frozen=True)
class LockedTorch:
    """The PyTorch of a lock.

    Attributes:
        cuda: The version of CUDA that it was built for; "" for a build without, None if that is not known.
        manager: "pip", or "conda", whose builds have code for other GPUs than those of the table.
    """

    version: str
    cuda: str | None
    manager: str = "pip"


def find_torch(packages: Iterable[LockedPackage]) -> LockedTorch | None:
    """Return the PyTorch among packages, wheel or conda package; None if there is none."""
    for package in packages:
        if package.name == "pytorch" and package.manager == "conda":
            toolkit = _CONDA_BUILD.search(package.build)
            built_for = f"{toolkit[1]}.{toolkit[2]}" if toolkit else "" if "cpu" in package.build else None
            return LockedTorch(package.version, built_for, "conda")
        if package.name == "torch" and package.manager == "pip":
            release, local = version(package.version), package.version.partition("+")[2]
            rows = (row for row in cuda.load_table().builds if row.has(release) and row.is_default(release))
            of_pypi = next((row.cuda for row in rows), None)
            # The tag cu118 means CUDA 11.8. A source distribution is built on the host, for the CUDA that it has.
            of_tag = f"{local[2:-1]}.{local[-1]}" if local.startswith("cu") else "" if local == "cpu" else of_pypi
            return LockedTorch(package.version, None if package.is_source else of_tag)
    return None


def unknown_gpus(host: Host) -> GpuCapabilities:
    """Return what clusterfn.yml says of the GPUs, else what is assumed of unknown ones."""
    said = GpuCapabilities(host.making.driver or "", host.making.capabilities, f"clusterfn.yml says ({host.source})")
    return said if said.driver else UNKNOWN_GPUS


def runs_on_gpus(torch: LockedTorch | None, gpus: GpuCapabilities) -> bool:
    if torch is None or torch.cuda is None:
        # Where the build is unknown, the job asks the GPU itself.
        return torch is not None
    known = replace(gpus, capabilities=()) if torch.manager == "conda" else gpus
    return bool(torch.cuda) and cuda.runs_on(torch.version, torch.cuda, known)


def refuse_unusable_torch(torch: LockedTorch | None, gpus: GpuCapabilities, lock: EnvironmentLock, host: str) -> None:
    """Raise if the lock's PyTorch cannot run on the GPUs: it may be older than the request, or from another machine."""
    if torch is None or runs_on_gpus(torch, gpus):
        return
    build = f"PyTorch {torch.version} {f'for CUDA {torch.cuda}' if torch.cuda else 'without CUDA'}"
    raise EnvironmentBuildError(
        f"{lock.path.name} has {build}, which does not run on the GPUs of {host}", host=host, stage="environment",
        evidence=[gpus.in_words()],
        hint=f"{cuda.suggest_build(gpus)}; ask for that, and lock it for this host: clusterfn env lock FILE {host}",
    )  # fmt: skip


def explain_torch(torch: LockedTorch, gpus: GpuCapabilities) -> str:
    """Explain by numbers why a PyTorch runs on these GPUs."""
    numbers = gpus.in_words(cuda.load_table().least_driver(torch.cuda or ""))
    return f"CUDA {torch.cuda or 'unknown'} for PyTorch {torch.version}: {numbers}"


def lock_with_torch(
    spec: Specification, target: SolveTarget, gpus: GpuCapabilities | None, ask: AskGpus, host: str, say: Say
) -> EnvironmentLock:
    """Return the existing lock if it fits; else solve one for the GPUs of the host.

    uv chooses a PyTorch, however it comes in. If that does not run there, uv is asked once more, for one that does.
    A call that asks for no GPUs gets the same lock as one that does, so that a file has one PyTorch and is solved once.

    Args:
        gpus: Of the call; None if it asks for none: then any PyTorch will do.
        ask: Returns the GPUs of the host, None if it has none; called if a call without GPUs needs a new lock.

    Raises as `refuse_unusable_torch`, before a new lock is written.
    """
    there, why_not = solver.existing_lock(spec, needed_target(target, gpus))
    before = find_torch(there.on(target.platform)) if there and not why_not else None
    is_usable = gpus is None or before is None or before.manager == "conda" or runs_on_gpus(before, gpus)
    if there and is_usable and not why_not:
        return there
    is_needed, known = gpus is not None, gpus or ask()
    if known is None:
        return solver.lock_for(spec, target, say)
    wheel, narrowed, once = spec.wheel("torch"), list[str](), functools.lru_cache(maxsize=None)(say)
    fixed = spec.is_locked or (wheel is not None and wheel.is_address)

    def narrow(version: str) -> cuda.TorchChoice | None:
        """Choose another PyTorch if that version does not run there, within the build or index that the user names."""
        found = find_torch([LockedPackage("torch", version, "pip", "torch.whl", "", "")])
        # Such an index has builds for one version of CUDA, or for none.
        of_index = "+" in version and bool(spec.indexes)
        built_for = (found.cuda or "" if found else "") if of_index else ""
        named = (wheel and "+" in wheel.versions) or (of_index and not built_for)
        if named or runs_on_gpus(found, known):
            return None
        versions = [wheel.versions] if wheel and wheel.versions else []
        wanted = ",".join([*versions, f"<={version.partition('+')[0]}"])
        try:
            choice = cuda.choose_build(known, wanted, host, built_for)
        except EnvironmentBuildError:
            if is_needed:
                raise
            return None
        once(f"PyTorch {version} does not run on the GPUs of {host}: {known.in_words()}")
        narrowed.append(choice.torch)
        return replace(choice, backend="") if of_index else choice

    def check(lock: EnvironmentLock) -> None:
        torch = find_torch(lock.on(target.platform))
        if is_needed and torch and torch.manager == "conda" and not runs_on_gpus(torch, known):
            # conda's solver takes a build without CUDA where no other runs. This call then raises with the reasons.
            cuda.choose_build(known, torch.version, host)
        if is_needed:
            refuse_unusable_torch(torch, known, lock, host)
        if torch and runs_on_gpus(torch, known):
            same = "" if is_needed else ": calls with GPUs use the same build"
            for sentence in [explain_torch(torch, known) + same, *cuda.warnings(torch.cuda or "", known)]:
                once(sentence)

    ours = replace(target, cuda=cuda.newest_cuda(known.driver), torch=None if fixed else narrow)
    why = f"its PyTorch {before.version} does not run on the GPUs of {host}" if before and is_needed else ""
    try:
        return solver.lock_for(spec, ours, say, "" if fixed else why, check)
    except LockError as error:
        # A call without GPUs needs no PyTorch for them, so a failure to find one must not stop it.
        if is_needed or not narrowed:
            raise
        say(f"PyTorch for GPUs cannot be had ({error.message}): this lock is for calls without them")
        return solver.lock_for(spec, target, say)


def needed_target(target: SolveTarget, gpus: GpuCapabilities | None) -> SolveTarget:
    """Return what an existing lock has to fit for a call with these GPUs, None for one without.

    What is only assumed of GPUs is no reason to solve again what was solved for known ones.
    """
    if gpus is None or gpus is UNKNOWN_GPUS:
        return target
    return replace(target, cuda=cuda.newest_cuda(gpus.driver))
