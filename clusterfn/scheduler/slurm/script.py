"""The #SBATCH lines of a script: as sbatch's own request on SLURM, as options of a call elsewhere. Pure.

Such a script runs once, on the first node, as sbatch runs it: its own `srun` starts the tasks. `options.OPTIONS` says
what each line does. What sbatch rejects is rejected here, in its words, with the line of the script.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from clusterfn.errors import ConfigError
from clusterfn.scheduler.slurm.options import LETTERS, OPTIONS, PASSED, QUIET, READ, named_by

ARRAY_VARIABLE = "SLURM_ARRAY_TASK_ID"
# sbatch reads #SLURM too.
_LINE = re.compile(r"#S(?:BATCH|LURM)\s*(.*)")
# What others read of a script, and the burst buffers of SLURM, which reads them itself.
_OF_OTHERS = re.compile(r"#\s?(PBS|BSUB|\$|COBALT|FLUX:|flux:|OAR|MSUB|PJM|QSUB|@|DW|BB)(?=\s)")
_NODES = re.compile(r"(\d+)([km]?)(?:-(\d+)([km]?))?|(\d+)[\d,:-]*")
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_UNITS_MB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1 << 20}
# The forms of a time: [days-]hours[:minutes[:seconds]] with days, else minutes, minutes:seconds, or all three.
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_UNLIMITED = ("0", "-1", "UNLIMITED", "INFINITE")
_GPUS = re.compile(r"(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d+)|(?:gpu:)?([A-Za-z][\w.-]*)")
_OF_TASKS = re.compile(r"gres[/:]gpu(?::([A-Za-z][\w.-]*))?[:=](\d+)")
_SIGNAL = re.compile(r"(?:[BR]*:)?(?:SIG)?([A-Z]+\d?|\d+)(?:@(\d{1,5}))?", re.IGNORECASE)
_SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ABRT": 6, "KILL": 9, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15, "CONT": 18,
    "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24,
}  # fmt: skip
_INDICES = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_MOST_TASKS = 100_000
# The arguments of a call that say how a job is laid out: sbatch gets what the script itself says of them.
_LAYOUT = ("cores", "memory", "gpus", "nodes", "tasks_per_node")
_OF_NODES = {"nodes": "nodes", "tasks_per_node": "ntasks-per-node"}


@dataclass
class SbatchScript:
    """What the #SBATCH lines of a script ask for.

    Attributes:
        options: Options of a call that mean the same on one machine.
        request: What sbatch gets, as the lines say it; None removes what a call or the host would add.
        env: Variables that the script gets.
        on_bare: Further ones, where no sbatch sets them.
        array: The values of SLURM_ARRAY_TASK_ID; empty if it is no array.
        max_parallel: How many of them run at the same time; None if it does not say.
        signal: The signal that warns it, such as "SIGUSR1"; "" for the usual one.
        alone: Whether the signal is for the script alone, as with "B:", and not for the programs that it runs.
        logs: Where sbatch would write its output, and its errors if it names another file; with its patterns.
        not_taken: Options without effect here, each with the reason.
    """

    options: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str | None] = field(default_factory=dict)
    on_bare: dict[str, str] = field(default_factory=dict)
    array: list[str] = field(default_factory=list)
    max_parallel: int | None = None
    signal: str = ""
    alone: bool = False
    logs: tuple[str, ...] = ()
    not_taken: list[str] = field(default_factory=list)

    def for_slurm(self, given: dict[str, Any], leaves_memory: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what sbatch gets, and which options of a call there are besides; `options` loses the others.

        Args:
            given: Arguments of the call itself, which come before what the script says; those that the request has are
                taken out.
            leaves_memory: Whether a script that says nothing of memory gets what the site gives.
        """
        kinds = {"gpus"} if given.keys() & {"gpu_type", "gpu_memory"} else set()
        dropped = {name for name, option in OPTIONS.items() if option.argument in {*given, *kinds}}
        request = {name: value for name, value in self.request.items() if name not in dropped}
        request.update({_OF_NODES[name]: str(given.pop(name)) for name in _OF_NODES if name in given})
        if leaves_memory and "memory" not in given:
            request.setdefault("mem", None)
        self.options = {name: value for name, value in self.options.items() if name not in ("nodes", "memory")}
        return request, {
            name: value for name, value in self.options.items() if name not in _LAYOUT and name != "gpu_type"
        }


class _Directive(NamedTuple):
    value: str
    place: str

    def wrong(self, problem: str, hint: str = "correct this line") -> ConfigError:
        return ConfigError(f"{self.place}: {problem}", hint=hint)


