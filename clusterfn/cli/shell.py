"""`clusterfn shell`: a shell on a host in the environment of its jobs, or next to a running job.

`clusterfn tunnel`: a port of a running job, such as TensorBoard's, at a port of this machine.
"""

from __future__ import annotations

import argparse
import json
import posixpath
import shutil
import subprocess
import sys
from collections.abc import Sequence

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING
from clusterfn.calls import environment_upload, sending
from clusterfn.calls.attach import attach as find
from clusterfn.calls.attach import find_job
from clusterfn.calls.group import JobGroup
from clusterfn.cli import target
from clusterfn.cli.output import has_ended
from clusterfn.cli.selection import select_one
from clusterfn.config import config_file
from clusterfn.display import console
from clusterfn.errors import ConfigError
from clusterfn.hosts.environment_choice import EnvironmentRequest
from clusterfn.hosts.host_state import HostState
from clusterfn.hosts.transports import openssh, shared_login
from clusterfn.hosts.transports.ssh_config import resolve
from clusterfn.integrations.jupyter import tunnel as tunnels
from clusterfn.scheduler import job_script
from clusterfn.scheduler.job_script import command_line

_TIMEOUT_S = 60.0
_USE_COMMANDS = 'PATH=$1${1:+:}$PATH; export PATH; shift; exec "$@"'


def shell(args: argparse.Namespace) -> int:
    """Open the shell; its exit status becomes ours."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("shell needs a terminal", hint="clusterfn run and clusterfn pull work without one")
    join: Sequence[str] = ()
    loading = ""
    names_host = not args.words or (len(args.words) == 1 and args.words[0] in config_file.load().names)
    if names_host:
        host = target.host_state(next(iter(args.words), None), "shell")
        words = ["", _environment_of(host, EnvironmentRequest(args.environment, binds=tuple(args.binds)))]
        loading = job_script.modules_setup(host.settings)
    elif args.environment or args.binds:
        raise ConfigError("a job has its own environment", hint="leave out these options, or name a HOST alone")
    else:
        host, folder, join = _started_job(args)
        words = [folder, ""]
    for reply in host.bridge.lay_out():
        reply.result(_TIMEOUT_S)
    argv = [*join, *host.bridge.words(layout.SUPERVISE, "shell", *words)]
    if loading:
        argv = ["/bin/sh", "-c", f'{loading}\nexec "$@"', "sh", *argv]
    return subprocess.call(terminal_command(host, [*_with_commands(host), *argv] if join else argv))


def _with_commands(host_state: HostState) -> list[str]:
    """Return the words that let a command find the scheduler's programs, as the agent's commands do."""
    host = host_state.connection.host
    if not (host.scheduler_path or host.scheduler_env):
        return []
    home = host_state.connection.facts.home
    folders = [posixpath.join(home, path[2:]) if path.startswith("~/") else path for path in host.scheduler_path]
    variables = map("=".join, host.scheduler_env.items())
    return ["/bin/sh", "-c", _USE_COMMANDS, "sh", ":".join(folders), "env", *variables]


def _environment_of(host: HostState, which: EnvironmentRequest) -> str:
    """Find, and build if need be, the environment of a host's jobs; return it as JSON."""
    ready = host.environments.find(which, console.tell)
    if ready.made is not None:
        environment_upload.build(host, ready.made)
    for reply in sending.send_scripts(host, ready.folders):
        reply.result(_TIMEOUT_S)
    python, activation = ready.interpreter.path, ready.interpreter.activation
    return json.dumps({"python": python, "activation": activation, "env": dict(host.settings.env)})


def _started_job(args: argparse.Namespace) -> tuple[HostState, str, Sequence[str]]:
    """Return the host and the folder of a job next to which a shell can run, and the command that leads to its node.

    Raises:
        ConfigError: It is a group, has not started, or runs on a node into which its scheduler starts no program.
    """
    job_id, host = select_one(args, "shell")
    job = find(job_id, host)
    if isinstance(job, JobGroup):
        raise ConfigError(f"{job.id} is a group of {len(job)} items", hint=f"clusterfn shell {job.host}")
    ended = has_ended(job)
    if not ended and job.state == PENDING:
        raise ConfigError(f"job {job.id} has not started: it is {job.status}", hint="wait until it runs")
    host_state, folder = find_job(job_id, host)
    if ended or not host_state.scheduler.has_nodes:
        return host_state, folder, ()
    join = tunnels.way_to_node(job, host_state)
    # Without --pty, srun does not connect the shell to this terminal.
    return host_state, folder, (*join, "--pty")


def terminal_command(host: HostState, argv: Sequence[str]) -> list[str]:
    """Return the command that runs these words on the host at this terminal; raise ConfigError without ssh."""
    if not host.settings.address:
        return list(argv)
    if not shutil.which("ssh"):
        raise ConfigError("shell needs the ssh program, and this machine has none", hint="install OpenSSH's client")
    settings = resolve(host.settings)
    held = shared_login.find_held(settings) if shared_login.can_hold(host.settings) else None
    # Use the shared login if there is one, so that the shell needs no login of its own.
    shared = ["-oControlMaster=no", f'-oControlPath="{held.address}"'] if held else []
    # Without -t, ssh gives a command no terminal.
    return ["ssh", "-t", *shared, *openssh.way(settings), "--", settings.alias, command_line(argv)]


def tunnel(args: argparse.Namespace) -> int:
    """Open the tunnel, until Ctrl-C or the end of the job."""
    places = [place for place, word in enumerate(args.words) if place and word.isdecimal()]
    if not places or int(args.words[places[-1]]) not in range(1, 1 << 16):
        raise ConfigError("tunnel names no port of the job", hint="clusterfn tunnel ID PORT [HOST]: tunnel 7f3a 6006")
    port = int(args.words.pop(places[-1]))
    job_id, host = select_one(args, "tunnel")
    job = find(job_id, host)
    if isinstance(job, JobGroup):
        raise ConfigError(f"{job.id} is a group of {len(job)} items", hint="a tunnel leads to a single job")
    if has_ended(job) or job.state == PENDING:
        hint = "wait until it runs" if job.state == PENDING else "name a job that runs: clusterfn jobs --state running"
        raise ConfigError(f"job {job.id} does not run: it is {job.status}", hint=hint)
    host_state, _ = find_job(job_id, host)
    for reply in host_state.bridge.lay_out():
        reply.result(_TIMEOUT_S)
    return tunnels.open_tunnel(job, host_state, port, args.local_port)
