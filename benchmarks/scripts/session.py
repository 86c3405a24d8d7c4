"""Answers each line by calls of a session on the host argv[1]: seconds of one call, or of a number of them at once.

argv[2]: its cores, argv[3]: its other options as JSON. With "actor" as argv[4] they are calls of an actor's method.
"""

import json
import sys
import time

from clusterfn import Session


class Model:
    def absolute(self, x: int) -> int:
        return abs(x)


with Session(sys.argv[1], cores=int(sys.argv[2]), **json.loads(sys.argv[3])) as session:
    method = session.actor(Model).absolute if sys.argv[4:] == ["actor"] else None
    for line in sys.stdin:
        began = time.monotonic()
        if line.strip():
            numbers = range(int(line))
            for job in [method.submit(-each) if method else session.submit(abs, -each) for each in numbers]:
                job.result()
        elif method:
            method(-1)
        else:
            session.call(abs, -1)
        print(json.dumps(time.monotonic() - began), flush=True)
