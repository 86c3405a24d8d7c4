"""Choose the build of PyTorch for CUDA that a host's driver and GPUs can run, from a table.

The table is `cuda.yml`, with its sources and its date. Pure: asks no host, changes nothing. A GPU, a driver or a
PyTorch that is newer than the table is never refused because of that.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clusterfn.environment.project import Version, admits, version
from clusterfn.errors import EnvironmentBuildError

TABLE = Path(__file__).with_name("cuda.yml")
INDEX = "https://download.pytorch.org/whl/"


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


@dataclass(frozen=True)
class CudaBuild:
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
class CudaTable:
    """All rows of the table, and the drivers that they need.

    Attributes:
        drivers: Major version of CUDA -> the oldest driver that runs it.
        ships: Version of CUDA -> the driver that it came with.
    """

    builds: tuple[CudaBuild, ...]
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
        return max(version(each) for row in self.builds for each in row.capabilities)

    def runs(self, row: CudaBuild, capability: str) -> bool:
        """Return whether a build runs on such a GPU; one newer than the table counts like the newest in it."""
        if self.is_ahead(capability):
            return self.newest_capability in map(version, row.capabilities)
        # A kernel runs on later GPUs of the same major version, and on no others.
        wanted = version(capability)
        return any(version(each)[0] == wanted[0] and version(each) <= wanted for each in row.capabilities)

    def fitting(self, torch: Version, gpus: GpuCapabilities) -> list[CudaBuild]:
        """List the builds of a minor version of PyTorch that run on a machine."""
        return [row for row in self.builds if row.has(torch) and self.fits(row, gpus)]

    def fits(self, row: CudaBuild, gpus: GpuCapabilities) -> bool:
        """Return whether a build runs on a machine."""
        return self.runs_driver(row.cuda, gpus.driver) and all(self.runs(row, each) for each in gpus.capabilities)

    def minors(self) -> list[Version]:
        """List every minor version of PyTorch in the table, the newest first."""
        newest = max(max(row.first, row.last or row.first) for row in self.builds)
        return sorted({row.first for row in self.builds} | {(2, minor) for minor in range(newest[1] + 1)}, reverse=True)


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


@functools.lru_cache(maxsize=1)
def load_table() -> CudaTable:
    """Read the table."""
    content: Mapping[str, Any] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))

    def span(pair: Sequence[str | None]) -> tuple[Version, Version | None]:
        return version(pair[0] or ""), version(pair[1]) if pair[1] else None

    rows = tuple(
        CudaBuild(
            each["cuda"], *span(each["torch"]), tuple(each["capabilities"]), each.get("pypi") and span(each["pypi"])
        )
        for each in content["builds"]
    )
    return CudaTable(rows, dict(content["drivers"]), dict(content["ships"]), str(content["date"]))


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

    def rank(row: CudaBuild, torch: Version) -> tuple[bool, bool, Version]:
        """Better is higher: no newer than the driver; on the Python package index; nearest to the driver."""
        number = version(row.cuda)
        within = version(gpus.driver) >= version(known.ships.get(row.cuda, ""))
        return within, within and row.is_default(torch), number if within else tuple(-each for each in number)

    for minor in wanted:
        fitting = [row for row in known.fitting(minor, gpus) if built_for in ("", row.cuda)]
        if fitting:
            row = max(fitting, key=lambda row: rank(row, minor))
            tag = "" if row.is_default(minor) else f"cu{row.cuda.replace('.', '')}"
            return TorchChoice(row.cuda, _text(minor), tag)
    numbers = _text(wanted[0]) if len(wanted) == 1 else versions
    why_not = [
        f"CUDA {row.cuda} has code for {', '.join(row.capabilities)}"
        if known.runs_driver(row.cuda, gpus.driver)
        else f"CUDA {row.cuda} needs driver {known.least_driver(row.cuda)} or newer"
        for row in known.builds if wanted and row.has(wanted[0])
    ]  # fmt: skip
    raise EnvironmentBuildError(
        f"no build of {f'PyTorch {numbers}' if numbers else 'any PyTorch in the table'} runs on {host or 'this host'}: "
        f"{gpus.in_words()}", host=host, stage="environment",
        evidence=why_not or [f"the table of {known.date} has no such version"], hint=suggest_build(gpus),
    )  # fmt: skip


def warnings(cuda: str, gpus: GpuCapabilities) -> list[str]:
    """Return sentences about what may not work with builds for a version of CUDA, although they are accepted."""
    known = load_table()
    own, new = known.ships.get(cuda, ""), f"is newer than the table of {known.date}: it may have no kernel"
    found = [f"compute capability {each} {new}" for each in gpus.capabilities if known.is_ahead(each)]
    ptx = f"CUDA {cuda} came with driver {own}, this one is {gpus.driver}: programs run, but PTX code does not"
    return [ptx, *found] if version(gpus.driver) < version(own) else found


def suggest_build(gpus: GpuCapabilities) -> str:
    """Say what would run on these GPUs."""
    known = load_table()
    for minor in known.minors():
        rows = known.fitting(minor, gpus)
        if rows:
            return f"PyTorch {_text(minor)} with CUDA {rows[-1].cuda} would run: torch=={_text(minor)}.*"
    drivers = [known.least_driver(row.cuda) for row in known.builds
               if all(known.runs(row, each) for each in gpus.capabilities)]  # fmt: skip
    if not drivers:
        return "no PyTorch in the table has code for all of these GPUs: choose one type in clusterfn.yml, or set gpus=0"
    return f"the administrator can install driver {min(drivers, key=version)} or newer; until then: gpus=0"


def runs_on(torch: str, build: str, gpus: GpuCapabilities) -> bool:
    """Return whether a build of PyTorch for a version of CUDA runs on these GPUs; true for one that the table lacks."""
    known, minor = load_table(), version(torch)[:2]
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


def _text(torch: Version) -> str:
    return ".".join(map(str, torch))
