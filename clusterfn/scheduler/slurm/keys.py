"""What a host with `scheduler: slurm` may say in clusterfn.yml, and a call with `slurm=`: options of sbatch.

One table has every option of sbatch: its form, what a #SBATCH line of a script does, and what `slurm:` says of it.
tests/golden/sbatch-options.txt lists the options of SLURM 20 to 25, and a test compares it with this table. An option
that is not here belongs to a plugin of a site, and goes to sbatch as it is. Values are read as sbatch reads them: a
ValueError has its words; without a text, sbatch says no more than that the value is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from clusterfn.config import scheduler_keys
from clusterfn.config import value_kinds as kinds
from clusterfn.config.scheduler_keys import BATCH_JOBS, BY_GPU, SchedulerKeys
from clusterfn.config.spec import Host, Resources
from clusterfn.config.units import exact_memory
from clusterfn.config.value_kinds import Form, Key, Kind
from clusterfn.config.yamlfile import Value
from clusterfn.config.yamlfile import parse as parse_yaml
from clusterfn.errors import ConfigError

# What a line of a script does; any other text is the reason why it is not taken.
READ, PASSED, QUIET = "read", "passed on", "without effect"
# The sign behind an option: a whole number from 1 follows; with "!" nothing, with "?" perhaps a value; else a value.
NUMBER = "#"


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


_LONG_NAME = "use the option's long name, without dashes in front"
_GPU_COUNTED = re.compile(r"gpu(?::.*)?:[0-9]+|gpu:?=.*")


# What names the cluster that squeue and scancel ask too, so that no call can have another one than its host.
_OF_HOST = ("cluster", "clusters")


def sbatch_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a call says with `slurm=`, as if it were below `slurm:` in clusterfn.yml.

    Raises:
        ConfigError: No such option can be set, or its value is wrong.

    Example:
        >>> sbatch_options({"partition": "gpu", "exclusive": True})
        {'partition': 'gpu', 'exclusive': True}
    """
    for name in _OF_HOST:
        if name in options:
            raise ConfigError(f"slurm= cannot set {name!r}", hint=f"write `slurm: {{{name}: …}}` in clusterfn.yml")
    for name, value in options.items():
        if value is False or not isinstance(value, (str, int, float, Mapping, type(None))):
            hint = f"leave it out, or write slurm={{{name!r}: None}} to drop what the host's section says"
            raise ConfigError(f"slurm= cannot set {name!r} to {value!r}", hint=hint)
    try:
        text = json.dumps({"slurm": dict(options)}, ensure_ascii=False, default=str)
        top = parse_yaml(text.encode("utf-8", "replace"), "slurm=")
        return _sbatch_options(top.mapping(["slurm"])["slurm"])
    except ConfigError as error:
        # The error names a line of the text that was made here, which the user has never seen.
        hint = (error.hint or "").replace("this line", "it").replace("null", "None")
        raise ConfigError(error.message.partition(": ")[2], hint=hint) from None


