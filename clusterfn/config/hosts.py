"""The keys of one host in clusterfn.yml, each with its check: a tree of `yamlfile.Value` becomes a `Host`.

This module reads nothing from the disk or the network, and accepts no key that has no effect.
docs/reference/configuration.md describes the same keys; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterfn.bridge.supervisor.eligible_gpus import GPU_ID
from clusterfn.config.options import (
    ADDRESS,
    ALIASES,
    ASK_FOR_GPUS,
    ENVIRONMENT_KINDS,
    HOST_NAME,
    MODULE,
    PYTHON_SOURCES,
    Options,
    is_python_source,
    is_set_by_clusterfn,
    keywords,
    names_a_file,
    nearly_an_environment,
    python_version,
)
from clusterfn.config.schedulers import OPTIONS, SCHEDULER_KEYS, Choice, Key, read_gpu_type, read_variables
from clusterfn.config.spec import DATA, EnvironmentSettings, Host, Limits, Resources
from clusterfn.config.units import VARIABLE
from clusterfn.config.yamlfile import Value
from clusterfn.errors import ConfigError

USUAL_MEMORY = 4 * 2**30  # without a limit many sites give a whole node, and jobs wait for one another

_OWNER = re.compile(r"[\w.@+\\][\w.@+\\-]*\$?")
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+){1,3}")

_BELOW_DEFAULTS = ("cores", "memory", "gpus", "gpu_memory", "gpu_type", "time")
_PASSWORDS = ("pass", "passphrase", "passcode", "secret", "token", "pwd", "pw")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z0-9][\w-]*")
_COUNT_OR_ONLY = "write it below `defaults:`, as `defaults: {gpus: 1}`; to use only some, `gpus: {only: [3]}`"
_EXAMPLE = '"conda:NAME"'
_NEVER = "never read: secrets in files leak"

# unknown key of a host -> what to write
_INSTEAD_OF_HOST_KEY = {
    **dict.fromkeys(("user", "username", "port"), "write it in `address:`, as user@name:port"),
    **dict.fromkeys(("host", "hostname"), "the key is `address:`"),
    "path": "folders of the scheduler's commands are `scheduler_path:`; for jobs, write `env:` or `setup:`",
    **{
        word: f"write it below `{name}:`, as `{name}: {{{word}: …}}`"
        for name, each in SCHEDULER_KEYS.items()
        for word in each.written_beside
    },
    **{word: f"write it below `defaults:`, as `defaults: {{{word}: …}}`" for word in _BELOW_DEFAULTS if word != "gpus"},
    **{word: f'write `environment: "{word}:…"`' for word in ("conda", "venv", "prefix")},
    **{word: f"write `defaults: {{{meant}: …}}`" for word, meant in ALIASES.items() if meant in _BELOW_DEFAULTS},
    "nice": "write `slurm: {nice: …}` with SLURM; @cluster(priority=…) orders your own calls without a scheduler",
}
_OF_CALLS = {word: f"it is an option of each call: write @cluster({word}=…)" for word in keywords()}
# unknown key below `defaults:`
_INSTEAD_OF_DEFAULT = {word: f"the key is `{meant}:`" for word, meant in ALIASES.items()}


def host(key: Value, value: Value, folder: Path) -> Host:
    """Return the host with the name `key`.

    Raises:
        ConfigError: A key is unknown, missing, or has a value that it cannot have.
    """
    name = key.as_text()
    if not HOST_NAME.fullmatch(name):
        raise key.error(f'"{name}" cannot name a host', "use letters, digits, `.`, `-` and `_`")
    keys = value.mapping(KEY_READERS, {**_OF_CALLS, **_INSTEAD_OF_HOST_KEY})
    if "scheduler" not in keys:
        raise value.error("the key `scheduler` is missing", f"add `scheduler: {' | '.join(SCHEDULER_KEYS)}`")
    facts: dict[str, Any] = {"name": name, "address": name, "source": key.place}
    for word, given in keys.items():
        field, read = KEY_READERS[word]
        facts[field] = read(given)
    if "defaults" in keys and (below := keys["defaults"].mapping(DEFAULT_READERS).get("environment")):
        if "environment" in keys:
            line = keys["environment"].line + 1
            raise below.error("the environment is set twice", f"remove it here or in line {line}")
        facts["environment"] = _environment(below)
    making = {field[len(_OF_MAKING) :]: facts.pop(field) for field in list(facts) if field.startswith(_OF_MAKING)}
    making.update(making.pop("cuda", {}))
    if making.get("purge_days") is not None and making.get("installer", "clusterfn") != "clusterfn":
        raise keys["installer"].error("conda cannot restore single files, as `purge_days:` asks", "remove one of them")
    for found, field in ((facts, "environment"), (facts, "ssh_config"), (making, "table")):
        path = found.get(field)  # of a file next to this one, wherever the program runs
        if path and (field != "environment" or names_a_file(path)):
            found[field] = str(folder / Path(path).expanduser())
    _this_machine(keys, facts)
    _of_scheduler(keys, facts)
    return Host(**facts, making=EnvironmentSettings(**making))


def for_call(host: Host, options: Options) -> Host:
    """Return the host as a call with options for its scheduler sees it.

    Raises:
        ConfigError: The options are for another scheduler, or they and `memory=` both set the memory.
    """
    for word in options.scheduler_options:
        if word != host.scheduler:
            raise ConfigError(
                f"{word}= is for hosts with `scheduler: {word}`, and {host.name} has `scheduler: {host.scheduler}`",
                host=host.name, hint=f"remove {word}=, or choose such a host",
            )  # fmt: skip
    given = options.scheduler_options.get(host.scheduler, {})
    if not given:
        return host
    sets_memory, called = SCHEDULER_KEYS[host.scheduler].sets_memory, host.with_scheduler_options(given)
    if sets_memory({name: value for name, value in given.items() if value is not None}) and options.memory_bytes:
        problem = f"memory= and {host.scheduler}= both set the memory"
        raise ConfigError(problem, host=host.name, hint="keep one of them")
    return called._replace(defaults=host.defaults._replace(memory_bytes=None)) if sets_memory(given) else called


def refuse_passwords(value: Value) -> None:
    """Refuse keys that hold a secret; their lines are not shown."""
    for key, below in value.pairs:
        word = key.text.lower()
        if (word.startswith("passw") or word in _PASSWORDS) and below.kind != "map":
            raise _password(key, f"`{key.text}:` is {_NEVER}")
        if word != "env":
            refuse_passwords(below)


def _password(value: Value, problem: str = f"a password in an address is {_NEVER}") -> ConfigError:
    return value.error(problem, "remove it; use a key (ssh-copy-id HOST) or an ssh agent", show=False)


def refuse_misplaced_hosts(top: Value, top_keys: Collection[str]) -> None:
    """Refuse a host, or its keys, at the left margin."""
    for key, below in top.pairs:
        if key.text in top_keys:
            continue
        if {name.text for name, _ in below.pairs} & HOST_KEYS:
            raise key.error(f'unknown key "{key.text}"', "if it is a host, write it below `hosts:`, indented further")
        if key.text in HOST_KEYS:
            hint = "it belongs to a host: write it below the host's name, below `hosts:`"
            raise key.error(f'unknown key "{key.text}"', hint)


def _environment(value: Value) -> str:
    """Return the text, unless its form is nearly right."""
    if value.kind == "map":
        pairs = value.pairs
        written = [f'"{kind.text}:{name.text}"' for kind, name in pairs if kind.text in ENVIRONMENT_KINDS and name.text]
        hint = f"write `environment: {written[0] if written else _EXAMPLE}`"
        raise value.error("expected a string, found a mapping", hint)
    text = value.as_text()
    if names_a_file(text):
        return text
    if python_version(text):
        hint = 'write the path of an interpreter, `environment: "python:/path"`, or a file such as environment.yml'
        raise value.error(f'"{text}" names a version of Python, not an interpreter', hint)
    instead = nearly_an_environment(text)
    if not instead and _ENVIRONMENT_NAME.fullmatch(text) and text != "current":
        instead = f"conda:{text}"
    if instead:
        raise value.error(f'"{text}" is not a kind of environment', f'write `environment: "{instead}"`')
    return text


def _where(value: Value) -> str:
    """Read where environments run: where they were made, or on each node's own disk."""
    text = value.as_text()
    if text.startswith("/"):
        return text.rstrip("/") or "/"
    return value.as_choice(("root", "node"))


