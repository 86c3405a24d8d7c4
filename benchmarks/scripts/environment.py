"""A fresh process whose only work is one call on the host argv[1] in the environment of the lock argv[2].

Prints {"seconds", "peak_mb", "sent_mb"}: from the first line of the script to the value; this process's own VmHWM; what
the kernel has sent to the host's sshd.
"""

import json
import os
import re
import subprocess
import time
from pathlib import Path

began = time.monotonic()

import sys  # noqa: E402 - the clock runs

from clusterfn import cluster  # noqa: E402


@cluster(host=sys.argv[1], environment=sys.argv[2])
def minor() -> int:
    import sys

    return sys.version_info[1]


minor()
seconds = time.monotonic() - began
status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
told = subprocess.run(["ss", "-Htinp"], capture_output=True, text=True, check=False).stdout
ours = re.findall(rf"pid={os.getpid()},[^\n]*\n[^\n]*?bytes_acked:(\d+)", told)
print(json.dumps({"seconds": seconds, "peak_mb": peak, "sent_mb": sum(map(int, ours)) / 1e6}), flush=True)
