"""Give an environment a build of PyTorch that runs on a host's GPUs, and check the one in its lock.

The build for CUDA is chosen by what the host's driver and GPUs can run, from a table: `cuda.yml`, with its sources and
its date. A GPU, a driver or a PyTorch that is newer than the table is never refused because of that. Asks no host.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from clusterfn.environment import solver
from clusterfn.environment.conda_solver import Say, SolveTarget, TorchChoice
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.project import Version, admits, version
from clusterfn.environment.specification import Specification
from clusterfn.errors import EnvironmentBuildError, LockError

AskGpus = Callable[[], "GpuCapabilities | None"]
# conda names its builds cuda128_… or py3.11_cuda12.1_….
_CONDA_BUILD = re.compile(r"cuda_?(\d\d)\.?(\d)")
_TABLE = Path(__file__).with_name("cuda.yml")


@dataclass(frozen=True)
class GpuCapabilities:
    """The driver and the compute capabilities of the GPUs that a job will get.

    Attributes:
        driver: Of the machine, such as "575.57.08".
        capabilities: Compute capabilities, such as "8.6"; empty if they are not known.
        source: Where that is known from, for messages.
    """

    driver: str
    capabilities: tuple[str, ...] = ()
    source: str = ""

    def in_words(self, least: str = "") -> str:
        """Say what is known of them, for messages, and the oldest driver that would do: "driver 575 (at least 525)"."""
        needs = f" (at least {least})" if least else ""
        known = f", compute capability {', '.join(self.capabilities)}" if self.capabilities else ""
        return f"driver {self.driver}{needs}{known}{f', as {self.source}' if self.source else ''}"


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
            built_for = "" if "cpu" in package.build else None
            return LockedTorch(package.version, f"{toolkit[1]}.{toolkit[2]}" if toolkit else built_for, "conda")
        if package.name == "torch" and package.manager == "pip":
            release, local = version(package.version), package.version.partition("+")[2]
            rows = (row for row in load_table().builds if row.has(release) and row.is_default(release))
            built_for = "" if local == "cpu" else next((row.cuda for row in rows), None)
            if local.startswith("cu"):
                # The tag cu118 means CUDA 11.8.
                built_for = f"{local[2:-1]}.{local[-1]}"
            # A source distribution is built on the host, for the CUDA that it has.
            return LockedTorch(package.version, None if package.is_source else built_for)
    return None


def runs_on_gpus(torch: LockedTorch | None, gpus: GpuCapabilities) -> bool:
    if torch is None or torch.cuda is None:
        # Where the build is unknown, the job asks the GPU itself.
        return torch is not None
    known = replace(gpus, capabilities=()) if torch.manager == "conda" else gpus
    return bool(torch.cuda) and runs_on(torch.version, torch.cuda, known)


def refuse_unusable_torch(torch: LockedTorch | None, gpus: GpuCapabilities, lock: EnvironmentLock, host: str) -> None:
    """Raise if the lock's PyTorch cannot run on the GPUs: it may be older than the request, or from another machine."""
    if torch is None or runs_on_gpus(torch, gpus):
        return
    build = f"PyTorch {torch.version} {f'for CUDA {torch.cuda}' if torch.cuda else 'without CUDA'}"
    message = f"{lock.path.name} has {build}, which does not run on the GPUs of {host}"
    hint = f"{_suggest_build(gpus)}; ask for that, and lock it for this host: clusterfn env lock FILE {host}"
    evidence = [gpus.in_words()]
    raise EnvironmentBuildError(message, host=host, stage="environment", evidence=evidence, hint=hint)


def explain_torch(torch: LockedTorch, gpus: GpuCapabilities) -> str:
    """Explain by numbers why a PyTorch runs on these GPUs."""
    numbers = gpus.in_words(load_table().least_driver(torch.cuda or ""))
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
    is_needed = gpus is not None
    known = gpus or ask()
    if known is None:
        return solver.lock_for(spec, target, say)
    wheel = spec.wheel("torch")
    narrowed = list[str]()
    once = functools.lru_cache(maxsize=None)(say)
    fixed = spec.is_locked or (wheel is not None and wheel.is_address)

    def narrow(version: str) -> TorchChoice | None:
        """Choose another PyTorch if that version does not run there, within the build or index that the user names."""
        found = find_torch([LockedPackage("torch", version, "pip", "torch.whl", "", "")])
        # Such an index has builds for one version of CUDA, or for none.
        of_index = "+" in version and bool(spec.indexes)
        built_for = (found.cuda or "") if found and of_index else ""
        named = (wheel and "+" in wheel.versions) or (of_index and not built_for)
        if named or runs_on_gpus(found, known):
            return None
        versions = [wheel.versions] if wheel and wheel.versions else []
        wanted = ",".join([*versions, f"<={version.partition('+')[0]}"])
        try:
            choice = choose_build(known, wanted, host, built_for)
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
            choose_build(known, torch.version, host)
        if is_needed:
            refuse_unusable_torch(torch, known, lock, host)
        if torch and runs_on_gpus(torch, known):
            same = "" if is_needed else ": calls with GPUs use the same build"
            for sentence in [explain_torch(torch, known) + same, *cuda_warnings(torch.cuda or "", known)]:
                once(sentence)

    ours = replace(target, cuda=newest_cuda(known.driver), torch=None if fixed else narrow)
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
    return replace(target, cuda=newest_cuda(gpus.driver))


