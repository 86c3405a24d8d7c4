"""parsl: the same processes for all calls, on this machine or in jobs of SLURM."""

import os
from typing import Any

import contest
import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import LocalProvider, SlurmProvider


@parsl.python_app
def nothing(x: int) -> int:
    return x


def provider() -> Any:
    if contest.WHERE != "slurm":
        return LocalProvider(init_blocks=1, max_blocks=1)
    return SlurmProvider(
        partition=os.environ["PARTITION"], cores_per_node=contest.AT_ONCE, mem_per_node=1, walltime="00:10:00",
        init_blocks=1, max_blocks=1, exclusive=False, launcher=SimpleLauncher(),
        worker_init=f"export PATH={os.environ['PATH']}",
    )  # fmt: skip


workers = HighThroughputExecutor(address="127.0.0.1", max_workers_per_node=contest.AT_ONCE, provider=provider())
with parsl.load(Config(executors=[workers], strategy="none", run_dir="parsl")):
    contest.run(lambda count, until: contest.gathered([nothing(x) for x in range(count)], until))
