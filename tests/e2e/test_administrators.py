"""/etc/clusterfn.yml of a machine: an administrator limits everybody, and calls, bridge and `check` obey it.

Each test has an /etc of its own: a mount namespace of this process's children, over which nothing is written. It has a
network namespace of its own, too: a limit of jobs would else count those of tests that run beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab

RULES = "defaults:\n  memory: 300MB\nlimits:\n  cores: 64\n  memory: 1GB\n  jobs: 1\n  time: 1h\n"
# Writes its second argument to /etc/clusterfn.yml, in an /etc that only it and its children see; then runs the rest.
APART = (
    'set -e; mount -t tmpfs none "$1"; mkdir "$1/up" "$1/work"; '
    'mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/up,workdir=$1/work" /etc; '
    'printf %s "$2" > /etc/clusterfn.yml; chmod 644 /etc/clusterfn.yml; shift 2; exec "$@"'
)
CALLS = """
import json, time
import clusterfn
from clusterfn import Unsatisfiable, cluster

def sleep(s):
    time.sleep(s)
    return s

def refused(**options):
    try:
        cluster(**options)(sleep)(0)
    except Unsatisfiable as error:
        return [error.message, list(error.evidence)]

if __name__ == "__main__":
    first = cluster()(sleep).submit(1000)
    while not first.running():
        time.sleep(0.1)
    second = cluster()(sleep).submit(0)
    while "jobs" not in second.reason:
        time.sleep(0.1)
    with open(first.folder + "/spec.json") as spec:
        asked = json.load(spec)["resources"]
    told = [asked["memory_bytes"], asked["time_s"], second.reason]
    first.stop()
    print(json.dumps({"told": told, "second": second.result(150), "cores": refused(cores=65),
                      "memory": refused(memory="2GB"), "time": refused(time="2h")}))
"""


def apart(rules: str, here: Path, folder: Path, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program where /etc/clusterfn.yml has that text."""
    mount = folder / "mount"
    mount.mkdir()
    command = ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", APART, "sh", mount, rules, *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=os.environ, check=False)


def script(text: str, folder: Path) -> Path:
    path = folder / "calls.py"
    path.write_text(text)
    return path


def test_an_administrator_limits_each_user_and_names_himself(here, tmp_path):
    ran = apart(RULES, here, tmp_path, sys.executable, script(CALLS, tmp_path))
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])

    memory, time_s, reason = said["told"]
    assert (memory, time_s, said["second"]) == (300 * 2**20, 3600.0, 0)
    assert "jobs" in reason
    for word, most in (("cores", "64"), ("memory", "1GB")):
        message, evidence = said[word]
        assert f"more than all your jobs on here may have: {most}" in message
        assert evidence == ["the administrator has set it in /etc/clusterfn.yml on here"]
    assert "is more than a job on here may take" in said["time"][0]
    assert not Path("/etc/clusterfn.yml").exists()


@pytest.mark.parametrize(
    ("rules", "word", "text"),
    [
        (RULES, "PASS", "allows you cores: 64, memory: 1GB, jobs: 1, time: 1h"),
        ("limits:\n  core: 2\n", "FAIL", "line 2"),
    ],
)
def test_check_shows_what_the_administrator_allows(rules, word, text, here, tmp_path):
    ran = apart(rules, here, tmp_path, sys.executable, "-m", "clusterfn", "check", "--no-job", "here")

    lines = ran.stdout.splitlines()
    (step,) = [number for number, line in enumerate(lines) if line.startswith(f"{word}  limits")]
    assert text in "\n".join(lines[step : step + 2])