@dataclass(frozen=True)
class _CudaBuild:
    """One row: builds of PyTorch `first` to `last` for one version of CUDA, and the GPUs that they have code for."""

    cuda: str
    first: Version
    last: Version | None
    capabilities: tuple[str, ...]
    on_pypi: tuple[Version, Version | None] | None

    def has(self, torch: Version) -> bool:
        """Return whether there is such a build of that minor version of PyTorch."""
        return _is_within(torch, self.first, self.last)

    def is_default(self, torch: Version) -> bool:
        """Return whether the Python package index itself has this build."""
        return self.on_pypi is not None and _is_within(torch, *self.on_pypi)


@dataclass(frozen=True)
class _CudaTable:
    """All rows of the table, and the drivers that they need.

    Attributes:
        drivers: Major version of CUDA -> the oldest driver that runs it.
        ships: Version of CUDA -> the driver that it came with.
    """

    builds: tuple[_CudaBuild, ...]
    drivers: Mapping[str, str]
    ships: Mapping[str, str]
    date: str

    def least_driver(self, cuda: str) -> str:
        """Return the oldest driver that runs that version; "" if the table does not know it."""
        return self.drivers.get(cuda.partition(".")[0], "")

    def runs_driver(self, cuda: str, driver: str) -> bool:
        """Return whether a driver runs that version, as far as the table knows."""
        return version(driver) >= version(self.least_driver(cuda))

    def is_ahead(self, capability: str) -> bool:
        """Return whether that compute capability is newer than the table."""
        return version(capability)[0] > self.newest_capability[0]

    @property
    def newest_capability(self) -> Version:
        """The newest compute capability in the table."""
        return max(version(capability) for row in self.builds for capability in row.capabilities)

    def runs(self, row: _CudaBuild, capability: str) -> bool:
        """Return whether a build runs on such a GPU; one newer than the table counts like the newest in it."""
        if self.is_ahead(capability):
            return self.newest_capability in map(version, row.capabilities)
        # A kernel runs on later GPUs of the same major version, and on no others.
        wanted = version(capability)
        return any(version(built)[0] == wanted[0] and version(built) <= wanted for built in row.capabilities)

    def fitting(self, torch: Version, gpus: GpuCapabilities) -> list[_CudaBuild]:
        """List the builds of a minor version of PyTorch that run on a machine."""
        return [row for row in self.builds if row.has(torch) and self.fits(row, gpus)]

    def fits(self, row: _CudaBuild, gpus: GpuCapabilities) -> bool:
        """Return whether a build runs on a machine."""
        runs_all = all(self.runs(row, capability) for capability in gpus.capabilities)
        return runs_all and self.runs_driver(row.cuda, gpus.driver)

    def minors(self) -> list[Version]:
        """List every minor version of PyTorch in the table, the newest first."""
        newest = max(max(row.first, row.last or row.first) for row in self.builds)
        return sorted({row.first for row in self.builds} | {(2, minor) for minor in range(newest[1] + 1)}, reverse=True)


@functools.lru_cache(maxsize=1)
def load_table() -> _CudaTable:
    """Read the table."""
    content: Mapping[str, Any] = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))

    def span(pair: Sequence[str | None]) -> tuple[Version, Version | None]:
        return version(pair[0] or ""), version(pair[1]) if pair[1] else None

    rows = []
    for build in content["builds"]:
        of_pypi = build.get("pypi") and span(build["pypi"])
        rows.append(_CudaBuild(build["cuda"], *span(build["torch"]), tuple(build["capabilities"]), of_pypi))
    return _CudaTable(tuple(rows), dict(content["drivers"]), dict(content["ships"]), str(content["date"]))


