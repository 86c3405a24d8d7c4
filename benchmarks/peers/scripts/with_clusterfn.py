"""clusterfn: a call, or f.map for several, on the host argv[1], which clusterfn.yml describes."""

import time

import contest

from clusterfn import cluster


@cluster(host=contest.WHERE)
def nothing(x: int) -> int:
    return x


def calls(count: int, until: float) -> int:
    if count == 1:
        return contest.checked([nothing(0)])
    group = nothing.map(range(count), max_parallel=contest.AT_ONCE)
    if not group.wait(max(0.0, until - time.monotonic())):
        done = sum(state == "RETURNED" for state in group.states)
        group.stop()
        return done
    return contest.checked(group.results())


contest.run(calls)
