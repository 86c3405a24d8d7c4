"""The #SBATCH lines of a script: as sbatch's own request on SLURM, as options of a call elsewhere. Pure.

Such a script runs once, on the first node, as sbatch runs it: its own `srun` starts the tasks. `keys.OPTIONS` says
what each line does. What sbatch rejects is rejected here, in its words, with the line of the script.
"""

from __future__ import annotations

import functools
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from clusterfn.errors import ConfigError
from clusterfn.scheduler.slurm.keys import (
    LETTERS,
    NUMBER,
    OPTIONS,
    PASSED,
    QUIET,
    READ,
    read_array,
    read_least_nodes,
    read_megabytes,
    read_seconds,
    read_signal,
)

ARRAY_VARIABLE = "SLURM_ARRAY_TASK_ID"
# sbatch reads #SLURM too.
_LINE = re.compile(r"#S(?:BATCH|LURM)\s*(.*)")
# What others read of a script, and the burst buffers of SLURM, which reads them itself.
_OF_OTHERS = re.compile(r"#\s?(?:PBS|BSUB|\$|COBALT|FLUX:|flux:|OAR|MSUB|PJM|QSUB|@|DW|BB)(?=\s)")
# A script without such a line asks for nothing.
DIRECTIVE = re.compile(rf"^(?:#SBATCH|#SLURM|{_OF_OTHERS.pattern})", re.MULTILINE)
_GPUS = re.compile(r"(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d+)|(?:gpu:)?([A-Za-z][\w.-]*)")
_OF_TASKS = re.compile(r"gres[/:]gpu(?::([A-Za-z][\w.-]*))?[:=](\d+)")
# The arguments of a call that say how a job is laid out: sbatch gets what the script itself says of them.
LAYOUT = ("cores", "memory", "gpus", "gpu_type", "nodes", "tasks_per_node")
# SLURM obeys these itself.
_OF_SBATCH = ("dependency", "requeue", "no-requeue")
T = TypeVar("T")


@dataclass
class SbatchScript:
    """What the lines of a script ask for.

    Attributes:
        options: Options of a call that mean the same; on SLURM those that sbatch does not get in `request`.
        request: What sbatch gets, as the lines say it; None removes what a call or the host would add.
        env: Variables that the script gets; None takes one away.
        array: The values of SLURM_ARRAY_TASK_ID; empty if it is no array.
        max_parallel: How many of them run at the same time; None if it does not say.
        signal: The signal that warns it, such as "SIGUSR1"; "" for the usual one.
        alone: Whether the signal is for the script alone, as with "B:", and not for the programs that it runs.
        logs: Where sbatch would write its output, and its errors if it names another file; with its patterns.
        not_taken: Lines without effect here, each with the reason.
    """

    options: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str | None] = field(default_factory=dict)
    array: list[str] = field(default_factory=list)
    max_parallel: int | None = None
    signal: str = ""
    alone: bool = False
    logs: tuple[str, ...] = ()
    not_taken: list[str] = field(default_factory=list)

    def leave_to_sbatch(self, given: dict[str, Any], unsaid: Iterable[str]) -> None:
        """Leave to sbatch how the job is laid out, also what the call says of its nodes, which `given` loses.

        Args:
            unsaid: Options that only clusterfn's own defaults add: without them, a script gets what the site gives.
        """
        for name, option in (("nodes", "nodes"), ("tasks_per_node", "ntasks-per-node")):
            if name in given:
                self.request[option] = str(given.pop(name))
        if given.keys() & {"gpu_type", "gpu_memory"}:
            for name in [name for name in self.request if name in OPTIONS and OPTIONS[name].argument == "gpus"]:
                del self.request[name]
        if "cores" in given:
            self.request.pop("cpus-per-task", None)
        for name in unsaid:
            if OPTIONS[name].argument not in given:
                self.request.setdefault(name, None)
        for name in ("nodes", "memory"):
            self.options.pop(name, None)


class _Directive(NamedTuple):
    value: str
    place: str

    def wrong(self, problem: str, hint: str = "correct this line") -> ConfigError:
        return ConfigError(f"{self.place}: {problem}", hint=hint)


def read_sbatch(text: str, has_slurm: bool, name: str = "", given: Collection[str] = ()) -> SbatchScript | None:
    """Read the lines of a script for sbatch; None if it has none for any scheduler.

    Args:
        text: The script.
        has_slurm: Whether its host has SLURM, so that sbatch reads most of them itself.
        name: That of its file, for messages.
        given: Arguments of the call, which come before lines that say the same.

    Raises:
        ConfigError: sbatch would reject a line, or what it asks for cannot be done there.
    """
    directives, not_read = _directives_of(text, name)
    if not directives and not not_read:
        return None
    said = {
        name: value for name, value in directives.items() if name not in OPTIONS or OPTIONS[name].argument not in given
    }
    reader = _DirectiveReader(said, SbatchScript(not_taken=not_read), has_slurm)
    reader.read()
    return reader.script


