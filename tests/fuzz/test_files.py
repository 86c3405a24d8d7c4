"""Files that others may have written, with damage in them: named errors only, and none takes long."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from clusterfn.config import units
from clusterfn.config.config_file import parse
from clusterfn.config.options import parse_options
from clusterfn.config.spec import Host
from clusterfn.environment import lock as locks
from clusterfn.errors import ClusterfnError, ConfigError, HostKeyError, LockError
from clusterfn.hosts.transports import host_keys, ssh_config_file
from clusterfn.hosts.transports.ssh_config import Settings, resolve
from tests.fuzz import ODD, damaged, fuzzed, twisted

CONFIGURATIONS = [each.encode() for each in (
    """hosts:
  tensor01:
    address: ada@tensor01:2222
    scheduler: bare
    root: ~/.clusterfn
    setup: |
      module load cuda
    env: {A: '1', B: 2.5}
    limits: {gpus: 2, memory: 64GB}
    keep: 14d
default_host: tensor01
""",
    """hosts:
  uni:
    scheduler: slurm
    slurm: {partition: {cpu: short, gpu: 'a100'}, qos: high, requeue: true}
    modules: [cuda/12.4, gcc]
    defaults: {time: 2h, cores: 4, environment: 'conda:ml'}
""",
    "hosts: {é: {scheduler: local}} # ü\n",
)]  # fmt: skip
HASH = "b" * 64
LOCKS = [each.encode() for each in (
    f"""version: 1
metadata:
  channels: [{{url: conda-forge, used_env_vars: []}}]
  platforms: [linux-64]
  custom_metadata: {{clusterfn_input: x, clusterfn_virtual_packages_linux-64: '__cuda=11.8;__glibc=2.28'}}
package:
- {{name: python, version: 3.11.7, manager: conda, platform: linux-64, category: main, hash: {{sha256: {HASH}}},
   url: 'https://c.example/linux-64/python-3.11.7-h0_1_cpython.conda'}}
- {{name: six, version: '1.0', manager: pip, platform: linux-64, optional: false, hash: {{md5: aa, sha256: {HASH}}},
   url: 'file:///w/six-1.0-py3-none-any.whl'}}
""",
    "version: !!int 1\nmetadata: &a {platforms: [2020-01-01, 1e400, .nan, 0o7, 1:30]}\npackage: [*a]\n",
)]  # fmt: skip
SSH_CONFIGS = [each.encode() for each in (
    """Host lab? *.example !bad
  HostName %h.example.org
  Port 2222
  User "me"
  IdentityFile ~/.ssh/%r_%C # mine
""",
    """Match host lab8,*.b final
  ProxyJump a@b:22,c
Match all
  UserKnownHostsFile ~root/k ${HOME}/x none
Include ~nobody/* x
""",
    """Host=*
  ConnectTimeout=1m30
  NumberOfPasswordPrompts 3
  AddressFamily inet6
  ControlPath ~/.ssh/%n
Host *a*a*a*a
""",
)]  # fmt: skip
SALTED = "|1|MDEyMzQ1Njc4OWFiY2RlZjAxMjM=|CgD3l1hQk4fdcGWHT0o5zXvOYQw="
KNOWN_HOSTS = [each.encode() for each in (
    "lab8,10.0.0.? ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKeyOne me\n@revoked *.lab ssh-rsa AAAAB3Nz\n",
    f"{SALTED} ssh-rsa AAAA\n@cert-authority [*]:2222,!x ssh-rsa AAAA\n",
)]  # fmt: skip
OPTIONS = [
    {"cores": 4, "memory": "16GB", "gpus": 1, "gpu_memory": "24GB", "gpu_type": "a6000", "time": "2h"},
    {"env": {"A": "1"}, "secrets": ["B"], "modules": ["cuda/12.4"], "outputs": ["*.pt"], "cwd": "/x", "retries": 2},
    {"packages": ["numpy>=1", "pip:six"], "stall_timeout": "10min", "nodes": 2, "on_interrupt": "stop", "name": "f"},
]


@fuzzed(data=damaged(CONFIGURATIONS), weight=0.05)
def test_clusterfn_yml_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse.__wrapped__(data, Path("clusterfn.yml"))


QUANTITIES = damaged([b"16GB", b"1.5 TB", b"90min", b"02:00:00", b"1-12:30:00", b"2h", b"1e3", b"\xc2\xb2d"]).map(
    lambda data: data.decode(errors="surrogateescape")
)


@fuzzed(text=st.one_of(twisted(["1GB", *ODD]), QUANTITIES), weight=0.2)
def test_a_quantity_is_read_or_refused(text: Any) -> None:
    for read in (units.parse_memory, units.parse_time):
        with contextlib.suppress(ConfigError):
            assert read(text) >= 0


@fuzzed(options=twisted(OPTIONS), weight=0.3)
def test_options_are_taken_or_refused(options: Any) -> None:
    if isinstance(options, dict):
        with contextlib.suppress(ConfigError):
            parse_options({str(name): value for name, value in options.items()})


@fuzzed(data=damaged(LOCKS), weight=0.2)
def test_a_lock_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(LockError):
        lock = locks.parse_lock(data, Path("x.conda-lock.yml"))
        for platform in (*lock.platforms, "linux-64"):
            assert len(lock.id(platform)) == 64 and lock.virtual_packages(platform) is not None
            lock.python(platform)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Settings]:
    """Settings by a configuration that is read without an ssh."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ssh_config_file, "home", lambda: tmp_path)
    host = Host("lab8", "me@lab8", "bare", "clusterfn.yml:3", ssh_config=str(tmp_path / "config"))

    def settings(data: bytes) -> Settings:
        (tmp_path / "config").write_bytes(data)
        return resolve(host)

    return settings


@fuzzed(data=damaged(SSH_CONFIGS), weight=0.05)
def test_an_ssh_configuration_is_read_or_refused(data: bytes, read: Callable[[bytes], Settings]) -> None:
    with contextlib.suppress(ClusterfnError):
        read(data)


@fuzzed(data=damaged(KNOWN_HOSTS), weight=0.05)
def test_known_hosts_lets_no_other_key_in(data: bytes, read: Callable[[bytes], Settings], tmp_path: Path) -> None:
    (tmp_path / "known").write_bytes(data)
    settings = read(b"UserKnownHostsFile %d/known\nGlobalKnownHostsFile none\n")
    with pytest.raises(HostKeyError):
        host_keys.check(settings, "lab8", "ssh-ed25519", b"a key that no sample has")
