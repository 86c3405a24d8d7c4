"""The keys of clusterfn.yml: how each is read, what editors check, and its row in docs/reference/configuration.md.

`python packaging/configuration.py` writes the tables of that page and the schema. A scheduler has its keys in its
folder of `clusterfn.scheduler`. No key is accepted that has no effect. The schema knows keys, words and units; other
mistakes are found when clusterfn reads the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterfn.config import value_kinds as kinds
from clusterfn.config.option_checks import HOST_NAME
from clusterfn.config.options import ALIASES, keywords
from clusterfn.config.scheduler_keys import keys_by_scheduler
from clusterfn.config.spec import DATA, Limits, Resources
from clusterfn.config.value_kinds import WRITTEN, Form, Key, Kind, form_of
from clusterfn.config.yamlfile import Value

_NAME: Form = {"type": "string", "pattern": f"^{HOST_NAME.pattern}$"}
_HOSTS: Form = {
    "type": "object",
    "propertyNames": {"pattern": _NAME["pattern"]},
    "additionalProperties": {
        "if": {"required": ["any"]},
        "then": {"$ref": "#/definitions/list"},
        "else": {"$ref": "#/definitions/host"},
    },
}

_LIST: Form = {
    "type": "object",
    "properties": {"any": {"type": "array", "items": _NAME, "minItems": 1}},
    "additionalProperties": False,
}

# What YAML reads as true and false.
_ON, _OFF = ("on", "true", "yes"), ("off", "false", "no")
_SWITCH = Kind(lambda value: value.as_choice((*_ON, *_OFF)) in _ON, {"enum": ["on", "off", True, False]})

# The keys at the left margin, with the attribute of Config that each becomes.
FILE_KEYS: Mapping[str, Key] = {
    "hosts": Key("hosts", Kind(Value.mapping, _HOSTS), "none", "",
        "a mapping: each host's own name (letters, digits, `.`, `-`, `_`) and its keys; or a name for "
        "[several hosts](../how-to/several-servers.md), as in `lab: {any: [tensor01, tensor02]}`"),
    "default_host": Key("default_host", Kind(Value.as_text, _NAME), "none", "",
        "the host of a call that does not name one"),
    "quiet": Key(
        "quiet", Kind(lambda value: value.as_choice(("true", "false")) == "true", {"type": "boolean"}), "`false`", "",
        "`true` hides progress, as described below; `$CLUSTERFN_QUIET` overrides it"),
    "notes": Key("notes", kinds.NOTES, "none", "",
        "`{hide: [ID, …]}`: [notes](notes.md) that clusterfn does not print"),
}  # fmt: skip

# The keys below `defaults:`, with the attribute of Resources that each becomes. `environment` becomes the host's own.
DEFAULT_KEYS: Mapping[str, Key] = {
    "cores": Key("cores", kinds.count(1), "`1`", "4", "processor cores"),
    "memory": Key("memory_bytes", kinds.MEMORY, "`4GB` on SLURM and Grid Engine, else no limit", '"16GB"',
        "memory of the whole job; 16GB is 16 · 2³⁰ bytes. clusterfn always sends it to SLURM, since many sites give "
        "a whole node to a job that asks for none"),
    "gpus": Key("gpus", kinds.count(0), "`0`", "1", "whole GPUs"),
    "gpu_memory": Key("gpu_memory_bytes", kinds.MEMORY, "any", '"24GB"',
        "minimum memory of each GPU, as advertised, for calls with GPUs"),
    "gpu_type": Key("gpu_type", kinds.GPU_TYPE, "any", "a6000",
        "words of each GPU's name, for calls with GPUs; with SLURM a type that `sinfo -o %G` shows"),
    "time": Key("time_s", kinds.TIME, "no limit", '"90min"',
        'time limit: `"90min"`, `"2h"`, `"2 hours"`, `"1d 12h"`, `"02:00:00"`, `"1-00:00:00"`'),
    "environment": Key("environment", kinds.ENVIRONMENT, "the host's", "venv:~/torch",
        "the same as `environment` of the host"),
}  # fmt: skip

# The keys below `limits:`, with the attribute of Limits that each becomes.
LIMIT_KEYS: Mapping[str, Key] = {
    "gpus": Key("gpus", kinds.count(0), "no limit", "4", "GPUs of all your running jobs together"),
    "cores": Key("cores", kinds.count(1), "no limit", "32", "cores of all your running jobs together"),
    "memory": Key("memory_bytes", kinds.MEMORY, "no limit", "200GB", "memory of all your running jobs together"),
    "jobs": Key("jobs", kinds.count(1), "no limit", "20", "your jobs that may run at a time"),
}

OF_CALLS = {word: f"it is an option of each call: write @cluster({word}=…)" for word in keywords()}
_INSTEAD_OF_DEFAULT = {word: f"the key is `{meant}:`" for word, meant in ALIASES.items()}


def _defaults(value: Value) -> Resources:
    beside = dict.fromkeys(HOST_KEYS, "write it below the host, beside `defaults:`")
    entries = value.mapping(DEFAULT_KEYS, {**OF_CALLS, **beside, **_INSTEAD_OF_DEFAULT})
    entries.pop("environment", None)
    return Resources(**_fields(entries, DEFAULT_KEYS))


def _fields(entries: Mapping[str, Value], keys: Mapping[str, Key]) -> dict[str, Any]:
    """Read the value of each key, by the attribute that it becomes."""
    return {keys[word].field: keys[word].kind.read(value) for word, value in entries.items()}


_DEFAULTS = Kind(_defaults, form_of(DEFAULT_KEYS))
_LIMITS = Kind(lambda value: Limits(**_fields(value.mapping(LIMIT_KEYS), LIMIT_KEYS)), form_of(LIMIT_KEYS))

# The keys of a host, with the attribute of Host that each becomes.
HOST_KEYS: Mapping[str, Key] = {
    "scheduler": Key("scheduler", kinds.choice(*keys_by_scheduler()), "required", "slurm",
        "; ".join(f"`{word}`: {scheduler.meaning}" for word, scheduler in keys_by_scheduler().items())
        + ". Case does not matter"),
    "address": Key("address", kinds.ADDRESS, "the host's own name", "ada@hpc.example.org:2222",
        "name, or alias of `~/.ssh/config`; `user@` and `:port` are allowed"),
    "transport": Key("transport", kinds.choice("auto", "paramiko", "openssh", "local"), "`auto`", "openssh",
        "`auto`: the system's ssh, or paramiko if there is none ([details](../how-to/ssh.md)). `paramiko`, "
        "`openssh`: always that one. `local`: for a scheduler on your own machine"),
    "ssh_config": Key("ssh_config", kinds.PATH, "ssh's own", "./ssh_config",
        "another ssh configuration; a relative path starts at the folder of clusterfn.yml"),
    "compress": Key("compress", _SWITCH, "`false`", "true",
        "`true`: ssh compresses the connection, as `ssh -C` does. This helps on a line slower than about 10 Mbit/s, "
        "and costs time on a faster one. `Compression yes` in your ssh configuration does the same"),
    "root": Key("root", kinds.ROOT, "`~/.clusterfn`", "$SCRATCH/clusterfn",
        "folder on the host for all files of clusterfn; the host expands `~` and variables. On SLURM all nodes must "
        "see it, and it may not contain `%` or `\\`. If hosts share a home directory, give hosts of the same SLURM "
        "the same root, and a machine without SLURM another one"),
    "owners": Key("owners", kinds.OWNERS, "none", "[lab]",
        "users and groups of the host that you trust, in addition to yourself and root. clusterfn rejects a `root` "
        "or `env_root`, and environments in it, that anybody else owns or can replace. It also rejects a home "
        "directory of mode 0775, unless its group has your user name and no other members. If clusterfn rejects your "
        "home directory, run `chmod g-w ~`, or name the group in this key. If a service account owns a folder above "
        "the root, name that account"),
    "python": Key("python", kinds.PATH, "found", "/usr/bin/python3",
        "the host's interpreter for clusterfn's own part, 3.6 or newer; not the one that runs your functions"),
    "environment": Key("environment", kinds.ENVIRONMENT,
        "the host's Python of your minor version if it has what the function imports; otherwise clusterfn builds an "
        "environment for those imports", "conda:torch",
        "interpreter that runs your functions: `python:`, `venv:` or `prefix:` with a path, `conda:` [with a "
        "name](../how-to/environments.md#use-a-conda-environment-that-the-host-has), `apptainer:` or another "
        "[container](../how-to/containers.md) with an image, or `current` on `local`. Or a "
        "file such as `environment.yml`, from which clusterfn [builds](../how-to/environments.md) it. The file's "
        "path is relative to the folder of clusterfn.yml"),
    "binds": Key("binds", kinds.BINDS, "none", "[/data, /scratch:/mnt]",
        "folders that a [container](../how-to/containers.md) sees, in addition to `root`, the home directory and "
        "`/tmp`: `FOLDER`, or `FOLDER:FOLDER_IN_THE_IMAGE`"),
    "container": Key("container", kinds.CONTAINER, "none", '[shifter, "--image={image}"]',
        "the words that run a program in an image, for `environment: container:IMAGE`; clusterfn replaces `{image}`, "
        "and adds `python3` with its arguments"),
    "defaults": Key("defaults", _DEFAULTS, "see below", "{gpus: 1}", "what a call asks for if it does not say"),
    "setup": Key("setup", kinds.LINES, "none", "ulimit -n 4096",
        "shell lines at the start of every job's script (POSIX sh), as a list or a block. A line that fails ends the "
        "job before your function starts, with the line in the error; end it with `|| true` if it may fail. To "
        "activate an environment, use `environment:` instead"),
    "modules": Key("modules", kinds.MODULES, "none", "[gcc/12, cuda/12.4]",
        "environment modules, loaded in this order after `setup`; if one is missing, the job ends and the error "
        "names it"),
    "prolog": Key("prolog", kinds.LINES, "none", "nvidia-smi -L",
        "shell lines after the modules, before Python; one that fails ends the job, as in `setup`"),
    "env": Key("env", kinds.ENV, "none", "{OMP_NUM_THREADS: 4}",
        "variables of every job, with their values as they are written. clusterfn rejects `$HOME/x` and `~/x`, unless "
        "they are in single quotes; a shell expands `export NAME=\"$HOME/x\"` in `setup`. Do not put secrets here, "
        "since they stay in this file and on the host; use `secrets=`"),
    "secrets": Key("secrets", kinds.SECRETS, "none", "[HF_TOKEN, WANDB_*]",
        "names of variables whose values every job on this host gets if they are set in your environment; one may "
        "end with `*`. `env=` of a call takes precedence. The values are never in this file. clusterfn masks them as "
        "it does those of [`secrets=`](api.md#cluster-cluster). Of the variables that a `*` finds, it masks those "
        "whose names contain KEY, TOKEN, SECRET, PASS, CRED or AUTH"),
    "notify": Key("notify", kinds.NOTIFY, "none", "{command: mail -s done ada@example.edu, after: 1h}",
        "the command that the host runs to [notify you when a job ends]"
        "(../how-to/follow-jobs.md#get-notified-when-it-ends-notify). `after` (`10min`) leaves out jobs that took "
        "less. `notify=` of a call takes precedence"),
    "gpus": Key("gpus_only", kinds.GPUS, "all", "{only: [3]}",
        "the only GPUs that your jobs may get, by the numbers or the UUIDs that `nvidia-smi -L` shows "
        "([details](../how-to/gpu-server.md#which-gpu-a-job-gets-and-cuda_visible_devices)). Only without a scheduler"),
    "limits": Key("limits", _LIMITS, "none", "{gpus: 4, cores: 32, memory: 200GB, jobs: 20}",
        "how much of the machine all your running jobs may take together; your other jobs "
        "[wait](../how-to/gpu-server.md#limit-what-your-own-jobs-take). You may allow more cores than the machine "
        "has. Only without a scheduler: SLURM and Grid Engine set their own limits"),
    "spare": Key("spare", _SWITCH, "`on`", "off",
        "`off`: no process waits on the host for your next call, which then takes longer "
        "([details](../how-to/many-calls.md#single-calls-in-a-row)). Only without a scheduler"),
    "poll_floor": Key("poll_floor_s", kinds.TIME, "`2s`", "30s",
        "shortest interval between two queries to the scheduler"),
    "queue_timeout": Key("queue_timeout_s", kinds.TIME, "none", "2h",
        "longest time that a job may wait for its turn. Only without a scheduler"),
    "login_ttl": Key("login_ttl_s", kinds.TIME, "`8h`", "1d", "how long `clusterfn login` keeps an idle connection"),
    "results": Key("results", kinds.choice("objects", DATA), "`objects`", "data",
        "what clusterfn accepts from the host: `data` loads only [plain data](../how-to/untrusted-hosts.md), so no "
        "code of the host runs on your machine"),
    "max_result": Key("max_result_bytes", kinds.MEMORY, "no limit", "2GB",
        "clusterfn asks before it fetches a larger value"),
    "keep": Key("keep_days", kinds.DAYS, "`14d`", "90d",
        "minimum time that clusterfn keeps the files of a finished job on the host; a changed value applies to later "
        "jobs"),
    "env_root": Key("making.root", kinds.ROOT, "`root`", "/group/ab12/clusterfn",
        "folder for environments that clusterfn builds on the host, and for their packages. clusterfn removes none of "
        "them by itself"),
    "env_python": Key("making.python", kinds.ENV_PYTHON, "`standalone`", "/usr/bin/python3.11",
        "where the Python of environments from [project "
        "files](../how-to/environments.md#choose-where-python-comes-from) comes from: `standalone`, `host`, or the "
        "path of an interpreter of the host"),
    "fetch_on": Key("making.fetch_on", kinds.choice("auto", "host", "client"), "`auto`", "client",
        "who fetches packages: `host`; `client` (clusterfn sends them); `auto`: the host if it can"),
    "build_on": Key("making.build_on", kinds.choice("host", "node"), "`host`", "node",
        "`host`: build environments on the machine that ssh reaches. `node`: in the job that needs it"),
    "build_timeout": Key("making.timeout_s", kinds.TIME, "`20min`", "1h",
        "a build ends with EnvironmentBuildError if activation takes longer, or a program "
        "of the build does nothing for that long"),
    "purge_days": Key("making.purge_days", kinds.DAYS, "never", "30d",
        "the file system deletes files that were not read for this long: clusterfn looks for missing files of "
        "environments and restores them"),
    **{word: key for scheduler in keys_by_scheduler().values() for word, key in scheduler.keys.items()},
}  # fmt: skip


def file_schema() -> Form:
    """Return the schema of a whole file."""
    by_gpu = {"type": "object", "additionalProperties": False, "properties": {"cpu": WRITTEN, "gpu": WRITTEN}}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "clusterfn.yml",
        **form_of(FILE_KEYS),
        "definitions": {"host": _host(), "list": _LIST, "by_gpu": by_gpu},
    }


def _host() -> Form:
    rules = []
    of_schedulers = {key for scheduler in keys_by_scheduler().values() for key in scheduler.keys}
    for word, scheduler in keys_by_scheduler().items():
        of_a_machine = {"limits", "gpus", "spare", "queue_timeout"} if scheduler.limits else set()
        not_obeyed = (of_schedulers - scheduler.keys.keys()) | of_a_machine
        chosen = {"properties": {"scheduler": {"const": word}}, "required": ["scheduler"]}
        rules.append({"if": chosen, "then": {"properties": dict.fromkeys(sorted(not_obeyed), False)}})
    return {**form_of(HOST_KEYS), "required": ["scheduler"], "allOf": rules}
