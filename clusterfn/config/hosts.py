"""The keys of one host in clusterfn.yml, each with its check: a tree of `yamlfile.Value` becomes a `Host`.

Nothing is read from the disk or the network here, and no key is accepted that nothing obeys.
docs/reference/configuration.md describes the same keys; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterfn.config import advice
from clusterfn.config.options import (
    ASK_FOR_GPUS,
    GPU_TYPE,
    HOST_NAME,
    MODULE,
    VARIABLE,
    is_set_by_clusterfn,
    names_a_file,
)
from clusterfn.config.spec import EnvironmentSettings, Host, Limits, Resources
from clusterfn.config.units import parse_memory, parse_time
from clusterfn.config.yamlfile import Value
from clusterfn.errors import ConfigError

SCHEDULERS = ("bare", "slurm", "grid_engine", "local")
USUAL_MEMORY = 4 * 2**30  # without --mem many sites give a whole node, and jobs wait for one another

_ADDRESS = re.compile(r"(?:[\w.+][\w.+-]*@)?(?:[\w.][\w.-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\])(?::([0-9]{1,5}))?")
_OWNER = re.compile(r"[\w.@+\\][\w.@+\\-]*\$?")
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+){1,3}")
_GPU_COUNTED = re.compile(r"gpu(?::.*)?:[0-9]+|gpu:?=.*")

# sbatch options that clusterfn sets from arguments: here they can only be dropped, by null.
FROM_ARGUMENTS = {
    "cpus-per-task": "cores=", "mem": "memory=", "time": "time=", "gpus": "gpus=", "gpus-per-node": "gpus=",
    "open-mode": None,
}  # fmt: skip
# ... and those without which a job could not be followed.
OURS = frozenset(
    [
        "array", "batch", "bb", "bbf", "chdir", "error", "export-file", "get-user-env", "gid", "help", "input",
        "job-name", "output", "parsable", "quiet", "test-only", "uid", "usage", "version", "wait", "wrap",
    ]
)  # fmt: skip


def host(key: Value, value: Value, folder: Path) -> Host:
    """The host with the name `key`.

    Raises:
        ConfigError: A key is unknown, missing, or has a value that it cannot have.
    """
    name = key.as_text()
    if not HOST_NAME.fullmatch(name):
        raise key.error(f'"{name}" cannot name a host', "use letters, digits, `.`, `-` and `_`")
    keys = value.mapping(_KEYS, advice.OF_HOST)
    if "scheduler" not in keys:
        raise value.error("the key `scheduler` is missing", f"add `scheduler: {' | '.join(SCHEDULERS)}`")
    facts: dict[str, Any] = {"name": name, "address": name, "source": key.place}
    for word, given in keys.items():
        field, read = _KEYS[word]
        facts[field] = read(given)
    if "defaults" in keys and (below := keys["defaults"].mapping(_DEFAULTS).get("environment")):
        if "environment" in keys:
            line = keys["environment"].line + 1
            raise below.error("the environment stands here twice", f"remove it here or in line {line}")
        facts["environment"] = advice.environment(below)
    making = {field[len(_OF_MAKING) :]: facts.pop(field) for field in list(facts) if field.startswith(_OF_MAKING)}
    making.update(making.pop("cuda", {}))
    if making.get("purge_days") is not None and making.get("installer", "clusterfn") != "clusterfn":
        raise keys["installer"].error("conda cannot put back single files, as `purge_days:` asks", "remove one of them")
    for found, field in ((facts, "environment"), (facts, "ssh_config"), (making, "table")):
        path = found.get(field)  # of a file beside this one, wherever the program runs
        if path and (field != "environment" or names_a_file(path)):
            found[field] = str(folder / Path(path).expanduser())
    _this_machine(keys, facts)
    _of_schedulers(keys, facts)
    return Host(**facts, making=EnvironmentSettings(**making))


def _where(value: Value) -> str:
    """Where environments run: where they were made, or on each node's own disk."""
    text = value.as_text()
    if text.startswith("/"):
        return text.rstrip("/") or "/"
    return value.as_choice(("root", "node"))