def choose_build(
    gpus: GpuCapabilities, versions: str = "", host: str | None = None, built_for: str = ""
) -> TorchChoice:
    """Choose the newest wanted PyTorch that has a build for these GPUs, and the best of its builds.

    The best build is for the newest CUDA that the driver itself has, else for one of the same major version.

    Args:
        versions: What is wanted of it, as pip writes that; one alone means that one, "" the newest that fits.
        host: For messages.
        built_for: The only version of CUDA that may be chosen; "" for any.

    Raise EnvironmentBuildError, with the numbers and what would work, if no build fits.
    """
    known = load_table()
    wanted = [minor for minor in known.minors() if admits(versions, minor)]

    def rank(row: _CudaBuild, torch: Version) -> tuple[bool, bool, Version]:
        """Better is higher: no newer than the driver; on the Python package index; nearest to the driver."""
        number = version(row.cuda)
        within = version(gpus.driver) >= version(known.ships.get(row.cuda, ""))
        return within, within and row.is_default(torch), number if within else tuple(-part for part in number)

    for minor in wanted:
        fitting = [row for row in known.fitting(minor, gpus) if built_for in ("", row.cuda)]
        if fitting:
            row = max(fitting, key=lambda row: rank(row, minor))
            tag = "" if row.is_default(minor) else f"cu{row.cuda.replace('.', '')}"
            return TorchChoice(row.cuda, _in_text(minor), tag)
    numbers = _in_text(wanted[0]) if len(wanted) == 1 else versions
    why_not = [
        f"CUDA {row.cuda} has code for {', '.join(row.capabilities)}"
        if known.runs_driver(row.cuda, gpus.driver)
        else f"CUDA {row.cuda} needs driver {known.least_driver(row.cuda)} or newer"
        for row in known.builds
        if wanted and row.has(wanted[0])
    ]
    what = f"PyTorch {numbers}" if numbers else "any PyTorch in the table"
    message = f"no build of {what} runs on {host or 'this host'}: {gpus.in_words()}"
    evidence = why_not or [f"the table of {known.date} has no such version"]
    hint = _suggest_build(gpus)
    raise EnvironmentBuildError(message, host=host, stage="environment", evidence=evidence, hint=hint)


def cuda_warnings(cuda: str, gpus: GpuCapabilities) -> list[str]:
    """Return sentences about what may not work with builds for a version of CUDA, although they are accepted."""
    known = load_table()
    own = known.ships.get(cuda, "")
    new = f"is newer than the table of {known.date}: it may have no kernel"
    found = [f"compute capability {capability} {new}" for capability in gpus.capabilities if known.is_ahead(capability)]
    ptx = f"CUDA {cuda} came with driver {own}, this one is {gpus.driver}: programs run, but PTX code does not"
    return [ptx, *found] if version(gpus.driver) < version(own) else found


def _suggest_build(gpus: GpuCapabilities) -> str:
    """Say what would run on these GPUs."""
    known = load_table()
    for minor in known.minors():
        rows = known.fitting(minor, gpus)
        if rows:
            return f"PyTorch {_in_text(minor)} with CUDA {rows[-1].cuda} would run: torch=={_in_text(minor)}.*"
    drivers = [
        known.least_driver(row.cuda)
        for row in known.builds
        if all(known.runs(row, capability) for capability in gpus.capabilities)
    ]
    if not drivers:
        return "no PyTorch in the table has code for all of these GPUs: choose one type in clusterfn.yml, or set gpus=0"
    return f"the administrator can install driver {min(drivers, key=version)} or newer; until then: gpus=0"


def runs_on(torch: str, build: str, gpus: GpuCapabilities) -> bool:
    """Return whether a build of PyTorch for a version of CUDA runs on these GPUs; true for one that the table lacks."""
    known = load_table()
    minor = version(torch)[:2]
    row = next((row for row in known.builds if row.cuda == build and row.has(minor)), None)
    return known.fits(row, gpus) if row else known.runs_driver(build, gpus.driver)


def newest_cuda(driver: str) -> str:
    """Return the newest version of CUDA that a driver supports, "12.9" for 575.57.08."""
    known = load_table()
    own = [cuda for cuda, least in known.ships.items() if version(least) <= version(driver)]
    majors = [f"{major}.0" for major, least in known.drivers.items() if version(least) <= version(driver)]
    return max([*own, *majors], key=version, default="")


def _is_within(torch: Version, first: Version, last: Version | None) -> bool:
    return first <= torch[:2] and (last is None or torch[:2] <= last)


def _in_text(torch: Version) -> str:
    return ".".join(map(str, torch))
