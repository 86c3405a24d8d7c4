"""Every option of sbatch in one table: its form, what a #SBATCH line of a script does, and what `slurm:` says of it.

tests/golden/sbatch-options.txt lists the options of SLURM 20 to 25, and a test compares it with this table. An option
that is not here belongs to a plugin of a site, and goes to sbatch as it is. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# What a line of a script does; any other text is the reason why it is not taken.
READ, PASSED, QUIET = "read", "passed on", "without effect"
# The sign behind an option: a whole number from 1 follows, or nothing; with "?" perhaps a value, else a value.
NUMBER, ALONE = "#", "!"


class SbatchOption(NamedTuple):
    """One option of sbatch.

    Attributes:
        script: What a script's line does: READ, PASSED to sbatch as it is, QUIET, or why it is not taken.
        argument: The argument of a call in whose place it stands; "" for none.
        instead: What to do in place of it below `slurm:` and in `slurm=`; "" where they may set it.
        letter: Its short form; "" for none.
        form: One of the signs above; "" if a value must follow.
    """

    script: str
    argument: str
    instead: str
    letter: str
    form: str


# clusterfn itself sends it, so that below `slurm:` it can only be dropped, by null.
SENT = "sent"
_REMOVE = "remove this line"
_LOGS = (
    "the log has that name in the job's folder alone; `clusterfn logs` shows it",
    "",
    f"{_REMOVE}: the output of a job is in `clusterfn logs`",
)
# The first three fields, and the options that have them: NAME or NAME=LETTER, each with the sign of its form behind it.
_GROUPS: tuple[tuple[str, str, str, str], ...] = (
    (
        PASSED, "", "",
        "account=A acctg-freq begin=b cluster-constraint comment consolidate-segments! constraint=C contiguous! "
        "core-spec=S cores-per-socket# cpu-freq deadline delay-boot distribution=m exclude=x exclusive? extra "
        "extra-node-info=B gpu-bind gpu-freq gres-flags hint kill-on-invalid-dep licenses=L mail-type mail-user "
        "mcs-label mem-bind mincpus# network nice? no-kill=k? nodelist=w ntasks-per-core# ntasks-per-gpu# "
        "ntasks-per-socket# ntasks-per-tres oom-kill-step? overcommit=O! oversubscribe=s! partition=p power prefer "
        "priority profile propagate? qos=q reboot! reservation resources resv-ports? segment sockets-per-node# "
        "spread-job! spread-segments! stepmgr! switches thread-spec# threads-per-core# time-min tmp tres-bind "
        "use-min-nodes! wait-all-nodes wckey",
    ),
    (PASSED, "", _REMOVE, "batch bb"),
    (READ, "cores", SENT, "cpus-per-task=c#"), (READ, "cores", "use `cores=`", "cpus-per-gpu#"),
    (READ, "memory", SENT, "mem"), (READ, "memory", "", "mem-per-cpu mem-per-gpu"),
    (READ, "gpus", SENT, "gpus=G gpus-per-node"), (READ, "gpus", "use `gpus=`", "gpus-per-task gpus-per-socket"),
    (READ, "gpus", "", "gres tres-per-task"), (READ, "time", SENT, "time=t"), (READ, "nodes", "", "nodes=N"),
    (READ, "tasks_per_node", "", "ntasks=n# ntasks-per-node# tasks-per-node#"), (READ, "", "", "dependency=d export"),
    (READ, "requeue", "", "requeue?"), (READ, "name", "use `name=`", "job-name=J"),
    (READ, "", "call the function with `.map`, which submits an array", "array=a"),
    (READ, "warn_before", "use `warn_before=`, and `clusterfn.on_warning(handler)` in the function", "signal"),
    (QUIET, "", SENT, "open-mode"), (QUIET, "", "", "no-requeue! verbose=v!"),
    (QUIET, "", _REMOVE, "get-user-env? ignore-pbs! parsable! quiet=Q!"),
    (*_LOGS, "error=e output=o"), ("use --stdin", "", _REMOVE, "input=i"),
    ("the script runs in a copy of its project; --cwd names a folder of the host", "", "use `cwd=`", "chdir=D"),
    ("a host of clusterfn.yml is one cluster", "", "", "cluster clusters=M"),
    ("clusterfn waits by itself", "", f"{_REMOVE}: a call waits for its result by itself", "wait=W!"),
    ("clusterfn holds no job back: submit it later", "", "", "hold=H!"),
    ("clusterfn runs the script itself", "", f"{_REMOVE}: `clusterfn run` runs a script", "wrap"),
    ("it names a file of the login node: write --nodelist", "", "", "nodefile=F"),
    ("it names a file of the login node", "", _REMOVE, "bbf"), ("use --env", "", _REMOVE, "export-file"),
    ("start the container in the script", "", _REMOVE, "container container-id"),
    ("only root may", "", _REMOVE, "context gid uid"),
    ("with it no job runs", "", _REMOVE, "autocomplete external! help=h! test-only! usage! version=V!"),
)  # fmt: skip


_WORD = re.compile(r"([\w-]+)(?:=(\w))?([#?!]?)")
OPTIONS = {
    word[1]: SbatchOption(script, argument, instead, word[2] or "", word[3])
    for script, argument, instead, words in _GROUPS
    for word in _WORD.finditer(words)
}
LETTERS = {option.letter: name for name, option in OPTIONS.items() if option.letter}


def named_by(word: str) -> list[str]:
    """Return the options that a long name means, as sbatch reads it: a unique beginning is enough.

    Example:
        >>> named_by("part"), named_by("cpus"), named_by("container-image")
        (['partition'], ['cpus-per-gpu', 'cpus-per-task'], [])
    """
    return [word] if word in OPTIONS else sorted(name for name in OPTIONS if name.startswith(word))
