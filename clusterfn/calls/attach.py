"""Finds jobs again, from any process and any machine: `attach(id)` and `jobs()`.

The ledger (`history`) remembers on which host a job was started from here; the hosts themselves know the rest.
"""

from __future__ import annotations

import contextlib
import posixpath
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls import history, remote_state
from clusterfn.calls.job import Job
from clusterfn.calls.job_tracker import Tracker
from clusterfn.calls.remote_state import JobInfo
from clusterfn.config import config_file
from clusterfn.config.host_text import reading
from clusterfn.config.job_spec import SPEC_OF_JOB, known_fields, read_spec
from clusterfn.config.options import Hosts, Options, parse_options
from clusterfn.config.spec import DATA, Resources, ResultPolicy
from clusterfn.errors import ConfigError, HostError
from clusterfn.hosts import loop, remote_files
from clusterfn.hosts.host_state import HostState, open_host
from clusterfn.public_api import public_api

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

    from clusterfn.config.spec import Host

    # The user knows which of the two it is. With a union, a type checker would reject `attach(id).result()` and
    # `job: Job[float] = attach(id)`.
    JobOrGroup: TypeAlias = Any

_HEX = frozenset("0123456789abcdef")
_TIMEOUT_S = 60.0
# The folder of a job may appear on the host only this long after the job was sent from here.
ON_ITS_WAY_S = 15.0
_LOOK_S = 0.2
_LATELY_S = 3600.0
_NAMED = 5


@public_api
def attach(
    job_id: str, host: str | None = None, *, live: bool = False, results: str | None = None,
    max_result: str | None = None,
) -> JobOrGroup:  # fmt: skip
    """Attach to a job or group that any process has sent; its present state is known when this returns.

    Args:
        job_id: Its id, or the first four digits or more of it.
        host: Its host's name; without it the ledger, then all hosts of clusterfn.yml are asked.
        live: Whether its output is followed, from the beginning.
        results, max_result: As for `cluster`. Default: what the call said, if this machine sent it; then what the
            host's keys say.

    Returns:
        A Job, as `submit` returned it, or a JobGroup, as `map` did. Say which for type checkers:
        `job: Job[float] = attach("7f3a")`.

    Raises:
        ConfigError: There is no such job, or the digits fit several.

    Example:
        >>> clusterfn.attach("7f3a").result()
    """
    options = parse_options({"host": host, "results": results, "max_result": max_result})
    host_state, folder = find_job(job_id, options.host)
    attempts = posixpath.join(folder, layout.ATTEMPTS)
    sizes_reply = remote_state.ask_sizes(host_state.connection, attempts, 2, layout.OUTCOME, layout.EVENTS)
    files = [posixpath.join(folder, name) for name in (layout.SPEC, layout.CLAIM, layout.STARTED)]
    sent, claim, started = remote_files.read_each(host_state.connection, files)
    if sent is None:
        raise _no_such(job_id, [host_state.settings])
    with reading(host_state.settings.name, SPEC_OF_JOB):
        spec = read_spec(sent)
    host_state, folder = _where_sent(spec, host_state, folder)
    accepted = _results_of(host_state.settings, _digits(job_id), options)
    if spec.get("group"):
        # The module takes time to import, and most jobs are no groups.
        from clusterfn.calls import sent_group

        return sent_group.attach(host_state, spec, accepted)
    tracker = Tracker(host_state, spec["id"], spec["name"], live, spec["bridge"], accepted)
    run = tracker.run
    job: Job[Any] = Job(run, tracker.source)
    run.at.keeps = spec.get("keep_value", False)
    with reading(host_state.settings.name, SPEC_OF_JOB):
        asked = Resources(**known_fields(Resources, spec["resources"]))
        run.asked = asked._replace(time_s=None if asked.time_s is None else float(asked.time_s))
    run.sent_here = False
    run.has_value = bool(spec.get("has_value", True))
    tracker.attach(claim or b"", started or b"")
    sizes = remote_state.read_sizes(attempts, sizes_reply)
    remote_state.wait_until_caught_up(lambda: job.done() or tracker.source.is_caught_up(sizes))
    return job


def _results_of(host: Host, digits: str, options: Options) -> ResultPolicy:
    """Return what is accepted of a job's value: the local ledger decides, as a host could change its spec.json."""
    sent = history.results_of(digits, host.result_policy())
    data_only = sent.data_only if options.results is None else options.results == DATA
    return ResultPolicy(data_only, options.max_result_bytes or sent.max_bytes)