def _cuda(value: Value) -> dict[str, Any]:
    """What is known of the GPUs before a job has asked them."""
    given = value.mapping(("driver", "capability", "table"))
    facts: dict[str, Any] = {}
    if "driver" in given:
        facts["driver"] = driver = given["driver"].as_written()
        if not _NUMBERS.fullmatch(driver):
            raise given["driver"].error(f'"{driver}" is not a version', 'write "575.57.08", in quotes')
    if "capability" in given:
        several = [each.strip() for each in given["capability"].as_written().split(",")]
        facts["capabilities"] = tuple(several)
        if not all(_NUMBERS.fullmatch(each) for each in several):
            raise given["capability"].error(f'"{given["capability"].written}" is no compute capability', 'write "8.6"')
    if "table" in given:
        facts["table"] = _path(given["table"])
    return facts


def _this_machine(keys: Mapping[str, Value], facts: dict[str, Any]) -> None:
    """`scheduler: local` and `transport: local` mean this machine; both leave no address."""
    if facts["scheduler"] == "local":
        if facts.get("transport", "local") not in ("local", "auto"):
            raise keys["transport"].error("`scheduler: local` runs on this machine, without ssh", "remove this line")
        facts["transport"] = "local"
        facts.setdefault("environment", "current")
    if facts.get("transport") == "local":
        if "address" in keys:
            raise keys["address"].error("an address for this machine", "remove it, or `scheduler: local`")
        facts["address"] = ""


# Keys that one kind of host alone obeys.
_OF_SCHEDULERS = {
    "slurm": ("slurm",), "gpu_option": ("slurm",), "cards": ("slurm",),
    "grid_engine": ("grid_engine",), "build_partition": ("slurm", "grid_engine"),
}  # fmt: skip
# Why a scheduler needs no `limits:`, and which characters in a path it would misread.
_LIMITED = {
    "slurm": (
        "with SLURM the scheduler sets limits, by QOS",
        "SLURM's own limits are those of your account and its QOS",
    ),
    "grid_engine": ("with Grid Engine the scheduler sets limits, by resource quotas", "`qconf -srqsl` lists them"),
}
_MISREAD = {
    "slurm": ("%\\", "SLURM replaces % and \\ in paths by something else"),
    "grid_engine": (":,%\\", "Grid Engine replaces or divides paths at : , % and \\"),
}


def _of_schedulers(keys: Mapping[str, Value], facts: dict[str, Any]) -> None:
    scheduler = facts["scheduler"]
    for key, wanted in _OF_SCHEDULERS.items():
        if key in keys and scheduler not in wanted:
            raise keys[key].error(f"this key needs `scheduler: {wanted[0]}`, not {scheduler}", "remove it")
    if scheduler not in _LIMITED:
        return
    if "limits" in keys:
        problem, why = _LIMITED[scheduler]
        raise keys["limits"].error(problem, f"remove it; {why}")
    root, (characters, happens) = facts.get("root", ""), _MISREAD[scheduler]
    if set(root) & set(characters):
        raise keys["root"].error(f'"{root}": {happens}', "choose a folder without these characters")
    defaults, given = facts.get("defaults", Resources()), facts.get(scheduler, {})
    if scheduler == "slurm":
        has_own = bool({"mem", "mem-per-cpu", "mem-per-gpu"} & set(given))
    else:
        has_own = given.get("memory", "") is None
    if defaults.memory_bytes is None and not has_own:
        facts["defaults"] = replace(defaults, memory_bytes=USUAL_MEMORY)


def _with_place(parse: Callable[[object], Any], quantity: str, example: str) -> Callable[[Value], Any]:
    """A parser of units, whose error then names the line, and what its own error in Python advises."""

    def read(value: Value) -> Any:
        try:
            return parse(value.as_written())
        except ConfigError as error:
            key, near = value.name.rpartition(".")[2], _QUOTED.search(error.hint or "")
            forms = _UNITS.get(key, example)
            if near and key in ("time", "memory", "gpu_memory"):
                forms = f"{near[0]}; other forms are {forms}" if key == "time" else near[0]
            hint = f"write it with a unit and in quotes: {forms}"
            raise value.error(f"{value.written} is not {quantity}", hint) from error

    return read


_QUOTED = re.compile(r'"[^"]+"')
_UNITS = {"time": '"90min", "2h" or "02:00:00"', "keep": '"14d"', "poll_floor": '"2s"', "login_ttl": '"8h"'}
_memory = _with_place(parse_memory, "an amount of memory", '"16GB"')
_time = _with_place(parse_time, "a duration", '"2h"')


def _days(value: Value) -> float:
    return float(_time(value)) / 86400


def _address(value: Value) -> str:
    text = value.as_text()
    if ":" in text.rpartition("@")[0].replace("://", ""):
        raise advice.password(value)
    match = _ADDRESS.fullmatch(text)
    if not match or not 0 < int(match[1] or 22) < 65536:
        hint = "write `name`, `user@name` or `user@name:port`; for anything else make an alias in ~/.ssh/config"
        raise value.error(f'"{text}" is not an address', hint)
    return text


