"""submitit: an array of SLURM, or processes on this machine, of which it would start all at once if it was let."""

import itertools
import os
import subprocess
import time

import contest
import submitit


def nothing(x: int) -> int:
    return x


def by_array(count: int, until: float) -> int:
    executor = submitit.AutoExecutor("submitit", cluster="slurm")
    executor.update_parameters(
        slurm_partition=os.environ["PARTITION"], timeout_min=10, cpus_per_task=1, slurm_mem="100MB",
        slurm_array_parallelism=contest.AT_ONCE,
    )  # fmt: skip
    jobs = executor.map_array(nothing, range(count))
    waiting = set(jobs)
    while waiting and time.monotonic() < until:
        waiting -= {job for job in waiting if job.paths.result_pickle.exists()}
        time.sleep(0.01)
    if waiting:
        subprocess.run(["scancel", jobs[0].job_id.partition("_")[0]], check=False)
        return count - len(waiting)
    return contest.checked([job.result() for job in jobs])


def on_machine(count: int, until: float) -> int:
    executor = submitit.AutoExecutor("submitit", cluster="local")
    values: dict[int, int] = {}
    going: dict[int, submitit.Job[int]] = {}
    left = iter(range(count))
    while len(values) < count and time.monotonic() < until:
        for number in itertools.islice(left, contest.AT_ONCE - len(going)):
            going[number] = executor.submit(nothing, number)
        for number in [number for number, job in going.items() if job.done()]:
            values[number] = going.pop(number).result()
        time.sleep(0.005)
    return contest.checked([values[number] for number in sorted(values)])


contest.run(by_array if contest.WHERE == "slurm" else on_machine)
