"""Steps of `check` about the host: how it is reached, its root and file system, its scheduler, its GPUs, its logins.

The root is where clusterfn writes: may one write there, how much, and can files do there what they must.
"""

from __future__ import annotations

import posixpath
import socket
import time

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.cli import clean, target
from clusterfn.cli.check.step import CheckState, StepFailed, StepSkipped, StepWarning
from clusterfn.config.environment_kinds import ENVIRONMENT_KINDS, names_an_image
from clusterfn.errors import AuthenticationError, ClusterfnError, HostError, HostKeyError, Unreachable
from clusterfn.hosts.host_state import open_host
from clusterfn.hosts.survey import SurveyedGpus
from clusterfn.hosts.transports.ssh_config import resolve
from clusterfn.scheduler import kind_of_site

_NOISY_LINES = 5
_QUIET = (
    "in ~/.bashrc on the host, put this before the lines that print: case $- in *i*) ;; *) return ;; esac "
    "(in ~/.cshrc: if (! $?prompt) exit)"
)


def configuration(state: CheckState) -> str:
    config, state.host, because = target.host(state.host_name, "check")
    where = state.host.source if config.path else "built in"
    by = "" if because.startswith("there is") else "chosen by "
    return f"{state.host.name} ({where}), scheduler: {state.host.scheduler}; {by}{because}"


def name(state: CheckState) -> str:
    if not state.host.address:
        raise StepSkipped("this machine, without ssh")
    settings = resolve(state.host)
    if settings.proxy_jump or settings.proxy_command:
        way = ", ".join(settings.proxy_jump) or settings.proxy_command
        return f"{settings.user}@{settings.place}, through {way}"
    try:
        address = socket.getaddrinfo(settings.hostname, settings.port, type=socket.SOCK_STREAM)[0][4][0]
    except socket.gaierror as error:
        hint = f"check {settings.named_in(state.host)} and your network or VPN"
        raise StepFailed(f"the name {settings.hostname} cannot be resolved", hint, [str(error)]) from error
    return f"{settings.user}@{settings.place}" + (f" ({address})" if address != settings.hostname else "")


def connection(state: CheckState) -> str:
    """Connect once. A rejected login or an unknown host key is another step's: the host was reached."""
    began = time.monotonic()
    try:
        state.host_state = open_host(state.host)
        # This includes the agent's greeting, so the time below is that of a whole login.
        state.host_state.connect()
    except HostError as error:
        state.broken = error
        if isinstance(error, Unreachable) or (type(error) is HostError and error.__cause__ is not None):
            # The host could not be reached, or its sshd and this machine have no algorithm in common.
            raise
    if not state.host.address:
        return "an agent was started"
    if state.broken:
        return "the host answers"
    return f"the host answers, in {time.monotonic() - began:.2f} s, by {state.host_state.connection.via}"


def host_key(state: CheckState) -> str:
    if not state.host.address:
        raise StepSkipped("not reached by ssh")
    if isinstance(state.broken, HostKeyError):
        raise state.broken
    return "as remembered in known_hosts"


def login(state: CheckState) -> str:
    if isinstance(state.broken, AuthenticationError):
        raise state.broken
    if state.broken is not None:
        return "accepted"
    facts = state.host_state.connection.facts
    return f"{facts.user} on {facts.hostname}, {facts.cpus} CPUs, {format_size(facts.memory_bytes)} of memory"


def shell(state: CheckState) -> str:
    """Warn about an rc file that prints: clusterfn ignores it, but scp, rsync and sftp fail with it."""
    if state.broken is not None:
        raise StepSkipped("no agent was started, see python")
    lines = [line for line in state.host_state.connection.noise.splitlines() if line.strip()]
    if not lines:
        return "silent without a terminal, as it should be"
    more = [f"… and {len(lines) - _NOISY_LINES} more lines"] if len(lines) > _NOISY_LINES else []
    message = "a startup file on the host prints without a terminal; clusterfn ignores that, but scp and rsync may fail"
    raise StepWarning(message, _QUIET, [*lines[:_NOISY_LINES], *more])


def python(state: CheckState) -> str:
    if state.broken is not None:
        if getattr(state.broken, "kind", None):
            # An error with a kind comes from the agent, so an agent runs. Another step reports the error.
            return "runs the agent"
        raise state.broken
    facts = state.host_state.connection.facts
    return f"{facts.python} ({'.'.join(map(str, facts.version))}) runs the agent and the supervisor"


# Below the first of each pair, the step warns. Below the second, it fails.
_LITTLE_BYTES, _TOO_LITTLE_BYTES = 50 * 2**20, 10 * 2**20
_FEW_FILES, _TOO_FEW_FILES = 10_000, 500
_MEASURING_S = 20.0
_IN_MEMORY = ("tmpfs", "ramfs")