def _sbatch_options(value: Value) -> dict[str, Any]:
    for key, _ in value.pairs:
        if not re.fullmatch(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", key.text) or len(key.text) < 2:
            long = key.text.replace("_", "-")
            hint = _instead(long) or (f'write "{long}"' if "_" in key.text else _LONG_NAME)
            raise key.error(f'"{key.text}" is not an option of sbatch', hint)
        option = OPTIONS.get(key.text)
        if option is not None and option.instead not in ("", SENT):
            raise key.error(f"clusterfn needs `--{key.text}` for itself", option.instead)
    return {name: _sbatch_option(name, option) for name, option in value.mapping().items()}


def _instead(name: str) -> str:
    """Return which argument clusterfn sends as an option; "" for none."""
    option = OPTIONS.get(name)
    return f"use `{option.argument}=`" if option and option.instead == SENT and option.argument else ""


def _sbatch_option(name: str, value: Value) -> Any:
    """Return a text, True for an option without a value, None to drop it, or a mapping for partition."""
    if value.kind == "null":
        return None
    if name in OPTIONS and OPTIONS[name].instead == SENT:
        ours = _instead(name)
        hint = f"{ours} or `defaults:`; null leaves the option out" if ours else "set it to null to drop it"
        raise value.error(f"clusterfn sets `--{name}` itself", hint)
    if name == "nodes" and value.as_written() not in ("1", "1-1"):
        raise value.error("nothing would run on any node but the first", "write nodes= in @cluster, or `nodes: 1`")
    if name == "partition" and value.kind == "map":
        return {kind: name_of_kind.as_written() for kind, name_of_kind in value.mapping(("cpu", "gpu")).items()}
    if value.kind == "bool" and value.text.lower() in ("true", "yes", "on"):
        return True
    if name != "gres":
        return value.as_written()
    text = value.as_text()
    if any(_GPU_COUNTED.fullmatch(part) for part in text.split(",")):
        raise value.error(f'"{text}" counts GPUs', "write only their type, `gpu:a100`; the number comes from `gpus=`")
    return text


def counts_gpus(options: Mapping[str, Any]) -> bool:
    """Whether the lines of a script ask for GPUs: only they have a number of them."""
    words = f"{options.get('gres') or ''},{options.get('tres-per-task') or ''}".split(",")
    named = any(option.startswith("gpus") and value for option, value in options.items())
    return named or any(re.fullmatch(r"(gres[/:])?gpu.*[:=]\d+", part) for part in words)


def gpu_options(option: str, gpus: int, gres: str, kind: str | None) -> dict[str, str]:
    """Return the sbatch option that asks for GPUs, and what else is in `slurm: gres:`.

    Args:
        option: "gres", "gpus" or "gpus-per-node".
        gres: Of the host; it may name the type of its GPUs ("gpu:a100") and other resources.
        kind: The type; None for the host's.

    Example:
        >>> gpu_options("gres", 2, "lscratch:50,gpu:a100", "h100")
        {'gres': 'lscratch:50,gpu:h100:2'}
    """
    others = [part for part in gres.split(",") if part and part.split(":")[0] != "gpu"]
    request = [kind or _of_gres(gres), str(gpus)] if gpus else []
    words = [part for part in request if part]
    if option == "gres":
        others += [":".join(["gpu", *words])] if words else []
        words = []
    return {**({option: ":".join(words)} if words else {}), **({"gres": ",".join(others)} if others else {})}


def _of_gres(gres: str) -> str:
    """Return the type in "lscratch:50,gpu:a100"; "" for none."""
    kinds = [part.partition(":")[2] for part in gres.split(",") if part.split(":")[0] == "gpu"]
    return kinds[0] if kinds else ""


def refuse_unknown_gpus(host: Host, resources: Resources) -> None:
    """Raise ConfigError if the type or the size of GPUs is none that SLURM can be asked for."""
    kind = resources.gpu_type or ""
    if " " in kind:
        hint = "write one word that `sinfo -o %G` shows there, such as a100 for gpu:a100:4"
        raise ConfigError(f"gpu_type={kind!r} is not a type of SLURM", host=host.name, hint=hint)
    if resources.gpu_memory_bytes is not None:
        size = f'gpu_memory="{exact_memory(resources.gpu_memory_bytes)}"'
        problem = f"{size} cannot be requested from SLURM, which knows no sizes of GPUs"
        raise ConfigError(problem, host=host.name, hint="set gpu_type= to a type that `sinfo -o %G` shows there")


def _restarts(options: Mapping[str, Any]) -> bool:
    """Return whether SLURM may start a job again: the last word counts, as for sbatch; null leaves it to the site."""
    words = [name for name in options if name in ("requeue", "no-requeue")]
    said = [name for name in words if options[name]]
    return said[-1] == "requeue" if said else bool(words)


_SBATCH: Form = {
    "type": "object",
    "properties": {"partition": BY_GPU},
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}

KEYS = SchedulerKeys(
    "clusterfn submits them with sbatch",
    keys={
        "slurm": Key(
            scheduler_keys.OPTIONS,
            Kind(_sbatch_options, _SBATCH),
            "none",
            "{account: ab12}",
            "options for sbatch, see below; only with `scheduler: slurm`",
        ),
        "gpu_option": Key(
            "gpu_option",
            kinds.choice("gres", "gpus", "gpus-per-node"),
            "`gres`",
            "gpus-per-node",
            "which option asks for GPUs: `gres` (`--gres=gpu:2`), `gpus`, `gpus-per-node`; only with "
            "`scheduler: slurm`",
        ),
        "memory_as": Key(
            "memory_as",
            kinds.choice("mem", "mem-per-cpu"),
            "`mem`",
            "mem-per-cpu",
            "which option asks for memory: `mem`, or `mem-per-cpu` where the site refuses `mem`; only with "
            "`scheduler: slurm`",
        ),
        **BATCH_JOBS,
    },
    written_beside=("partition", "account", "qos", "constraint", "gres", "reservation"),
    limits=("with SLURM the scheduler sets limits, by QOS", "SLURM's own limits are those of your account and its QOS"),
    misread=("%\\", "SLURM expands % and \\ in paths"),
    sets_memory=lambda options: bool({"mem", "mem-per-cpu", "mem-per-gpu"} & set(options)),
    restarts=_restarts,
    of_call=sbatch_options,
)


_NODES = re.compile(r"(\d+)([km]?)(?:-(\d+)([km]?))?|(\d+)[\d,:-]*")
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_UNITS_MB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1 << 20}
# The forms of a time: [days-]hours[:minutes[:seconds]] with days, else minutes, minutes:seconds, or all three.
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_UNLIMITED = ("0", "-1", "UNLIMITED", "INFINITE")
_SIGNAL = re.compile(r"(?:([BR]*):)?(?:SIG)?([A-Z]+\d?|\d+)(?:@(\d{1,5}))?")
_SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ABRT": 6, "KILL": 9, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15, "CONT": 18,
    "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24,
}  # fmt: skip
_INDICES = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_MOST_TASKS = 100_000


