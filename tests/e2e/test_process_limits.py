"""Limits that a login has for its processes (`ulimit`): soft ones do not end jobs, and hard ones are named."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run there")
BURN = "import time\nwhile time.process_time() < 2.5: pass\n"
WRITE = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nopen('f', 'wb').write(bytes(3 << 20))\n"


def called_under(limit: str, lines: str, options: str = "cores=1") -> str:
    """What a program prints whose function runs these lines, started by a shell with this limit."""
    script = f"import clusterfn\ndef f():\n    exec({lines!r}, {{}})\n    return 'back'\n"
    script += f"print(clusterfn.cluster({options})(f)())\n"
    argv = ["bash", "-c", f'ulimit {limit} && exec "$0" -c "$1"', sys.executable, script]
    done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_soft_limit_of_the_login_ends_no_job(here):
    assert called_under("-S -t 2", BURN).startswith("back\n")
    assert called_under("-S -f 2048", WRITE).startswith("back\n")


def test_a_hard_limit_that_ends_a_job_is_named(here):
    said = called_under("-t 2", BURN)
    assert "KilledBySignal" in said and "CPU time, 2 s (RLIMIT_CPU, `ulimit -t`)" in said and "`ulimit`" in said
    said = called_under("-f 2048", WRITE)
    assert "SIGXFSZ" in said and "the size of a file, 2 MB (RLIMIT_FSIZE, `ulimit -f`)" in said


def test_less_address_space_than_memory_is_said_once(here):
    said = called_under("-v 6000000", "1", "cores=1, memory='1GB'")
    assert said.startswith("back\n") and "RLIMIT_AS" not in said
    for lines, ends in (("1", "back"), ("1 / 0", "ZeroDivisionError")):  # of a failure, only what was said before shows
        said = called_under("-v 2000000", lines, "cores=1, memory='3GB'")
        assert ends in said and said.count("less than memory= asks for: 3 GB") == 1 and "RLIMIT_AS" in said


@pytest.mark.long
def test_a_limit_that_the_function_has_set_itself_is_its_own(here):
    lines = f"import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, resource.RLIM_INFINITY))\n{BURN}"
    said = called_under("-S -t 3000", lines)
    assert "SIGXCPU" in said and "which it has set itself" in said
