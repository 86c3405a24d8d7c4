"""The lab's hosts: one sshd each on 127.0.0.1, own port, key and PATH.

A host's PATH is its own bin folder, then a folder of links to the machine's programs without any python, scheduler or
nvidia-smi: so a host has just what it is said to have.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from . import client, layout, totp
from .layout import COMMON_BIN, HOSTS, SSHD, Host
from .processes import LabError, Record, State, is_alive, start

INOTIFY, _WATCHERS = Path("/proc/sys/fs/inotify/max_user_instances"), 1024
SLURM_PROGRAMS = re.compile(
    r"s(acct|acctmgr|alloc|attach|batch|bcast|cancel|control|crontab|diag|gather|info|prio|queue|report|run|sh|share)"
    r"|s(stat|trigger|view)"
)
GRID_ENGINE_COMMANDS = (
    "qacct", "qalter", "qconf", "qdel", "qhold", "qhost", "qmod", "qquota", "qrls", "qrsh", "qselect", "qstat", "qsub",
)  # fmt: skip
HIDDEN = re.compile(r"(i?python|pip|pydoc|conda|mamba|uv|nvidia-).*")
# A host shows programs and accounts of this machine, and none of the signs by which `init` knows a login node: state of
# daemons, users, a scheduler's settings, greetings, variables of login shells. Tests of such signs make their own.
HIDE_SIGNS = """
mount -t tmpfs -o mode=755 clusterfn-lab /run && mkdir /run/sshd || exit
for place in /var/spool /etc/slurm* /etc/condor /etc/motd.d /etc/profile.d; do
    [ ! -d "$place" ] || mount -t tmpfs -o mode=755 clusterfn-lab "$place" || exit
done
for place in /etc/motd /usr/bin/pbsnodes /usr/bin/bsub /usr/bin/condor_submit /usr/bin/flux /usr/bin/oarsub; do
    [ ! -f "$place" ] || mount --bind /dev/null "$place" || exit
done
"""
# Words before a command. What is mounted later below the accounts' homes, which are shared, is seen there too.
APART = ("/usr/bin/unshare", "--mount", "--propagation", "slave", "/bin/sh", "-c", f'{HIDE_SIGNS}exec "$@"', "sh")


def fill_common_bin() -> None:
    """Link every program of the machine that a bare host has."""
    COMMON_BIN.mkdir(parents=True, exist_ok=True)
    for folder in (Path("/usr/sbin"), Path("/usr/bin")):
        for program in folder.iterdir():
            hidden = HIDDEN.fullmatch(program.name) or SLURM_PROGRAMS.fullmatch(program.name)
            hidden = hidden or program.name in GRID_ENGINE_COMMANDS
            place = COMMON_BIN / program.name
            if not hidden and not place.is_symlink():
                place.symlink_to(program)


def fill_host_bin(host: Host) -> None:
    """The host's own programs: its python3, and those of its scheduler."""
    own = HOSTS / host.name / "bin"
    own.mkdir(parents=True, exist_ok=True)
    wanted = {}
    if host.minor is not None:
        python = layout.PYTHONS / f"3.{host.minor}" / "bin" / "python"
        wanted = {"python3": python, f"python3.{host.minor}": python}
    if host.slurm:
        wanted.update({p.name: p for p in Path("/usr/bin").iterdir() if SLURM_PROGRAMS.fullmatch(p.name)})
    if host.grid_engine:
        wanted.update({name: layout.GRID_ENGINE_PROGRAMS / name for name in GRID_ENGINE_COMMANDS})
    for name, program in wanted.items():
        if not (own / name).is_symlink():
            (own / name).symlink_to(program)


