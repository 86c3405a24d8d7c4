"""The standard library's pool: a fresh interpreter for each call, or the same processes for all (argv[5] "reused")."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import contest


def nothing(x: int) -> int:
    return x


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    each = None if sys.argv[5] == "reused" else 1
    with ProcessPoolExecutor(contest.AT_ONCE, mp_context=spawn, max_tasks_per_child=each) as pool:
        contest.run(lambda count, until: contest.gathered([pool.submit(nothing, x) for x in range(count)], until))


if __name__ == "__main__":
    main()
