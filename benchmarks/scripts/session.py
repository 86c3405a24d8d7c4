"""Answers each line by calls of a session on the host argv[1]: seconds of one call, or of a number of them at once.

argv[2]: its cores, argv[3]: its other options as JSON. argv[4] is "actor" for calls of an actor's method, or "own" for
those of a function of this script: such a call is longer than the 1,024 bytes that srun carries at a time.
"""

import json
import sys
import time

from clusterfn import Session


class Model:
    def absolute(self, x: int) -> int:
        return abs(x)


def own(x: int) -> int:
    return abs(x)


function = own if sys.argv[4:] == ["own"] else abs
with Session(sys.argv[1], cores=int(sys.argv[2]), **json.loads(sys.argv[3])) as session:
    method = session.actor(Model).absolute if sys.argv[4:] == ["actor"] else None
    for line in sys.stdin:
        began = time.monotonic()
        if line.strip():
            numbers = range(int(line))
            for job in [method.submit(-each) if method else session.submit(function, -each) for each in numbers]:
                job.result()
        elif method:
            method(-1)
        else:
            session.call(function, -1)
        print(json.dumps(time.monotonic() - began), flush=True)
