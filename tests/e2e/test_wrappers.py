"""`environment="python:SCRIPT"`: what was named is what runs, also where its paths are other files outside."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterfn import OutOfMemory, Session, cluster

# As a container: a file system of its own, in which the interpreter has a path that nothing has outside.
_ENTERS = """#!/bin/sh
exec unshare -rm sh -c 'mount --rbind "$1" /mnt && shift && exec /mnt/bin/{name} "$@"' sh {prefix} "$@"
"""
_MAY = ["unshare", "-rm", "mount", "--rbind", "/usr", "/mnt"]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or subprocess.run(_MAY, capture_output=True, check=False).returncode != 0,
    reason="this account may not have a file system of its own",
)


def where(n: int = 0) -> tuple[str, int]:
    import subprocess
    import sys

    ran = subprocess.run([sys.executable, "-c", f"print({n} + 1)"], capture_output=True, check=True, text=True)
    return sys.executable, int(ran.stdout)


def takes(size: int) -> int:
    held = bytearray(size)
    time.sleep(600)  # until a sample of a busy machine sees it
    return len(held)


for _each in (where, takes):
    _each.__module__ = "__main__"


@pytest.mark.timeout(300)
def test_what_a_container_s_wrapper_starts_is_as_any_other_interpreter(here: Path, tmp_path: Path) -> None:
    wrapper, python = tmp_path / "bin" / "in-a-container", Path(sys.executable).resolve()
    wrapper.parent.mkdir()
    wrapper.write_text(_ENTERS.format(prefix=sys.base_prefix, name=python.name))
    wrapper.chmod(0o755)
    environment = f"python:{wrapper}"
    inside = f"/mnt/bin/{python.name}"

    contained = cluster(environment=environment)(where)
    assert contained(1) == (inside, 2)
    assert contained.map(range(4)).results() == [(inside, n + 1) for n in range(4)]
    with Session(environment=environment) as session:
        assert session.call(where, 5) == (inside, 6)
    with pytest.raises(OutOfMemory):
        cluster(environment=environment, memory="300MB")(takes)(1 << 30)