def _root(value: Value) -> str:
    text = value.as_text()
    if not text.startswith(("/", "~", "$")) or "\t" in text:
        raise value.error(
            f'"{text}" is not an absolute path', "begin it with `/`, `~/` or a variable such as `$SCRATCH`"
        )
    return text


def _owners(value: Value) -> tuple[str, ...]:
    names = value.as_lines()
    for name in names:
        if not _OWNER.fullmatch(name):
            raise value.error(f'"{name}" cannot name a user or a group', "write a list, one name each: [alice, lab]")
    return names


def _path(value: Value) -> str:
    text = value.as_text()
    if text.startswith("-"):
        raise value.error(f'"{text}" is not a path', "write the whole path")
    return text


def _defaults(value: Value) -> Resources:
    given = value.mapping(_DEFAULTS, advice.OF_DEFAULTS)
    return Resources(**{_DEFAULTS[key][0]: _DEFAULTS[key][1](given[key]) for key in given if key != "environment"})


def _gpu_type(value: Value) -> str:
    text = value.as_written()
    if not GPU_TYPE.fullmatch(text):
        raise value.error(f'"{text}" cannot name a type of card', "write one word of its name, such as a6000")
    return text


def _cards(value: Value) -> dict[str, int]:
    """The size of the GPUs of each type."""
    for key, given in value.pairs:
        _gpu_type(key)
        _memory(given)
    return {kind: _memory(given) for kind, given in value.mapping().items()}


def _limits(value: Value) -> Limits:
    """What all of the user's running jobs may take of a machine together."""
    given = value.mapping(_LIMITS)
    return Limits(**{_LIMITS[key][0]: _LIMITS[key][1](given[key]) for key in given})


def _modules(value: Value) -> tuple[str, ...]:
    names = value.as_lines()
    for name in names:
        if not MODULE.fullmatch(name):
            raise value.error(f'"{name}" cannot name a module', "write a list, one name each: [cuda/12.4, gcc]")
    return names


def _env(value: Value) -> dict[str, str]:
    for key, _ in value.pairs:
        if not VARIABLE.fullmatch(key.text):
            raise key.error(f'"{key.text}" cannot name a variable', "use letters, digits and `_`")
        if is_set_by_clusterfn(key.text):
            raise key.error(f'"{key.text}" is set by clusterfn itself', ASK_FOR_GPUS)
    return {name: given.as_written() for name, given in value.mapping().items()}


def _grid_engine(value: Value) -> dict[str, Any]:
    """Names of the site's own queues and resources, as qsub wants them."""
    return {key: _GRID_ENGINE[key](given) for key, given in value.mapping(_GRID_ENGINE).items()}


def _site_name(value: Value) -> str:
    text = value.as_written()
    if not _SITE_NAME.fullmatch(text):
        raise value.error(f'"{text}" cannot name anything in Grid Engine', "write one word, as `qconf` shows it there")
    return text


def _optional_name(value: Value) -> str | None:
    return None if value.kind == "null" else _site_name(value)


def _queue(value: Value) -> Any:
    if value.kind == "map":
        return {kind: _site_name(given) for kind, given in value.mapping(("cpu", "gpu")).items()}
    return _site_name(value)


def _resources(value: Value) -> dict[str, str]:
    """What is asked for by `-l` besides what calls ask for."""
    for key, given in value.pairs:
        _site_name(key)
        if key.text in ("h_rt", "s_rt"):
            raise key.error(f"clusterfn sets `-l {key.text}` itself", "use `time=` or `defaults: time:`")
        if not re.fullmatch(r"[^,\s=]+", given.as_written()):
            raise given.error(f'"{given.as_written()}" is not the value of a resource', "write one word or number")
    return {name: given.as_written() for name, given in value.mapping().items()}


_SITE_NAME = re.compile(r"[A-Za-z_][\w.@*-]*")
_GRID_ENGINE: dict[str, Callable[[Value], Any]] = {
    "queue": _queue,
    "project": _site_name,
    "parallel_environment": _site_name,
    "memory": _optional_name,
    "gpus": _optional_name,
    "per_job": Value.as_lines,
    "resources": _resources,
}


