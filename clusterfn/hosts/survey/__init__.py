"""Survey what a host offers its users, in one request: file systems and their room, partitions, GPUs, modules.

The program is templates/survey.sh. It runs in the agent's environment, from which jobs are started. Only the folders
and modules come from a login shell, where sites set them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.survey import parse
from clusterfn.hosts.survey.site import Site, SurveyedGpus, Volume
from clusterfn.scheduler import SURVEY_UNSET, read_sites
from clusterfn.scheduler.job_script import fill
from clusterfn.scheduler.site import MISSING, Section

__all__ = ["Site", "SurveyedGpus", "Volume", "read_site", "survey"]

# The usual names of users' folders; %u is the user. Not TMPDIR, which is emptied.
CANDIDATES = (
    "$HOME", "$SCRATCH", "$WORK", "$PSCRATCH", "$CSCRATCH", "$GROUP", "$GROUP_HOME", "$GROUP_SCRATCH", "$PROJECT",
    "$SCRATCHDIR", "$WORKDIR", "$FASTSCRATCH", "$DATA", "/scratch/%u", "/scratch", "/work/%u", "/data/%u", "/data",
    "/lustre/%u", "/lustre/scratch/%u", "/lustre/work/%u", "/project/%u", "/fast/%u", "/ssd/%u", "/local/%u",
)  # fmt: skip
TIMEOUT_S = 10.0
_SPARE_S = 20.0


def survey(connection: HostConnection, timeout_s: float = TIMEOUT_S) -> Site:
    """Return what the host offers, by one request.

    Args:
        connection: To the host, whose root is looked at too.
        timeout_s: How long the login shell, and then all slow questions, may take; in whole seconds, at least 1.

    Raises:
        HostError: The host did not answer.
    """
    mark = f"clusterfn-{secrets.token_hex(16)}"
    patience = max(round(timeout_s), 1)
    facts = connection.facts
    argv = ["/bin/sh", "-c", fill("survey.sh", {}), "sh", mark, str(patience), facts.user, facts.root, *CANDIDATES]
    limit = 2 * patience + _SPARE_S
    answer = connection.run(argv, unset=SURVEY_UNSET, timeout_s=limit).result(limit + _SPARE_S)
    return read_site(parse.sections(answer.out.decode("utf-8", "surrogateescape"), mark))


def read_site(found: Mapping[str, Section]) -> Site:
    """Turn the sections of one answer into a Site."""

    def section(name: str) -> Section:
        return found.get(name, MISSING)

    left = parse.quotas(section("quotas").lines)
    volumes: dict[tuple[str, str], Volume] = {}  # in the order of the candidates; with several names by its first
    for each in found.values():
        volume = parse.volume(each, left) if each.name.startswith("volume-") else None
        if volume is not None:
            volumes.setdefault((volume.device, volume.path), volume)
    conda = section("conda")
    slow = [each for each in found.values() if each.rc is None]
    return Site(
        volumes=tuple(volumes.values()),
        schedulers=read_sites(found),
        cards=parse.cards(section("cards")),
        modules=parse.has_modules(section("login")),
        lingering=parse.lingering(section("logind")),
        glibc=parse.glibc(section("library")),
        conda=conda.lines[-1].strip() if conda.rc == 0 and conda.lines else "",
        root=parse.volume(section("root"), left),
        silent=tuple(each.lines[0] if each.name.startswith("volume-") and each.lines else each.name for each in slow),
    )
