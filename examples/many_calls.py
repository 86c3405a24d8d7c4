"""Many calls at once: `map` sends them as one group, an Executor sends each as a job of its own.

python examples/many_calls.py [HOST]
"""

from __future__ import annotations

import concurrent.futures
import random
import sys

from clusterfn import Executor, cluster


@cluster(cores=1, memory="512MB")
def estimate_pi(seed: int, points: int = 200_000) -> float:
    """Pi, roughly, by throwing points at a square."""
    chance = random.Random(seed)
    inside = sum(chance.random() ** 2 + chance.random() ** 2 <= 1 for _ in range(points))
    return 4 * inside / points


def main() -> None:
    """The same function with eight seeds in order, then with items of which one fails, then job by job."""
    host = sys.argv[1] if len(sys.argv) > 1 else None
    function = estimate_pi.on(host) if host else estimate_pi
    estimates = function.map(range(8)).results()
    print("mean of", len(estimates), "estimates:", round(sum(estimates) / len(estimates), 3))

    points = [1000, 0, 2000]
    for index, estimate in function.map([1, 2, 3], points).as_completed():
        print(points[index], "points:", repr(estimate) if isinstance(estimate, Exception) else round(estimate, 1))

    with Executor(host, cores=1, memory="512MB") as executor:
        jobs = [executor.submit(estimate_pi, seed) for seed in range(3)]
        first = next(concurrent.futures.as_completed(jobs)).result()
        print("one of", len(jobs), "jobs:", round(first, 1))


if __name__ == "__main__":
    main()
