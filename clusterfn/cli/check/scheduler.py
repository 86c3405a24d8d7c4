"""Steps of `check`: what the scheduler has and charges, or the machine's own queue; its GPUs; logind."""

from __future__ import annotations

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.cli.check.step import CheckState, StepFailed, StepSkipped, StepWarning
from clusterfn.hosts import gpus as host_gpus
from clusterfn.hosts.site_rules import FILE
from clusterfn.hosts.survey import SurveyedGpus
from clusterfn.scheduler import kind_of_site


def scheduler(state: CheckState) -> str:
    kind = kind_of_site(state.host.scheduler)
    if kind is None:
        return _none(state)
    site = state.site.schedulers.get(state.host.scheduler)
    if site is None:
        hint = f"write the folder that has it as scheduler_path: of {state.place}, or set address: to "
        problem = f"there is no {kind.program} on {state.name}, nor does its login shell find one"
        evidence = [*_without_commands(state, kind.title), *state.site.login.signs.strong]
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
    if not state.session.connection.facts.platform.startswith("linux"):
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


def limits(state: CheckState) -> str:
    if state.has_nodes:
        raise StepSkipped("the scheduler sets them")
    rules = state.session.capacity.rules
    if rules is None:
        raise StepSkipped(f"the host has no {FILE}")
    if rules.trouble:
        hint = f"show this to the administrator of {state.name}; the other lines of {FILE} are obeyed"
        raise StepFailed(f"parts of {FILE} on the host cannot be obeyed", hint, list(rules.trouble))
    return f"{FILE} on the host allows you {', '.join(rules.in_words()) or 'all there is'}"


_MISMATCH = "version mismatch"
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
        raise StepFailed("nvidia-smi fails", _how_to_fix(state, surveyed.trouble), surveyed.trouble.splitlines())
    summary = describe_gpus(surveyed)
    setting = state.session.connection.facts.visible_gpus
    if state.session.host.gpus_only:
        names = ", ".join(str(gpu.index) for gpu in state.session.capacity.gpus or ())
        summary += f"; jobs get only GPU {names}, by gpus: in {state.session.host.source}"
    elif host_gpus.hides_some(setting, len(surveyed.names)):
        raise StepWarning(summary, host_gpus.about_visible(setting, state.name))
    if surveyed.lost:
        raise StepWarning(
            f"{summary}; {len(surveyed.lost)} more "
            f"{'does' if len(surveyed.lost) == 1 else 'do'} not answer: {surveyed.lost[0]}", _LOST,
        )  # fmt: skip
    return summary


def _how_to_fix(state: CheckState, trouble: str) -> str:
    if "gpus" in state.site.silent:
        return _HANGS
    if _MISMATCH in trouble:
        return _RELOAD
    return _NO_DRIVER if "communicate with the NVIDIA driver" in trouble else _OTHER


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
        user = state.session.connection.facts.user
        hint = (
            f"ask the administrator for `KillExcludeUsers={user}` or `KillUserProcesses=no` in /etc/systemd/logind.conf"
        )
        raise StepWarning("logind ends all your processes when you log out, including jobs", hint)
    return "jobs keep running when you log out" if state.site.lingering else "logind ends no processes on this host"