def root(state: CheckState) -> str:
    if state.broken is not None:
        raise state.broken
    path, volume = state.host_state.root, state.site.root
    if "root" in state.site.silent:
        hint = f"log in and see whether `ls {path}` answers; ask the administrator, or {_elsewhere(state)}"
        raise StepFailed(f"the file system of {path} does not answer", hint)
    if volume is not None and not volume.writable:
        raise StepFailed(f"{path} cannot be written to", _elsewhere(state))
    if state.has_nodes and volume is not None and volume.kind in _IN_MEMORY:
        raise StepFailed(f"{path} is in this machine's memory, where no compute node sees it", _elsewhere(state))
    others = {spec["scheduler"] for spec in state.jobs[0]} - {"local", state.host.scheduler}
    if others and state.host.scheduler != "local":
        other = others.pop()
        message = f"{path} also holds jobs of a host with `scheduler: {other}`, so each host lists the other's jobs"
        hint = f"give {state.place} a root of its own, such as `root: {path}-{state.host.scheduler}`"
        raise StepWarning(message, hint)
    return f"{path} ({', '.join(word for word in (volume.kind, volume.mode) if word)})" if volume else path


def _elsewhere(state: CheckState) -> str:
    """Return the line that moves the root to the best other file system."""
    proposed = state.site.proposed_root()
    now = state.site.root
    if proposed is None or (now is not None and proposed[0].device == now.device):
        return f"set root: of {state.place} to a folder on another file system that you may write to"
    volume, reason = proposed
    return f"set `root: {posixpath.join(volume.path, '.clusterfn')}` for {state.place}: {reason}"


def space(state: CheckState) -> str:
    volume = state.site.root
    if volume is None or volume.room_bytes is None:
        raise StepSkipped("df does not report the free space")
    folder = posixpath.dirname(volume.path)
    size = format_size(volume.room_bytes)
    if volume.room_bytes < _LITTLE_BYTES:
        bound = " under your quota" if volume.room_bytes == volume.quota_bytes else ""
        mend = f"free some space (`du -xhd1 {folder} | sort -h`), or {_elsewhere(state)}"
        wrong = StepFailed if volume.room_bytes < _TOO_LITTLE_BYTES else StepWarning
        raise wrong(f"only {size} is left{bound} in {volume.path}", mend)
    if volume.room_files is not None and volume.room_files < _FEW_FILES:
        bound = " under your quota" if volume.room_files == volume.quota_files else ""
        mend = f"remove some files (`du --inodes -xd1 {folder} | sort -n`), or {_elsewhere(state)}"
        wrong = StepFailed if volume.room_files < _TOO_FEW_FILES else StepWarning
        raise wrong(f"only {volume.room_files} more files can be created{bound} in {volume.path}", mend)
    left = volume.quota_bytes
    quota = "no quota reported" if left is None else f"your quota leaves {format_size(left)}"
    free = "" if volume.free_bytes is None else f"{format_size(volume.free_bytes)} free, "
    return free + ("" if volume.free_files is None else f"{volume.free_files} files free, ") + quota


def stored(state: CheckState) -> str:
    try:
        usage = clean.look(state.host_state, None, dry=True, timeout_s=_MEASURING_S)
    except ClusterfnError as error:
        raise StepSkipped(f"its content could not be measured: {error.message}") from error
    freed = sum(kind["freed"] for kind in usage["kinds"].values())
    more = f"; `clusterfn clean {state.name}` would free {format_size(freed)}" if freed else ""
    return f"{clean.total(usage['kinds']) or 'nothing yet'}{more}"


def noexec(state: CheckState) -> str:
    volume = state.site.root
    if volume is None or volume.links is None:
        raise StepSkipped("not tried, because nothing could be written")
    if not volume.noexec:
        return "programs on it can be started"
    message = f"programs in {volume.path} cannot be started: it is mounted noexec"
    environment = state.environment or state.host.environment
    # Nothing of an environment that clusterfn did not make must start from the root, but the script of an image.
    kind = (environment or "current").partition(":")[0]
    if kind in (*ENVIRONMENT_KINDS, "current") and not names_an_image(environment or ""):
        raise StepWarning(f"{message}; no environment can be built on it", _elsewhere(state))
    raise StepFailed(message, _elsewhere(state))


def scheduler(state: CheckState) -> str:
    kind = kind_of_site(state.host.scheduler)
    if kind is None:
        return _none(state)
    site = state.site.schedulers.get(state.host.scheduler)
    if site is None:
        hint = f"write the folder that has it as scheduler_path: of {state.place}, or set address: to "
        problem = f"there is no {kind.program} on {state.name}, nor does its login shell find one"
        evidence = [*_without_commands(state, kind.title), *state.site.login.signs.sentences]
        raise StepFailed(problem, hint + kind.wanted_address, evidence)
    summary = site.check(state.host, state.place)
    commands = state.site.login.schedulers.get(state.host.scheduler)
    lines = commands.in_words() if commands is not None else ""
    if stale := _without_commands(state, site.title):
        hint = f"remove {', '.join(state.site.login.empty)} from scheduler_path: of {state.place}"
        raise StepWarning("\n".join([summary, *stale]), f"{hint}, and add {lines}" if lines else hint)
    if commands is not None and lines:
        problem = f"Its commands were found {commands.how}, and clusterfn.yml does not say where"
        raise StepWarning(f"{summary}\n{problem}", f"add {lines} to {state.place}")
    return summary


