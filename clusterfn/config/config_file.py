"""clusterfn.yml: find, read and check it, and resolve among which hosts a call goes to one.

    $CLUSTERFN_CONFIG, else clusterfn.yml in the working directory or above it, else next to the running script or above
    it, else in the user's configuration folder

Read at the first call that needs a host, never at decoration and never inside a job (the callers see to that). The tree
of `yamlfile.Value` of each host becomes a `Host`, by the table in `keys`. Every error is a ConfigError that names file,
line and column.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from clusterfn.config import import_time, notes, places, yamlfile
from clusterfn.config.environment_kinds import ADDRESS, names_a_file
from clusterfn.config.keys import DEFAULT_KEYS, FILE_KEYS, HOST_KEYS, OF_CALLS
from clusterfn.config.option_checks import HOST_NAME
from clusterfn.config.options import ALIASES, HOST_VARIABLE, Options, without_needs
from clusterfn.config.places import FILE
from clusterfn.config.scheduler_keys import OPTIONS, keys_by_scheduler
from clusterfn.config.spec import EnvironmentSettings, Host, Resources
from clusterfn.config.units import is_on
from clusterfn.config.value_kinds import NEVER_READ, password_error
from clusterfn.config.yamlfile import Value
from clusterfn.errors import ConfigError, did_you_mean

LOCAL_VARIABLE = "CLUSTERFN_LOCAL"
LOCAL = Host(name="local", address="", scheduler="local", source="built in", transport="local", environment="current")
# Errors name this as the place of a mistake, instead of a file and a line.
IN_PROCESS = "clusterfn.configure()"
# Without a limit, many sites give a whole node to each job, so jobs would wait for one another.
USUAL_MEMORY = 4 * 2**30
# The key of a list of hosts.
_ANY = "any"
_BELOW_DEFAULTS = [word for word in DEFAULT_KEYS if word != "environment"]
_PASSWORDS = ("pass", "passphrase", "passcode", "secret", "token", "pwd", "pw")
# Names that ssh_config, paramiko, fabric and ray give to what ssh needs.
_OF_SSH = (
    "identityfile", "identity_file", "key", "key_file", "key_filename", "keyfile", "ssh_key", "ssh_private_key",
    "private_key", "proxyjump", "proxy_jump", "jump_host", "gateway", "proxy", "proxycommand", "proxy_command",
)  # fmt: skip
# Maps an unknown key of a host to what to write instead.
_INSTEAD_OF_HOST_KEY = {
    **dict.fromkeys(("user", "username", "port"), "write it in `address:`, as user@name:port"),
    **dict.fromkeys(("host", "hostname"), "the key is `address:`"),
    **dict.fromkeys(_OF_SSH, "write it for ssh, below `Host NAME` in ~/.ssh/config; here write `address: NAME`"),
    "path": "folders of the scheduler's commands are `scheduler_path:`; for jobs, write `env:` or `setup:`",
    **{
        word: f"write it below `{name}:`, as `{name}: {{{word}: …}}`"
        for name, scheduler in keys_by_scheduler().items()
        for word in scheduler.written_beside
    },
    **{word: f"write it below `defaults:`, as `defaults: {{{word}: …}}`" for word in _BELOW_DEFAULTS if word != "gpus"},
    **{word: f'write `environment: "{word}:…"`' for word in ("conda", "venv", "prefix", "apptainer", "singularity")},
    "image": 'write `environment: "apptainer:/image.sif"`',
    **dict.fromkeys(("mounts", "volumes"), "the key is `binds:`"),
    **{word: f"write `defaults: {{{meant}: …}}`" for word, meant in ALIASES.items() if meant in _BELOW_DEFAULTS},
    "nice": "write `slurm: {nice: …}` with SLURM; @cluster(priority=…) orders your own calls without a scheduler",
}

running_file: Path | None = None
_configured: Config | None = None


@dataclass(frozen=True)
class Config:
    """What clusterfn.yml says.

    Attributes:
        hosts: By name; `local` is always there.
        default_host: `default_host:`, or None.
        path: The file, or None where there is none, or `configure` was called.
        named: The hosts of the file itself, in its order.
        lists: The hosts below `any:`, by the name of their list.
        quiet: Whether progress is hidden.
        hidden_notes: The ids of notes that are not said.
        title: What messages call it: the file's path.
    """

    hosts: Mapping[str, Host]
    default_host: str | None = None
    path: Path | None = None
    named: tuple[str, ...] = ()
    default_place: str = field(default="", compare=False)
    quiet: bool = False
    title: str = ""
    hidden_notes: tuple[str, ...] = ()
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def obey(self) -> Config:
        """Let what prints sentences know what is not said; return it."""
        notes.is_quiet, notes.hidden = self.quiet, self.hidden_notes
        return self

    @property
    def names(self) -> list[str]:
        """Everything that a call may name: hosts, and lists of hosts."""
        return [*self.hosts, *self.lists]

    def resolve(self, name: str | None) -> tuple[Host, str]:
        """Return the host for a call that says `host=name`, and what decided: a clause for messages.

        Raises:
            ConfigError: There is no such host, it is a list of several, or there are several and none is the default.

        Example:
            >>> Config({"local": LOCAL}).resolve(None)[1]
            'there is no clusterfn.yml'
        """
        hosts, because = self.hosts_named(name)
        if len(hosts) > 1:
            several = f"{', '.join(host.name for host in hosts)} ({because})"
            raise ConfigError(f"this needs one host, and there are several: {several}", hint="name one of them")
        return hosts[0], because

    def names_of(self, host: str) -> list[str]:
        """Return the names of the hosts that `host=` means, whether the file describes them or not."""
        return [name for word in host.split(",") for name in self.lists.get(word, [word])]

    def hosts_named(self, name: str | None) -> tuple[list[Host], str]:
        """Return the hosts among which a call that says `host=name` chooses, in their order; else as `resolve`."""
        chosen, because = self._chosen(name)
        names = self.names_of(chosen)
        for unknown in [host for host in names if host not in self.hosts]:
            situation = f"{self.title} describes the hosts {', '.join([*self.named, *self.lists])}"
            hint = f"choose one of them or local, or add {unknown} to {self.title}"
            if not self.named:
                situation = f"{self.title} describes no host" if self.title else f"no {FILE} in {Path.cwd()} or above"
                hint = f"change to your project's folder, set ${places.VARIABLE}, or add a host: clusterfn init ADDRESS"
            near = did_you_mean(unknown, self.names)
            raise ConfigError(f"there is no host {unknown!r}{near} ({because})", evidence=[situation], hint=hint)
        return [self.hosts[host] for host in dict.fromkeys(names)], because

    def _chosen(self, name: str | None) -> tuple[str, str]:
        if runs_locally():
            return LOCAL.name, f"${LOCAL_VARIABLE} is set"
        variable = os.environ.get(HOST_VARIABLE)
        # A function that is decorated while the variable is set gets its value as the option `host`.
        if name is not None and name != variable:
            return name, f"host={name!r}"
        if variable:
            return variable, f"${HOST_VARIABLE}={variable}"
        if self.default_host is not None:
            return self.default_host, f"default_host: in {self.default_place}"
        if len(self.named) > 1:
            hint = f'set host="{self.named[0]}", or add `default_host: {self.named[0]}` to {self.title}'
            raise ConfigError(f"{self.title} has several hosts and no default_host: {', '.join(self.named)}", hint=hint)
        if self.named:
            return self.named[0], f"the only host in {self.title}"
        return LOCAL.name, f"{self.title} defines no host" if self.title else f"there is no {FILE}"


class CallHost(NamedTuple):
    """Where a call goes.

    Attributes:
        config: What clusterfn.yml says.
        host: The host.
        because: What decided that: a clause for messages.
        options: The options of the call; with $CLUSTERFN_LOCAL without those that only its host can fulfil.
    """

    config: Config
    host: Host
    because: str
    options: Options

    @property
    def called(self) -> Host:
        """The host with the options of the call for its scheduler; raise as `_for_call`."""
        return _for_call(self.host, self.options) if self.options.scheduler_options else self.host


def hosts_of_call(options: Options) -> list[CallHost]:
    """Find among which hosts a call chooses; raise ConfigError as `load` does, or while a file is imported."""
    # The cheap test comes first, because most programs never load multiprocessing, and calls must be fast.
    if import_time.imported is not None or "multiprocessing.process" in sys.modules:
        import_time.reject_call()
    config = load()
    hosts, because = config.hosts_named(options.host)
    options = without_needs(options) if runs_locally() else options
    return [CallHost(config, host, because, options) for host in hosts]


def runs_locally() -> bool:
    """Whether $CLUSTERFN_LOCAL sends every call to this machine, for tests."""
    value = os.environ.get(LOCAL_VARIABLE)
    return value is not None and is_on(value)


def running(script: Path) -> None:
    """Let `load` look next to this file, as if Python had been started with it: for commands that run a file."""
    global running_file
    running_file = script


def load(start: Path | None = None) -> Config:
    """Read the configuration that holds in the folder `start` (the working directory), and for the running script.

    Raises:
        ConfigError: The file cannot be read, belongs to another user, has a mistake or another name.
    """
    if _configured is not None:
        return _configured
    path = places.file_of_variable() or places.find_file(start or Path.cwd(), running_file or places.running_script())
    return (Config({LOCAL.name: LOCAL}) if path is None else read(path)).obey()


def configure(content: Mapping[str, Any] | None) -> None:
    """Let `load` return this content of a clusterfn.yml from now on; None: the file again.

    Without `hosts`, the other keys change what the file says now.

    Raises:
        ConfigError: As `parse`; it names the key.
    """
    global _configured
    # Without `hosts`, the content changes what the file says, so `load` must read the file meanwhile.
    config, _configured = _configured, None
    try:
        config = None if content is None else _config_of(content)
    finally:
        _configured = config
    if config is not None:
        config.obey()


def _config_of(content: Mapping[str, Any]) -> Config:
    if "hosts" not in content:
        config = load()
        default = content.get("default_host")
        if default is not None:
            if default not in config.names:
                hint = f"write the name of a host ({', '.join(config.names)}), "
                hint += "or describe others with clusterfn.configure(hosts={…})"
                raise ConfigError(f"there is no host {default!r}{did_you_mean(default, config.names)}", hint=hint)
            config = replace(config, default_host=default, default_place=IN_PROCESS)
        return replace(config, quiet=bool(content.get("quiet")) or config.quiet)
    data = json.dumps(content, default=str, ensure_ascii=False).encode("utf-8", "replace")
    try:
        config = parse(data, Path.cwd() / IN_PROCESS)
    except ConfigError as error:
        # The line number belongs to the JSON text from above, which the user never sees, so remove it.
        problem = error.message.rpartition(f"{IN_PROCESS}:")[2].partition(": ")[2]
        raise ConfigError(f"{IN_PROCESS}: {problem}", hint=error.hint) from None
    hosts = {name: config.hosts[name]._replace(source=IN_PROCESS) for name in config.named}
    place = IN_PROCESS if config.default_place else ""
    return replace(config, hosts={**config.hosts, **hosts}, path=None, title=IN_PROCESS, default_place=place)


def read(path: Path) -> Config:
    """Read the configuration in this file.

    Raises:
        ConfigError: It cannot be read, has a mistake, or belongs to another user and the variable does not name it.
    """
    try:
        with path.open("rb") as file:
            # Check the opened file and not its path, because another user could replace the file between two looks.
            places.reject_others(path, os.fstat(file.fileno()))
            data = file.read(yamlfile.LIMIT_BYTES + 1)
    except OSError as error:
        hint = "check the path and its permissions"
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    return parse(data, path)


# Every call reads the file again, to see changes. Parsing would take longer than packing the call, so cache that.
@functools.lru_cache(maxsize=8)
def parse(data: bytes, path: Path) -> Config:
    """Parse the configuration in these bytes of `path`."""
    top = yamlfile.parse(data, str(path))
    _reject_passwords(top)
    _reject_misplaced_hosts(top, FILE_KEYS)
    keys = top.mapping(FILE_KEYS)
    named: dict[str, Host] = {}
    listed: dict[str, list[str]] = {}
    if below := keys.get("hosts"):
        # Called for its errors: it rejects a value that is no mapping, and a duplicate name.
        below.mapping()
        lists = {key.text: (key, value) for key, value in below.pairs if _ANY in [word.text for word, _ in value.pairs]}
        named = {key.text: _host(key, value, path.parent) for key, value in below.pairs if key.text not in lists}
        listed = {name: _list_of_hosts(*pair, {LOCAL.name, *named}) for name, pair in lists.items()}
    hosts = {LOCAL.name: LOCAL, **named}
    default = keys.get("default_host")
    if default is not None and default.as_text() not in {**hosts, **listed}:
        near = did_you_mean(default.text, [*hosts, *listed])
        hint = f"write the name of a host ({', '.join([*hosts, *listed])}), or describe {default.text} below `hosts:`"
        raise default.error(f'there is no host "{default.text}"{near}', hint)
    place = default.place if default else ""
    silent = "quiet" in keys and FILE_KEYS["quiet"].kind.read(keys["quiet"])
    hidden_notes = FILE_KEYS["notes"].kind.read(keys["notes"]) if "notes" in keys else ()
    chosen = default.text if default else None
    return Config(hosts, chosen, path, tuple(named), place, silent, str(path), hidden_notes, listed)


def _list_of_hosts(key: Value, value: Value, known: Collection[str]) -> list[str]:
    """Return the hosts of the list with the name `key`, which a call may name as it names a host.

    Raises:
        ConfigError: It has other keys, or a name in it is no host of the file.
    """
    _check_name(key)
    entry = value.mapping([_ANY], dict.fromkeys(HOST_KEYS, "write it below each host of the list"))[_ANY]
    if key.text == LOCAL.name or entry.kind != "list" or not entry.values:
        raise entry.error("expected a list of hosts", "write their names, as in lab: {any: [tensor01, tensor02]}")
    for member in entry.values:
        if member.as_text() not in known:
            problem = f'there is no host "{member.text}"{did_you_mean(member.text, known)}'
            raise member.error(problem, "name hosts that this file describes, and no lists of them")
    return [member.text for member in entry.values]


def _check_name(key: Value) -> None:
    if not HOST_NAME.fullmatch(key.as_text()):
        raise key.error(f'"{key.text}" cannot name a host', "use letters, digits, `.`, `-` and `_`")


def _host(key: Value, value: Value, folder: Path) -> Host:
    """Return the host named `key`; raise ConfigError if one of its keys is unknown, missing or wrong."""
    _check_name(key)
    name = key.text
    # Many programs take a host's address in this place.
    if value.kind == "str" and ADDRESS.fullmatch(value.text):
        is_scheduler = value.text in keys_by_scheduler()
        instead = f"scheduler: {value.text}" if is_scheduler else f"address: {value.text}, scheduler: …"
        raise value.error(f"expected keys, found {value.written}", f"write {name}: {{{instead}}}")
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
    making = {dotted.partition(".")[2]: facts.pop(dotted) for dotted in list(facts) if dotted.startswith("making.")}
    for of_path in ("environment", "ssh_config"):
        # The path is relative to the folder of clusterfn.yml, wherever the program runs.
        path = facts.get(of_path)
        if path and (of_path != "environment" or names_a_file(path)):
            try:
                facts[of_path] = str(folder / places.expanded(path))
            except ConfigError as error:
                raise keys.get(of_path, value).error(error.message, error.hint) from error
    _this_machine(keys, facts)
    _of_scheduler(keys, facts)
    return Host(**facts, making=EnvironmentSettings(**making))


def _for_call(host: Host, options: Options) -> Host:
    """Return the host as a call with options for its scheduler sees it.

    Raises:
        ConfigError: The options are for another scheduler, or they and `memory=` both set the memory.
    """
    for word in options.scheduler_options:
        if word != host.scheduler:
            message = (
                f"{word}= is for hosts with `scheduler: {word}`, and {host.name} has `scheduler: {host.scheduler}`"
            )
            raise ConfigError(message, host=host.name, hint=f"remove {word}=, or choose such a host")
    of_scheduler = options.scheduler_options.get(host.scheduler, {})
    if not of_scheduler:
        return host
    sets_memory = keys_by_scheduler()[host.scheduler].sets_memory
    called = host.with_scheduler_options(of_scheduler)
    if sets_memory({name: value for name, value in of_scheduler.items() if value is not None}) and options.memory_bytes:
        problem = f"memory= and {host.scheduler}= both set the memory"
        raise ConfigError(problem, host=host.name, hint="keep one of them")
    return called._replace(defaults=host.defaults._replace(memory_bytes=None)) if sets_memory(of_scheduler) else called


def _reject_passwords(value: Value) -> None:
    """Reject keys that hold a secret; their lines are not shown."""
    for key, below in value.pairs:
        word = key.text.lower()
        if (word.startswith("passw") or word in _PASSWORDS) and below.kind != "map":
            raise password_error(key, f"`{key.text}:` is {NEVER_READ}")
        # Variables of jobs may have any name, also one such as PASSWORD_FILE, whose value is no secret.
        if word != "env":
            _reject_passwords(below)


def _reject_misplaced_hosts(top: Value, top_keys: Collection[str]) -> None:
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
        schedulers = [name for name, own in keys_by_scheduler().items() if key in own.keys]
        if schedulers and word not in schedulers:
            such = " or ".join(f"`scheduler: {name}`" for name in schedulers)
            raise value.error(f"this key needs {such}, not {word}", f"set {such} for this host, or remove the key")
    if scheduler.limits and "limits" in keys:
        problem, why = scheduler.limits
        raise keys["limits"].error(problem, f"remove it; {why}")
    if scheduler.limits and "gpus" in keys:
        raise keys["gpus"].error(f"with `scheduler: {word}` the scheduler chooses the GPUs of a job", "remove it")
    if scheduler.limits and "queue_timeout" in keys:
        hint = "remove it; in a program, job.result(timeout=…) and job.cancel() limit a wait"
        raise keys["queue_timeout"].error(f"with `scheduler: {word}` the scheduler decides how long jobs wait", hint)
    if scheduler.limits and "spare" in keys:
        raise keys["spare"].error(f"with `scheduler: {word}` no process waits on the host between calls", "remove it")
    root, (characters, happens) = facts.get("root", ""), scheduler.misread
    if set(root) & set(characters):
        raise keys["root"].error(f'"{root}": {happens}', "choose a folder without these characters")
    defaults = facts.get("defaults", Resources())
    if defaults.memory_bytes is None and not scheduler.sets_memory(facts.get(OPTIONS, {})):
        facts["defaults"] = defaults._replace(memory_bytes=USUAL_MEMORY)
