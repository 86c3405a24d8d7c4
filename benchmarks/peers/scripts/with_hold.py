"""clusterfn: single calls in an allocation that `clusterfn hold` keeps on the host argv[1]."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import contest

from clusterfn import cluster

CLI = (sys.executable, "-m", "clusterfn")


@cluster(host=contest.WHERE, cores=1, memory="100MB")
def nothing(x: int) -> int:
    return x


def calls(count: int, until: float) -> int:
    def one(x: int) -> int | None:
        return nothing(x) if time.monotonic() < until else None

    with ThreadPoolExecutor(contest.AT_ONCE) as threads:
        return contest.checked([value for value in threads.map(one, range(count)) if value is not None])


def main() -> None:
    size = ("--cores", str(contest.AT_ONCE), "--memory", f"{contest.AT_ONCE * 100}MB")
    subprocess.run([*CLI, "hold", contest.WHERE, *size, "--time", "10min", "--wait"], check=True, stdout=sys.stderr)
    try:
        contest.run(calls)
    finally:
        subprocess.run([*CLI, "release", contest.WHERE], check=True, stdout=sys.stderr)


main()
