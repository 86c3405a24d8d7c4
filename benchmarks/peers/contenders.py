"""Who is measured, and where."""

from __future__ import annotations

from dataclasses import dataclass

MACHINE, SLURM = "This machine", "SLURM"
INTERPRETER, STEP, FORK, REUSED = "yes", "yes, by srun", "yes, forked", "no, reused"


@dataclass(frozen=True)
class Contender:
    """One way to make many calls.

    Attributes:
        name: In words.
        peer: Whose requirements it needs; "" for ourselves.
        where: MACHINE or SLURM.
        process: INTERPRETER, STEP, FORK or REUSED: what each call gets. Only those of one kind are compared.
        script: Which of `scripts` makes the calls.
        host: What the script is told of where.
    """

    name: str
    peer: str
    where: str
    process: str
    script: str
    host: str

    @property
    def is_fresh(self) -> bool:
        """Whether each call has a process of its own."""
        return self.process != REUSED

    @property
    def in_slurm(self) -> bool:
        """Whether its own program runs where SLURM's commands are; ours reaches them by SSH."""
        return bool(self.peer) and self.where == SLURM


def _ours(name: str, where: str, host: str) -> Contender:
    """Ours by `f.map`: a process for each item. One call is a call."""
    return Contender(name, "", where, INTERPRETER, "with_clusterfn.py", host)


def _session(where: str, host: str) -> list[Contender]:
    """Ours in a session: a fork for each call, and actors."""
    kinds = {"calls of a session": FORK, "actors of a session": REUSED}
    return [
        Contender(f"clusterfn, over SSH, {name}", "", where, process, "with_session.py", host)
        for name, process in kinds.items()
    ]


def _peer(name: str, peer: str, where: str, process: str) -> Contender:
    return Contender(name, peer, where, process, f"with_{peer}.py", "slurm" if where == SLURM else "machine")


CONTENDERS = (
    _ours("clusterfn", MACHINE, "here"),
    _ours("clusterfn, over SSH", MACHINE, "bare"),
    *_session(MACHINE, "bare"),
    _peer("standard library: a pool, an interpreter for each call", "pool", MACHINE, INTERPRETER),
    _peer("submitit", "submitit", MACHINE, INTERPRETER),
    _peer("executorlib", "executorlib", MACHINE, INTERPRETER),
    _peer("ray, a worker for each call", "ray", MACHINE, INTERPRETER),
    _peer("standard library: a pool", "pool", MACHINE, REUSED),
    _peer("executorlib, block allocation", "executorlib", MACHINE, REUSED),
    _peer("joblib", "joblib", MACHINE, REUSED),
    _peer("mpi4py.futures", "mpi4py", MACHINE, REUSED),
    _peer("ray", "ray", MACHINE, REUSED),
    _peer("dask", "dask", MACHINE, REUSED),
    _peer("parsl", "parsl", MACHINE, REUSED),
    _ours("clusterfn, over SSH", SLURM, "slurm"),
    *_session(SLURM, "slurm"),
    _peer("submitit, an array", "submitit", SLURM, INTERPRETER),
    _peer("executorlib, an srun for each call", "executorlib", SLURM, STEP),
    _peer("executorlib, block allocation", "executorlib", SLURM, REUSED),
    _peer("dask-jobqueue", "dask", SLURM, REUSED),
    _peer("parsl", "parsl", SLURM, REUSED),
)