def _cuda(value: Value) -> dict[str, Any]:
    """Read what is known of the GPUs before a job has asked them."""
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
            raise given["capability"].error(
                f'"{given["capability"].written}" is not a compute capability', 'write "8.6"'
            )
    if "table" in given:
        facts["table"] = given["table"].as_path()
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
            word = "scheduler" if facts["scheduler"] == "local" else "transport"
            raise keys["address"].error("this machine takes no address", f"remove it, or remove `{word}: local`")
        facts["address"] = ""


def _of_scheduler(keys: Mapping[str, Value], facts: dict[str, Any]) -> None:
    """Reject what the host's scheduler does not obey, and have it asked for memory."""
    word = facts["scheduler"]
    scheduler = SCHEDULER_KEYS[word]
    for key, value in keys.items():
        wanted = [name for name, each in SCHEDULER_KEYS.items() if key in each.keys]
        if wanted and word not in wanted:
            such = " or ".join(f"`scheduler: {name}`" for name in wanted)
            raise value.error(f"this key needs {such}, not {word}", f"set {such} for this host, or remove the key")
    if scheduler.limits and "limits" in keys:
        problem, why = scheduler.limits
        raise keys["limits"].error(problem, f"remove it; {why}")
    if scheduler.limits and "gpus" in keys:
        raise keys["gpus"].error(f"with `scheduler: {word}` the scheduler chooses the GPUs of a job", "remove it")
    root, (characters, happens) = facts.get("root", ""), scheduler.misread
    if set(root) & set(characters):
        raise keys["root"].error(f'"{root}": {happens}', "choose a folder without these characters")
    defaults = facts.get("defaults", Resources())
    if defaults.memory_bytes is None and not scheduler.sets_memory(facts.get(OPTIONS, {})):
        facts["defaults"] = defaults._replace(memory_bytes=USUAL_MEMORY)


