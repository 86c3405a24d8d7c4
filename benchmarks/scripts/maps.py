"""Answers each line by the seconds of a map of 400 items of 0.2 s on the host argv[1], four at a time on each."""

import json
import sys
import time

from clusterfn import cluster


@cluster(host=sys.argv[1])
def rest(_: int) -> None:
    import os
    import time

    time.sleep(0.2 * float(os.environ.get("SLOWER", "1")))


rest.map(range(8), max_parallel=8).results()
for _ in sys.stdin:
    began = time.monotonic()
    rest.map(range(400), max_parallel=8).results()
    print(json.dumps(time.monotonic() - began), flush=True)
