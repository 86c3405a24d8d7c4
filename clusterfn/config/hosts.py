"""A host of clusterfn.yml: a tree of `yamlfile.Value` becomes a `Host`, by the table in `keys`.

This module reads nothing from the disk or the network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from clusterfn.config.forms import names_a_file
from clusterfn.config.keys import DEFAULT_KEYS, HOST_KEYS, OF_CALLS
from clusterfn.config.option_checks import HOST_NAME
from clusterfn.config.options import Options
from clusterfn.config.scheduler_keys import OPTIONS, keys_by_scheduler
from clusterfn.config.spec import EnvironmentSettings, Host, Resources
from clusterfn.config.unknown_option import ALIASES
from clusterfn.config.value_kinds import NEVER_READ, password_error
from clusterfn.config.yamlfile import Value
from clusterfn.errors import ConfigError

# Without a limit, many sites give a whole node to each job, so jobs would wait for one another.
USUAL_MEMORY = 4 * 2**30

_BELOW_DEFAULTS = [word for word in DEFAULT_KEYS if word != "environment"]
_PASSWORDS = ("pass", "passphrase", "passcode", "secret", "token", "pwd", "pw")

# Maps an unknown key of a host to what to write instead.
_INSTEAD_OF_HOST_KEY = {
    **dict.fromkeys(("user", "username", "port"), "write it in `address:`, as user@name:port"),
    **dict.fromkeys(("host", "hostname"), "the key is `address:`"),
    "path": "folders of the scheduler's commands are `scheduler_path:`; for jobs, write `env:` or `setup:`",
    **{
        word: f"write it below `{name}:`, as `{name}: {{{word}: …}}`"
        for name, each in keys_by_scheduler().items()
        for word in each.written_beside
    },
    **{word: f"write it below `defaults:`, as `defaults: {{{word}: …}}`" for word in _BELOW_DEFAULTS if word != "gpus"},
    **{word: f'write `environment: "{word}:…"`' for word in ("conda", "venv", "prefix")},
    **{word: f"write `defaults: {{{meant}: …}}`" for word, meant in ALIASES.items() if meant in _BELOW_DEFAULTS},
    "nice": "write `slurm: {nice: …}` with SLURM; @cluster(priority=…) orders your own calls without a scheduler",
}


def host(key: Value, value: Value, folder: Path) -> Host:
    """Return the host with the name `key`.

    Raises:
        ConfigError: A key is unknown, missing, or has a value that it cannot have.
    """
    name = key.as_text()
    if not HOST_NAME.fullmatch(name):
        raise key.error(f'"{name}" cannot name a host', "use letters, digits, `.`, `-` and `_`")
    keys = value.mapping(HOST_KEYS, {**OF_CALLS, **_INSTEAD_OF_HOST_KEY})
    if "scheduler" not in keys:
        raise value.error("the key `scheduler` is missing", f"add `scheduler: {' | '.join(keys_by_scheduler())}`")
    facts: dict[str, Any] = {"name": name, "address": name, "source": key.place}
    for word, entry in keys.items():
        facts[HOST_KEYS[word].field] = HOST_KEYS[word].kind.read(entry)
    # The environment is an attribute of the host itself, although it may also be written below `defaults:`.
    if "defaults" in keys and (below := keys["defaults"].mapping(DEFAULT_KEYS).get("environment")):
        if "environment" in keys:
            line = keys["environment"].line + 1
            raise below.error("the environment is set twice", f"remove it here or in line {line}")
        facts["environment"] = DEFAULT_KEYS["environment"].kind.read(below)
    making = {field.partition(".")[2]: facts.pop(field) for field in list(facts) if field.startswith("making.")}
    making.update(making.pop("cuda", {}))
    for field in ("environment", "ssh_config"):
        # The path is relative to the folder of clusterfn.yml, wherever the program runs.
        path = facts.get(field)
        if path and (field != "environment" or names_a_file(path)):
            facts[field] = str(folder / Path(path).expanduser())
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
    of_scheduler = options.scheduler_options.get(host.scheduler, {})
    if not of_scheduler:
        return host
    sets_memory, called = keys_by_scheduler()[host.scheduler].sets_memory, host.with_scheduler_options(of_scheduler)
    if sets_memory({name: value for name, value in of_scheduler.items() if value is not None}) and options.memory_bytes:
        problem = f"memory= and {host.scheduler}= both set the memory"
        raise ConfigError(problem, host=host.name, hint="keep one of them")
    return called._replace(defaults=host.defaults._replace(memory_bytes=None)) if sets_memory(of_scheduler) else called


def reject_passwords(value: Value) -> None:
    """Reject keys that hold a secret; their lines are not shown."""
    for key, below in value.pairs:
        word = key.text.lower()
        if (word.startswith("passw") or word in _PASSWORDS) and below.kind != "map":
            raise password_error(key, f"`{key.text}:` is {NEVER_READ}")
        # Variables of jobs may have any name, also one such as PASSWORD_FILE, whose value is no secret.
        if word != "env":
            reject_passwords(below)


def reject_misplaced_hosts(top: Value, top_keys: Collection[str]) -> None:
    """Reject a host, or its keys, at the left margin."""
    for key, below in top.pairs:
        if key.text in top_keys:
            continue
        if {name.text for name, _ in below.pairs} & HOST_KEYS.keys():
            raise key.error(f'unknown key "{key.text}"', "if it is a host, write it below `hosts:`, indented further")
        if key.text in HOST_KEYS:
            hint = "it belongs to a host: write it below the host's name, below `hosts:`"
            raise key.error(f'unknown key "{key.text}"', hint)


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
    scheduler = keys_by_scheduler()[word]
    for key, value in keys.items():
        schedulers = [name for name, each in keys_by_scheduler().items() if key in each.keys]
        if schedulers and word not in schedulers:
            such = " or ".join(f"`scheduler: {name}`" for name in schedulers)
            raise value.error(f"this key needs {such}, not {word}", f"set {such} for this host, or remove the key")
    if scheduler.limits and "limits" in keys:
        problem, why = scheduler.limits
        raise keys["limits"].error(problem, f"remove it; {why}")
    if scheduler.limits and "gpus" in keys:
        raise keys["gpus"].error(f"with `scheduler: {word}` the scheduler chooses the GPUs of a job", "remove it")
    if scheduler.limits and "spare" in keys:
        raise keys["spare"].error(f"with `scheduler: {word}` no process waits on the host between calls", "remove it")
    root, (characters, happens) = facts.get("root", ""), scheduler.misread
    if set(root) & set(characters):
        raise keys["root"].error(f'"{root}": {happens}', "choose a folder without these characters")
    defaults = facts.get("defaults", Resources())
    if defaults.memory_bytes is None and not scheduler.sets_memory(facts.get(OPTIONS, {})):
        facts["defaults"] = defaults._replace(memory_bytes=USUAL_MEMORY)
