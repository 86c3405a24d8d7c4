"""The keys that a scheduler adds to a host in clusterfn.yml.

Each scheduler has its own `SchedulerKeys` in its folder of `clusterfn.scheduler`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from clusterfn.bridge.schedulers.registry import SCHEDULERS
from clusterfn.config import value_kinds as kinds
from clusterfn.config.value_kinds import WRITTEN, Form, Key, Kind
from clusterfn.config.yamlfile import Value

# The form of a word or a number, or of a mapping with one for jobs with GPUs and one for jobs without.
BY_GPU: Form = {"anyOf": [WRITTEN, {"$ref": "#/definitions/by_gpu"}]}
OPTIONS = "scheduler_options"


class SchedulerKeys(NamedTuple):
    """What a host with one scheduler may have in addition to the keys of every host, and what it may not.

    Attributes:
        meaning: Where its jobs run, as docs/reference/configuration.md says it of the word.
        keys: The keys that it obeys. One of them, with the scheduler's own name, becomes `Host.scheduler_options`.
        written_beside: Words below that key that people write next to it.
        limits: Why such a host has no `limits:`, and where its limits are set; None if it obeys them.
        misread: Characters that a path cannot have, and what the scheduler makes of them.
        sets_memory: Whether these options decide about the memory of a job that does not ask for any; else it asks
            for the usual amount.
        restarts: Whether these options let it start a job again by itself; None if none does.
        of_call: Checks what a call says with an argument of the scheduler's own name; None where it cannot.
    """

    meaning: str = ""
    keys: Mapping[str, Key] = {}
    written_beside: tuple[str, ...] = ()
    limits: tuple[str, str] | None = None
    misread: tuple[str, str] = ("", "")
    sets_memory: Callable[[Mapping[str, Any]], bool] = lambda options: True
    restarts: Callable[[Mapping[str, Any]], bool] | None = None
    of_call: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None


@functools.cache
def keys_by_scheduler() -> Mapping[str, SchedulerKeys]:
    """Return what each word of `scheduler:` means for the other keys of its host."""
    return {
        "bare": SchedulerKeys("jobs are processes on the host"),
        **{word: scheduler.import_part(scheduler.keys) for word, scheduler in SCHEDULERS.items()},
        "local": SchedulerKeys("your own machine"),
    }


def _folders(value: Value) -> tuple[str, ...]:
    folders = value.as_lines()
    for folder in folders:
        if ":" in folder:
            listed = ", ".join(folder.split(":"))
            raise value.error(f'"{folder}" is several folders in one text', f"write a list: [{listed}]")
        if not folder.startswith(("/", "~/")):
            raise value.error(f'"{folder}" is not an absolute path', "write a folder, or a list: [/opt/slurm/bin]")
    return folders


def _variables_of_commands(value: Value) -> dict[str, str]:
    for key, _ in value.pairs:
        if key.text == "PATH":
            raise key.error("PATH is that of the host", "write `scheduler_path:` with the folders that come first")
        for word, scheduler in SCHEDULERS.items():
            # A "!" before a prefix excepts those variables: they say where
            # the scheduler is, and clusterfn passes them on.
            exceptions = [prefix[1:] for prefix in scheduler.obeyed if prefix.startswith("!")]
            if key.text.startswith(scheduler.obeyed) and not key.text.startswith(tuple(exceptions)):
                raise key.error(f"clusterfn does not pass {key.text} on", f"write the option itself below `{word}:`")
    return kinds.read_variables(value, "write the whole path or value")


# The keys of every scheduler with nodes.
BATCH_JOBS: Mapping[str, Key] = {
    "scheduler_path": Key("scheduler_path", Kind(_folders, kinds.LINES.form), "none", "[/opt/slurm/bin]",
        "folders on the host that have the [scheduler's commands](../how-to/slurm.md#where-slurms-commands-are); "
        "they come first in PATH on the login node, and last in jobs. `clusterfn init` writes it; only with SLURM "
        "and Grid Engine"),
    "scheduler_env": Key(
        "scheduler_env", Kind(_variables_of_commands, kinds.VARIABLES), "none", "{SLURM_CONF: /etc/slurm/a.conf}",
        "variables that these commands need on the login node, such as SLURM_CONF or SGE_ROOT; jobs do not get them. "
        "Only with SLURM and Grid Engine"),
}  # fmt: skip
