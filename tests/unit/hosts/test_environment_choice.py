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
from clusterfn.hosts import environment_choice
from clusterfn.hosts.environment_choice import EnvironmentRequest, EnvironmentResolver

HOST = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")
URL = "https://c.example/linux-64/python-3.11.7-h0_0.conda"
LOCK = f"""version: 1
metadata: {{platforms: [linux-64], channels: [], sources: []}}
package:
- {{name: python, version: 3.11.7, manager: conda, platform: linux-64, url: "{URL}", hash: {{sha256: {"a" * 64}}}}}
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For how many GPUs each lock was made; its file is environment.conda-lock.yml."""
    path, asked = tmp_path / "environment.conda-lock.yml", list[int]()

    def lock(session: object, spec: object, gpus: int, *_: Any) -> LockedEnvironment:
        asked.append(gpus)
        path.write_text(LOCK)
        return LockedEnvironment("environment.yml", locks.read_lock(path), "linux-64", "/root", HOST)

    monkeypatch.setattr(environment_choice, "lock_environment", lock)
    return asked


def test_a_lock_is_looked_at_again_once_its_file_has_changed(tmp_path: Path, asked: list[int]):
    path = tmp_path / "environment.conda-lock.yml"
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


def test_what_was_made_for_unknown_gpus_is_made_again_once_they_are_known(asked: list[int]):
    """The packages of the call count, and not the environment that the host names for others."""
    host = HOST._replace(environment="venv:~/v")
    environments = EnvironmentResolver(SimpleNamespace(host=host))  # type: ignore[arg-type]
    wanted = EnvironmentRequest(packages=("python",), gpus=1)
    for _ in range(2):
        environments.find(wanted)
    assert asked == [1]

    environments.forget()
    environments.find(wanted)

    assert asked == [1, 1]