def _digits(job_id: object) -> str:
    """Return the digits of an id as it may be copied from elsewhere: "#7F3A", or with blanks around it."""
    digits = job_id.strip().lstrip("#").lower() if isinstance(job_id, str) else ""
    if len(digits) < SHORT or not set(digits) <= _HEX:
        # A Job was given instead of its id.
        own = getattr(job_id, "id", None)
        hint = f"use its id, {own!r}" if isinstance(own, str) else "use at least its first four digits, such as '7f3a'"
        raise ConfigError(f"{job_id!r:.80} is not the id of a job", hint=hint)
    return digits


@public_api
def jobs(host: Hosts | None = None) -> list[JobInfo]:
    """List the jobs on a host, or on each of several, newest first; without a name on the host of a call.

    Raises:
        ConfigError, HostError: The host is unknown or cannot be reached.
    """
    config = config_file.load()
    chosen, _ = config.hosts_named(parse_options({"host": host}).host)
    # Several hosts may share one home folder, and so list the same jobs.
    by_id = {job.id: job for one in chosen for job in _jobs_on(one, config)}
    return sorted(by_id.values(), key=lambda job: job.started, reverse=True)


def _jobs_on(chosen: Host, config: config_file.Config) -> list[JobInfo]:
    host_state = open_host(chosen)
    listed = remote_state.list_host_jobs(host_state)
    remote_state.say_why_they_wait(host_state, listed)
    with reading(chosen.name, "its list of jobs"):
        hosts = [job["host"] if job["host"] in config.hosts else chosen.name for job in listed]
        times = [remote_state.by_own_clock(host_state, job) for job in listed]
        return [JobInfo(**{**job, "host": name}) for job, name in zip(times, hosts)]


def find_job(job_id: str, host: str | None) -> tuple[HostState, str]:
    """Find the job's host and folder; wait some seconds for one that this machine has just sent.

    Raises:
        ConfigError: There is no such job, or the digits fit several.
    """
    job_id = _digits(job_id)
    hosts, others = _candidates(job_id, host)
    silent: dict[str, HostError] = {}

    def describe() -> str:
        names = ", ".join(asked.name for asked in hosts[:_NAMED]) + (", …" if len(hosts) > _NAMED else "")
        return f"looking for {job_id[:SHORT]} on {names}: it is not there yet"

    with loop.speaking(describe):
        seen = _seen_on(hosts, job_id, silent)
        names = [asked.name for asked in hosts]
        while not _whole(seen) and len(silent) < len(hosts) and history.sent_within(job_id, ON_ITS_WAY_S, names):
            # Its folder comes after all that it needs.
            time.sleep(_LOOK_S)
            seen = _seen_on(hosts, job_id, silent)
        if others and not seen:
            # A host that does not answer may have another address by now, or another root.
            again = [other for other in others if not silent or other.name in {tried.name for tried in hosts}]
            hosts, seen = [*hosts, *again], _seen_on(again, job_id, silent)
    folders = _whole(seen)
    if len(_ids(folders)) > 1:
        several = [f"{posixpath.basename(folder)} on {host_state.settings.name}" for host_state, folder in folders]
        raise ConfigError(f"{job_id} matches {len(several)} jobs", evidence=several[:10], hint="use a longer id")
    if not folders and len(silent) == len(hosts):
        raise next(iter(silent.values()))
    if not folders:
        raise _no_such(job_id, hosts, [host_state.settings.name for host_state, _ in seen], silent)
    return folders[0] if len(folders) == 1 else _sender(folders)


def _seen_on(hosts: Iterable[Host], job_id: str, silent: dict[str, HostError]) -> list[tuple[HostState, str]]:
    """Ask each host for jobs whose id begins so; note those that cannot be asked in `silent`, and ask them no more."""
    seen: list[tuple[HostState, str]] = []
    for host_state in [open_host(host) for host in hosts if repr(host) not in silent]:
        try:
            seen += [(host_state, path) for path in find_folders(host_state, job_id)]
        except HostError as error:
            # A host that cannot be reached is not asked again, because each attempt may take many seconds.
            silent[repr(host_state.settings)] = error
    return seen


def _whole(seen: Iterable[tuple[HostState, str]]) -> list[tuple[HostState, str]]:
    """Return the folders that have arrived: one that is being sent has a longer name."""
    return [(host, path) for host, path in seen if set(posixpath.basename(path)) <= _HEX]