def read_sbatch(text: str, has_slurm: bool, name: str = "") -> SbatchScript | None:
    """Read the #SBATCH lines of a script; None if it has no lines for any scheduler.

    Args:
        text: The script.
        has_slurm: Whether its host has SLURM, and so takes further options of sbatch.
        name: That of its file, for messages.

    Raises:
        ConfigError: sbatch would reject a line, or what it asks for cannot be done there.
    """
    directives, not_read = _directives_of(text, name)
    if not directives and not not_read:
        return None
    script = SbatchScript(not_taken=not_read)
    _DirectiveReader(directives, script, has_slurm).read()
    return script


def _directives_of(text: str, name: str) -> tuple[dict[str, _Directive], list[str]]:
    """Return the options by their long names, "" for one that stands alone; and say which lines are not read."""
    options: dict[str, _Directive] = {}
    others: dict[str, int] = {}
    late, has_begun = 0, False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#"):
            # sbatch reads no directives after the first command.
            has_begun |= bool(line.strip())
        elif match := _LINE.match(line):
            if has_begun:
                late += 1
            else:
                place = ":".join(filter(None, [name, str(number)])) + f": {line.strip()}" if name else line.strip()
                options.update(_options_of(match[1], place))
        elif not has_begun and (match := _OF_OTHERS.match(line)):
            others[match[0]] = others.get(match[0], 0) + 1
    not_read = [
        f"{count} lines with {word} (write #SBATCH lines, or options of clusterfn)" for word, count in others.items()
    ]
    if late:
        not_read.append(f"{late} #SBATCH lines after the first command (sbatch does not read them either)")
    return options, not_read


def _options_of(line: str, place: str) -> dict[str, _Directive]:
    found: dict[str, _Directive] = {}
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}", hint="close the quotes") from None
    while words:
        word = words.pop(0)
        # "hetjob" is such a word.
        if not word.startswith("-") or word in ("-", "--"):
            raise ConfigError(f"{place}: {word!r} is no option", hint="write one that begins with --, or leave it out")
        name, equals, value = word[2:].partition("=")
        if word.startswith("--"):
            meant = named_by(name)
            if len(meant) > 1:
                several = " ".join(f"--{each}" for each in meant)
                raise ConfigError(f"{place}: --{name} is ambiguous; possibilities: {several}", hint="write all of it")
            name = meant[0] if meant else name
        else:
            name, value = LETTERS.get(word[1], word), word[2:]
            equals = "=" if value else ""
        form = OPTIONS[name].form if name in OPTIONS else ""
        if form == "no" and not word.startswith("--") and value:
            # Several letters may follow one hyphen.
            words.insert(0, f"-{value}")
            value = equals = ""
        directive = _Directive(value, place)
        if form == "no" and equals:
            raise directive.wrong(f"option '--{name}' doesn't allow an argument")
        if form in ("required", "number") and not equals and not words:
            raise directive.wrong(f"option '--{name}' requires an argument")
        if not equals and words and (form in ("required", "number") or (not form and not words[0].startswith("-"))):
            directive = directive._replace(value=words.pop(0))
        if form == "number" and not re.fullmatch(r"\+?0*[1-9]\d*", directive.value):
            raise directive.wrong(f'Invalid numeric value "{directive.value}" for --{name}.')
        found["ntasks-per-node" if name == "tasks-per-node" else name] = directive
    return found


