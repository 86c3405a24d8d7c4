"""Give an environment a build of PyTorch that runs on a host's GPUs, and check the one in its lock.

`cuda` has the table and the choice; this module applies it to the user's specification and its locks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from clusterfn.bridge.builder.fetch import masked
from clusterfn.config.spec import Host
from clusterfn.environment import cuda, solver
from clusterfn.environment.conda_solver import SolveTarget
from clusterfn.environment.cuda import GpuCapabilities
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.solver import Say
from clusterfn.environment.specification import TORCHES, Requirement, Specification
from clusterfn.errors import EnvironmentBuildError, LockError

AskGpus = Callable[[], "GpuCapabilities | None"]

_CONDA_BUILD = re.compile(r"cuda_?(\d\d)\.?(\d)")  # cuda128_…, py3.11_cuda12.1_…
_OF_INDEX = re.compile(r"/(cu\d{2,3}|cpu)/?$")  # https://download.pytorch.org/whl/cu118, or a mirror of it
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


def find_torch(packages: Iterable[LockedPackage], table: cuda.CudaTable) -> LockedTorch | None:
    """Return the PyTorch among packages, wheel or conda package; None if there is none."""
    for package in packages:
        if package.name == "pytorch" and package.manager == "conda":
            toolkit = _CONDA_BUILD.search(package.build)
            built_for = f"{toolkit[1]}.{toolkit[2]}" if toolkit else "" if "cpu" in package.build else None
            return LockedTorch(package.version, built_for, "conda")
        if package.name == "torch" and package.manager == "pip":
            release, local = cuda.version(package.version), package.version.partition("+")[2]
            defaults = (row.cuda for row in table.builds if row.has(release) and row.is_default(release))
            if local.startswith("cu"):
                return LockedTorch(package.version, f"{local[2:-1]}.{local[-1]}")  # cu118 is 11.8
            return LockedTorch(package.version, "" if local == "cpu" else next(defaults, None))
    return None


def unknown_gpus(host: Host) -> GpuCapabilities:
    """Return what clusterfn.yml says of the GPUs, else what is assumed of unknown ones."""
    making = host.making
    if making.driver:
        return GpuCapabilities(making.driver, making.capabilities, f"clusterfn.yml says ({host.source})")
    return UNKNOWN_GPUS


def load_table_of(host: Host) -> cuda.CudaTable:
    return cuda.load_table(Path(host.making.table)) if host.making.table else cuda.load_table()


def runs_on_gpus(torch: LockedTorch | None, gpus: GpuCapabilities, table: cuda.CudaTable) -> bool:
    if torch is None or torch.cuda is None:
        return torch is not None  # unknown: the job asks the GPU itself
    known = replace(gpus, capabilities=()) if torch.manager == "conda" else gpus
    return bool(torch.cuda) and cuda.runs_on(torch.version, torch.cuda, known, table)


def refuse_unusable_torch(
    torch: LockedTorch | None, gpus: GpuCapabilities, table: cuda.CudaTable, lock: EnvironmentLock, host: Host
) -> None:
    """Raise if the lock's PyTorch cannot run on the GPUs: it may be older than the request, or from another machine."""
    if torch is None or runs_on_gpus(torch, gpus, table):
        return
    would = cuda.choose_build(gpus, torch.version, table, host.name)
    build = f"PyTorch {torch.version} {f'for CUDA {torch.cuda}' if torch.cuda else 'without CUDA'}"
    raise EnvironmentBuildError(
        f"{lock.path.name} has {build}, which does not run on the GPUs of {host.name}", host=host.name,
        stage="environment",
        evidence=[f"driver {gpus.driver}, compute capability {', '.join(gpus.capabilities) or 'unknown'}, "
                  f"as {gpus.source}"],
        hint=f"CUDA {would.cuda} would run: ask for such a build in the specification (pytorch-gpu, or PyPI's torch), "
        f"and lock it for this host: clusterfn env lock FILE {host.name}",
    )  # fmt: skip


