"""Many calls at once: an Executor sends each as a job of its own, and the results come back in order.

python examples/many_calls.py [HOST]
"""

from __future__ import annotations

import concurrent.futures
import random
import sys

from clusterfn import Executor


def estimate_pi(seed: int, points: int = 200_000) -> float:
    """Pi, roughly, by throwing points at a square."""
    chance = random.Random(seed)
    inside = sum(chance.random() ** 2 + chance.random() ** 2 <= 1 for _ in range(points))
    return 4 * inside / points


def main() -> None:
    """The same function with eight seeds, first in order, then as each becomes ready; one call fails."""
    host = sys.argv[1] if len(sys.argv) > 1 else None
    with Executor(host, cores=1, memory="512MB") as executor:
        estimates = list(executor.map(estimate_pi, range(8)))
        print("mean of", len(estimates), "estimates:", round(sum(estimates) / len(estimates), 3))

        jobs = {executor.submit(estimate_pi, seed, points): points for seed, points in [(1, 1000), (2, 0), (3, 2000)]}
        for job in concurrent.futures.as_completed(jobs):
            error = job.exception()
            print(jobs[job], "points:", round(job.result(), 1) if error is None else repr(error))


if __name__ == "__main__":
    main()
