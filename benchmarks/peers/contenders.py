"""Who is measured, and where."""

from __future__ import annotations

from dataclasses import dataclass

MACHINE, SLURM = "This machine", "SLURM"


@dataclass(frozen=True)
class Contender:
    """One way to make many calls.

    Attributes:
        name: In words.
        peer: Whose requirements it needs; "" for ourselves.
        where: MACHINE or SLURM.
        fresh: Whether each call has a process of its own.
        script: Which of `scripts` makes the calls.
        host: What the script is told of where.
    """

    name: str
    peer: str
    where: str
    fresh: bool
    script: str
    host: str

    @property
    def in_slurm(self) -> bool:
        """Whether its own program runs where SLURM's commands are; ours reaches them by SSH."""
        return bool(self.peer) and self.where == SLURM


def _ours(name: str, where: str, host: str) -> Contender:
    return Contender(name, "", where, True, "with_clusterfn.py", host)


def _session(where: str, host: str) -> tuple[Contender, Contender]:
    """Ours in a session: a fork for each call, and actors."""
    name = "clusterfn, over SSH, a session"
    script = "with_session.py"
    return Contender(f"{name}, forks", "", where, True, script, host), Contender(
        f"{name}, actors", "", where, False, script, host
    )


def _peer(name: str, peer: str, where: str, fresh: bool) -> Contender:
    return Contender(name, peer, where, fresh, f"with_{peer}.py", "slurm" if where == SLURM else "machine")


CONTENDERS = (
    _ours("clusterfn", MACHINE, "here"),
    _ours("clusterfn, over SSH", MACHINE, "bare"),
    *_session(MACHINE, "bare"),
    _peer("standard library: a pool, an interpreter for each call", "pool", MACHINE, True),
    _peer("submitit", "submitit", MACHINE, True),
    _peer("executorlib", "executorlib", MACHINE, True),
    _peer("standard library: a pool", "pool", MACHINE, False),
    _peer("executorlib, block allocation", "executorlib", MACHINE, False),
    _peer("dask", "dask", MACHINE, False),
    _peer("parsl", "parsl", MACHINE, False),
    _ours("clusterfn, over SSH", SLURM, "slurm"),
    *_session(SLURM, "slurm"),
    _peer("submitit, an array", "submitit", SLURM, True),
    _peer("executorlib, an srun for each call", "executorlib", SLURM, True),
    _peer("executorlib, block allocation", "executorlib", SLURM, False),
    _peer("dask-jobqueue", "dask", SLURM, False),
    _peer("parsl", "parsl", SLURM, False),
)
