"""Debian packages the lab needs: say what is missing, install just that, start none of its services.

Nothing is upgraded and nothing is removed on `down`: a package may be used by others by then.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .layout import PACKAGES
from .processes import LabError

POLICY = Path("/usr/sbin/policy-rc.d")


def missing() -> list[str]:
    """The packages whose program is not there."""
    return [name for name, program in PACKAGES.items() if not Path(program).exists()]


@contextlib.contextmanager
def no_services_start() -> Iterator[None]:
    """While packages are installed, Debian asks this file whether it may start their services: it may not."""
    before = (POLICY.read_bytes(), POLICY.stat().st_mode) if POLICY.exists() else None
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        if before is None:
            POLICY.unlink()
        else:
            POLICY.write_bytes(before[0])
            POLICY.chmod(before[1])


def install(names: list[str]) -> None:
    """apt-get install without questions; the package lists are fetched only if they turn out to be stale."""
    if not names:
        return
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "l"}
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "--no-upgrade", *names]
    with no_services_start():
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["apt-get", "update", "-q"], env=env, capture_output=True, check=False)
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
