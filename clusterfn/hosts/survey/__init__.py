"""Survey what a host offers its users: file systems and their room, schedulers and their partitions, GPUs.

`commands` first asks a login shell where a scheduler's commands are. The rest is one request, templates/survey.sh, in
the agent's environment, from which jobs are started. Only the folders come from a login shell, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.survey import commands, parse
from clusterfn.hosts.survey.commands import LoginShellAnswer
from clusterfn.hosts.survey.parse import SurveyedGpus, Volume
from clusterfn.scheduler import SURVEY_UNSET, read_sites
from clusterfn.scheduler.job_script import fill
from clusterfn.scheduler.site import MISSING, SchedulerSite, Section

__all__ = ["Site", "SurveyedGpus", "Volume", "read_site", "survey"]

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
        has_gpus = self.gpus is not None and bool(self.gpus.names)
        return () if self.schedulers else self.login.signs.sentences(has_gpus)

    @property
    def scheduler(self) -> str:
        """The scheduler, as clusterfn.yml writes it."""
        return next(iter(self.schedulers), "bare")

    def proposed_root(self) -> tuple[Volume, str] | None:
        """Return the best volume for `root:`, and why; None if none can be written to."""
        # clusterfn rejects a root in which every user could replace files. The mode has the form that `ls -l` shows.
        private = [each for each in self.volumes if each.mode[8:9] != "w" or each.mode[9:10] in ("t", "T")]
        usable = [each for each in private if each.writable and not each.noexec]
        shared = [each for each in usable if each.shared]
        home = next((each for each in usable if each.name == _HOME), None)
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
    login = LoginShellAnswer() if here else commands.look(connection, folder=folder, timeout_s=patience)
    facts = connection.facts
    argv = ["/bin/sh", "-c", fill("survey.sh", {}), "sh", separator, str(patience), facts.user, facts.root, *CANDIDATES]
    limit = 2 * patience + _SPARE_S
    answer = connection.run(argv, unset=SURVEY_UNSET, timeout_s=limit).result(limit + _SPARE_S)
    site = read_site(parse.sections(answer.out.decode("utf-8", "surrogateescape"), separator), facts.memory_bytes)
    return replace(site, login=login)


def read_site(sections: Mapping[str, Section], memory_bytes: int | None = None) -> Site:
    """Turn the sections of one answer into a Site.

    Args:
        sections: The sections.
        memory_bytes: The memory of the host.
    """

    def section(name: str) -> Section:
        return sections.get(name, MISSING)

    left = dict(parse.parse_quotas(section("quotas").lines))
    # Keeps the order of the candidates. A volume with several names appears under its first.
    volumes: dict[tuple[str, str], Volume] = {}
    for each in sections.values():
        volume = parse.volume(each, left) if each.name.startswith("volume-") else None
        if volume is not None:
            volumes.setdefault((volume.device, volume.path), volume)
    slow = [each for each in sections.values() if each.rc is None]
    return Site(
        volumes=tuple(volumes.values()),
        schedulers=read_sites(sections),
        gpus=parse.surveyed_gpus(section("gpus"), memory_bytes),
        lingering=parse.lingering(section("logind")),
        root=parse.volume(section("root"), left),
        silent=tuple(each.lines[0] if each.name.startswith("volume-") and each.lines else each.name for each in slow),
    )