def _directives_of(text: str, name: str) -> tuple[dict[str, _Directive], list[str]]:
    """Return the options by their long names, "" for one that stands alone; and say which lines are not read."""
    options: dict[str, _Directive] = {}
    not_read: Counter[str] = Counter()
    has_begun = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#"):
            has_begun |= bool(line.strip())
        elif match := _LINE.match(line):
            if has_begun:
                not_read["#SBATCH after the first command (sbatch does not read them either)"] += 1
            else:
                options.update(_options_of(match[1], f"{name}:{number}: {line.strip()}"))
        elif not has_begun and (match := _OF_OTHERS.match(line)):
            not_read[f"{match[0]} (write #SBATCH lines, or options of clusterfn)"] += 1
    return options, [f"{count} lines with {what}" for what, count in not_read.items()]


def _options_of(line: str, place: str) -> dict[str, _Directive]:
    found: dict[str, _Directive] = {}
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}", hint="close the quotes") from None
    while words:
        word = words.pop(0)
        # "hetjob" is such a word.
        if not re.match("-.", word):
            raise ConfigError(f"{place}: {word!r} is no option", hint="write one that begins with --, or leave it out")
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--"):
            if word[1] not in LETTERS:
                raise ConfigError(f"{place}: invalid option -- '{word[1]}'", hint="correct this line")
            name, value = LETTERS[word[1]], word[2:]
            equals = "=" if value else ""
        is_known = name in OPTIONS
        form = OPTIONS[name].form if name in OPTIONS else ""
        if not equals and form in ("", NUMBER) and words and (is_known or not words[0].startswith("-")):
            equals, value = "=", words.pop(0)
        directive = _Directive(value, place)
        if is_known and form in ("", NUMBER) and not equals:
            raise directive.wrong(f"option '--{name}' requires an argument")
        if form == NUMBER and not re.fullmatch(r"\+?0*[1-9]\d*", value):
            raise directive.wrong(f'Invalid numeric value "{value}" for --{name}.')
        found["ntasks-per-node" if name == "tasks-per-node" else name] = directive
    return found