def read_array(text: str) -> tuple[list[int], int | None]:
    """Read what sbatch takes as an array: 1-10, 0-15:4, 1,3,5 and %4 behind it."""
    listed, percent, most = text.partition("%")
    numbers: set[int] = set()
    for part in listed.strip("[]").split(","):
        match = _INDICES.fullmatch(part)
        first, last, step = (int(match[1]), int(match[2] or match[1]), int(match[3] or 1)) if match else (1, 0, 1)
        if first > last or not step or last - first >= _MOST_TASKS * step or (percent and not most.isdigit()):
            raise ValueError("Invalid job array specification")
        numbers.update(range(first, last + 1, step))
    return sorted(numbers), int(most or 0) or None


def read_signal(text: str) -> tuple[str, bool, str]:
    """Return the name of a signal, whether it is for the script alone, and how long before the end it comes."""
    match = _SIGNAL.fullmatch(text.upper())
    names = [name for name, number in _SIGNALS.items() if match and match[2] in (name, str(number))]
    if match is None or not names or int(match[3] or 0) > 0xFFFF:
        raise ValueError
    return f"SIG{names[0]}", "B" in (match[1] or ""), f"{match[3] or 60}s"


def read_least_nodes(text: str) -> int:
    match = _NODES.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is not a valid node count')
    units = {"": 1, "k": 1024, "m": 1024**2}
    least = int(match[1] or match[5]) * units[match[2] or ""]
    most = int(match[3] or least) * units[match[4] or ""]
    if most < least:
        raise ValueError(f"Maximum node count {most} is less than minimum node count {least}")
    if not least:
        raise ValueError("Node count specification invalid")
    return least


def read_megabytes(text: str) -> float:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError
    return float(match[1]) * _UNITS_MB[match[2].upper()]


def read_seconds(text: str) -> float:
    """Read sbatch's times: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S; 0 for no limit.

    Example:
        >>> read_seconds("90"), read_seconds("1-12"), read_seconds("02:00:00")
        (5400.0, 129600.0, 7200.0)
    """
    if text.upper() in _UNLIMITED:
        return 0.0
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError
    parts = [float(part) for part in match.groups()[1:] if part is not None]
    hours, minutes, seconds = [*([] if match[1] or len(parts) == 3 else [0.0]), *parts, 0.0, 0.0][:3]
    return float(match[1] or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
