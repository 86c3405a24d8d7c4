"""Answers each line by calls of a session on the host argv[1]: seconds of one call, or of a number of them at once."""

import json
import sys
import time

from clusterfn import Session

with Session(sys.argv[1], cores=int(sys.argv[2]), **json.loads(sys.argv[3])) as session:
    for line in sys.stdin:
        began = time.monotonic()
        if line.strip():
            for job in [session.submit(abs, -number) for number in range(int(line))]:
                job.result()
        else:
            session.call(abs, -1)
        print(json.dumps(time.monotonic() - began), flush=True)
