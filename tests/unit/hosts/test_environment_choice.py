"""What a process remembers of the environments of a host."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.config.spec import Host
from clusterfn.environment import lock as locks
from clusterfn.environment.packages import from_packages
from clusterfn.environment.resolve import LockedEnvironment
from clusterfn.hosts import environment_facts
from clusterfn.hosts.environment_choice import EnvironmentResolver

HOST = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")
URL = "https://c.example/linux-64/python-3.11.7-h0_0.conda"
LOCK = f"""version: 1
metadata: {{platforms: [linux-64], channels: [], sources: []}}
package:
- {{name: python, version: 3.11.7, manager: conda, platform: linux-64, url: "{URL}", hash: {{sha256: {"a" * 64}}}}}
"""


def test_a_lock_is_looked_at_again_once_its_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, asked = tmp_path / "environment.conda-lock.yml", list[int]()

    def lock(session: object, spec: object, gpus: int, *_: Any) -> LockedEnvironment:
        asked.append(gpus)
        path.write_text(LOCK)
        return LockedEnvironment("environment.yml", locks.read_lock(path), "linux-64", "/root", HOST)

    monkeypatch.setattr(environment_facts, "lock_environment", lock)
    environments, spec = EnvironmentResolver(SimpleNamespace(host=HOST)), from_packages(["python"])  # type: ignore[arg-type]

    first = environments.resolve_made(spec, 0, print)
    assert environments.resolve_made(spec, 0, print) is first and asked == [0]
    environments.resolve_made(spec, 1, print)  # the build of PyTorch depends on it
    assert asked == [0, 1]

    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(later, later))
    environments.resolve_made(spec, 1, print)
    assert asked == [0, 1, 1]
    path.unlink()
    environments.resolve_made(spec, 1, print)
    assert asked == [0, 1, 1, 1]
