"""The #SBATCH lines of a script as options of a call, and which of them it does not take, and why.

Such a script runs once, on the first node, as sbatch runs it: its own `srun` starts the tasks. Pure.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from clusterfn.errors import ConfigError
from clusterfn.scheduler.slurm.keys import sbatch_options

ARRAY_VARIABLE = "SLURM_ARRAY_TASK_ID"
_LINE = re.compile(r"#SBATCH\s+(.*)")
_SHORT = {
    "A": "account", "a": "array", "C": "constraint", "c": "cpus-per-task", "D": "chdir", "d": "dependency",
    "e": "error", "G": "gpus", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "n": "ntasks",
    "o": "output", "p": "partition", "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_FLAGS = {"H": "hold", "k": "no-kill", "O": "overcommit", "s": "oversubscribe", "Q": "quiet", "v": "verbose"}
_WITHOUT_EFFECT = ("export", "open-mode", "quiet", "verbose", "parsable", "get-user-env")
_LOGS = "`clusterfn logs` shows the output"
_NOT_TAKEN = {
    "output": _LOGS, "error": _LOGS, "input": "use --stdin",
    "chdir": "the script runs in a copy of its project; --cwd names a folder of the host",
    "dependency": "in Python, pass one call's Job to the next", "clusters": "a host of clusterfn.yml is one cluster",
    "wait": "clusterfn waits by itself", "hold": "clusterfn starts no job later",
    "ntasks-per-socket": "use --ntasks-per-node", "gpus-per-socket": "use --gpus-per-node",
}  # fmt: skip
_UNITS_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1 << 20}
_GPUS = re.compile(r"(?:([A-Za-z][\w.-]*):)?(\d+)")
_SIGNAL = re.compile(r"(?:([BR]+):)?(?:SIG)?([A-Z]+\d?|\d+)(?:@(\d+))?")
_MOST_TASKS = 100_000


@dataclass
class SbatchScript:
    """What the #SBATCH lines of a script ask for.

    Attributes:
        options: Options of a call.
        env: Variables that sbatch would set, for `srun` and for the script.
        array: The values of SLURM_ARRAY_TASK_ID; empty if it is no array.
        max_parallel: How many of them run at the same time; None if it does not say.
        signal: The signal that warns it, such as "SIGUSR1"; "" for the usual one.
        alone: Whether the signal is for the script alone, as with "B:", and not for the programs that it runs.
        not_taken: Options without effect here, each with the reason.
    """

    options: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    array: list[str] = field(default_factory=list)
    max_parallel: int | None = None
    signal: str = ""
    alone: bool = False
    not_taken: list[str] = field(default_factory=list)


def read_sbatch(text: str, has_slurm: bool) -> SbatchScript | None:
    """Read the #SBATCH lines of a script; None if it has none.

    Args:
        text: The script.
        has_slurm: Whether its host has SLURM, and so takes further options of sbatch.

    Raises:
        ConfigError: A value is none that sbatch takes.
    """
    directives = _directives_of(text)
    if not directives:
        return None
    script = SbatchScript()
    _DirectiveReader(directives, script).read()
    if not has_slurm:
        directives.pop("no-requeue", None)
        if directives.pop("requeue", None) is not None:
            script.options["requeue"] = ["preempted", "node"]
    for name, value in directives.items():
        _pass_on(name, value, script, has_slurm)
    return script


def _directives_of(text: str) -> dict[str, str]:
    """Return the options by their long names; those that stand alone have the value ""."""
    options: dict[str, str] = {}
    # The first line names the interpreter.
    for line in text.splitlines()[1:]:
        match = _LINE.match(line)
        if match:
            options.update(_options_of(match[1]))
        elif line.strip() and not line.startswith("#"):
            # sbatch reads no directives after the first command.
            break
    return options


def _options_of(line: str) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise ConfigError(f"#SBATCH {line}: {error}", hint="close the quotes") from None
    while words:
        word = words.pop(0)
        # "hetjob" is such a word.
        if not word.startswith("-"):
            hint = "write one that begins with --, or leave it out"
            raise ConfigError(f"#SBATCH {line}: {word!r} is no option", hint=hint)
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--"):
            letter, value = word[1:2], word[2:].lstrip("=")
            name = _SHORT.get(letter) or _FLAGS.get(letter) or word
            equals = "=" if value or letter in _FLAGS else ""
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield name, value


def _pass_on(name: str, value: str, script: SbatchScript, has_slurm: bool) -> None:
    text = f"--{name}={value}" if value else f"--{name}"
    sets = [each for each in value.split(",") if "=" in each] if name == "export" else []
    if sets:
        # Only the names are shown, because a value may be a secret.
        names = ", ".join(each.partition("=")[0] for each in sets)
        script.not_taken.append(f"--export={names} (use --env)")
        return
    if name in _WITHOUT_EFFECT:
        return
    if name in _NOT_TAKEN:
        script.not_taken.append(f"{text} ({_NOT_TAKEN[name]})")
        return
    if not has_slurm:
        script.not_taken.append(f"{text} (the host has no SLURM)")
        return
    try:
        sbatch_options({name: value or True})
    except ConfigError as error:
        script.not_taken.append(f"{text} ({error.hint or error.message})")
        return
    script.options.setdefault("slurm", {})[name] = value or True


class _DirectiveReader:
    """Takes from the options those that a call has, too."""

    def __init__(self, directives: dict[str, str], script: SbatchScript) -> None:
        self._directives = directives
        self._script = script

    def read(self) -> None:
        options, env = self._script.options, self._script.env
        nodes = self._take("nodes", lambda text: int(text.partition("-")[0]))
        tasks = self._take("ntasks", int)
        per_node = self._take("ntasks-per-node", int)
        # sbatch derives the number of nodes from the tasks.
        if not nodes:
            nodes = math.ceil(tasks / per_node) if tasks and per_node else 1
        cpus = self._take("cpus-per-task", int)
        on_each = per_node or math.ceil((tasks or nodes) / nodes)
        if nodes > 1:
            options["nodes"] = nodes
        if (cpus or 1) * on_each > 1:
            options["cores"] = (cpus or 1) * on_each
        self._read_tasks(tasks or (nodes * per_node if per_node else None), per_node, cpus)
        gpus = self._gpus(nodes, on_each)
        if gpus:
            options["gpus"] = gpus
        self._read_memory(options.get("cores", 1), gpus)
        if (limit := self._take("time", _seconds)) is not None:
            options["time"] = timedelta(seconds=limit)
        if (name := self._take("job-name", str)) is not None:
            options["name"] = env["SLURM_JOB_NAME"] = name
        self._read_signal()
        if (array := self._take("array", str)) is not None:
            self._read_array(array)

    def _take(self, name: str, read: Callable[[str], Any]) -> Any:
        """Return the value of an option; None if it is not there.

        Raises:
            ConfigError: It is none.
        """
        text = self._directives.pop(name, None)
        if text is None:
            return None
        try:
            return read(text)
        except ValueError:
            problem = f"#SBATCH --{name}={text}: sbatch takes no such value"
            raise ConfigError(problem, hint="correct this line") from None

    def _read_tasks(self, tasks: int | None, per_node: int | None, cpus: int | None) -> None:
        """Let `srun` start the tasks that the script asks for: the job itself is one on each node."""
        env = self._script.env
        if tasks:
            env.update(SLURM_NTASKS=str(tasks), SLURM_NPROCS=str(tasks))
        if per_node:
            env["SLURM_NTASKS_PER_NODE"] = str(per_node)
        if cpus:
            env.update(SLURM_CPUS_PER_TASK=str(cpus), SRUN_CPUS_PER_TASK=str(cpus))

    def _gpus(self, nodes: int, on_each: int) -> int:
        """Return how many GPUs each node needs; their type becomes an option."""
        gres = [each for each in self._directives.pop("gres", "").split(",") if each]
        others = [each for each in gres if each.partition(":")[0] != "gpu"]
        if others:
            self._directives["gres"] = ",".join(others)
        per_node = [each.partition(":")[2] or "1" for each in gres if each not in others]
        counts = [self._count(each, 1) for each in per_node]
        for name, share in (("gpus-per-node", 1.0), ("gpus", 1.0 / nodes), ("gpus-per-task", float(on_each))):
            text = self._directives.pop(name, "")
            counts += [self._count(each, share) for each in text.split(",") if each]
        return max(counts, default=0)

    def _count(self, text: str, share: float) -> int:
        match = _GPUS.fullmatch(text)
        # A type without a number means one GPU.
        if match is None and re.fullmatch(r"[A-Za-z][\w.-]*", text):
            match = _GPUS.fullmatch(f"{text}:1")
        if match is None:
            raise ConfigError(f"#SBATCH asks for {text!r} GPUs", hint="write it as gpu:2 or gpu:a100:2")
        if match[1]:
            self._script.options["gpu_type"] = match[1]
        return math.ceil(int(match[2]) * share)

    def _read_memory(self, cores: int, gpus: int) -> None:
        total = self._take("mem", _megabytes)
        per_cpu, per_gpu = self._take("mem-per-cpu", _megabytes), self._take("mem-per-gpu", _megabytes)
        # sbatch reads --mem=0 as all memory of the node.
        if total == 0:
            self._script.not_taken.append("--mem=0 (ask for an amount with --memory)")
        megabytes = total or (per_cpu or 0) * cores or (per_gpu or 0) * gpus
        if megabytes:
            self._script.options["memory"] = f"{math.ceil(megabytes)}MB"

    def _read_signal(self) -> None:
        text = self._directives.pop("signal", None)
        if text is None:
            return
        match = _SIGNAL.fullmatch(text)
        if match is None or match[2].isdigit():
            self._script.not_taken.append(f"--signal={text} (use --warn-before)")
            return
        self._script.options["warn_before"] = f"{match[3] or 60}s"
        self._script.signal, self._script.alone = f"SIG{match[2]}", "B" in (match[1] or "")

    def _read_array(self, text: str) -> None:
        """Read what sbatch takes as an array: 1-10, 0-15:4, 1,3,5 and %4 behind it."""
        listed, _, most = text.partition("%")
        numbers: list[int] = []
        for part in listed.split(","):
            match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
            if match is None or (most and not most.isdigit()):
                raise ConfigError(f"#SBATCH --array={text} is no array", hint="write it as 0-9 or 0-9%4")
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            numbers += range(first, min(last, first + _MOST_TASKS) + 1, max(1, step))
        self._script.array = [str(number) for number in numbers]
        self._script.max_parallel = int(most) if most else None
        self._script.env.update(
            SLURM_ARRAY_TASK_ID=f"{{{ARRAY_VARIABLE}}}", SLURM_ARRAY_TASK_COUNT=str(len(numbers)),
            SLURM_ARRAY_TASK_MIN=str(min(numbers)), SLURM_ARRAY_TASK_MAX=str(max(numbers)),
        )  # fmt: skip


def _megabytes(text: str) -> float:
    unit = text[-1:].upper()
    number, share = (text[:-1], _UNITS_MB[unit]) if unit in _UNITS_MB else (text.upper().removesuffix("MB"), 1)
    return float(number) * share


def _seconds(text: str) -> float | None:
    """Read sbatch's times: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S; None for no limit.

    Example:
        >>> _seconds("90"), _seconds("1-12"), _seconds("02:00:00")
        (5400.0, 129600.0, 7200.0)
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    days, dash, time = text.rpartition("-")
    parts = [float(each) for each in time.split(":")]
    if len(parts) > 3:
        raise ValueError(text)
    if dash:
        hours, minutes, seconds = [*parts, 0.0, 0.0][:3]
    else:
        hours, minutes, seconds = {1: [0.0, parts[0], 0.0], 2: [0.0, *parts], 3: parts}[len(parts)]
    return float(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def in_words(options: Mapping[str, Any]) -> str:
    """Say what a script asks for, as one would write it."""
    return ", ".join(f"{name}={value}" for name, value in options.items())
