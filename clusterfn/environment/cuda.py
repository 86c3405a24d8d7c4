"""Choose the build of PyTorch for CUDA that a host's driver and GPUs can run, from a table.

The table is `cuda.yml`, with its sources and its date. Pure: asks no host, changes nothing. A GPU, a driver or a
PyTorch that is newer than the table is never refused because of that.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from clusterfn.environment.specification import admits
from clusterfn.errors import EnvironmentBuildError

TABLE = Path(__file__).with_name("cuda.yml")
INDEX = "https://download.pytorch.org/whl/"

Version = tuple[int, ...]


def version(text: str) -> Version:
    """Return a version as numbers, without suffixes.

    Example:
        >>> version("2.7.1+cu128")
        (2, 7, 1)
    """
    numbers = []
    for part in text.strip().partition("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


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


@dataclass(frozen=True)
class CudaBuild:
    """One row: builds of PyTorch `first` to `last` for one version of CUDA, and the GPUs that they have code for."""

    cuda: str
    first: Version
    last: Version | None
    capabilities: tuple[str, ...]
    on_pypi: tuple[Version, Version | None] | None
    source: str
    users: bool = False

    def has(self, torch: Version) -> bool:
        """Return whether there is such a build of that minor version of PyTorch."""
        return self.first <= torch[:2] and (self.last is None or torch[:2] <= self.last)

    def is_default(self, torch: Version) -> bool:
        """Return whether the Python package index itself has this build."""
        if self.on_pypi is None:
            return False
        first, last = self.on_pypi
        return first <= torch[:2] and (last is None or torch[:2] <= last)


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
    companions: Mapping[str, Mapping[str, str]]
    date: str

    def least_driver(self, cuda: str) -> str:
        """Return the oldest driver that runs that version; "" if the table does not know it."""
        return self.drivers.get(cuda.partition(".")[0], "")

    def runs_driver(self, cuda: str, driver: str) -> bool:
        """Return whether a driver runs that version, as far as the table knows."""
        least = self.least_driver(cuda)
        return not least or version(driver) >= version(least)

    def is_ahead(self, capability: str) -> bool:
        """Return whether that compute capability is newer than the table."""
        return version(capability)[0] > self._newest_capability[0]

    @property
    def _newest_capability(self) -> Version:
        return max(version(each) for row in self.builds for each in row.capabilities)

    def runs(self, row: CudaBuild, capability: str) -> bool:
        """Return whether a build runs on such a GPU; one newer than the table counts like the newest in it."""
        if self.is_ahead(capability):
            return self._newest_capability in map(version, row.capabilities)
        wanted = version(capability)  # the same major version, and not newer
        return any(version(each)[0] == wanted[0] and version(each) <= wanted for each in row.capabilities)

    def newest(self) -> Version:
        """Return the newest minor version of PyTorch that a row names."""
        return max(max(row.first, row.last or row.first) for row in self.builds)

    def minors(self) -> list[Version]:
        """List every minor version of PyTorch in the table, the newest first."""
        newest, found = self.newest(), {row.first for row in self.builds}
        found |= {(2, minor) for minor in range(newest[1] + 1)}
        return sorted(found, reverse=True)


@dataclass(frozen=True)
class TorchChoice:
    """A build of PyTorch that fits.

    Attributes:
        cuda: Its version of CUDA, "12.8".
        torch: The minor version of PyTorch that it was chosen for, "2.8"; "" if the table has no row for it.
        index: The package index that has it; "" for the Python package index.
        because: A sentence with the numbers that decided.
        warnings: Sentences about what may not work although it is accepted.
    """

    cuda: str
    torch: str
    index: str
    because: str
    warnings: tuple[str, ...] = ()


@functools.lru_cache(maxsize=8)
def load_table(more: Path | None = None) -> CudaTable:
    """Read the table; rows of the user's own file come first.

    Raises:
        OSError, ValueError, KeyError: The user's file cannot be read as one.
    """
    own = _read(TABLE)
    if more is None:
        return own
    users = _read(more)
    return replace(
        own,
        builds=tuple(replace(row, users=True) for row in users.builds) + own.builds,
        drivers={**own.drivers, **users.drivers},
        ships={**own.ships, **users.ships},
        date=f"{own.date}, {more.name}",
    )


def _read(path: Path) -> CudaTable:
    content: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    rows = tuple(
        CudaBuild(
            str(row["cuda"]),
            version(str(row["torch"][0])),
            _or_none(row["torch"][1]),
            tuple(map(str, row["capabilities"])),
            (version(str(row["pypi"][0])), _or_none(row["pypi"][1])) if row.get("pypi") else None,
            str(row.get("source", path)),
        )
        for row in content["builds"]
    )
    date = str(content.get("date", ""))
    return CudaTable(
        rows,
        dict(content.get("drivers", {})),
        dict(content.get("ships", {})),
        dict(content.get("companions", {})),
        date,
    )


def _or_none(value: object) -> Version | None:
    return None if value is None else version(str(value))


@dataclass(frozen=True)
class TorchRequest:
    """What the user wrote about PyTorch.

    Attributes:
        versions: As pip writes them, ">=2.4,<2.8", or one alone, "2.7.1"; "" for the newest that fits.
        cuda: The version of CUDA that it must be built for, "11.8"; "" for any.
        said_by: The user's own words that ask for that CUDA, for messages.
        companions: The versions of packages that belong to one PyTorch each, such as {"torchvision": "==0.22.1"}.
    """

    versions: str = ""
    cuda: str = ""
    said_by: str = ""
    companions: Mapping[str, str] = field(default_factory=dict)

    def admits(self, minor: Version, known: CudaTable) -> bool:
        """Return whether a minor version of PyTorch is among those that are wanted."""
        for name, rows in known.companions.items():
            fitting = [
                torch for torch, theirs in rows.items() if admits(self.companions.get(name, ""), version(theirs))
            ]
            if self.companions.get(name) and fitting and _text(minor) not in fitting:
                return False
        return admits(self.versions, minor)

    @property
    def newest_named(self) -> Version:
        """Return the newest minor version that it names; () if it names none."""
        named = (version(text)[:2] for text in re.findall(r"\d+(?:\.\d+)+", self.versions.partition("+")[0]))
        return max(named, default=())


def choose_build(
    gpus: GpuCapabilities,
    torch: str | TorchRequest | None = None,
    known: CudaTable | None = None,
    host: str | None = None,
) -> TorchChoice:
    """Choose the newest wanted PyTorch that has a build for these GPUs, and the best of its builds.

    The best build is for the newest CUDA that the driver itself has, else for one of the same major version.

    Args:
        gpus: The machine's driver and its GPUs' compute capabilities.
        torch: What the user wants of it; text means its versions, None the newest that fits.
        known: The table; None for the built-in one.
        host: For messages.

    Raises:
        EnvironmentBuildError: No build fits; it names the numbers and what would work.

    Example:
        >>> choose_build(GpuCapabilities("575.57.08", ("8.6",)), "2.7.1").cuda
        '12.6'
        >>> choose_build(GpuCapabilities("595.45.04", ("8.6",)), ">=2.4,<2.8").torch
        '2.7'
    """
    known = known or load_table()
    wish = torch if isinstance(torch, TorchRequest) else TorchRequest(torch or "")
    wanted = [minor for minor in known.minors() if wish.admits(minor, known)]
    for minor in wanted:
        fitting = [row for row in _rows(known, minor, wish.cuda) if _fits(known, row, gpus)]
        if fitting:
            return _chosen(known, max(fitting, key=lambda row: _rank(known, row, gpus, minor)), minor, gpus, wish)
    if wish.cuda and not any(_rows(known, minor, wish.cuda) for minor in wanted):
        if known.runs_driver(wish.cuda, gpus.driver):  # the only thing that could rule this build out
            because = f"CUDA {wish.cuda}, because {wish.said_by} asks for it: driver {gpus.driver} (at least "
            because += f"{known.least_driver(wish.cuda) or 'unknown'}){_said_by(gpus)}"
            warning = f"the table of {known.date} has no such build for CUDA {wish.cuda}: "
            warning += "its first job on a GPU will show whether it runs"
            return TorchChoice(wish.cuda, "", INDEX + tag_of(wish.cuda), because, (warning,))
    elif not wanted and wish.newest_named > known.newest():
        own = [cuda for cuda, driver in known.ships.items() if version(driver) <= version(gpus.driver)]
        newer = _text(wish.newest_named)
        warning = f"PyTorch {newer} is newer than the table of {known.date}: it may need another driver"
        because = f"no row for PyTorch {newer}; driver {gpus.driver}{_said_by(gpus)}"
        return TorchChoice(max(own, key=version, default=""), "", "", because, (warning,))
    raise _no_build_error(known, wanted, gpus, host, wish)


def _rows(known: CudaTable, torch: Version, cuda: str = "") -> list[CudaBuild]:
    """Return the builds of that version, for one CUDA or any; the user's rows replace those of the table."""
    rows: dict[str, CudaBuild] = {}
    for row in known.builds:
        if row.has(torch) and cuda in ("", row.cuda):
            rows.setdefault(row.cuda, row)
    return list(rows.values())