def _address(value: Value) -> str:
    text = value.as_text()
    if ":" in text.rpartition("@")[0].replace("://", ""):
        raise _password(value)
    match = ADDRESS.fullmatch(text)
    if not match or not 0 < int(match[1] or 22) < 65536:
        hint = "write `name`, `user@name` or `user@name:port`; for anything else add an alias to ~/.ssh/config"
        raise value.error(f'"{text}" is not an address', hint)
    return text


def _root(value: Value) -> str:
    text = value.as_text()
    if not text.startswith(("/", "~", "$")) or "\t" in text:
        raise value.error(
            f'"{text}" is not an absolute path', "start it with `/`, `~/` or a variable such as `$SCRATCH`"
        )
    return text


def _owners(value: Value) -> tuple[str, ...]:
    names = value.as_lines()
    for name in names:
        if not _OWNER.fullmatch(name):
            raise value.error(f'"{name}" cannot name a user or a group', "write a list, one name each: [alice, lab]")
    return names


def _defaults(value: Value) -> Resources:
    beside = dict.fromkeys(KEY_READERS, "write it below the host, beside `defaults:`")
    given = value.mapping(DEFAULT_READERS, {**_OF_CALLS, **beside, **_INSTEAD_OF_DEFAULT})
    return Resources(
        **{DEFAULT_READERS[key][0]: DEFAULT_READERS[key][1](given[key]) for key in given if key != "environment"}
    )


def _limits(value: Value) -> Limits:
    given = value.mapping(LIMIT_READERS)
    return Limits(**{LIMIT_READERS[key][0]: LIMIT_READERS[key][1](given[key]) for key in given})


def _gpus(value: Value) -> tuple[str, ...]:
    """Return the GPUs that jobs may get, from `{only: [3, GPU-7f3a…]}`."""
    if value.kind != "map":
        raise value.error(f"expected `{{only: […]}}`, found {value.written}", _COUNT_OR_ONLY)
    only = value.mapping(GPU_KEYS).get("only")
    if only is None or only.kind != "list" or not only.values:
        raise (only or value).error("expected a list of GPUs below `only:`", "write `gpus: {only: [3]}`")
    names = tuple(each.as_written() for each in only.values)
    for each, name in zip(only.values, names):
        if not GPU_ID.fullmatch(name):
            raise each.error(
                f'"{name}" names no GPU', "write the number or the UUID that `nvidia-smi -L` shows: [3] or [GPU-7f3a…]"
            )
    return names


def _modules(value: Value) -> tuple[str, ...]:
    names = value.as_lines()
    for name in names:
        if not MODULE.fullmatch(name):
            raise value.error(f'"{name}" cannot name a module', "write a list, one name each: [cuda/12.4, gcc]")
    return names


