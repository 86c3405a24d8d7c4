"""From what a host offers to the lines of clusterfn.yml: proposed with a reason, asked about where there is a choice.

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
    """The lines of the host, but for its address and its environment.

    Args:
        user: The name of the account there.
        try_root: Raises ConfigError where a folder cannot be made there.

    Raises:
        ConfigError: An answer does not fit the host.
    """
    scheduler = given.scheduler or site.scheduler
    if scheduler == "slurm" and site.partitions is None:
        raise ConfigError("there is no SLURM on that host: sinfo is not there", hint="leave --scheduler out")
    lines = {"scheduler": scheduler, "root": given.root or _root(site, user, answers, try_root)}
    options = _options(site, given, answers) if scheduler == "slurm" else {}
    return {**lines, "slurm": options} if options else lines


def _root(site: Site, user: str, answers: Answers, try_root: Callable[[str], object]) -> str:
    def check(text: str) -> None:
        _check_root(text)
        try_root(text)

    proposed = site.proposed_root()
    if proposed is None:
        say("No folder was found there that you may write to, with room in it.")
        return answers.text("Folder for jobs, results and your code", "--root", check=check)
    path = folder(proposed[0], user)
    say(f"Jobs, results and your code are to lie in {path}: {proposed[1]}")
    return answers.text("Folder for them", "--root", path, check)


def folder(volume: Volume, user: str) -> str:
    """Our folder in a volume, as clusterfn.yml writes it: by its path, for jobs may lack the variable that named it.

    In a folder that is not the user's alone it lies in one of his name.
    """
    if volume.name == _HOME:
        return f"~/{FOLDER}"
    base = volume.name if volume.name.startswith("/") else volume.path
    own = user in base.split("/")
    return "/".join([base.rstrip("/"), *([] if own else [user]), FOLDER])


def _check_root(text: str) -> None:
    if not text.startswith(("/", "~", "$")):
        raise ConfigError(f"{text!r} is not an absolute path", hint="begin it with /, ~/ or a variable")


def _options(site: Site, given: Given, answers: Answers) -> dict[str, Any]:
    """Options of sbatch, where SLURM itself would not choose as wanted."""
    options: dict[str, Any] = {}
    account = given.account or _account(site, answers)
    partition = _partition(site, given, answers)
    if account:
        options["account"] = account
    if partition:
        options["partition"] = partition
    return options


def _account(site: Site, answers: Answers) -> str | None:
    names = sorted({each.name for each in site.accounts})
    if len(names) < 2:
        return None  # SLURM takes the only one by itself
    return answers.one_of("Which account pays", "--account", names, names[0])


def _partition(site: Site, given: Given, answers: Answers) -> Any:
    """Names for jobs without and with cards; None where SLURM's own default does."""
    usable = [each for each in site.partitions or () if each.state == "up"]
    cpu, default = _cpu_partition(usable, given, answers)
    gpu = given.gpu_partition or _gpu_partition(usable, cpu, answers)
    if gpu and gpu != cpu:
        return {"cpu": cpu, "gpu": gpu} if cpu else {"gpu": gpu}
    return None if default else cpu


def _cpu_partition(usable: Sequence[Partition], given: Given, answers: Answers) -> tuple[str | None, bool]:
    """Its name, and whether SLURM would take it by itself."""
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
    """A line that a server with GPUs may want: most people who call a function there mean to use one."""
    has_gpus = site.cards is not None and bool(site.cards.names)
    return "defaults: {gpus: 1}  # gives each call a GPU, unless it says gpus=0" if has_gpus else ""


def say_site(site: Site) -> None:
    """What was found, a line for each thing."""
    for line in [*_scheduler_lines(site), *_volume_lines(site), *_card_lines(site)]:
        say(f"  {line}")


def _scheduler_lines(site: Site) -> list[str]:
    if site.partitions is None:
        return ["no SLURM: jobs wait their turn for cores, memory and cards in clusterfn's own queue"]
    if site.trouble:
        return [f"SLURM, and sinfo fails: {site.trouble}"]
    lines = [f"SLURM with {len(site.partitions)} partitions (* is the default):"]
    lines += [f"  {_partition_line(each)}" for each in site.partitions]
    accounts = sorted({each.name for each in site.accounts})
    return [*lines, f"accounts of yours: {', '.join(accounts)}"] if accounts else lines


def _partition_line(each: Partition) -> str:
    cards = f", {each.gres}" if "gpu" in each.gres else ""
    return f"{each.name}{'*' if each.default else ''}  {each.state}, limit {each.time_limit}, {each.nodes} nodes{cards}"


def _volume_lines(site: Site) -> list[str]:
    return [f"{each.name} ({each.path}, {each.kind}): {_room(each)}" for each in site.volumes]


def _room(volume: Volume) -> str:
    words = [f"{screen.size(volume.free_bytes)} free" if volume.free_bytes is not None else "free space unknown"]
    if volume.quota_bytes is not None:
        words.append(f"{screen.size(volume.quota_bytes)} left of your quota")
    words += [f"room for {volume.room_files:,} files"] if volume.room_files is not None else []
    words += ["not writable"] if not volume.writable else []
    words += ["programs cannot be started there"] if volume.noexec else []
    return ", ".join(words)


def _card_lines(site: Site) -> list[str]:
    if site.cards is None:
        return []
    if site.cards.trouble:
        return [f"nvidia-smi fails: {site.cards.trouble}"]
    kinds = ", ".join(sorted(set(site.cards.names)))
    return [f"{len(site.cards.names)} x {kinds}, {screen.size(site.cards.memory_bytes)}; driver {site.cards.driver}"]