def _slurm(value: Value) -> dict[str, Any]:
    for key, _ in value.pairs:
        if not re.fullmatch(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", key.text) or len(key.text) < 2:
            hint = "write the long name of the option, without dashes"
            raise key.error(f'"{key.text}" is not an option of sbatch', hint)
        if key.text in OURS:
            raise key.error(f"clusterfn needs `--{key.text}` for itself", "remove this line")
    return {name: _option(name, given) for name, given in value.mapping().items()}


def _option(name: str, value: Value) -> Any:
    """A text, True for an option without a value, None to drop it, or a mapping for partition."""
    if value.kind == "null":
        return None
    if name in FROM_ARGUMENTS:
        instead = f"; use `{FROM_ARGUMENTS[name]}` or `defaults:`" if FROM_ARGUMENTS[name] else ""
        raise value.error(f"clusterfn sets `--{name}` itself{instead}", "null drops it, another value is not possible")
    if name == "nodes" and value.as_written() not in ("1", "1-1"):
        raise value.error("on every node but the first nothing would run", "write nodes= in @cluster, or `nodes: 1`")
    if name == "partition" and value.kind == "map":
        return {kind: given.as_written() for kind, given in value.mapping(("cpu", "gpu")).items()}
    if value.kind == "bool" and value.text.lower() in ("true", "yes", "on"):
        return True
    if name != "gres":
        return value.as_written()
    text = value.as_text()
    if any(_GPU_COUNTED.fullmatch(part) for part in text.split(",")):
        raise value.error(f'"{text}" counts cards', "write only their kind, `gpu:a100`; the number comes from `gpus=`")
    return text


def _choice(*words: str) -> Callable[[Value], str]:
    return lambda value: value.as_choice(words)


def _count(least: int) -> Callable[[Value], int]:
    return lambda value: value.as_count(least)


def _installer(value: Value) -> str:
    """Which, or the path of a conda on the host: where ssh starts programs, conda is seldom in PATH."""
    text = value.as_text()
    return text if text.startswith(("/", "~/")) else value.as_choice(("clusterfn", "conda"))


_OF_MAKING = "making."
_Key = tuple[str, Callable[[Value], Any]]

_DEFAULTS: dict[str, _Key] = {
    "cores": ("cores", _count(1)),
    "memory": ("memory_bytes", _memory),
    "gpus": ("gpus", _count(0)),
    "gpu_memory": ("gpu_memory_bytes", _memory),
    "gpu_type": ("gpu_type", _gpu_type),
    "time": ("time_s", _time),
    "environment": ("environment", advice.environment),
}

_LIMITS: dict[str, _Key] = {
    "gpus": ("gpus", _count(0)),
    "cores": ("cores", _count(1)),
    "memory": ("memory_bytes", _memory),
    "jobs": ("jobs", _count(1)),
}

# key in the file -> attribute of Host, and how it is read
_KEYS: dict[str, _Key] = {
    "address": ("address", _address),
    "scheduler": ("scheduler", _choice(*SCHEDULERS)),
    "transport": ("transport", _choice("auto", "paramiko", "openssh", "local")),
    "ssh_config": ("ssh_config", _path),
    "root": ("root", _root),
    "owners": ("owners", _owners),
    "python": ("python", _path),
    "environment": ("environment", advice.environment),
    "defaults": ("defaults", _defaults),
    "setup": ("setup", Value.as_lines),
    "modules": ("modules", _modules),
    "prolog": ("prolog", Value.as_lines),
    "env": ("env", _env),
    "slurm": ("slurm", _slurm),
    "grid_engine": ("grid_engine", _grid_engine),
    "gpu_option": ("gpu_option", _choice("gres", "gpus", "gpus-per-node")),
    "cards": ("cards", _cards),
    "lease": ("lease", _choice("socket", "file")),
    "limits": ("limits", _limits),
    "poll_floor": ("poll_floor_s", _time),
    "queue_timeout": ("queue_timeout_s", _time),
    "keep": ("keep_days", _days),
    "login_ttl": ("login_ttl_s", _time),
    "env_root": ("making.root", _root),
    "fetch_on": ("making.fetch_on", _choice("auto", "host", "client")),
    "build_on": ("making.build_on", _choice("host", "node")),
    "build_partition": ("making.partition", _path),
    "environment_at": ("making.at", _where),
    "build_timeout": ("making.timeout_s", _time),
    "purge_days": ("making.purge_days", _days),
    "installer": ("making.installer", _installer),
    "cuda": ("making.cuda", _cuda),
}
HOST_KEYS = frozenset(_KEYS)
DEFAULT_KEYS = frozenset(_DEFAULTS)