class _DirectiveReader:
    """Makes of the lines what a call has, and what sbatch gets."""

    def __init__(self, directives: dict[str, _Directive], script: SbatchScript, has_slurm: bool) -> None:
        self.script = script
        self._directives = directives
        self._has_slurm = has_slurm

    def read(self) -> None:
        script = self.script
        for name, directive in self._directives.items():
            self._sort(name, directive)
        self._read_layout()
        limit = self._take("time", read_seconds)
        if limit:
            script.options["time"] = timedelta(seconds=limit)
        elif limit is not None:
            self._leave("time", "the host's limit counts")
        if (named := self._take("job-name", str)) is not None:
            script.options["name"] = named
        if "requeue" in self._directives and not self._has_slurm:
            script.options["requeue"] = ["preempted", "node"]
        # The other variables are those of the user's own shell.
        words = (self._take("export", str) or "").split(",")
        script.env.update(dict(word.split("=", 1) for word in words if "=" in word))
        if names := [word for word in words if "=" not in word and word not in ("", "ALL", "NONE", "NIL")]:
            script.not_taken.append(f"--export={','.join(names)} (use --env)")
        script.signal, script.alone, before = self._take("signal", read_signal) or ("", False, "")
        if before:
            script.options["warn_before"] = before
        self._read_array()
        output = self._take("output", str) or ("slurm-%A_%a.out" if script.array else "slurm-%j.out")
        script.logs = (output, *filter(None, [self._take("error", str)]))

    def _sort(self, name: str, directive: _Directive) -> None:
        """Let sbatch have an option, or say why it is not taken."""
        option = OPTIONS.get(name)
        kind = option.script if option is not None else PASSED
        passed = kind == PASSED or name in _OF_SBATCH or (option is not None and option.argument in LAYOUT)
        if self._has_slurm and passed:
            self.script.request[name] = directive.value or True
        elif name == "dependency":
            hint = "remove this line, and submit it when that job has ended"
            raise directive.wrong("the host has no SLURM, to let it wait for another job", hint)
        elif kind not in (READ, QUIET):
            self._leave(name, "the host has no SLURM" if kind == PASSED else kind)

    def _leave(self, name: str, reason: str) -> None:
        value = self._directives[name].value
        self.script.not_taken.append(f"--{name}={value} ({reason})" if value else f"--{name} ({reason})")

    def _take(self, name: str, read: Callable[[str], T]) -> T | None:
        """Return the value of an option, None if it is absent; raise ConfigError in sbatch's words if it is wrong."""
        directive = self._directives.get(name)
        try:
            return None if directive is None else read(directive.value)
        except ValueError as error:
            assert directive is not None
            raise directive.wrong(str(error) or f"Invalid --{name} specification") from None

    def _read_layout(self) -> None:
        script, request = self.script, self.script.request
        nodes = self._take("nodes", read_least_nodes)
        tasks, per_node, cpus = (self._take(name, int) for name in ("ntasks", "ntasks-per-node", "cpus-per-task"))
        # sbatch derives the number of nodes from the tasks.
        nodes = nodes or (math.ceil(tasks / per_node) if tasks and per_node else 1)
        on_each = per_node or math.ceil((tasks or nodes) / nodes)
        gpus = self._gpus(nodes, on_each)
        cores = (cpus or 1) * on_each
        if (of_gpu := self._take("cpus-per-gpu", int)) and gpus:
            cores = of_gpu * gpus
        megabytes = self._megabytes(cores, gpus)
        if request.keys() & {"nodes", "ntasks", "ntasks-per-node", "cpus-per-gpu"}:
            request.setdefault("cpus-per-task", None)
        if request.keys() & {"mem-per-cpu", "mem-per-gpu"}:
            request.setdefault("mem", None)
        usual = {"nodes": 1, "cores": 1, "gpus": 0}
        found = {"nodes": nodes, "cores": cores, "gpus": gpus}
        script.options.update({name: value for name, value in found.items() if value != usual[name]})
        if megabytes:
            script.options["memory"] = f"{megabytes}MB"
        if not self._has_slurm:
            tasks = tasks or (nodes * per_node if per_node else None)
            variables = {"NTASKS": tasks, "NPROCS": tasks, "NTASKS_PER_NODE": per_node, "TASKS_PER_NODE": on_each}
            variables.update(CPUS_PER_TASK=cpus, MEM_PER_NODE=megabytes)
            script.env.update({f"SLURM_{name}": str(value) for name, value in variables.items() if value})

    def _gpus(self, nodes: int, on_each: int) -> int:
        """Return how many GPUs each node needs; their type becomes an option."""
        sockets = self._take("sockets-per-node", int) or 1
        shares = {"gres": 1.0, "gpus-per-node": 1.0, "gpus": 1.0 / nodes}
        shares.update({"gpus-per-task": on_each, "gpus-per-socket": sockets, "tres-per-task": on_each})
        most = 0
        kinds = set[str]()
        for name, share in shares.items():
            asked = self._take(name, functools.partial(self._kinds_of_gpus, name)) or []
            kinds.update(kind for kind, _ in asked if kind)
            most = max(most, math.ceil(sum(count for _, count in asked) * share))
            if len(asked) > 1 and not self._has_slurm:
                hint = "ask for one of them"
                raise self._directives[name].wrong("two types of GPU in one job need SLURM", hint)
        if len(kinds) == 1 and most:
            self.script.options["gpu_type"] = kinds.pop()
        return most

    def _kinds_of_gpus(self, name: str, text: str) -> list[tuple[str, int]]:
        """Return types of GPUs, and how many of each an option asks for; what else it asks for needs SLURM."""
        parts = text.split(",")
        if name == "tres-per-task":
            return [(found[1] or "", int(found[2])) for part in parts if (found := _OF_TASKS.fullmatch(part))]
        if name == "gres":
            others = [part for part in parts if not re.match(r"gpu(?:[:=]|$)", part)]
            if others and not self._has_slurm:
                self.script.not_taken.append(f"--gres={','.join(others)} (the host has no SLURM)")
            # One without its number would be the type of those that a call asks for.
            gpus = [part if re.search(r":\d+$", part) else f"{part}:1" for part in parts if part not in others]
            if self._has_slurm:
                self.script.request["gres"] = ",".join([*others, *gpus])
            parts = [part[len("gpu:") :] for part in gpus]
        matches = [match for part in parts if (match := _GPUS.fullmatch(part))]
        if len(matches) < len(parts):
            raise ValueError("Invalid generic resource (gres) specification")
        return [(match[1] or match[3] or "", int(match[2] or 1)) for match in matches]

    def _megabytes(self, cores: int, gpus: int) -> int:
        total, per_cpu, per_gpu = (self._take(name, read_megabytes) for name in ("mem", "mem-per-cpu", "mem-per-gpu"))
        # sbatch reads --mem=0 as all memory of the node.
        if total == 0 and not self._has_slurm:
            self._leave("mem", "ask for an amount with --memory")
        return math.ceil(total or (per_cpu or 0) * cores or (per_gpu or 0) * gpus)

    def _read_array(self) -> None:
        found = self._take("array", read_array)
        if found is None:
            return
        numbers, self.script.max_parallel = found
        self.script.array = [str(number) for number in numbers]
        variables = {"ID": f"{{{ARRAY_VARIABLE}}}", "COUNT": len(numbers), "MIN": numbers[0], "MAX": numbers[-1]}
        self.script.env.update({f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in variables.items()})


def in_words(options: Mapping[str, Any]) -> str:
    """Say what a script asks for, as one would write it."""
    return ", ".join(
        name if value is True else f"{name}={value}" for name, value in options.items() if value is not None
    )
