"""How SLURM is asked for cards: their number and their type; for a size, the smallest type that has it.

SLURM knows no sizes: the host's `cards:` says them. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterfn.bridge.supervisor.eligible import large_enough
from clusterfn.config.spec import Host, Resources, shown_memory
from clusterfn.errors import ConfigError, Unsatisfiable


def options(option: str, gpus: int, gres: str, kind: str | None) -> dict[str, str]:
    """The option that asks for cards, and what else stands in `slurm: gres:`.

    Args:
        option: "gres", "gpus" or "gpus-per-node".
        gres: Of the host; it may name the type of its cards ("gpu:a100") and other resources.
        kind: The type; None for the host's.

    Example:
        >>> options("gres", 2, "lscratch:50,gpu:a100", "h100")
        {'gres': 'lscratch:50,gpu:h100:2'}
    """
    others = [part for part in gres.split(",") if part and part.split(":")[0] != "gpu"]
    asked = [kind or _of_gres(gres), str(gpus)] if gpus else []
    words = [part for part in asked if part]
    if option == "gres":
        others += [":".join(["gpu", *words])] if words else []
        words = []
    return {**({option: ":".join(words)} if words else {}), **({"gres": ",".join(others)} if others else {})}


def _of_gres(gres: str) -> str:
    """The type in "lscratch:50,gpu:a100"; "" for none."""
    kinds = [part.partition(":")[2] for part in gres.split(",") if part.split(":")[0] == "gpu"]
    return kinds[0] if kinds else ""


def kind(host: Host, asked: Resources) -> str | None:
    """The type of card to ask for; None for the host's own, whatever that is.

    Raises:
        ConfigError: The type cannot be one of SLURM's, or nobody has said how large the cards are.
        Unsatisfiable: No type is as large as asked.
    """
    given = _as_known(host, asked.gpu_type)
    if given and " " in given:
        raise ConfigError(
            f"gpu_type={given!r} is not a type of SLURM", host=host.name,
            hint="write one word that `sinfo -o %G` shows there, such as a100 for gpu:a100:4",
        )  # fmt: skip
    if asked.gpu_memory_bytes is None:
        return given
    fixed = given or _as_known(host, _of_gres(host.slurm.get("gres") or ""))
    size = f'gpu_memory="{shown_memory(asked.gpu_memory_bytes)}"'
    if fixed not in host.cards if fixed else not host.cards:
        raise _unknown(host, size, fixed)
    return _smallest(host, [fixed] if fixed else list(host.cards), asked.gpu_memory_bytes, size)


def _as_known(host: Host, kind: str | None) -> str | None:
    """The type as `cards:` writes it, if it does."""
    return next((name for name in host.cards if kind and name.lower() == kind.lower()), kind) or None


def _smallest(host: Host, kinds: Sequence[str], memory_bytes: int, size: str) -> str:
    enough = [kind for kind in kinds if large_enough(host.cards[kind], memory_bytes)]
    if not enough:
        there = ", ".join(f"{kind} ({shown_memory(host.cards[kind])})" for kind in kinds)
        raise Unsatisfiable(
            f"{size} is more than a card of {host.name} has: {there}", host=host.name, stage="submit",
            hint="ask for less, for another gpu_type=, or use another host",
        )  # fmt: skip
    return min(enough, key=lambda kind: host.cards[kind])


def _unknown(host: Host, size: str, kind: str | None) -> ConfigError:
    of = f"the {kind} cards of {host.name}" if kind else f"the cards of {host.name}"
    example = kind or "a100"
    return ConfigError(
        f"{size} cannot be asked of SLURM, and {host.source} does not say how large {of} are",
        host=host.name,
        hint=f"write there `cards: {{{example}: 80GB}}`, or ask by gpu_type= alone",
    )
