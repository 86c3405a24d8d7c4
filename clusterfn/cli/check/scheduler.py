"""Steps of `check`: SLURM's partitions and accounts, or the machine's own queue; its GPUs; logind."""

from __future__ import annotations

from collections.abc import Sequence

from clusterfn.cli.check.step import CheckState, StepFailed, StepSkipped, StepWarning
from clusterfn.config.options import did_you_mean
from clusterfn.hosts.survey import Partition, SurveyedGpus


def scheduler(found: CheckState) -> str:
    if found.host.scheduler == "grid_engine":
        return _grid_engine(found)
    if found.host.scheduler != "slurm":
        return _none(found)
    partitions = found.site.partitions
    if partitions is None:
        hint = f"set address: of {found.place} to the login node of the cluster, where sinfo works without loading "
        hint += "a module; for a machine without a queue: scheduler: bare"
        raise StepFailed(f"there is no sinfo on {found.name}", hint)
    if found.site.trouble:
        hint = f"log in and see what sinfo prints; is {found.place} the login node?"
        raise StepFailed("sinfo does not answer", hint, found.site.trouble.splitlines())
    _check_usable(found, {each.name: each for each in partitions})
    return "\n".join([f"SLURM with {len(partitions)} partitions (* is the default):", *map(_row, partitions)])


def _grid_engine(found: CheckState) -> str:
    site = found.site.grid_engine
    if site is None:
        hint = f"set address: of {found.place} to a host from which qsub works without loading a module"
        raise StepFailed(f"there is no qconf on {found.name}", hint)
    if site.trouble:
        raise StepFailed("qconf does not answer", "log in and see what `qconf -sql` prints", site.trouble.splitlines())
    given = found.host.scheduler_options
    queue = given.get("queue")
    queues = list(queue.values()) if isinstance(queue, dict) else [queue] if queue else []
    _check_named("queue", [name.partition("@")[0] for name in queues], site.queues, found)
    _check_named("parallel_environment", [given.get("parallel_environment")], site.environments, found)
    resources = [given.get("memory"), given.get("gpus"), *given.get("resources", {})]
    _check_named("resource", resources, list(site.resources or ()), found)
    return f"Grid Engine with {len(site.queues)} queues: {', '.join(site.queues)}"


def _check_named(what: str, wanted: Sequence[str | None], known: Sequence[str], found: CheckState) -> None:
    """What the configuration names must be there."""
    for name in wanted:
        if name is not None and name not in known:
            hint = f"correct grid_engine: of {found.place}"
            raise StepFailed(f"there is no {what} {name}{did_you_mean(name, list(known))}", hint, sorted(known))


def _none(found: CheckState) -> str:
    if found.host.scheduler == "bare" and found.site.partitions is not None:
        hint = f"write scheduler: slurm for {found.place}, unless this machine is yours to compute on"
        raise StepWarning("sinfo is here: is this a login node? then scheduler: slurm", hint)
    if found.host.scheduler == "bare" and found.site.grid_engine is not None:
        hint = f"write scheduler: grid_engine for {found.place}, unless this machine is yours to compute on"
        raise StepWarning("qconf is here: is this a login node? then scheduler: grid_engine", hint)
    if not found.session.connection.facts.platform.startswith("linux"):
        return "none: a job starts at once"
    _, waiting = found.jobs
    yours = f"{waiting or 'none'} of your jobs {'waits' if waiting == 1 else 'wait'} now"
    return f"clusterfn's own queue: jobs wait their turn for cores, memory and GPUs; {yours}"


def _row(each: Partition) -> str:
    star = "*" if each.default else ""
    return f"{each.name}{star}  {each.state}, limit {each.time_limit}, nodes {each.nodes}, {each.gres}"