def _fits(known: CudaTable, row: CudaBuild, gpus: GpuCapabilities) -> bool:
    return known.runs_driver(row.cuda, gpus.driver) and all(known.runs(row, each) for each in gpus.capabilities)


def _rank(known: CudaTable, row: CudaBuild, gpus: GpuCapabilities, torch: Version) -> tuple[bool, bool, bool, Version]:
    """Better is higher: the user's; no newer than the driver; on the Python package index; nearest to the driver."""
    own, number = known.ships.get(row.cuda, ""), version(row.cuda)
    within = not own or version(gpus.driver) >= version(own)
    nearest = number if within else tuple(-each for each in number)
    return row.users, within, within and row.is_default(torch), nearest


def _chosen(known: CudaTable, row: CudaBuild, torch: Version, gpus: GpuCapabilities, wish: TorchRequest) -> TorchChoice:
    own, warnings = known.ships.get(row.cuda, ""), []
    if own and version(gpus.driver) < version(own):
        warnings.append(
            f"CUDA {row.cuda} came with driver {own}, this one is {gpus.driver}: programs run, but PTX code does not"
        )
    for each in gpus.capabilities:
        if known.is_ahead(each):
            warnings.append(f"compute capability {each} is newer than the table of {known.date}: it may have no kernel")
    gpus_text = f", compute capability {', '.join(gpus.capabilities)}" if gpus.capabilities else ""
    asked = f", because {wish.said_by} asks for it" if wish.cuda else ""
    because = f"CUDA {row.cuda} for PyTorch {_text(torch)}{asked}: driver {gpus.driver} (at least "
    because += f"{known.least_driver(row.cuda) or 'unknown'}){gpus_text}{_said_by(gpus)}"
    index = "" if row.is_default(torch) else INDEX + tag_of(row.cuda)
    return TorchChoice(row.cuda, _text(torch), index, because, tuple(warnings))


