"""Answers each line by the seconds that 20 calls at once take on the host argv[1]."""

import json
import sys
import time

from clusterfn import cluster


@cluster(host=sys.argv[1])
def nothing(x: int) -> int:
    return x


nothing(0)
for _ in sys.stdin:
    began = time.monotonic()
    jobs = [nothing.submit(number) for number in range(20)]
    assert [job.result() for job in jobs] == list(range(20))
    print(json.dumps(time.monotonic() - began), flush=True)