def explain_locked_torch(torch: LockedTorch, gpus: GpuCapabilities, table: cuda.CudaTable) -> str:
    """Explain why the PyTorch of an existing lock runs on these GPUs."""
    least = table.least_driver(torch.cuda or "")
    needs = f" (at least {least})" if least else ""
    gpus_text = f", compute capability {', '.join(gpus.capabilities)}" if gpus.capabilities else ""
    return (
        f"CUDA {torch.cuda or 'unknown'} of PyTorch {torch.version}, as locked: driver {gpus.driver}{needs}"
        f"{gpus_text}, as {gpus.source}"
    )


class TransitiveTorch:
    """Chooses the build of a PyTorch that comes in only through other packages.

    Args:
        ask: Returns the GPUs, None if there are none; called if there is such a PyTorch.
        is_needed: Whether the call asks for GPUs, so that no PyTorch will do that does not run on them.
    """

    def __init__(self, ask: AskGpus, table: cuda.CudaTable, host: Host, say: Say, *, is_needed: bool) -> None:
        self._ask, self._table, self._host, self._say, self._is_needed = ask, table, host, say, is_needed
        self._gpus: GpuCapabilities | None = None

    @property
    def cuda(self) -> str | None:
        """The newest that the driver runs; None if no PyTorch has come in."""
        return cuda.newest_cuda(self._gpus.driver) if self._gpus else None

    def narrow(self, version: str) -> tuple[dict[str, str], list[str]] | None:
        """Return versions and indexes to resolve with again, if that version does not run on the GPUs.

        Raises:
            EnvironmentBuildError: No older one runs on them either.
        """
        self._gpus = self._ask()
        if self._gpus is None:
            return None
        package = LockedPackage("torch", version, "", "pip", "", "", "", "")
        if runs_on_gpus(find_torch([package], self._table), self._gpus, self._table):
            return None
        wish = cuda.TorchRequest(f"<={version.partition('+')[0]}")
        try:
            choice = cuda.choose_build(self._gpus, wish, self._table, self._host.name)
        except EnvironmentBuildError:
            if self._is_needed:
                raise
            return None
        self._say(f"PyTorch {version}, which other packages want, does not run there: {choice.because}")
        return ({"torch": f"=={choice.torch}.*"}, [choice.index] if choice.index else []) if choice.torch else None


def lock_with_torch(
    spec: Specification, target: SolveTarget, gpus: GpuCapabilities, table: cuda.CudaTable, host: Host, say: Say
) -> tuple[EnvironmentLock, cuda.TorchChoice | None]:
    """Return the existing lock if its PyTorch runs on these GPUs; else solve one, and return the chosen build too.

    Raises as `refuse_unusable_torch`, before a new lock is written.
    """
    wheel = spec.wheel("torch")

    def check(lock: EnvironmentLock) -> None:
        refuse_unusable_torch(find_torch(lock.on(target.platform), table), gpus, table, lock, host)

    # What is only assumed of the GPUs is no reason to solve again what was solved for known ones.
    there = solver.current_lock(spec, replace(target, cuda=None) if gpus is UNKNOWN_GPUS else target)
    before = find_torch(there.on(target.platform), table) if there else None
    if there and (runs_on_gpus(before, gpus, table) or before is None or before.manager == "conda"):
        return there, None
    why = f"its PyTorch {before.version} does not run on the GPUs of {host.name}" if before else ""
    if wheel is None and not spec.is_locked:
        through = TransitiveTorch(lambda: gpus, table, host, say, is_needed=True)
        return solver.lock_for(spec, replace(target, torch=through), say, why, check), None
    if wheel is None or spec.is_locked or wheel.is_address:
        return solver.lock_for(spec, target, say, check=check), None
    choice = cuda.choose_build(gpus, request_torch(spec, wheel, host), table, host.name)
    for sentence in [choice.because, *choice.warnings]:
        say(sentence)
    why = f"its PyTorch does not run on the host ({choice.because})" if there else ""
    return solver.lock_for(pin_torch(spec, wheel, choice, table), target, say, why, check), choice


