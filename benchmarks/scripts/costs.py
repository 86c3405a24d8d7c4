"""What runs on the host argv[1] beside the function, as JSON.

{"agent_mb", "agent_idle_s", "agent_job_s", "idle_percent", "busy_percent"}; seconds are those of the CPU in an hour.
"""

import json
import sys
import time
from pathlib import Path

from clusterfn import cluster
from clusterfn.config import config_file
from clusterfn.hosts.connection import connection_for

WATCHED_S = 20.0
SETTLED_S = 40.0  # where nothing changes, the agent looks less and less often


@cluster(host=sys.argv[1])
def supervisor_percent(busy: bool, seconds: float = 10.0, before: float = 3.0) -> float:
    """The part of a core that the supervisor takes, once the function has run for a moment."""
    import os
    import time

    def used() -> int:
        return int(Path(f"/proc/{os.getppid()}/schedstat").read_text(encoding="ascii").split()[0])

    def spend(until: float) -> None:
        if not busy:
            time.sleep(until - time.monotonic())
        while time.monotonic() < until:
            pass

    spend(time.monotonic() + before)
    began = used()
    spend(time.monotonic() + seconds)
    return (used() - began) / seconds / 1e7


@cluster(host=sys.argv[1])
def sleep(seconds: float) -> None:
    import time

    time.sleep(seconds)


def used_in_an_hour(pid: int) -> float:
    """CPU seconds of an hour, by those of a while."""
    path = Path(f"/proc/{pid}/schedstat")
    began = int(path.read_text(encoding="ascii").split()[0])
    time.sleep(WATCHED_S)
    return (int(path.read_text(encoding="ascii").split()[0]) - began) / 1e9 * 3600 / WATCHED_S


idle, busy = supervisor_percent(False), supervisor_percent(True)
agent = connection_for(config_file.load().resolve(sys.argv[1])[0]).facts.pid
time.sleep(1.0)
alone = used_in_an_hour(agent)
job = sleep.submit(SETTLED_S + WATCHED_S + 5)
time.sleep(SETTLED_S)
beside = used_in_an_hour(agent)
job.result()
status = Path(f"/proc/{agent}/status").read_text(encoding="ascii")
rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
told = {"agent_mb": rss / 1024, "agent_idle_s": alone, "agent_job_s": beside}
print(json.dumps({**told, "idle_percent": idle, "busy_percent": busy}), flush=True)
