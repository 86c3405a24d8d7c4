"""Answers each line by a call on the host argv[1]: when it began, when the function ran, when the value was here."""

import json
import sys
import time

from clusterfn import cluster


@cluster(host=sys.argv[1])
def run() -> float:
    import time

    return time.monotonic()


for _ in sys.stdin:
    began = time.monotonic()
    ran = run()
    print(json.dumps([began, ran, time.monotonic()]), flush=True)
