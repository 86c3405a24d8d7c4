"""clusterfn: a session on the host argv[1]: a process for each call, or with "reused" as argv[5] actors."""

import sys
import time

import contest

from clusterfn import Session


def nothing(x: int) -> int:
    return x


class Model:
    def nothing(self, x: int) -> int:
        return x


with Session(contest.WHERE, cores=contest.AT_ONCE, workers=contest.AT_ONCE) as session:
    actors = [session.actor(Model) for _ in range(contest.AT_ONCE)] if sys.argv[5] == "reused" else []

    def calls(count: int, until: float) -> int:
        if actors:
            jobs = [actors[x % len(actors)].nothing.submit(x) for x in range(count)]
        else:
            jobs = [session.submit(nothing, x) for x in range(count)]
        return contest.gathered(jobs, until)

    while not calls(1, time.monotonic() + contest.LIMIT_S):  # it may wait for its node
        continue
    contest.run(calls)
