"""Choose a host's lines of clusterfn.yml from what the host offers; ask the person where there is a choice.

Asks the person, never the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clusterfn.cli import screen
from clusterfn.cli.init.answers import Answers, say
from clusterfn.errors import ConfigError
from clusterfn.hosts.survey import Partition, Site, Volume
from clusterfn.scheduler.grid_engine import GridEngineSite

FOLDER = ".clusterfn"
_HOME = "$HOME"


@dataclass(frozen=True)
class Given:
    """What was answered on the command line; None where it was not."""

    scheduler: str | None = None
    root: str | None = None
    partition: str | None = None
    gpu_partition: str | None = None
    account: str | None = None


def keys(
    site: Site, user: str, given: Given, answers: Answers, try_root: Callable[[str], object] = len
) -> dict[str, Any]:
    """Return the host's lines, without its address and its environment.

    Args:
        user: The name of the account on the host.
        try_root: Raises ConfigError where a folder cannot be made on the host.

    Raises:
        ConfigError: An answer does not fit the host.
    """
    scheduler = given.scheduler or site.scheduler
    if scheduler == "slurm" and site.partitions is None:
        raise ConfigError("there is no SLURM on that host: sinfo is not there", hint="leave --scheduler out")
    if scheduler == "grid_engine" and site.grid_engine is None:
        raise ConfigError("there is no Grid Engine on that host: qconf is not there", hint="leave --scheduler out")
    lines = {"scheduler": scheduler, "root": given.root or _root(site, user, answers, try_root)}
    if scheduler == "grid_engine" and site.grid_engine is not None:
        options = {**_queue(given), **site.grid_engine.settings()}
    else:
        options = _options(site, given, answers) if scheduler == "slurm" else {}
    return {**lines, scheduler: options} if options else lines


def _queue(given: Given) -> dict[str, Any]:
    """Grid Engine itself takes one that has room."""
    if given.gpu_partition:
        return {"queue": {**({"cpu": given.partition} if given.partition else {}), "gpu": given.gpu_partition}}
    return {"queue": given.partition} if given.partition else {}


def _root(site: Site, user: str, answers: Answers, try_root: Callable[[str], object]) -> str:
    def check(text: str) -> None:
        if not text.startswith(("/", "~", "$")):
            raise ConfigError(f"{text!r} is not an absolute path", hint="begin it with /, ~/ or a variable")
        try_root(text)

    proposed = site.proposed_root()
    if proposed is None:
        say("No folder was found there that you may write to, with room in it.")
        return answers.text("Folder for jobs, results and your code", "--root", check=check)
    path = folder(proposed[0], user)
    say(f"Jobs, results and your code are to lie in {path}: {proposed[1]}")
    return answers.text("Folder for them", "--root", path, check)


def folder(volume: Volume, user: str) -> str:
    """Return our folder in a volume, by its path: jobs may lack the variable that named it.

    In a folder that is not the user's alone, it is in a folder of the user's name.
    """
    if volume.name == _HOME:
        return f"~/{FOLDER}"
    base = volume.name if volume.name.startswith("/") else volume.path
    own = user in base.split("/")
    return "/".join([base.rstrip("/"), *([] if own else [user]), FOLDER])


def _options(site: Site, given: Given, answers: Answers) -> dict[str, Any]:
    """Options of sbatch, where SLURM itself would not choose as wanted."""
    options: dict[str, Any] = {}
    accounts = sorted({each.name for each in site.accounts})
    if given.account:
        options["account"] = given.account
    elif len(accounts) > 1:  # SLURM takes the only one by itself
        options["account"] = answers.one_of("Which account pays", "--account", accounts, accounts[0])
    usable = [each for each in site.partitions or () if each.state == "up"]
    cpu, default = _cpu_partition(usable, given, answers)
    gpu = given.gpu_partition or _gpu_partition(usable, cpu, answers)
    if gpu and gpu != cpu:
        options["partition"] = {"cpu": cpu, "gpu": gpu} if cpu else {"gpu": gpu}
    elif cpu and not default:
        options["partition"] = cpu
    return options


def _cpu_partition(usable: Sequence[Partition], given: Given, answers: Answers) -> tuple[str | None, bool]:
    """Return the partition's name, and whether SLURM would take it by itself."""
    default = next((each.name for each in usable if each.default), None)
    if given.partition:
        return given.partition, given.partition == default
    if default or not usable:
        return default, True
    names = [each.name for each in usable]
    if len(names) == 1:
        return names[0], False
    return answers.one_of("Which partition, as none is SLURM's default", "--partition", names, names[0]), False


def _gpu_partition(usable: Sequence[Partition], cpu: str | None, answers: Answers) -> str | None:
    names = [each.name for each in usable if "gpu" in each.gres]
    if not names or cpu in names:
        return None
    if len(names) == 1:
        return names[0]
    return answers.one_of("Which partition for jobs with cards", "--gpu-partition", names, names[0])


def suggestion(site: Site) -> str:
    """Return a line for a server with GPUs: most people who call a function there want to use one."""
    has_gpus = site.cards is not None and bool(site.cards.names)
    return "defaults: {gpus: 1}  # gives each call a GPU, unless it says gpus=0" if has_gpus else ""


def say_site(site: Site) -> None:
    """Print what was found, a line for each thing."""
    lines = _scheduler_lines(site)
    lines += [f"{each.name} ({each.path}, {each.kind}): {_room(each)}" for each in site.volumes]
    if site.cards is not None and site.cards.trouble:
        lines.append(f"nvidia-smi fails: {site.cards.trouble}")
    elif site.cards is not None:
        names, memory = site.cards.names, screen.size(site.cards.memory_bytes)
        lines.append(f"{len(names)} x {', '.join(sorted(set(names)))}, {memory}; driver {site.cards.driver}")
    for line in lines:
        say(f"  {line}")


def _scheduler_lines(site: Site) -> list[str]:
    if site.partitions is None and site.grid_engine is not None:
        return [_grid_engine_line(site.grid_engine)]
    if site.partitions is None:
        return ["no SLURM: jobs wait their turn for cores, memory and cards in clusterfn's own queue"]
    if site.trouble:
        return [f"SLURM, and sinfo fails: {site.trouble}"]
    lines = [f"SLURM with {len(site.partitions)} partitions (* is the default):"]
    for each in site.partitions:
        name, gres = f"{each.name}{'*' if each.default else ''}", f", {each.gres}" if "gpu" in each.gres else ""
        lines.append(f"  {name}  {each.state}, limit {each.time_limit}, {each.nodes} nodes{gres}")
    accounts = sorted({each.name for each in site.accounts})
    return [*lines, f"accounts of yours: {', '.join(accounts)}"] if accounts else lines


def _grid_engine_line(found: GridEngineSite) -> str:
    if found.trouble:
        return f"Grid Engine, and qconf fails: {found.trouble}"
    environments = f"; parallel environments: {', '.join(found.environments)}" if found.environments else ""
    return f"Grid Engine with {len(found.queues)} queues: {', '.join(found.queues)}{environments}"


def _room(volume: Volume) -> str:
    words = [f"{screen.size(volume.free_bytes)} free" if volume.free_bytes is not None else "free space unknown"]
    if volume.quota_bytes is not None:
        words.append(f"{screen.size(volume.quota_bytes)} left of your quota")
    words += [f"room for {volume.room_files:,} files"] if volume.room_files is not None else []
    words += ["not writable"] if not volume.writable else []
    words += ["programs cannot be started there"] if volume.noexec else []
    return ", ".join(words)