def _without_commands(state: CheckState, title: str) -> list[str]:
    """Say which folders of `scheduler_path:` have no command of the scheduler."""
    return [f"{folder} of scheduler_path: has none of {title}'s commands" for folder in state.site.login.empty]


def _none(state: CheckState) -> str:
    if state.host.scheduler == "bare" and state.site.schedulers:
        word, site = next(iter(state.site.schedulers.items()))
        commands = state.site.login.schedulers.get(word)
        lines = ", ".join(filter(None, [f"scheduler: {word}", commands.in_words() if commands else ""]))
        hint = f"write {lines} for {state.place}, unless you may compute on this machine itself"
        raise StepWarning(f"the host has {site.program}: if this is a login node, use scheduler: {word}", hint)
    if state.host.scheduler == "bare" and state.site.signs:
        hint = f"if it is, remove {state.place} and run clusterfn init again, which asks for the scheduler"
        raise StepWarning(f"this may be the login node of a cluster: {'; '.join(state.site.signs)}", hint)
    if not state.host_state.connection.facts.platform.startswith("linux"):
        return "none: a job starts at once"
    _, waiting = state.jobs
    yours = f"{waiting or 'none'} of your jobs {'waits' if waiting == 1 else 'wait'} now"
    shared = "memory and GPUs, and share the cores" if state.host.scheduler == "local" else "cores, memory and GPUs"
    return f"clusterfn's own queue: jobs wait their turn for {shared}; {yours}"


def account(state: CheckState) -> str:
    site = state.site.schedulers.get(state.host.scheduler)
    if site is None:
        raise StepSkipped("no account is charged without a batch scheduler")
    usable = site.check_account(state.host, state.place)
    if usable is None:
        raise StepSkipped(site.no_accounts)
    return usable


_RELOAD = (
    "the driver was updated while the old one was loaded: ask the administrator for a restart (`sudo reboot`), or, if "
    "nothing uses the GPUs, `sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia`"
)
_HANGS = (
    "a GPU may have fallen off the bus: log in and run `nvidia-smi` and `sudo dmesg | grep -i xid`; "
    "the host needs a restart"
)
_LOST = "jobs use the others; ask the administrator to look at `sudo dmesg | grep -i xid` and to reset or restart it"
_NO_DRIVER = "the driver is not loaded: ask the administrator for `sudo modprobe nvidia`; `dmesg` says why it is not"
_OTHER = "log in and run nvidia-smi; ask the administrator"


def gpus(state: CheckState) -> str:
    if state.has_nodes:
        raise StepSkipped("on the nodes, see scheduler")
    surveyed = state.site.gpus
    if surveyed is None:
        raise StepSkipped("there is no nvidia-smi: gpus=0 only")
    if surveyed.trouble:
        known = {"version mismatch": _RELOAD, "communicate with the NVIDIA driver": _NO_DRIVER}
        fix = next((advice for words, advice in known.items() if words in surveyed.trouble), _OTHER)
        fix = _HANGS if "gpus" in state.site.silent else fix
        raise StepFailed("nvidia-smi fails", fix, surveyed.trouble.splitlines())
    summary = describe_gpus(surveyed)
    if state.host_state.settings.gpus_only:
        names = ", ".join(str(gpu.index) for gpu in state.host_state.capacity.gpus or ())
        summary += f"; jobs get only GPU {names}, by gpus: in {state.host_state.settings.source}"
    if surveyed.lost:
        do = "does" if len(surveyed.lost) == 1 else "do"
        raise StepWarning(f"{summary}; {len(surveyed.lost)} more {do} not answer: {surveyed.lost[0]}", _LOST)
    return summary


def describe_gpus(surveyed: SurveyedGpus) -> str:
    kinds = "; ".join(dict.fromkeys(surveyed.names))
    capable = f", compute capability {', '.join(sorted(set(surveyed.capabilities)))}" if surveyed.capabilities else ""
    memory = "unknown memory" if surveyed.memory_bytes is None else format_size(surveyed.memory_bytes)
    memory += ", shared with the CPU" if surveyed.unified else ""
    return f"{len(surveyed.names)} x {kinds}, {memory}{capable}; driver {surveyed.driver}"


def lingering(state: CheckState) -> str:
    if state.has_nodes:
        raise StepSkipped("jobs run on the nodes")
    if state.site.lingering is False:
        user = state.host_state.connection.facts.user
        lines = f"`KillExcludeUsers={user}` or `KillUserProcesses=no`"
        hint = f"ask the administrator for {lines} in /etc/systemd/logind.conf"
        raise StepWarning("logind ends all your processes when you log out, including jobs", hint)
    return "jobs keep running when you log out" if state.site.lingering else "logind ends no processes on this host"
