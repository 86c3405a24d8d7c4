"""dask: the same processes for all calls, on this machine or as jobs of SLURM (dask-jobqueue)."""

import os
import time
from typing import Any

import contest
from dask.distributed import Client, LocalCluster, wait
from dask_jobqueue import SLURMCluster


def nothing(x: int) -> int:
    return x


def cluster() -> Any:
    if contest.WHERE != "slurm":
        return LocalCluster(n_workers=contest.AT_ONCE, threads_per_worker=1, dashboard_address=None)
    made = SLURMCluster(
        queue=os.environ["PARTITION"], cores=1, processes=1, memory="400MB", walltime="00:10:00", interface="lo",
        local_directory=os.getcwd(), log_directory=os.getcwd(), scheduler_options={"dashboard_address": None},
    )  # fmt: skip
    made.scale(jobs=contest.AT_ONCE)
    return made


def main() -> None:
    with cluster() as found, Client(found) as client:
        client.wait_for_workers(contest.AT_ONCE, timeout=contest.LIMIT_S)

        def calls(count: int, until: float) -> int:
            futures = client.map(nothing, range(count), pure=False)
            wait(futures, timeout=max(0.1, until - time.monotonic()))
            return contest.checked(client.gather(futures))

        contest.run(calls)


if __name__ == "__main__":
    main()