class _DirectiveReader:
    """Makes of the lines what a call has, and what sbatch gets."""

    def __init__(self, directives: dict[str, _Directive], script: SbatchScript, has_slurm: bool) -> None:
        self._directives = directives
        self._script = script
        self._has_slurm = has_slurm

    def read(self) -> None:
        script = self._script
        for name, directive in self._directives.items():
            self._sort(name, directive)
        self._read_layout()
        limit = self._take("time", _seconds, "Invalid --time specification")
        if limit:
            script.options["time"] = timedelta(seconds=limit)
        elif limit is not None:
            self._leave("time", "the host's limit counts")
        if (named := self._directives.get("job-name")) is not None:
            script.options["name"] = named.value
        if "requeue" in self._directives:
            script.options["requeue"] = ["preempted", "node"]
        self._read_export()
        self._read_signal()
        self._read_array()
        written = [self._directives[name].value for name in ("output", "error") if name in self._directives]
        usual = "slurm-%A_%a.out" if script.array else "slurm-%j.out"
        script.logs = tuple(written) if "output" in self._directives else (usual, *written)

    def _sort(self, name: str, directive: _Directive) -> None:
        """Let sbatch have an option, or say why it is not taken."""
        option = OPTIONS.get(name)
        kind = option.script if option is not None else PASSED
        goes_on = kind == PASSED or (option is not None and option.argument in _LAYOUT) or name == "dependency"
        if goes_on and self._has_slurm:
            self._script.request[name] = directive.value or True
        elif name == "dependency":
            hint = "remove this line, and submit it when that job has ended"
            raise directive.wrong("the host has no SLURM, to let it wait for another job", hint)
        elif kind == PASSED:
            self._leave(name, "the host has no SLURM")
        elif kind not in (READ, QUIET):
            self._leave(name, kind)

    def _leave(self, name: str, reason: str) -> None:
        value = self._directives[name].value
        self._script.not_taken.append(f"--{name}={value} ({reason})" if value else f"--{name} ({reason})")

    def _take(self, name: str, read: Callable[[str], Any], words: str) -> Any:
        """Return the value of an option; None if it is not there.

        Raises:
            ConfigError: It is none, as sbatch says with these words.
        """
        directive = self._directives.get(name)
        if directive is None:
            return None
        try:
            return read(directive.value)
        except ValueError as error:
            raise directive.wrong(str(error) or words) from None

    def _number(self, name: str) -> int | None:
        return int(self._directives[name].value) if name in self._directives else None

    def _read_layout(self) -> None:
        script = self._script
        nodes = self._take("nodes", _least_nodes, "")
        tasks, per_node, cpus = map(self._number, ("ntasks", "ntasks-per-node", "cpus-per-task"))
        # sbatch derives the number of nodes from the tasks.
        known = nodes or (math.ceil(tasks / per_node) if tasks and per_node else 1)
        on_each = per_node or math.ceil((tasks or known) / known)
        gpus = self._gpus(known, on_each)
        if (of_gpu := self._number("cpus-per-gpu")) and gpus:
            cpus, on_each = of_gpu * gpus, 1
        if known > 1:
            script.options["nodes"] = known
        if (cpus or 1) * on_each > 1:
            script.options["cores"] = (cpus or 1) * on_each
        if gpus:
            script.options["gpus"] = gpus
        if script.request.keys() & {"nodes", "ntasks", "ntasks-per-node", "cpus-per-gpu"}:
            script.request.setdefault("cpus-per-task", None)
        self._read_memory((cpus or 1) * on_each, gpus)
        variables = {
            "SLURM_NTASKS": tasks or (known * per_node if per_node else None), "SLURM_NTASKS_PER_NODE": per_node,
            "SLURM_CPUS_PER_TASK": cpus, "SLURM_TASKS_PER_NODE": on_each,
        }  # fmt: skip
        script.on_bare.update({name: str(value) for name, value in variables.items() if value})
        if "SLURM_NTASKS" in script.on_bare:
            script.on_bare["SLURM_NPROCS"] = script.on_bare["SLURM_NTASKS"]

    def _gpus(self, nodes: int, on_each: int) -> int:
        """Return how many GPUs each node needs; their type becomes an option."""
        counts: list[int] = []
        kinds: set[str] = set()
        sockets = float(self._number("sockets-per-node") or 1)
        shares = {"gres": 1.0, "gpus-per-node": 1.0, "gpus": 1.0 / nodes, "gpus-per-task": float(on_each),
                  "gpus-per-socket": sockets, "tres-per-task": float(on_each)}  # fmt: skip
        for name, share in shares.items():
            directive = self._directives.get(name)
            asked = [] if directive is None else self._kinds_of_gpus(name, directive)
            kinds.update(kind for kind, _ in asked if kind)
            counts.append(math.ceil(sum(count for _, count in asked) * share))
            if len(asked) > 1 and not self._has_slurm:
                assert directive is not None
                raise directive.wrong("two types of GPU in one job need SLURM", "ask for one of them")
        if len(kinds) == 1 and max(counts):
            self._script.options["gpu_type"] = kinds.pop()
        return max(counts)

    def _kinds_of_gpus(self, name: str, directive: _Directive) -> list[tuple[str, int]]:
        """Return types of GPUs, and how many of each an option asks for; what else it asks for needs SLURM."""
        parts = [part for part in directive.value.split(",") if part]
        if name == "tres-per-task":
            return [(found[1] or "", int(found[2])) for part in parts if (found := _OF_TASKS.fullmatch(part))]
        if name == "gres":
            others = [part for part in parts if not re.match(r"gpu(?:[:=]|$)", part)]
            if others and not self._has_slurm:
                self._script.not_taken.append(f"--gres={','.join(others)} (the host has no SLURM)")
            of_gpus = [part if re.search(r":\d+$", part) else f"{part}:1" for part in parts if part not in others]
            if self._has_slurm:
                # Without its number, it would be the type of those that a call asks for.
                self._script.request["gres"] = ",".join([*others, *of_gpus])
            parts = [part[4:] for part in of_gpus]
        found = [_GPUS.fullmatch(part) for part in parts]
        if not all(found) or (name != "gres" and not parts):
            raise directive.wrong("Invalid generic resource (gres) specification", "write it as gpu:2 or gpu:a100:2")
        # A type without a number means one GPU.
        return [(match[1] or match[3] or "", int(match[2] or 1)) for match in found if match is not None]

    def _read_memory(self, cores: int, gpus: int) -> None:
        total, per_cpu, per_gpu = (
            self._take(name, _megabytes, f"Invalid --{name} specification")
            for name in ("mem", "mem-per-cpu", "mem-per-gpu")
        )
        if self._script.request.keys() & {"mem-per-cpu", "mem-per-gpu"}:
            self._script.request.setdefault("mem", None)
        # sbatch reads --mem=0 as all memory of the node.
        if total == 0 and not self._has_slurm:
            self._leave("mem", "ask for an amount with --memory")
        megabytes = total or (per_cpu or 0) * cores or (per_gpu or 0) * gpus
        if megabytes:
            self._script.options["memory"] = f"{math.ceil(megabytes)}MB"
            self._script.on_bare["SLURM_MEM_PER_NODE"] = str(math.ceil(megabytes))

    def _read_export(self) -> None:
        """Give the script the variables that it names with a value; the others are those of the user's own shell."""
        words = self._directives["export"].value.split(",") if "export" in self._directives else []
        self._script.env.update(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word and word not in ("", "ALL", "NONE", "NIL")]
        if names:
            self._script.not_taken.append(f"--export={','.join(names)} (use --env)")

    def _read_signal(self) -> None:
        text = self._take("signal", str, "")
        if text is None:
            return
        match = _SIGNAL.fullmatch(text)
        word = match[1].upper() if match else ""
        names = [name for name, number in _SIGNALS.items() if word in (name, str(number))]
        if match is None or not names or int(match[2] or 0) > 0xFFFF:
            raise self._directives["signal"].wrong("Invalid --signal specification", "write it as B:USR1@120")
        self._script.options["warn_before"] = f"{match[2] or 60}s"
        self._script.signal, self._script.alone = f"SIG{names[0]}", "B" in text.upper().rpartition(":")[0]

    def _read_array(self) -> None:
        """Read what sbatch takes as an array: 1-10, 0-15:4, 1,3,5 and %4 behind it."""
        text = self._take("array", str, "")
        if text is None:
            return
        listed, percent, most = text.partition("%")
        numbers: dict[int, None] = {}
        for part in listed.strip("[]").split(","):
            match = _INDICES.fullmatch(part)
            first, last, step = (int(match[1]), int(match[2] or match[1]), int(match[3] or 1)) if match else (1, 0, 1)
            if first > last or not step or last - first >= _MOST_TASKS * step or (percent and not most.isdigit()):
                hint = f"write it as 0-9 or 0-9%4, with at most {_MOST_TASKS} tasks"
                raise self._directives["array"].wrong("Invalid job array specification", hint)
            numbers.update(dict.fromkeys(range(first, last + 1, step)))
        self._script.array = [str(number) for number in sorted(numbers)]
        self._script.max_parallel = int(most or 0) or None
        self._script.env.update(
            SLURM_ARRAY_TASK_ID=f"{{{ARRAY_VARIABLE}}}", SLURM_ARRAY_TASK_COUNT=str(len(numbers)),
            SLURM_ARRAY_TASK_MIN=str(min(numbers)), SLURM_ARRAY_TASK_MAX=str(max(numbers)),
        )  # fmt: skip


def _least_nodes(text: str) -> int:
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


def _megabytes(text: str) -> float:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError
    return float(match[1]) * _UNITS_MB[match[2].upper()]


def _seconds(text: str) -> float:
    """Read sbatch's times: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S; 0 for no limit.

    Example:
        >>> _seconds("90"), _seconds("1-12"), _seconds("02:00:00")
        (5400.0, 129600.0, 7200.0)
    """
    if text.upper() in _UNLIMITED:
        return 0.0
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError
    parts = [float(part) for part in match.groups()[1:] if part is not None]
    if match[1] is not None or len(parts) == 3:
        hours, minutes, seconds = [*parts, 0.0, 0.0][:3]
    else:
        hours, minutes, seconds = [0.0, *parts, 0.0][:3]
    return float(match[1] or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def in_words(options: Mapping[str, Any]) -> str:
    """Say what a script asks for, as one would write it."""
    return ", ".join(
        name if value is True else f"{name}={value}" for name, value in options.items() if value is not None
    )
