"""Finds jobs again, from any process and any machine: `attach(id)` and `jobs()`.

The ledger (`history`) remembers on which host a job was started from here; the hosts themselves know the rest.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, DIED, HAS_NOT_STARTED, PENDING, RAISED, RETURNED, SHORT, clock
from clusterfn.bridge.supervisor.text import counted, format_duration, in_one_line, last_lines
from clusterfn.calls import history, outcome, remote_state
from clusterfn.calls.job import Job, entry_of
from clusterfn.calls.job_tracker import Tracker
from clusterfn.config import config_file
from clusterfn.config.host_text import reading
from clusterfn.config.job_spec import SPEC_OF_JOB, known_fields, read_spec
from clusterfn.config.options import Options, parse_options
from clusterfn.config.spec import DATA, Resources, ResultPolicy
from clusterfn.display import console
from clusterfn.display.notebook_display import NotebookDisplay
from clusterfn.display.summary import Summary, short_usage
from clusterfn.errors import ClusterfnError, ConfigError, HostError
from clusterfn.hosts import loop, remote_files, spoken_wait
from clusterfn.hosts.host_state import HostState, open_session
from clusterfn.public_api import public_api
from clusterfn.scheduler import base

if TYPE_CHECKING:
    from clusterfn.calls.group import JobGroup
    from clusterfn.config.spec import Host

_HEX = frozenset("0123456789abcdef")
# The agent names files that are on their way like this.
_PART = re.compile(r"\.part-\d+-\d+$")
_TIMEOUT_S = 60.0
# Without an answer of the scheduler within this time, the list is shown without its reasons.
_SCHEDULER_S = 5.0
# The folder of a job may appear on the host only this long after the job was sent from here.
ON_ITS_WAY_S = 15.0
_LOOK_S, _LOOK_LAST_S = 0.2, 2.0
# Most jobs arrive sooner, and a message about them would be noise.
UNTOLD_S = 1.0
_LATELY_S = 3600.0
_NAMED = 5


@dataclass(frozen=True)
class JobInfo:
    """One job as its host knows it.

    Attributes:
        host: The one that it was sent to, if clusterfn.yml has it: several hosts may show one home. Else the one asked.
        started: When it was sent, in seconds since 1970, by the clock of this machine.
        state: As `Job.state`.
        message: One line about how it ended, or why it waits.
        since: Since when it is in that state, as `started`; None if that is not known.
        gpus: How many it asked for, on all nodes; of a map, for each of its processes. None if that is not known.
        ran_s: For how many seconds it has run, or ran; None before it started, and if that is not known.
        inputs: The ids of the jobs whose values it takes.
        arguments: Those of the call in a short line; of a map, those of the first and the last item.
        ended: When it ended, as `started`; None if it has not.
        asked: What it asked for, by the names of `Resources`.
        usage: As `Job.usage`, while it runs, too. Of a map it is that of all items.
    """

    id: str
    name: str
    host: str
    state: str
    message: str
    started: float
    gpus: int | None = None
    ran_s: float | None = None
    inputs: Sequence[str] = ()
    since: float | None = None
    arguments: str = ""
    ended: float | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def detail(self) -> str:
        """What a table says last: how it ended, or since when it waits or runs, and why."""
        if self.state in (RETURNED, RAISED, DIED, CANCELLED) or self.since is None:
            return self.message
        return f"since {clock(self.since)}{f': {self.message}' if self.message else ''}"


class JobList(list[JobInfo], NotebookDisplay):
    """Jobs of a host, which a notebook shows as a table."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> JobInfo: ...
    @overload
    def __getitem__(self, index: slice) -> JobList: ...
    def __getitem__(self, index: SupportsIndex | slice) -> JobInfo | JobList:
        """Return a job; of a slice, a list that is also shown as a table."""
        return JobList(list(self).__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def _summary(self) -> Summary:
        def row(job: JobInfo) -> list[str]:
            sent = time.strftime("%d %b %H:%M", time.localtime(job.started))
            ran, uses = "" if job.ran_s is None else format_duration(round(job.ran_s)), short_usage(job.usage)
            shown = [job.id, job.name, job.arguments, job.host, job.state, sent, ran, str(job.gpus or ""), uses]
            return [*shown, job.detail]

        title = counted(len(self), "job")
        columns = ("id", "name", "arguments", "host", "state", "sent", "ran", "GPUs", "uses", "")
        return Summary(title, columns=columns, rows=[row(each) for each in self])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Take precedence over what IPython prints for a list."""
        printer.text(self._repr_mimebundle_()["text/plain"])


@public_api
def attach(
    job_id: str, host: str | None = None, *, live: bool = False, results: str | None = None,
    max_result: str | None = None,
) -> Job[Any] | JobGroup[Any, Any]:  # fmt: skip
    """Attach to a job or group that any process has sent; its present state is known when this returns.

    Args:
        job_id: Its id, or the first four digits or more of it.
        host: Its host's name; without it the ledger, then all hosts of clusterfn.yml are asked.
        live: Whether its output is followed, from the beginning.
        results, max_result: As for `cluster`. Default: what the call said, if this machine sent it; then what the
            host's keys say.

    Returns:
        A Job, as `submit` returned it, or a JobGroup, as `map` did.

    Raises:
        ConfigError: There is no such job, or the digits fit several.

    Example:
        >>> clusterfn.attach("7f3a").result()
    """
    options = parse_options({"results": results, "max_result": max_result})
    session, folder = find_job(job_id, host)
    attempts = posixpath.join(folder, layout.ATTEMPTS)
    sizes_reply = remote_state.ask_sizes(session.connection, attempts, 2, layout.OUTCOME, layout.EVENTS)
    files = [posixpath.join(folder, name) for name in (layout.SPEC, layout.CLAIM, layout.STARTED)]
    sent, claim, started = remote_files.read_each(session.connection, files)
    if sent is None:
        raise _no_such(job_id, [session.host])
    with reading(session.host.name, SPEC_OF_JOB):
        spec = read_spec(sent)
    session, folder = _where_sent(spec, session, folder)
    accepted = _results_of(session.host, _digits(job_id), options)
    if spec.get("group"):
        # The module takes time to import, and most jobs are no groups.
        from clusterfn.calls import sent_group

        return sent_group.attach(session, spec, accepted)
    keeps = spec.get("keep_value", False)
    tracker = Tracker(session, spec["id"], spec["name"], live, spec["bridge"], keeps=keeps, results=accepted)
    job: Job[Any] = Job(spec["id"], spec["name"], session.host.name, folder, tracker)
    tracker.entry = entry = entry_of(job)
    with reading(session.host.name, SPEC_OF_JOB):
        entry.sent_here, entry.asked = False, Resources(**known_fields(Resources, spec["resources"]))
        tracker.time_s = None if entry.asked.time_s is None else float(entry.asked.time_s)
    entry.has_value = bool(spec.get("has_value", True))
    tracker.attach(claim or b"", started or b"")
    if not live:
        sizes = remote_state.read_sizes(attempts, sizes_reply)
        remote_state.wait_until_caught_up(lambda: job.done() or tracker.is_caught_up(sizes))
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
def jobs(host: str | None = None) -> list[JobInfo]:
    """List the jobs on a host, newest first; without a name on the host that a call would use.

    Raises:
        ConfigError, HostError: The host is unknown or cannot be reached.
    """
    config = config_file.load()
    chosen, _ = config.resolve(host)
    session = open_session(chosen)
    listed = list_host_jobs(session)
    say_why_they_wait(session, listed)
    with reading(chosen.name, "its list of jobs"):
        hosts = [job["host"] if job["host"] in config.hosts else chosen.name for job in listed]
        infos = [JobInfo(**{**by_own_clock(session, job), "host": name}) for job, name in zip(listed, hosts)]
    return JobList(sorted(infos, key=lambda job: job.started, reverse=True))


def say_why_they_wait(session: HostState, listed: Sequence[dict[str, Any]]) -> None:
    """Add to the jobs that wait in a scheduler's queue why they do, in the words that a waiting call shows."""
    waiting = [job for job in listed if job.get("state") == PENDING]
    if not waiting or not session.scheduler.has_nodes:
        return
    states = session.watch.last_look(_SCHEDULER_S)
    for job in waiting:
        seen = None if isinstance(states, str) else states.get(layout.job_name(str(job["name"]), str(job["id"])))
        if isinstance(states, str):
            why = in_one_line(states)
        elif seen is None or seen.phase != base.PENDING:
            continue
        elif job.get("inputs") and seen.waits_for_jobs:
            # The host has already named the jobs that this one waits for.
            continue
        else:
            why = seen.in_words
        message = "" if job["message"] == HAS_NOT_STARTED else job["message"]
        job["message"] = "; ".join(filter(None, [message, why]))


def list_host_jobs(session: HostState) -> list[dict[str, Any]]:
    """Ask the host for its jobs, a page at a time."""
    listed: list[dict[str, Any]] = []
    after = ""
    while True:
        answer = session.bridge.supervise("list", session.root, *([after] if after else [])).result(_TIMEOUT_S)
        if answer.rc != 0:
            message = "the host could not list its jobs"
            raise ClusterfnError(message, host=session.host.name, evidence=last_lines(answer.err, 5))
        with reading(session.host.name, "its list of jobs"):
            page = [dict(json.loads(line)) for line in answer.out.splitlines()]
            following = str(page.pop()["after"]) if page and "after" in page[-1] else ""
            if following and not page:
                # A host could promise more pages for ever.
                raise ValueError("a page without jobs that promises more")
            page = [checked_job(each) for each in page]
        listed += page
        # The last page names no job after which to continue. A smaller id would begin the list again, without end.
        if following <= after:
            return listed
        after = following


def by_own_clock(session: HostState, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job of a host's list with its times by the clock of this machine: that of the host may be another."""
    times = {name: job[name] for name in ("started", "since", "ended") if job.get(name) is not None}
    return {**job, **{name: session.here(when) for name, when in times.items()}}


_TEXTS, _NUMBERS = ("id", "name", "host", "state", "message"), ("started", "gpus", "ran_s", "since", "ended")
# Bytes of memory.
_MOST = 1 << 63
# Seconds since 1970 that `time.localtime` still takes.
_LATEST = 1 << 40


def checked_job(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job of a host's list.

    Raises:
        ValueError, KeyError, TypeError: The host has sent something else.
    """
    numbers = [job["started"], *(job[name] for name in _NUMBERS if job.get(name) is not None)]
    if not all(type(each) in (int, float) and -_LATEST < each < _LATEST for each in numbers):
        raise ValueError("a number")
    texts = [*(job[name] for name in _TEXTS), *job.get("inputs", ()), job.get("arguments", "")]
    if not all(type(each) is str for each in texts):
        raise ValueError("a text")
    request, usage = job.get("asked") or {}, job.get("usage") or {}
    if not all(type(each) in (int, float) and 0 <= each < _MOST for each in request.values()):
        raise ValueError("what it asked for")
    if not outcome.is_usage(usage):
        raise ValueError("what it uses")
    return job


def find_job(job_id: str, host: str | None) -> tuple[HostState, str]:
    """Find the job's host and folder; wait until all of it has arrived, as its sender shows its id before that.

    Raises:
        ConfigError: There is no such job, or the digits fit several.
    """
    job_id = _digits(job_id)
    hosts, others = _candidates(job_id, host)
    silent: dict[str, HostError] = {}

    def describe() -> str:
        names = ", ".join(each.name for each in hosts[:_NAMED]) + (", …" if len(hosts) > _NAMED else "")
        return f"looking for {job_id[:SHORT]} on {names}: no answer yet"

    with ArrivalStatus() as patience, loop.speaking(describe):
        while True:
            seen = _seen_on(hosts, job_id, silent)
            folders = [(session, path) for session, path, _ in seen if _is_whole(path)]
            partly = [(session, path) for session, path, recent in seen if recent and _PART.search(path)]
            parts = {_PART.sub("", posixpath.basename(path)): session.host.name for session, path in partly}
            arriving = {part: name for part, name in parts.items() if part not in _ids(folders)}
            late = history.sent_within(job_id, ON_ITS_WAY_S, [host.name for host in hosts]) - _ids(folders)
            coming = patience.has(arriving, bool(folders)) or bool(late)
            if coming and len(_ids(folders) | arriving.keys()) < 2:
                if not arriving and not folders:
                    patience.expect(job_id)
                patience.wait()
            elif others and not seen and not patience.was_needed:
                # A host that does not answer may have another address by now, or another root.
                again = [each for each in others if not silent or each.name in {tried.name for tried in hosts}]
                hosts, others = [*hosts, *again], []
            else:
                break
    if len(_ids(folders) | arriving.keys()) > 1:
        several = [f"{posixpath.basename(folder)} on {session.host.name}" for session, folder in folders]
        several += [f"{part} being sent to {name}" for part, name in arriving.items()]
        raise ConfigError(f"{job_id} matches {len(several)} jobs", evidence=several[:10], hint="use a longer id")
    if not folders and len(silent) == len(hosts):
        raise next(iter(silent.values()))
    if not folders:
        raise _no_such(job_id, hosts, [session.host.name for session, _, _ in seen], patience.was_needed, silent)
    return folders[0] if len(folders) == 1 else _sender(folders)


def _seen_on(hosts: Iterable[Host], job_id: str, silent: dict[str, HostError]) -> list[tuple[HostState, str, bool]]:
    """Ask each host for jobs whose id begins so; note those that cannot be asked in `silent`, and ask them no more."""
    seen: list[tuple[HostState, str, bool]] = []
    for session in [open_session(host) for host in hosts if repr(host) not in silent]:
        try:
            seen += [(session, path, recent) for path, recent in find_folders(session, job_id)]
        except HostError as error:
            # A host that cannot be reached is not asked again, because each attempt may take many seconds.
            silent[repr(session.host)] = error
    return seen


class ArrivalStatus(console.StatusLine):
    """Waits for a job that is still being sent, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.was_needed = False
        self._began = self._seen = time.monotonic()
        self._pause_s = _LOOK_S

    def has(self, arriving: Mapping[str, str], has_folder: bool) -> bool:
        """Whether to look again, given the host of each job that is arriving.

        Its sender may have lost its connection: then no part of it is there until the sender connects again.
        """
        now = time.monotonic()
        for part, name in arriving.items():
            self.was_needed, self._seen = True, now
            if now - self._began > UNTOLD_S:
                self.show_line(f"clusterfn: {part[:SHORT]} is still being sent to {name}; waiting for the rest of it")
        return bool(arriving) or (self.was_needed and not has_folder and now - self._seen < ON_ITS_WAY_S)

    def expect(self, job_id: str) -> None:
        """Say, after some seconds, that this machine has sent a job of which the host has nothing."""
        if time.monotonic() - self._began > spoken_wait.SPEAK_AFTER_S:
            self.show_line(f"clusterfn: waiting for {job_id[:SHORT]}, sent a short while ago: no host has it yet")

    def wait(self) -> None:
        """Wait until the next look; a long upload needs few."""
        time.sleep(self._pause_s)
        # Each look asks every host, so the pause grows while a large upload is under way.
        self._pause_s = min(_LOOK_LAST_S, 1.1 * self._pause_s)

    def __enter__(self) -> ArrivalStatus:
        return self

    def __exit__(self, *_: object) -> None:
        if self.line and console.can_redraw():
            self.redraw("")


def _ids(folders: Iterable[tuple[HostState, str]]) -> set[str]:
    return {posixpath.basename(folder) for _, folder in folders}


def _no_such(
    job_id: str, hosts: Sequence[Host], partly_on: Sequence[str] = (), was_arriving: bool = False,
    silent: Mapping[str, HostError] = MappingProxyType({}),
) -> ConfigError:  # fmt: skip
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
            evidence=["the program that sent it was killed, or lost its connection minutes ago"],
            hint="submit it again, or attach once that program has reconnected",
        )
    if was_arriving:
        return ConfigError(
            f"job {job_id} has not started: the program that sent it to {names} dropped it, or was killed",
            hint="submit it again",
        )
    lately = history.sent_within(job_id, _LATELY_S, host_names)
    why = "this machine sent it a short while ago: it is still being sent, or was rejected or removed"
    evidence = [why] if lately else []
    evidence += [f"{error.host} could not be asked: {in_one_line(error.message)}" for error in silent.values()]
    hint = "clusterfn jobs HOST lists the jobs on a host"
    return ConfigError(f"there is no job {job_id} on {names}", evidence=evidence, hint=hint)


def _sender(folders: list[tuple[HostState, str]]) -> tuple[HostState, str]:
    """Choose the host that a job was sent to among several that show it, such as login nodes with one home."""
    session, folder = folders[0]
    job_id = posixpath.basename(folder)
    spec = remote_files.read_bytes(session.connection, posixpath.join(folder, layout.SPEC))
    with reading(session.host.name, SPEC_OF_JOB):
        sent_to = read_spec(spec)["host"]
    chosen = next((each for each in folders if each[0].host.name == sent_to), None)
    if chosen is None:
        names = [session.host.name for session, _ in folders]
        raise ConfigError(
            f"{job_id} is visible on {', '.join(names)}, but was sent to a host named {sent_to}",
            hint=f"choose one: clusterfn COMMAND {job_id} {names[0]}, or attach({job_id!r}, host={names[0]!r})",
        )
    return chosen


def _where_sent(spec: dict[str, Any], session: HostState, folder: str) -> tuple[HostState, str]:
    """Return the host that it was sent to, if that has another scheduler, which alone can judge it, and shows it too.

    Otherwise return the host that was asked: it is as good, and may be the only one that can be reached.
    """
    sender = config_file.load().hosts.get(spec["host"])
    if sender is not None and sender.scheduler != session.host.scheduler:
        with contextlib.suppress(HostError):
            sender_session = open_session(sender)
            found = [path for path, _ in find_folders(sender_session, spec["id"]) if _is_whole(path)]
            return (sender_session, found[0]) if found else (session, folder)
    return session, folder


def _is_whole(path: str) -> bool:
    """Whether the folder has arrived: one that is being sent has a longer name."""
    return set(posixpath.basename(path)) <= _HEX


def find_folders(session: HostState, job_id: str) -> list[tuple[str, bool]]:
    """Find what is among the jobs there under a name that begins so, and whether it was touched lately, by its clock.

    The agent that takes an upload touches its folder three times a minute, as long as it hears its client.
    """
    folder = posixpath.join(session.root, layout.JOBS)
    argv = ["find", folder, "-maxdepth", "1", "-name", job_id + "*", "-print", "-mmin", "-2", "-print"]
    found = session.connection.run(argv).result(_TIMEOUT_S).out
    printed = found.decode("utf-8", "surrogateescape").split("\n")[:-1]
    return [(path, printed.count(path) > 1) for path in dict.fromkeys(printed)]


def _candidates(job_id: str, name: str | None) -> tuple[list[Host], list[Host]]:
    """Return the hosts to ask, and those to ask if no host of the first has it.

    First comes the named host, and no other; else those in the ledger, by the files that define them; else all of
    clusterfn.yml.
    """
    if name is not None:
        return [config_file.load().resolve(name)[0]], []
    present = list(config_file.load().hosts.values())
    remembered = []
    for entry in sorted(history.entries(job_id), key=lambda entry: entry.host):
        hosts = _hosts_of(entry)
        remembered += [hosts[entry.host]] if entry.host in hosts else []
    return (remembered, [host for host in present if host not in remembered]) if remembered else (present, [])


def _hosts_of(entry: history.LedgerEntry) -> Mapping[str, Host]:
    """Return the hosts of the file with which a job was sent, or of the present one if that file is of no use.

    Raises:
        ConfigError: It cannot be read, and the present file has no such host.
    """
    present, file = config_file.load().hosts, Path(entry.config)
    try:
        return config_file.read(file).hosts if entry.config and file.exists() else present
    except ConfigError:
        if entry.host not in present:
            raise
        return present
