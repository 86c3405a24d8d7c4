"""The queue: SLURM as the configuration wants it (partitions, account and QOS to be charged), or the machine's own."""

from __future__ import annotations

from clusterfn.cli.steps.found import Failed, Found, Skipped, Warned
from clusterfn.config.spec import did_you_mean
from clusterfn.hosts.survey import Account, Partition


def scheduler(found: Found) -> str:
    if found.host.scheduler != "slurm":
        return _none(found)
    partitions = found.site.partitions
    if partitions is None:
        hint = f"set address: of {found.place} to the login node of the cluster, where sinfo works without loading "
        hint += "a module; for a machine without a queue: scheduler: bare"
        raise Failed(f"there is no sinfo on {found.name}", hint)
    if found.site.trouble:
        hint = f"log in and see what sinfo prints; is {found.place} the login node?"
        raise Failed("sinfo does not answer", hint, found.site.trouble.splitlines())
    _check_usable(found, {each.name: each for each in partitions})
    return "\n".join([f"SLURM with {len(partitions)} partitions (* is the default):", *map(_row, partitions)])


def _none(found: Found) -> str:
    if found.host.scheduler == "bare" and found.site.partitions is not None:
        hint = f"write scheduler: slurm for {found.place}, unless this machine is yours to compute on"
        raise Warned("sinfo is here: is this a login node? then scheduler: slurm", hint)
    if not found.session.connection.facts.platform.startswith("linux"):
        return "none: a job starts at once"
    _, waiting = found.jobs
    yours = f"{waiting or 'none'} of your jobs {'waits' if waiting == 1 else 'wait'} now"
    return f"clusterfn's own queue: jobs wait their turn for cores, memory and GPUs; {yours}"


def _row(each: Partition) -> str:
    star = "*" if each.default else ""
    return f"{each.name}{star}  {each.state}, limit {each.time_limit}, nodes {each.nodes}, {each.gres}"


def _check_usable(found: Found, known: dict[str, Partition]) -> None:
    """What the configuration chooses, or SLURM without it, must be there and up; of "a,b" SLURM takes one that is."""
    wanted = found.host.slurm.get("partition")
    chosen = list(wanted.values()) if isinstance(wanted, dict) else [wanted] if wanted else []
    for group in chosen or [each.name for each in known.values() if each.default]:
        names = [name for name in str(group or "").split(",") if name]
        hint = f"correct slurm: partition: of {found.place}"
        for name in names:
            if name not in known:
                raise Failed(f"there is no partition {name}{did_you_mean(name, list(known))}", hint, sorted(known))
        if names and all(known[name].state != "up" for name in names):
            usable = ", ".join(each.name for each in known.values() if each.state == "up") or "none"
            hint = f"ask the administrator, or {hint}; those that are up: {usable}"
            raise Failed("; ".join(f"the partition {name} is {known[name].state}" for name in names), hint)


def account(found: Found) -> str:
    if found.host.scheduler != "slurm":
        raise Skipped("without a queue nobody is charged")
    accounts = found.site.accounts
    if not accounts:
        raise Skipped("SLURM does not say which accounts you may use")
    wanted, qos = found.host.slurm.get("account"), found.host.slurm.get("qos")
    _check_among("account", wanted, [each.name for each in accounts], found)
    mine = [each for each in accounts if wanted in (None, each.name)]
    _check_among("qos", qos, [name for each in mine for name in each.qos], found)
    return "\n".join(["you may be charged to (account, partition, QOS):", *map(_association, accounts)])


def _check_among(option: str, wanted: object, known: list[str], found: Found) -> None:
    if wanted is None or not known or str(wanted) in known:
        return
    names = list(dict.fromkeys(known))
    near = did_you_mean(str(wanted), names)
    hint = f"set `slurm: {option}:` of {found.place} to one of {', '.join(names)}"
    raise Failed(f"SLURM lets you use no {option} {wanted}{near}", hint)


def _association(each: Account) -> str:
    return f"{each.name}  {each.partition or 'any'}  {', '.join(each.qos) or 'default'}"
