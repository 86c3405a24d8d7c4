"""executorlib: a process for each call (by srun on SLURM), or the same processes for all of them (argv[5] "reused")."""

import os
import sys
from typing import Any

import contest
from executorlib import SingleNodeExecutor, SlurmJobExecutor


def nothing(x: int) -> int:
    return x


def executor() -> Any:
    reused = sys.argv[5] == "reused"
    common: dict[str, Any] = {
        "hostname_localhost": True, "block_allocation": reused, "disable_dependencies": True,
        ("max_workers" if reused else "max_cores"): contest.AT_ONCE,
    }  # fmt: skip
    if contest.WHERE == "slurm":
        words = ["-p", os.environ["PARTITION"], "--mem=100M", "-t", "10"]
        return SlurmJobExecutor(resource_dict={"slurm_cmd_args": words}, **common)
    return SingleNodeExecutor(**common)


with executor() as pool:
    contest.run(lambda count, until: contest.gathered([pool.submit(nothing, x) for x in range(count)], until))
    pool.shutdown(wait=False, cancel_futures=True)