def _env(value: Value) -> dict[str, str]:
    for key, _ in value.pairs:
        if is_set_by_clusterfn(key.text):
            raise key.error(f'"{key.text}" is set by clusterfn itself', ASK_FOR_GPUS)
    return read_variables(value)


def _secrets(value: Value) -> tuple[str, ...]:
    """Return names of variables; neither the name nor the line of what may be a secret itself is shown."""
    names = () if value.kind == "map" else value.as_lines()
    if not names or not all(VARIABLE.fullmatch(name.removesuffix("*")) for name in names):
        hint = "write a list, [HF_TOKEN, WANDB_*]; the values stay in your environment"
        raise value.error("expected names of variables", hint, show=False)
    return names


def _days(value: Value) -> float:
    return value.as_time() / 86400


def _installer(value: Value) -> str:
    """Which, or the path of a conda on the host: where ssh starts programs, conda is seldom in PATH."""
    text = value.as_text()
    return text if text.startswith(("/", "~/")) else value.as_choice(("clusterfn", "conda"))


def _env_python(value: Value) -> str:
    """Where the Python of environments from project files comes from."""
    text = value.as_text()
    if not is_python_source(text):
        hint = f"write {', '.join(PYTHON_SOURCES)}, or the path of an interpreter such as /usr/bin/python3.11"
        raise value.error(f'"{text}" does not say where Python comes from', hint)
    return text


@dataclass(frozen=True)
class Count:
    """Read a whole number of at least `least`."""

    least: int

    def __call__(self, value: Value) -> int:
        return value.as_count(self.least)


_OF_MAKING = "making."

# the keys below `defaults:` and `limits:`, read into attributes of Resources and Limits
DEFAULT_READERS: dict[str, Key] = {
    "cores": ("cores", Count(1)),
    "memory": ("memory_bytes", Value.as_memory),
    "gpus": ("gpus", Count(0)),
    "gpu_memory": ("gpu_memory_bytes", Value.as_memory),
    "gpu_type": ("gpu_type", read_gpu_type),
    "time": ("time_s", Value.as_time),
    "environment": ("environment", _environment),
}

LIMIT_READERS: dict[str, Key] = {
    "gpus": ("gpus", Count(0)),
    "cores": ("cores", Count(1)),
    "memory": ("memory_bytes", Value.as_memory),
    "jobs": ("jobs", Count(1)),
}

GPU_KEYS = frozenset(["only"])

# key in the file -> attribute of Host, and how it is read
KEY_READERS: dict[str, Key] = {
    "address": ("address", _address),
    "scheduler": ("scheduler", Choice(tuple(SCHEDULER_KEYS))),
    "transport": ("transport", Choice(("auto", "paramiko", "openssh", "local"))),
    "ssh_config": ("ssh_config", Value.as_path),
    "root": ("root", _root),
    "owners": ("owners", _owners),
    "python": ("python", Value.as_path),
    "environment": ("environment", _environment),
    "defaults": ("defaults", _defaults),
    "setup": ("setup", Value.as_lines),
    "modules": ("modules", _modules),
    "prolog": ("prolog", Value.as_lines),
    "env": ("env", _env),
    "secrets": ("secrets", _secrets),
    "gpus": ("gpus_only", _gpus),
    "lease": ("lease", Choice(("socket", "file"))),
    "limits": ("limits", _limits),
    "poll_floor": ("poll_floor_s", Value.as_time),
    "queue_timeout": ("queue_timeout_s", Value.as_time),
    "keep": ("keep_days", _days),
    "login_ttl": ("login_ttl_s", Value.as_time),
    "results": ("results", Choice(("objects", DATA))),
    "max_result": ("max_result_bytes", Value.as_memory),
    "env_root": ("making.root", _root),
    "env_python": ("making.python", _env_python),
    "fetch_on": ("making.fetch_on", Choice(("auto", "host", "client"))),
    "build_on": ("making.build_on", Choice(("host", "node"))),
    "environment_at": ("making.at", _where),
    "build_timeout": ("making.timeout_s", Value.as_time),
    "purge_days": ("making.purge_days", _days),
    "installer": ("making.installer", _installer),
    "cuda": ("making.cuda", _cuda),
    **{word: key for each in SCHEDULER_KEYS.values() for word, key in each.keys.items()},
}
HOST_KEYS = frozenset(KEY_READERS)
DEFAULT_KEYS = frozenset(DEFAULT_READERS)
