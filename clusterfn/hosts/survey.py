"""Survey what a host offers its users: file systems and their room, schedulers and their partitions, GPUs.

`scheduler_commands` first asks a login shell where a scheduler's commands are. The rest is one request,
templates/survey.sh, in the agent's environment, from which jobs are started. Only the folders come from a login shell,
too. What it prints is parsed here, but for file systems (`volumes`) and the schedulers' part, which they read.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from clusterfn.bridge.supervisor import nvidia_smi
from clusterfn.bridge.supervisor.text import format_size
from clusterfn.hosts import scheduler_commands
from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.scheduler_commands import LoginShellAnswer
from clusterfn.hosts.volumes import Volume, parse_count, parse_quotas, read_volume
from clusterfn.scheduler import SURVEY_UNSET, read_sites
from clusterfn.scheduler.job_script import fill
from clusterfn.scheduler.site import MISSING, NOT_THERE, SILENT, SchedulerSite, Section

# The usual names of users' folders, with %u for the user. TMPDIR is not among them, because hosts empty it.
CANDIDATES = (
    "$HOME", "$SCRATCH", "$WORK", "$PSCRATCH", "$CSCRATCH", "$GROUP", "$GROUP_HOME", "$GROUP_SCRATCH", "$PROJECT",
    "$SCRATCHDIR", "$WORKDIR", "$FASTSCRATCH", "$DATA", "/scratch/%u", "/scratch", "/work/%u", "/data/%u", "/data",
    "/lustre/%u", "/lustre/scratch/%u", "/lustre/work/%u", "/project/%u", "/fast/%u", "/ssd/%u", "/local/%u",
)  # fmt: skip
TIMEOUT_S = 10.0
_SPARE_S = 20.0
PLENTY_BYTES = 20 * 2**30
PLENTY_FILES = 200_000
_HOME = "$HOME"


@dataclass(frozen=True)
class Site:
    """All that a survey found.

    Attributes:
        schedulers: By the word of `scheduler:`.
        gpus: None where there is no nvidia-smi.
        lingering: Whether processes of the user outlive his logout; None where logind is not in charge.
        root: The folder that is the host's root now, which is none of `volumes`; None if nothing could be learnt of it.
        silent: What did not answer in time: "gpus", "$SCRATCH".
        login: What a login shell shows of schedulers and their commands.
    """

    volumes: tuple[Volume, ...]
    schedulers: Mapping[str, SchedulerSite] = field(default_factory=dict)
    gpus: SurveyedGpus | None = None
    lingering: bool | None = None
    root: Volume | None = None
    silent: tuple[str, ...] = ()
    login: LoginShellAnswer = LoginShellAnswer()

    @property
    def signs(self) -> tuple[str, ...]:
        """What says that this is a login node, though no scheduler was found; each a sentence."""
        return () if self.schedulers else self.login.signs.sentences

    @property
    def scheduler(self) -> str:
        """The scheduler, as clusterfn.yml writes it."""
        return next(iter(self.schedulers), "bare")

    def proposed_root(self) -> tuple[Volume, str] | None:
        """Return the best volume for `root:`, and why; None if none can be written to."""
        # clusterfn rejects a root in which every user could replace files. The mode has the form that `ls -l` shows.
        private = [volume for volume in self.volumes if volume.mode[8:9] != "w" or volume.mode[9:10] in ("t", "T")]
        usable = [volume for volume in private if volume.writable and not volume.noexec]
        shared = [volume for volume in usable if volume.shared]
        home = next((volume for volume in usable if volume.name == _HOME), None)
        if self.schedulers and not shared:
            return (home, "it is your home folder, which the compute nodes must see") if home else None
        candidates = shared if self.schedulers else usable
        if home in candidates and home is not None:
            bytes_, files = home.room_bytes, home.room_files
            if (bytes_ is None or bytes_ >= PLENTY_BYTES) and (files is None or files >= PLENTY_FILES):
                return home, f"your home folder has plenty of space, {_room(home)}"
        best = max(candidates, key=_rank, default=None)
        if best is None:
            return None
        other = "" if home is None or best is home else f"; your home folder has {_room(home)}"
        return best, f"it has the most space, {_room(best)}{other}"


def _rank(volume: Volume) -> tuple[bool, bool, int]:
    """Rank room for files above bytes, because an environment has 100 000 files; tmpfs is lost at the next boot."""
    files = volume.room_files
    return volume.kind != "tmpfs", files is None or files >= PLENTY_FILES, volume.room_bytes or 0


def _room(volume: Volume) -> str:
    files, amount = volume.room_files, volume.room_bytes
    text = "an unknown amount" if amount is None else format_size(amount)
    return text if files is None else f"{text} and {files} files"


def survey(connection: HostConnection, timeout_s: float = TIMEOUT_S, folder: str = "") -> Site:
    """Return what the host offers, by two requests.

    Args:
        connection: To the host, whose root is looked at too.
        timeout_s: How long a login shell, and then all slow questions, may take; in whole seconds, at least 1.
        folder: One that may hold the scheduler's commands.

    Raises:
        HostError: The host did not answer.
    """
    separator = f"clusterfn-{secrets.token_hex(16)}"
    patience = max(round(timeout_s), 1)
    here = connection.host.scheduler == "local"
    login = LoginShellAnswer() if here else scheduler_commands.look(connection, folder, patience)
    facts = connection.facts
    argv = ["/bin/sh", "-c", fill("survey.sh", {}), "sh", separator, str(patience), facts.user, facts.root, *CANDIDATES]
    limit = 2 * patience + _SPARE_S
    answer = connection.run(argv, unset=SURVEY_UNSET, timeout_s=limit).result(limit + _SPARE_S)
    site = read_site(split_sections(answer.out.decode("utf-8", "surrogateescape"), separator), facts.memory_bytes)
    return replace(site, login=login)


def read_site(sections: Mapping[str, Section], memory_bytes: int | None = None) -> Site:
    """Turn the sections of one answer into a Site; `memory_bytes` is the memory of the host."""

    def section(name: str) -> Section:
        return sections.get(name, MISSING)

    left = dict(parse_quotas(section("quotas").lines))
    # Keeps the order of the candidates. A volume with several names appears under its first.
    volumes: dict[tuple[str, str], Volume] = {}
    for part in sections.values():
        volume = read_volume(part, left) if part.name.startswith("volume-") else None
        if volume is not None:
            volumes.setdefault((volume.device, volume.path), volume)
    slow = [part for part in sections.values() if part.rc is None]
    return Site(
        volumes=tuple(volumes.values()),
        schedulers=read_sites(sections),
        gpus=read_gpus(section("gpus"), memory_bytes),
        lingering=read_lingering(section("logind")),
        root=read_volume(section("root"), left),
        silent=tuple(part.lines[0] if part.name.startswith("volume-") and part.lines else part.name for part in slow),
    )


@dataclass(frozen=True)
class SurveyedGpus:
    """The machine's own GPUs, or why nvidia-smi does not list them.

    Attributes:
        names: One for each GPU.
        memory_bytes: Of the smallest; None if unknown.
        unified: Whether a GPU has no memory of its own, and uses the machine's.
        lost: What nvidia-smi says of GPUs that do not answer, beside those that do.
        trouble: What nvidia-smi said instead; "" if it answered.
    """

    names: tuple[str, ...] = ()
    memory_bytes: int | None = None
    driver: str = ""
    capabilities: tuple[str, ...] = ()
    trouble: str = ""
    unified: bool = False
    lost: tuple[str, ...] = ()


def split_sections(text: str, separator: str) -> dict[str, Section]:
    """Split the answer into its sections, by name, in the order of the text."""
    by_name: dict[str, Section] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(f"{separator} ") and line.split()[1:]:
            _, name, *rc = line.split()
            section = by_name[name] = Section(name, parse_count(rc[0]) if rc else None)
            lines = section.lines
        elif line.startswith(f"{separator}.") and by_name:
            lines = section.parts.setdefault(line[len(separator) + 1 :], [])
        elif line.strip():
            lines.append(line)
    return by_name


_MB = 2**20
_KILLS = re.compile(r"\s*(#?)\s*KillUserProcesses\s*=\s*(\w+)")
_BY_BUS = re.compile(r"b (true|false)")
_GPU_FIELDS = ("name", "memory.total", "driver_version", "compute_cap")
_YES = ("yes", "true", "on", "1")


def read_gpus(section: Section, machine_bytes: int | None = None) -> SurveyedGpus | None:
    """Parse what nvidia-smi prints; the second time without compute_cap, which old drivers do not know.

    Args:
        machine_bytes: The memory of the host, which a GPU without its own uses.
    """
    if section.rc == NOT_THERE:
        return None
    if section.rc is None:
        return SurveyedGpus(trouble=SILENT)
    lines = section.parts.get("again", section.lines)
    text = "\n".join(lines)
    tables = (nvidia_smi.read_table(text, fields) for fields in (_GPU_FIELDS, _GPU_FIELDS[:-1]))
    table = next((table for table in tables if table.rows), nvidia_smi.Table([], [], []))
    machine_mib = None if machine_bytes is None else machine_bytes // _MB
    sizes = [nvidia_smi.total_mib(row["memory.total"], machine_mib) for row in table.rows]
    rows = [row for row, (size, unified) in zip(table.rows, sizes) if size is not None or unified or _has_no_size(row)]
    if nvidia_smi.has_failed(section.rc, text) or not rows:
        return SurveyedGpus(trouble="\n".join(lines[-5:]) or f"it ended with status {section.rc}")
    own = [size for size, _ in sizes if size is not None]
    return SurveyedGpus(
        names=tuple(row["name"] for row in rows),
        memory_bytes=min(own) * _MB if own else None,
        driver=rows[0]["driver_version"],
        capabilities=tuple(capability for row in rows if (capability := nvidia_smi.value(row.get("compute_cap", "-")))),
        unified=any(unified for _, unified in sizes),
        lost=tuple(table.lost),
    )


def _has_no_size(row: dict[str, str]) -> bool:
    """Whether a row without a size of memory is of nvidia-smi at all."""
    return nvidia_smi.value(row["memory.total"]) is None


def read_lingering(section: Section) -> bool | None:
    """Whether processes outlive our logout; None where logind has not put us into a session, or does not say.

    Lingering alone does not save them: it keeps the user's own manager, and logind kills the session's processes.
    """
    if not any("/user.slice/" in line for line in section.lines):
        return None
    killed: bool | None = None
    for line in section.part("kill"):
        bus, match = _BY_BUS.fullmatch(line.strip()), _KILLS.match(line)
        if bus:
            killed = bus[1] == "true"
        elif match and (not match[1] or killed is None):
            killed = match[2].lower() in _YES
    return None if killed is None else not killed