def sshd_config(host: Host) -> str:
    """The whole configuration of one host."""
    path = f"{HOSTS / host.name / 'bin'}:{COMMON_BIN}"
    settings = {"SLURM_CONF": str(layout.SLURM_CONF)} if host.slurm else {}
    settings.update(layout.GRID_ENGINE_ENV if host.grid_engine else {})
    scheduler = "".join(f" {name}={value}" for name, value in settings.items())
    # Of this one sshd takes the last value.
    startups = "" if "MaxStartups" in host.settings else "MaxStartups 100:30:200\n"
    first = f"{host.settings}\n" if host.settings else ""
    return f"""\
{first}ListenAddress {host.address}
Port {host.port}
KexAlgorithms {layout.QUICK_KEX}
HostKey {SSHD / host.name}.key
PidFile none
AuthorizedKeysFile {SSHD}/authorized_keys
AllowUsers {" ".join(account.name for account in layout.ACCOUNT_LIST)}
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
{startups}MaxSessions 50
UseDNS no
Subsystem sftp internal-sftp
SetEnv PATH={path} CLUSTERFN_LAB_HOST={host.name}{scheduler}
"""


def replaced_minor(host: Host, state: State) -> Host:
    """Hosts that are not about their Python live with the oldest one there is when 3.6 is missing."""
    if host.minor is None or f"3.{host.minor}" in state.pythons or host.name.startswith("py"):
        return host
    oldest = min(int(name.partition(".")[2]) for name in state.pythons)
    print(f"  no Python 3.{host.minor}: {host.name} gets 3.{oldest}")
    return replace(host, minor=oldest)


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def sshd_argv(host: Host) -> list[str]:
    """What starts the host's sshd, whose configuration is written now."""
    config = SSHD / f"{host.name}.conf"
    config.write_text(sshd_config(host))
    return [*APART, str(host.program), "-D", "-f", str(config), "-E", str(layout.LOGS / f"sshd-{host.name}.log")]


def start_host(host: Host, state: State, apart: Sequence[str] = ()) -> None:
    """Start the sshd unless it runs; a port somebody else holds is an error, not a reason to share.

    `apart` are words before its command, such as run it in namespaces of its own.
    """
    name = f"sshd-{host.name}"
    if name in state.daemons and is_alive(state.daemons[name]):
        return
    if listens(host.port):
        raise LabError(f"port {host.port} of host {host.name} is taken by a process that is not the lab's")
    state.remember(start(Record(name, [*apart, *sshd_argv(host)])))


def wait_for(host: Host, *, timeout_s: float = 150) -> None:
    """Until the host's port answers."""
    deadline = time.monotonic() + timeout_s
    while not listens(host.port, host.address):
        if time.monotonic() > deadline:
            log = layout.LOGS / f"sshd-{host.name}.log"
            raise LabError(f"sshd of {host.name} does not listen on {host.port}: see {log}")
        time.sleep(0.02)


def build(state: State) -> None:
    """Programs, keys, configurations, then the daemons that do not run yet."""
    if int(INOTIFY.read_text()) < _WATCHERS:  # each test of local jobs has an agent of its own
        with contextlib.suppress(OSError):  # a container may not change it
            INOTIFY.write_text(f"{_WATCHERS}\n")
    run_folder = Path("/run/sshd")
    if not run_folder.exists():
        state.claim(run_folder)
        run_folder.mkdir(mode=0o755)
    SSHD.mkdir(exist_ok=True)
    totp.install(state)
    fill_common_bin()
    hosts = playable(layout.HOST_LIST, state)
    cables = playable(layout.CABLE_LIST, state)
    for host in (*hosts, *cables):
        fill_host_bin(host)
    client.build([*hosts, *cables])
    # That of Grid Engine needs more than these have, and starts with it.
    started = [host for host in hosts if not host.grid_engine]
    for host in started:
        start_host(host, state)
    for host in started:
        wait_for(host)


def playable(wanted: Iterable[Host], state: State) -> list[Host]:
    """Those that this machine can play."""
    hosts = [replaced_minor(host, state) for host in wanted]
    return [host for host in hosts if host.minor is None or f"3.{host.minor}" in state.pythons]