def _said_by(gpus: GpuCapabilities) -> str:
    return f", as {gpus.source}" if gpus.source else ""


def _no_build_error(
    known: CudaTable, wanted: Sequence[Version], gpus: GpuCapabilities, host: str | None, wish: TorchRequest
) -> EnvironmentBuildError:
    numbers = wish.versions if len(wanted) > 1 else _text(wanted[0]) if wanted else wish.versions
    torch = f"PyTorch {numbers}" if numbers else "any PyTorch in the table"
    built_for = f" for CUDA {wish.cuda} ({wish.said_by})" if wish.cuda else ""
    named = wanted[0] if wanted else wish.newest_named
    rows = _rows(known, named, wish.cuda)
    if wish.cuda and not known.runs_driver(wish.cuda, gpus.driver):
        why_not = [f"CUDA {wish.cuda} needs driver {known.least_driver(wish.cuda)} or newer"]
    elif not rows:
        missing = f"PyTorch {_text(named) or wish.versions} for CUDA {wish.cuda}"
        why_not = [f"the table of {known.date} has no build of {missing}"]
    else:
        why_not = [
            f"CUDA {row.cuda} has code for {', '.join(row.capabilities)}"
            if known.runs_driver(row.cuda, gpus.driver)
            else f"CUDA {row.cuda} needs driver {known.least_driver(row.cuda)} or newer"
            for row in rows
        ]
    return EnvironmentBuildError(
        f"no build of {torch}{built_for} runs on {host or 'this host'}: driver {gpus.driver}, compute capability "
        f"{', '.join(gpus.capabilities) or 'unknown'}{_said_by(gpus)}",
        host=host,
        stage="environment",
        evidence=why_not,
        hint=_suggest_build(known, gpus),
    )


def _suggest_build(known: CudaTable, gpus: GpuCapabilities) -> str:
    for minor in known.minors():
        rows = [row for row in _rows(known, minor) if _fits(known, row, gpus)]
        if rows:
            return f"PyTorch {_text(minor)} with CUDA {rows[-1].cuda} would run: torch=={_text(minor)}.*"
    running = [row for row in known.builds if all(known.runs(row, each) for each in gpus.capabilities)]
    if not running:
        return "no PyTorch in the table has code for all of these GPUs: choose one type in clusterfn.yml, or set gpus=0"
    least = min((known.least_driver(row.cuda) for row in running), key=version)
    return f"the administrator can install driver {least} or newer; until then: gpus=0"


def runs_on(torch: str, build: str, gpus: GpuCapabilities, known: CudaTable | None = None) -> bool:
    """Return whether a build of PyTorch for a version of CUDA runs on these GPUs; true for one that the table lacks."""
    known, minor = known or load_table(), version(torch)[:2]
    rows = [row for row in known.builds if row.cuda == build and row.has(minor)]
    if not rows:
        return known.runs_driver(build, gpus.driver)
    return _fits(known, rows[0], gpus)


def newest_cuda(driver: str, known: CudaTable | None = None) -> str:
    """Return the newest version of CUDA that a driver supports.

    Example:
        >>> newest_cuda("575.57.08")
        '12.9'
    """
    known = known or load_table()
    own = [cuda for cuda, least in known.ships.items() if version(least) <= version(driver)]
    majors = [f"{major}.0" for major, least in known.drivers.items() if version(least) <= version(driver)]
    return max([*own, *majors], key=version, default="")


def tag_of(cuda: str) -> str:
    """Return a version of CUDA as PyTorch's tag.

    Example:
        >>> tag_of("12.8")
        'cu128'
    """
    return "cu" + cuda.replace(".", "")


def _text(torch: Version) -> str:
    return ".".join(map(str, torch))


def companions(torch: str, known: CudaTable | None = None) -> dict[str, str]:
    """Return the versions of torchvision and torchaudio that belong to a PyTorch; empty if unknown.

    Example:
        >>> companions("2.7.1")
        {'torchvision': '0.22.*', 'torchaudio': '2.7.*'}
    """
    minor = _text(version(torch)[:2])
    found = ((name, rows.get(minor)) for name, rows in (known or load_table()).companions.items())
    return {name: f"{value}.*" for name, value in found if value}