def _check_usable(found: CheckState, known: dict[str, Partition]) -> None:
    """What the configuration chooses, or SLURM without it, must be there and up; of "a,b" SLURM takes one that is."""
    wanted = found.host.scheduler_options.get("partition")
    chosen = list(wanted.values()) if isinstance(wanted, dict) else [wanted] if wanted else []
    for group in chosen or [each.name for each in known.values() if each.default]:
        names = [name for name in str(group or "").split(",") if name]
        hint = f"correct slurm: partition: of {found.place}"
        for name in names:
            if name not in known:
                raise StepFailed(f"there is no partition {name}{did_you_mean(name, list(known))}", hint, sorted(known))
        if names and all(known[name].state != "up" for name in names):
            usable = ", ".join(each.name for each in known.values() if each.state == "up") or "none"
            hint = f"ask the administrator, or {hint}; those that are up: {usable}"
            raise StepFailed("; ".join(f"the partition {name} is {known[name].state}" for name in names), hint)


def account(found: CheckState) -> str:
    if found.host.scheduler == "grid_engine":
        raise StepSkipped("Grid Engine charges the project that clusterfn.yml names, or your default one")
    if found.host.scheduler != "slurm":
        raise StepSkipped("without a queue no account is charged")
    accounts = found.site.accounts
    if not accounts:
        raise StepSkipped("SLURM does not say which accounts you may use")
    wanted, qos = found.host.scheduler_options.get("account"), found.host.scheduler_options.get("qos")
    _check_among("account", wanted, [each.name for each in accounts], found)
    mine = [each for each in accounts if wanted in (None, each.name)]
    _check_among("qos", qos, [name for each in mine for name in each.qos], found)
    rows = [f"{each.name}  {each.partition or 'any'}  {', '.join(each.qos) or 'default'}" for each in accounts]
    return "\n".join(["you may be charged to (account, partition, QOS):", *rows])


def _check_among(option: str, wanted: object, known: list[str], found: CheckState) -> None:
    if wanted is None or not known or str(wanted) in known:
        return
    names = list(dict.fromkeys(known))
    near = did_you_mean(str(wanted), names)
    hint = f"set `slurm: {option}:` of {found.place} to one of {', '.join(names)}"
    raise StepFailed(f"SLURM lets you use no {option} {wanted}{near}", hint)


_MISMATCH = "version mismatch"
_RELOAD = (
    "the driver was updated while the old one runs: ask the administrator for a restart (`sudo reboot`), or, with "
    "nothing on the cards, `sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia`"
)
_HANGS = (
    "a card may have fallen off the bus: log in, see `nvidia-smi` and `sudo dmesg | grep -i xid`; it needs a restart"
)
_NO_DRIVER = "the driver is not loaded: ask the administrator for `sudo modprobe nvidia`; `dmesg` says why it is not"
_OTHER = "log in and run nvidia-smi; ask the administrator"


def gpus(found: CheckState) -> str:
    if found.has_nodes:
        raise StepSkipped("on the nodes, see scheduler")
    cards = found.site.cards
    if cards is None:
        raise StepSkipped("there is no nvidia-smi: gpus=0 only")
    if cards.trouble:
        raise StepFailed("nvidia-smi fails", _mend(found, cards.trouble), cards.trouble.splitlines())
    return _described(cards)


def _mend(found: CheckState, trouble: str) -> str:
    if "cards" in found.site.silent:
        return _HANGS
    if _MISMATCH in trouble:
        return _RELOAD
    return _NO_DRIVER if "communicate with the NVIDIA driver" in trouble else _OTHER


def _described(cards: SurveyedGpus) -> str:
    kinds = "; ".join(dict.fromkeys(cards.names))
    capable = f", compute capability {', '.join(sorted(set(cards.capabilities)))}" if cards.capabilities else ""
    return f"{len(cards.names)} x {kinds}, {cards.memory_bytes // 2**20} MiB{capable}; driver {cards.driver}"


def lingering(found: CheckState) -> str:
    if found.has_nodes:
        raise StepSkipped("jobs run on the nodes")
    if found.site.lingering is False:
        user = found.session.connection.facts.user
        hint = (
            f"ask the administrator for `KillExcludeUsers={user}` or `KillUserProcesses=no` in /etc/systemd/logind.conf"
        )
        raise StepWarning("logind ends all your processes there when you log out, jobs too", hint)
    return "jobs live on when you log out" if found.site.lingering else "logind does not watch over what runs there"
