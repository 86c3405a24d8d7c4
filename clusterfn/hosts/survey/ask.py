"""Survey a host by one POSIX sh program, templates/survey.sh, and turn its output into a `Site`.

It runs in the agent's environment, from which jobs are started. Only the folders and modules come from a login shell,
where sites set them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.survey import parse
from clusterfn.hosts.survey.parse import NOT_THERE, Section
from clusterfn.hosts.survey.site import Site, Volume
from clusterfn.scheduler import SURVEY_UNSET
from clusterfn.scheduler.grid_engine import GridEngineSite
from clusterfn.scheduler.grid_engine import site as grid_engine_site
from clusterfn.scheduler.job_script import fill

# The usual names of users' folders; %u is the user. Not TMPDIR, which is emptied.
CANDIDATES = (
    "$HOME", "$SCRATCH", "$WORK", "$PSCRATCH", "$CSCRATCH", "$GROUP", "$GROUP_HOME", "$GROUP_SCRATCH", "$PROJECT",
    "$SCRATCHDIR", "$WORKDIR", "$FASTSCRATCH", "$DATA", "/scratch/%u", "/scratch", "/work/%u", "/data/%u", "/data",
    "/lustre/%u", "/lustre/scratch/%u", "/lustre/work/%u", "/project/%u", "/fast/%u", "/ssd/%u", "/local/%u",
)  # fmt: skip
TIMEOUT_S = 10.0
_SPARE_S = 20.0
_NOTHING = Section("", NOT_THERE)


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
    return site(parse.sections(answer.out.decode("utf-8", "surrogateescape"), mark))


def site(found: Mapping[str, Section]) -> Site:
    """Turn the sections of one answer into a Site."""
    queues, accounts = _section(found, "partitions"), _section(found, "accounts")
    associations = accounts.lines if accounts.rc == 0 else []
    conda = _section(found, "conda")
    left = parse.quotas(_section(found, "quotas").lines)
    trouble = "" if queues.rc in (0, NOT_THERE) else "\n".join(queues.lines[-5:]) or f"it ended with status {queues.rc}"
    slow = [each for each in found.values() if each.rc is None]
    return Site(
        volumes=_volumes(found, left),
        partitions=None if queues.rc == NOT_THERE else parse.partitions(queues.lines) if queues.rc == 0 else (),
        grid_engine=_grid_engine(_section(found, "grid_engine")),
        accounts=parse.accounts(associations),
        limits=parse.limits(_section(found, "limits").lines, associations),
        trouble=parse.SILENT if queues.rc is None else trouble,
        cards=parse.cards(_section(found, "cards")),
        modules=parse.has_modules(_section(found, "login")),
        lingering=parse.lingering(_section(found, "logind")),
        glibc=parse.glibc(_section(found, "library")),
        conda=conda.lines[-1].strip() if conda.rc == 0 and conda.lines else "",
        root=parse.volume(_section(found, "root"), left),
        silent=tuple(each.lines[0] if each.name.startswith("volume-") and each.lines else each.name for each in slow),
    )


def _grid_engine(section: Section) -> GridEngineSite | None:
    """None where there is no qconf."""
    if section.rc == NOT_THERE:
        return None
    if section.rc != 0:
        return GridEngineSite(trouble="\n".join(section.lines[-5:]) or parse.SILENT)
    return grid_engine_site.read(section.lines, section.part("environments"), section.part("resources"))


def _section(found: Mapping[str, Section], name: str) -> Section:
    return found.get(name, _NOTHING)


def _volumes(found: Mapping[str, Section], left: dict[str, parse.QuotaLeft]) -> tuple[Volume, ...]:
    """The volumes in the order of the candidates; a folder with several names by its first."""
    named: dict[tuple[str, str], Volume] = {}
    for section in found.values():
        volume = parse.volume(section, left) if section.name.startswith("volume-") else None
        if volume is not None:
            named.setdefault((volume.device, volume.path), volume)
    return tuple(named.values())