def _ids(folders: Iterable[tuple[HostState, str]]) -> set[str]:
    return {posixpath.basename(folder) for _, folder in folders}


def _no_such(
    job_id: str,
    hosts: Sequence[Host],
    partly_on: Sequence[str] = (),
    silent: Mapping[str, HostError] = MappingProxyType({}),
) -> ConfigError:
    host_names = list(dict.fromkeys(host.name for host in hosts if repr(host) not in silent))
    names, elsewhere = ", ".join(host_names), sorted(history.entries(job_id), key=lambda entry: entry.host)
    elsewhere = [entry for entry in elsewhere if entry.host not in {host.name for host in hosts}]
    if elsewhere:
        sent = elsewhere[0]
        hint = f"leave the host out, or use that host: {sent.host}"
        if sent.host not in config_file.load().hosts:
            hint = f"name that host, if it has another name now; else add it to clusterfn.yml, as in {sent.config}"
        sent_to = ", ".join(dict.fromkeys(entry.host for entry in elsewhere))
        return ConfigError(f"there is no job {job_id} on {names}: it was sent to {sent_to}", hint=hint)
    if partly_on:
        return ConfigError(
            f"job {job_id} has not started: only part of it has arrived on {', '.join(dict.fromkeys(partly_on))}",
            evidence=["the program that sends it is still at work, has lost its connection, or was killed"],
            hint="attach once that program has sent all of it, or submit it again",
        )
    why = "this machine sent it a short while ago: it is still being sent, or was rejected or removed"
    evidence = [why] if history.sent_within(job_id, _LATELY_S, host_names) else []
    evidence += [f"{error.host} could not be asked: {in_one_line(error.message)}" for error in silent.values()]
    hint = "clusterfn jobs HOST lists the jobs on a host"
    return ConfigError(f"there is no job {job_id} on {names}", evidence=evidence, hint=hint)


def _sender(folders: list[tuple[HostState, str]]) -> tuple[HostState, str]:
    """Choose the host that a job was sent to among several that show it, such as login nodes with one home."""
    host, folder = folders[0]
    job_id = posixpath.basename(folder)
    spec = remote_files.read_bytes(host.connection, posixpath.join(folder, layout.SPEC))
    with reading(host.settings.name, SPEC_OF_JOB):
        sent_to = read_spec(spec)["host"]
    chosen = next((found for found in folders if found[0].settings.name == sent_to), None)
    if chosen is None:
        names = [host.settings.name for host, _ in folders]
        raise ConfigError(
            f"{job_id} is visible on {', '.join(names)}, but was sent to a host named {sent_to}",
            hint=f"choose one: clusterfn COMMAND {job_id} {names[0]}, or attach({job_id!r}, host={names[0]!r})",
        )
    return chosen


def _where_sent(spec: dict[str, Any], host: HostState, folder: str) -> tuple[HostState, str]:
    """Return the host that it was sent to, if that has another scheduler, which alone can judge it, and shows it too.

    Otherwise return the host that was asked: it is as good, and may be the only one that can be reached.
    """
    sender = config_file.load().hosts.get(spec["host"])
    if sender is not None and sender.scheduler != host.settings.scheduler:
        with contextlib.suppress(HostError):
            sender_host = open_host(sender)
            found = _whole((sender_host, path) for path in find_folders(sender_host, spec["id"]))
            return found[0] if found else (host, folder)
    return host, folder


def find_folders(host: HostState, job_id: str) -> list[str]:
    """Find what is among the jobs there under a name that begins so."""
    folder = posixpath.join(host.root, layout.JOBS)
    answer = host.connection.run(["find", folder, "-maxdepth", "1", "-name", job_id + "*"]).result(_TIMEOUT_S)
    return answer.out.decode("utf-8", "surrogateescape").split("\n")[:-1]


def _candidates(job_id: str, name: str | None) -> tuple[list[Host], list[Host]]:
    """Return the hosts to ask, and those to ask if no host of the first has it.

    First comes the named host, and no other; else those in the ledger, by the files that define them; else all of
    clusterfn.yml.
    """
    if name is not None:
        return config_file.load().hosts_named(name)[0], []
    present = list(config_file.load().hosts.values())
    remembered = []
    for entry in sorted(history.entries(job_id), key=lambda entry: entry.host):
        hosts = history.hosts_sent_with(entry)
        remembered += [hosts[entry.host]] if entry.host in hosts else []
    return (remembered, [host for host in present if host not in remembered]) if remembered else (present, [])