def lock_without_gpus(
    spec: Specification, target: SolveTarget, ask: AskGpus, table: cuda.CudaTable, host: Host, say: Say
) -> EnvironmentLock:
    """Return the lock for a call that asks for no GPUs, with the PyTorch that a call with GPUs would get.

    Args:
        ask: Returns the GPUs of the host, None if it has none; called if PyTorch is wanted and there is no lock.
    """
    wheel = spec.wheel("torch")
    if spec.is_locked or solver.current_lock(spec, target) or (wheel and wheel.is_address):
        return solver.lock_for(spec, target, say)
    through = TransitiveTorch(ask, table, host, say, is_needed=False)
    narrowed, towards = spec, replace(target, torch=through)
    if wheel:
        try:
            gpus = ask()
            choice = cuda.choose_build(gpus, request_torch(spec, wheel, host), table, host.name) if gpus else None
        except EnvironmentBuildError:  # such a PyTorch runs on no GPU of the host, and the call wants none
            gpus = choice = None
        if gpus is None or choice is None:
            return solver.lock_for(spec, target, say)
        say(f"{choice.because}: calls with GPUs use the same build")
        # A conda package may ask for CUDA, too: then that is solved once a call wants GPUs.
        newest = None if spec.conda else cuda.newest_cuda(gpus.driver)
        narrowed, towards = pin_torch(spec, wheel, choice, table), replace(target, cuda=newest)
    try:
        return solver.lock_for(narrowed, towards, say)
    except LockError as error:
        if narrowed is spec and through.cuda is None:
            raise
        say(f"PyTorch for GPUs cannot be had ({error.message}): this lock is for calls without them")
        return solver.lock_for(spec, target, say)


def request_torch(spec: Specification, wheel: Requirement, host: Host) -> cuda.TorchRequest:
    """Return what the user wrote about PyTorch: its versions, and the build that its version or an index names."""
    local = wheel.exact.partition("+")[2]
    tag, said_by = next(filter(lambda found: found[0], [(local, wheel.text), _tagged_index(spec)]), ("", ""))
    if tag == "cpu":
        raise EnvironmentBuildError(
            f"{said_by} is a build of PyTorch without CUDA, but the call asks for GPUs", host=host.name,
            stage="environment", hint="remove the cpu part, and clusterfn chooses a build for these GPUs; or call "
            "with gpus=0",
        )  # fmt: skip
    belonging = {each.name: each.versions for each in spec.pip if each.name in TORCHES and each is not wheel}
    if not tag.startswith("cu"):
        return cuda.TorchRequest(wheel.versions, companions=belonging)
    return cuda.TorchRequest(wheel.versions, f"{tag[2:-1]}.{tag[-1]}", said_by, belonging)


def _tagged_index(spec: Specification) -> tuple[str, str]:
    """Return the build and the address of the first index that is for one build; two empty texts if none is."""
    found = ((match[1], masked(url)) for url in spec.indexes if (match := _OF_INDEX.search(url)))
    return next(found, ("", ""))


def pin_torch(
    spec: Specification, wheel: Requirement, choice: cuda.TorchChoice, table: cuda.CudaTable
) -> Specification:
    """Narrow the wheels of PyTorch and its companions to one build, within what the user wrote."""
    users_index, exact = bool(_tagged_index(spec)[0]), wheel.exact
    if not choice.torch or (users_index and spec.replaces_index):
        return spec  # that index has no other build
    pins = {}
    if not exact:
        pins["torch"] = ",".join(filter(None, [wheel.versions, f"=={choice.torch}.*"]))
    elif choice.index and "+" not in exact:
        pins["torch"] = f"=={exact}+{cuda.tag_of(choice.cuda)}"
    belong = cuda.companions(choice.torch, table)
    for name, version in belong.items():
        companion = spec.wheel(name)  # narrowed only if any version of it is wanted
        if name in TORCHES and companion and not companion.versions and not companion.is_address:
            pins[name] = f"=={version}"
    ours = choice.index and not users_index and "+" not in exact  # a user who names a build names its index, too
    return spec.with_wheels(pins, [choice.index] if ours else [])
