"""Which jobs a command is about: ids, names, or --all, on the hosts that it names; and how `jobs` narrows its list."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import shlex
import sys
import time
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from clusterfn.bridge import job_states
from clusterfn.bridge.job_states import DIED, RAISED, SHORT
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls import history
from clusterfn.calls.attach import jobs as jobs_on
from clusterfn.calls.remote_state import JobInfo
from clusterfn.cli import target
from clusterfn.cli.command_line import describe_error
from clusterfn.config import config_file
from clusterfn.config.units import parse_time
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, ConfigError, did_you_mean
from clusterfn.hosts import loop, spoken_wait

R = TypeVar("R")
ENDED = (job_states.RETURNED, RAISED, DIED, job_states.CANCELLED)
ACTIVE = (
    job_states.PENDING,
    job_states.STARTING,
    job_states.RUNNING,
    job_states.SUSPENDED,
    job_states.UNKNOWN,
)
STATES = (*ACTIVE, *ENDED)
_KINDS = {"active": ACTIVE, "ended": ENDED, "failed": (RAISED, DIED)}
_HEX = frozenset("0123456789abcdef")
# An error lists no more jobs than this.
_SHOWN = 10
_FOR_SEVERAL = ("cancel", "stop", "rm")


@dataclass(frozen=True)
class Selection:
    """The jobs that were meant.

    Attributes:
        jobs: The id of each, as it was written or as its host knows it, and its host if that is known.
        single: Whether one id was written, so that the answer is about one job.
        listed: Those whose hosts have just listed them.
    """

    jobs: Sequence[tuple[str, str | None]]
    single: bool
    listed: Sequence[tuple[str, str]] = ()


def select(args: argparse.Namespace, command: str, states: Collection[str] = STATES) -> Selection:
    """Find the jobs that a command is about: by ids, by a name, which means the newest job, or by --all.

    Args:
        states: Those that -n and --all keep; jobs in another state are meant only by their ids and names.

    Raises:
        ConfigError: There is no such job, or the words make no sense together.
    """
    hosts, words = target.split_hosts(args.words)
    if args.all and len(args.words) == 1 and words[0] in config_file.load().names:
        hosts = config_file.load().names_of(words[0])
        words = []
    if not args.all and not words:
        raise ConfigError(f"{command} names no job", hint=f"clusterfn {command} ID, or --all for all jobs of a host")
    ids = [word for word in words if _is_id(word)]
    # A word of letters alone, such as "face", may be an id or a name, so only a list of the jobs decides.
    if len(ids) == len(words) and words and not any(word.isalpha() for word in words):
        if args.all or args.number is not None or args.state is not None or args.since is not None:
            hint = "leave them out, or name jobs by their name"
            raise ConfigError("--all, -n, --state and --since do not apply to ids", hint=hint)
        return Selection([(word, _one_host(hosts, command)) for word in ids], len(ids) == 1)
    jobs = _list_each(hosts, command) if hosts else _list_by_names(words, command, args)
    chosen: dict[str, str | None] = {}
    listed: dict[str, str] = {}
    are_several = args.all or args.number is not None
    # Without words, --all means every job.
    names: Sequence[str | None] = words or [None]
    for word in names:
        matching = [job for job in jobs if word is None or _is_named(job, word)]
        if word is not None and not matching:
            chosen[word] = _id_of_no_name(word, jobs, hosts, command)
            continue
        kept = filter_jobs(matching, args, states if are_several else STATES)
        listed.update((job.id, job.host) for job in (kept if are_several else _newest(kept, word)))
        chosen.update(listed)
    return Selection(list(chosen.items()), len(words) == len(chosen) == 1 and not are_several, list(listed.items()))


def select_one(args: argparse.Namespace, command: str) -> tuple[str, str | None]:
    """Return the id and the host of the one job of a command, the newest of a name; raise ConfigError if it is none."""
    word, host = target.one_and_host(args.words, "ID", command)
    if _is_id(word) and not word.isalpha():
        return word, host
    hosts = [host] if host else []
    jobs = _list_each(hosts, command) if host else _list_by_names([word], command)
    for job in _newest([job for job in jobs if _is_named(job, word)], word):
        return job.id, job.host
    return word, _id_of_no_name(word, jobs, hosts, command)


def agreed(selection: Selection, args: argparse.Namespace, doing: str) -> bool:
    """Ask whether to go on with several jobs of -n or --all; raise ConfigError if no person can be asked."""
    count = len(selection.listed)
    if args.yes or count < 2 or not (args.all or args.number is not None):
        return True
    lines = [f"{job_id} on {host}" for job_id, host in selection.listed[:_SHOWN]]
    lines += [f"and {count - _SHOWN} more"] if count > _SHOWN else []
    if sys.stdin is None or not sys.stdin.isatty():
        message = f"{args.command} would {doing} {count} jobs, and there is no terminal to ask"
        raise ConfigError(message, evidence=lines, hint="add --yes, or name one job by its id")
    print("\n".join([*lines, f"clusterfn: {doing} these {count} jobs? [y/N]"]), end=" ", file=sys.stderr, flush=True)
    is_wanted = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not is_wanted:
        console.tell(f"{args.command} has changed nothing")
    return is_wanted


def _newest(jobs: Sequence[JobInfo], word: str | None) -> Sequence[JobInfo]:
    """Return the newest job of a name, alone, or none; those that have not ended come first."""
    # The sort is stable, so the newest comes first in both groups.
    ordered = sorted(jobs, key=lambda job: job.state in ENDED)
    if len(ordered) > 1:
        first = ordered[0]
        which = "the newest" if first.state in ENDED else "the newest that has not ended"
        console.tell(f"{len(ordered)} jobs are named {word!r}; {first.id} on {first.host} is {which}")
    return ordered[:1]


def _id_of_no_name(word: str, jobs: Sequence[JobInfo], hosts: Sequence[str], command: str) -> str | None:
    """Return the host of a word that is an id, as no job has this name; raise ConfigError if it is no id either."""
    if not _is_id(word):
        raise _no_such_name(word, jobs, hosts, command)
    return _one_host(hosts, command)


def filter_jobs(jobs: Sequence[JobInfo], args: argparse.Namespace, states: Collection[str] = STATES) -> list[JobInfo]:
    """Keep the jobs, newest first, that -n, --state and --since ask for; raise ConfigError if one has no meaning."""
    chosen_states = requested_states(args.state)
    since = sent_since(args.since)
    filtered = [job for job in jobs if job.state in states and job.state in chosen_states and job.started >= since]
    if args.number is not None and args.number < 1:
        raise ConfigError(f"-n {args.number} shows no job", hint="give a number of at least 1")
    return filtered if args.number is None else filtered[: args.number]


def requested_states(text: str | None) -> Collection[str]:
    """Return the states that a --state names.

    Example:
        >>> requested_states("failed,running")
        ('RAISED', 'DIED', 'RUNNING')
    """
    chosen: tuple[str, ...] = ()
    for word in text.split(",") if text is not None else ():
        words = {**_KINDS, **{state.lower(): (state,) for state in STATES}}
        states = words.get(word.strip().lower())
        if states is None:
            near = did_you_mean(word.strip().lower(), words)
            raise ConfigError(f"--state has no value {word.strip()!r}{near}", hint=f"the states are {', '.join(words)}")
        chosen += states
    return chosen or STATES


def sent_since(text: str | None) -> float:
    """Return the time since 1970 that --since names by a duration or a date; raise ConfigError if it is neither."""
    if text is None:
        return 0.0
    with contextlib.suppress(ValueError):
        return datetime.datetime.fromisoformat(text).timestamp()
    try:
        return time.time() - parse_time(text, "--since")
    except ConfigError as error:
        message = f"--since {text} is neither a duration nor a date"
        raise ConfigError(message, hint="such as 2h, 7d or 2026-03-31") from error


def list_jobs(hosts: Sequence[str]) -> tuple[list[JobInfo], Mapping[str, ClusterfnError]]:
    """List the jobs on several hosts at once, newest first, each job once; and the error of each that cannot say."""
    errors: dict[str, ClusterfnError] = {}
    # Several hosts may share one home folder, and so list the same jobs.
    by_id: dict[str, JobInfo] = {}
    for name, answer in ask_each(hosts, jobs_on).items():
        if isinstance(answer, ClusterfnError):
            errors[name] = answer
        else:
            by_id.update((job.id, job) for job in answer)
    return sorted(by_id.values(), key=lambda job: job.started, reverse=True), errors


def list_and_warn(hosts: Sequence[str]) -> tuple[list[JobInfo], Mapping[str, ClusterfnError]]:
    """List as `list_jobs` does, and warn of each host that cannot say; raise its error if it is the only one."""
    jobs, errors = list_jobs(hosts)
    for name, error in errors.items():
        if len(hosts) == 1:
            raise error
        complaint = describe_error(error)
        console.warn(f"no jobs of {name} are shown: {complaint.text if complaint else error}")
    return jobs, errors


def ask_each(hosts: Sequence[str], ask: Callable[[str], R]) -> dict[str, R | ClusterfnError]:
    """Ask all hosts at the same time; return the answer of each, or its error."""
    answers = loop.ask_at_once(hosts, ask)

    def describe() -> str:
        return f"waiting for {', '.join(name for name, answer in answers.items() if not answer.done())}"

    spoken_wait.wait_for(answers.values(), describe)
    return {name: answer.result() for name, answer in answers.items()}


def _list_each(hosts: Sequence[str], command: str) -> list[JobInfo]:
    jobs, errors = list_jobs([target.host(name, command)[1].name for name in hosts])
    for error in errors.values():
        raise error
    return jobs


def _list_by_names(words: Sequence[str], command: str, args: argparse.Namespace | None = None) -> list[JobInfo]:
    """List the jobs of the usual host, and of those to which this machine has sent jobs of these names.

    If none of them has a job of a name, list those of all hosts of clusterfn.yml: an id is looked for in the same way.

    Raises:
        ClusterfnError: The usual host cannot say, or no host has such a job and one cannot say.
    """
    hosts = config_file.load().hosts
    others = [name for word in words for name in history.hosts_of(word) if name in hosts]
    try:
        usual = _usual_hosts(words, command, args)
    except ConfigError:
        # There are several hosts and no default, so the call that sent such a job named its host.
        if not words or words[0] in hosts:
            raise
        usual = []
    asked = list(dict.fromkeys([*usual, *others]))
    jobs, errors = list_jobs(asked)
    rest = [name for name in config_file.load().named if name not in asked]
    names = [word for word in words if word not in hosts and not _is_id(word)]
    if rest and any(not any(_is_named(job, name) for job in jobs) for name in names):
        more, silent = list_jobs(rest)
        jobs = sorted({job.id: job for job in (*more, *jobs)}.values(), key=lambda job: job.started, reverse=True)
        _warn_of(silent)
    for name, error in errors.items():
        if name in usual or not any(_is_named(job, word) for job in jobs for word in words):
            raise error
    _warn_of(errors)
    return jobs


def _warn_of(errors: Mapping[str, ClusterfnError]) -> None:
    for name, error in errors.items():
        console.warn(f"jobs of {name} are left out: {in_one_line(error.message)}")


def _is_id(word: str) -> bool:
    digits = word.strip().lstrip("#").lower()
    return SHORT <= len(digits) <= 16 and set(digits) <= _HEX


def _one_host(hosts: Sequence[str], command: str) -> str | None:
    if len(hosts) > 1:
        raise ConfigError(f"{command} ID takes one HOST, not {' and '.join(hosts)}", hint="leave out all but one")
    return next(iter(hosts), None)


def _usual_hosts(words: Sequence[str], command: str, args: argparse.Namespace | None = None) -> list[str]:
    """Return the hosts of a call that names none, on which the words are looked for as names of jobs."""
    try:
        filters: list[str] = []
        for name in ("all", "yes", "dry_run", "state", "since", "number"):
            value = getattr(args, name, None)
            filters += [f"--{name.replace('_', '-')}"] if value not in (None, False) else []
            filters += [str(value)] if value not in (None, False, True) else []
        return [host.name for host in target.hosts(None, shlex.join([command, *words, *filters]))[1]]
    except ConfigError:
        if len(words) == 1 and words[0] in config_file.load().names:
            raise _no_such_name(words[0], (), (), command) from None
        raise


def _is_named(job: JobInfo, word: str) -> bool:
    """Whether a job has this name, however a keyboard or a file system writes its letters (NFC, NFD)."""
    return unicodedata.normalize("NFC", job.name) == unicodedata.normalize("NFC", word)


def _no_such_name(word: str, jobs: Sequence[JobInfo], hosts: Sequence[str], command: str) -> ConfigError:
    searched = hosts or list(dict.fromkeys(job.host for job in jobs))
    where = f" on {' or '.join(searched)}" if searched else ""
    near = did_you_mean(word, sorted({job.name for job in jobs}))
    hint = "clusterfn jobs HOST lists ids and names; an id has at least four digits of 0-9 and a-f"
    if word in config_file.load().names:
        near = f"; {word} is a host"
        hint = f"clusterfn {command} ID"
        if command in _FOR_SEVERAL:
            hint = f"clusterfn {command} --all {word} is for all its jobs, and {hint} for one"
    # Tracebacks write an item as 7f3a[3].
    host, _, call = word.replace("[", "/").rstrip("]").partition("/")
    if call.isdecimal() and host:
        near = "; that is a call of a session, or an item of a map"
        hint = f"clusterfn {command} {host} is for all of it"
    return ConfigError(in_one_line(f"there is no job named {word!r}{where}{near}"), hint=hint)
