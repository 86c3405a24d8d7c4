"""What runs on the host argv[1] beside the function: {"agent_mb", "idle_percent", "busy_percent"} as JSON."""

import json
import sys
from pathlib import Path

from clusterfn import cluster
from clusterfn.config import config_file
from clusterfn.hosts.connection import connection_for


@cluster(host=sys.argv[1])
def supervisor_percent(busy: bool, seconds: float = 4.0) -> float:
    import os
    import time

    def used() -> int:
        return int(Path(f"/proc/{os.getppid()}/schedstat").read_text(encoding="ascii").split()[0])

    began, until = used(), time.monotonic() + seconds
    if not busy:
        time.sleep(seconds)
    while time.monotonic() < until:
        pass
    return (used() - began) / seconds / 1e7


idle, busy = supervisor_percent(False), supervisor_percent(True)
agent = connection_for(config_file.load().resolve(sys.argv[1])[0]).facts.pid
status = Path(f"/proc/{agent}/status").read_text(encoding="ascii")
rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
print(json.dumps({"agent_mb": rss / 1024, "idle_percent": idle, "busy_percent": busy}), flush=True)
