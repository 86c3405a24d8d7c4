"""GPUs on SLURM: the options that ask for them, and which are free and which jobs wait for some, from its output.

SLURM knows no sizes of GPUs. Pure, like all of `scheduler`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from clusterfn.config.spec import Host, Resources
from clusterfn.config.units import exact_memory
from clusterfn.errors import ConfigError
from clusterfn.scheduler.base import NodeGpus, Waiting

_FACT = re.compile(r"(?:^| )(NodeName|Gres|GresUsed|State|Partitions)=(\S*)")
_GPUS = re.compile(r"(?:^|,)gpu:(?:([^:,(]+):)?([0-9]{1,9})(?![0-9])")
_WANTS = re.compile(r"gpu(?::[^,\s]+)?")
# The field and its width. squeue cuts off a value that is longer than its column.
_COLUMNS = (
    ("JobArrayID", 32), ("UserName", 32), ("tres-per-node", 48), ("tres-per-job", 48), ("SubmitTime", 22),
    ("Reason", 40), ("Name", 80),
)  # fmt: skip
COLUMNS_OPTION = "--Format=" + ",".join(f"{name}:{width}" for name, width in _COLUMNS)


def types(text: str) -> list[str]:
    """Read the types of all nodes' GPUs, sorted; "" among them where some have none.

    Example:
        >>> types("gpu:a6000:4,lscratch:50\\n(null)\\ngpu:2(S:0)")
        ['', 'a6000']
    """
    return sorted({kind for line in text.splitlines() for kind, _ in _counted(line.strip())})


def nodes(text: str) -> list[NodeGpus]:
    """Read the GPUs of each node that has some.

    Example:
        >>> nodes("NodeName=n1 Gres=gpu:a100:4 GresUsed=gpu:a100:1(IDX:0) State=MIXED")
        [NodeGpus(node='n1', state='mixed', type='a100', total=4, used=1)]
    """
    gpus = []
    for line in text.splitlines():
        facts = {name: value for name, value in reversed(_FACT.findall(line))}
        used = dict(_counted(facts.get("GresUsed", "")))
        for kind, total in _counted(facts.get("Gres", "")):
            used_count = used.get(kind) if used else None
            gpus.append(NodeGpus(facts.get("NodeName", "?"), facts.get("State", "?").lower(), kind, total, used_count))
    return gpus


def _counted(gres: str) -> Iterable[tuple[str, int]]:
    return [(kind, int(count)) for kind, count in _GPUS.findall(gres)]


def waiting(text: str) -> list[Waiting]:
    """Read the jobs that wait for GPUs, in the order of the text."""
    ends = list(itertools.accumulate(width for _, width in _COLUMNS))
    jobs = []
    for line in text.splitlines():
        row = [line[a:b].strip() for a, b in zip([0, *ends], ends)]
        wants = [word for cell in row[2:-3] for word in _WANTS.findall(cell)]
        if wants:
            jobs.append(Waiting(row[0], row[1], ",".join(wants), *row[-3:]))
    return jobs


def of_script(options: Mapping[str, Any]) -> bool:
    """Whether the lines of a script ask for GPUs: only they have a number of them."""
    words = f"{options.get('gres') or ''},{options.get('tres-per-task') or ''}".split(",")
    named = any(each.startswith("gpus") and value for each, value in options.items())
    return named or any(re.fullmatch(r"(gres[/:])?gpu.*[:=]\d+", part) for part in words)


def gpu_options(option: str, gpus: int, gres: str, kind: str | None) -> dict[str, str]:
    """Return the sbatch option that asks for GPUs, and what else is in `slurm: gres:`.

    Args:
        option: "gres", "gpus" or "gpus-per-node".
        gres: Of the host; it may name the type of its GPUs ("gpu:a100") and other resources.
        kind: The type; None for the host's.

    Example:
        >>> gpu_options("gres", 2, "lscratch:50,gpu:a100", "h100")
        {'gres': 'lscratch:50,gpu:h100:2'}
    """
    others = [part for part in gres.split(",") if part and part.split(":")[0] != "gpu"]
    request = [kind or _of_gres(gres), str(gpus)] if gpus else []
    words = [part for part in request if part]
    if option == "gres":
        others += [":".join(["gpu", *words])] if words else []
        words = []
    return {**({option: ":".join(words)} if words else {}), **({"gres": ",".join(others)} if others else {})}


def _of_gres(gres: str) -> str:
    """Return the type in "lscratch:50,gpu:a100"; "" for none."""
    kinds = [part.partition(":")[2] for part in gres.split(",") if part.split(":")[0] == "gpu"]
    return kinds[0] if kinds else ""


def refuse_unknown(host: Host, resources: Resources) -> None:
    """Raise ConfigError if the type or the size of GPUs is none that SLURM can be asked for."""
    kind = resources.gpu_type or ""
    if " " in kind:
        raise ConfigError(
            f"gpu_type={kind!r} is not a type of SLURM", host=host.name,
            hint="write one word that `sinfo -o %G` shows there, such as a100 for gpu:a100:4",
        )  # fmt: skip
    if resources.gpu_memory_bytes is not None:
        size = f'gpu_memory="{exact_memory(resources.gpu_memory_bytes)}"'
        problem = f"{size} cannot be requested from SLURM, which knows no sizes of GPUs"
        raise ConfigError(problem, host=host.name, hint="set gpu_type= to a type that `sinfo -o %G` shows there")
