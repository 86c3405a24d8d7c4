"""What sites refuse though nobody asked for it: options that clusterfn itself adds to sbatch, and how to go without.

Pure. A request is submitted once more without the option that was refused; the site's own plugins may also say
something about a job that they take.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from clusterfn.scheduler.base import PENDING, Answer, JobState, Submission

# The nodes' memory is 1 MB where nobody has written it into slurm.conf: then the site does not track it, and refuses
# every amount. $1 is what sbatch said, $2 how many words of sinfo follow it.
_IF_UNTRACKED = r"""
said=$1; words=$2; shift 2
ask=
while [ "$words" -gt 0 ]; do ask="$ask $1"; words=$((words - 1)); shift; done
# shellcheck disable=SC2086  # words without blanks
told=$(sinfo --noheader --format=%m $ask 2>/dev/null) || told=
case $told in
    '' | *[2-9]* | *1[0-9]*) printf '%s\n' "$said" >&2; exit 1 ;;
esac
printf '%s\n' "clusterfn: SLURM here does not track memory, and refuses jobs that ask for some: it is not asked; \
write slurm: {mem: null} for this host, so that it is not tried each time" >&2
exec "$@"
"""
_MEMORY = "--mem="
_TIME = re.compile(r"--time=([0-9]+)")
_TOO_LONG = ("PartitionTimeLimit", "PartitionConfig")  # the latter is SLURM's first answer to a time limit


def again(request: Submission, answer: Answer, clusters: Sequence[str]) -> Submission | None:
    """As `Scheduler.again`: the time without the minute that is added, or no memory where none is tracked."""
    said = answer.err.lower()
    if not answer.rc:
        return None
    words = list(request.argv)
    times = [(place, int(found[1])) for place, word in enumerate(words) if (found := _TIME.fullmatch(word))]
    if times and any(text in said for text in ("requested time limit", "qos policy")):
        place, minutes = times[-1]
        words[place] = f"--time={minutes - 1}:00"  # the form says that it was tried
        return request._replace(argv=tuple(words)) if minutes > 1 else None
    if "memory specification" in said and any(word.startswith(_MEMORY) for word in words):
        rest = [word for word in words if not word.startswith(_MEMORY)]
        asked = [*clusters, *(word for word in rest if word.startswith("--partition="))]
        words = ["/bin/sh", "-c", _IF_UNTRACKED, "sh", answer.err.strip(), str(len(asked)), *asked, *rest]
        return request._replace(argv=tuple(words), forks=False)
    return None


def loosen(state: JobState, time_s: float | None, clusters: Sequence[str]) -> tuple[str, ...]:
    """As `Scheduler.loosen_command`: a site may take a job that is longer than its partition allows, and hold it.

    It is the whole limit and no difference: each program that follows the job says the same.
    """
    number = re.match("[0-9]+", state.scheduler_id)
    if state.phase != PENDING or state.reason not in _TOO_LONG or number is None or time_s is None:
        return ()
    return ("scontrol", *clusters, "update", f"JobId={number[0]}", f"TimeLimit={math.ceil(time_s / 60)}")


_PLUGIN = re.compile(r"sbatch: (?:lua: )?(.*\S)")


def notes(answer: Answer) -> Iterator[str]:
    """Return what the site's plugins told about a job that sbatch has submitted."""
    if answer.rc == 0:
        for line in answer.err.splitlines():
            found = _PLUGIN.fullmatch(line.strip())
            if found:
                yield f"SLURM says: {found[1]}"
