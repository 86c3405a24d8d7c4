"""Send a diamond of jobs to a host, say the id of the last, and wait to be killed."""

import sys
import time

from clusterfn import cluster

host, gate, width = sys.argv[1:]


@cluster(host=host)
def first(path: str) -> int:
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.1)
    return 1


@cluster(host=host)
def add(*values: int) -> int:
    return sum(values)


root = first.submit(gate)
middle = [add.submit(root, number) for number in range(int(width))]  # type: ignore[arg-type]
last = add.submit(*middle)  # type: ignore[arg-type]
print(last.id, flush=True)
time.sleep(600)
