"""Which jobs a command is about: ids, names, or --all, on the hosts that it names; and how `jobs` narrows its list."""

from __future__ import annotations

import argparse
import datetime
import shlex
import threading
import time
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from clusterfn.bridge.job_states import (
    CANCELLED,
    DIED,
    PENDING,
    RAISED,
    RETURNED,
    RUNNING,
    SHORT,
    STARTING,
    SUSPENDED,
    UNKNOWN,
)
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls.attach import JobInfo
from clusterfn.calls.attach import jobs as list_jobs
from clusterfn.cli import target
from clusterfn.config import config_file
from clusterfn.config.units import parse_time
from clusterfn.errors import ClusterfnError, ConfigError, did_you_mean
from clusterfn.hosts import spoken_wait

R = TypeVar("R")
ENDED = (RETURNED, RAISED, DIED, CANCELLED)
ACTIVE = (PENDING, STARTING, RUNNING, SUSPENDED, UNKNOWN)
STATES = (*ACTIVE, *ENDED)
_KINDS = {"active": ACTIVE, "ended": ENDED, "failed": (RAISED, DIED)}
_HEX = frozenset("0123456789abcdef")
_SHOWN = 10
_FOR_ONE = ("attach", "stack", "shell")


@dataclass(frozen=True)
class Selection:
    """The jobs that were meant.

    Attributes:
        jobs: The id of each, as it was written or as its host knows it, and its host if that is known.
        single: Whether one id was written, so that the answer is about one job.
    """

    jobs: Sequence[tuple[str, str | None]]
    single: bool


def select(given: argparse.Namespace, command: str, states: Collection[str] = STATES) -> Selection:
    """Find the jobs that a command is about. A name means all jobs that have it, as far as the filters keep them.

    Args:
        states: Those that the command is for; jobs in another state are meant only by their ids.

    Raises:
        ConfigError: There is no such job, or the words make no sense together.
    """
    hosts, words = target.split_hosts(given.words)
    if given.all:
        hosts, words = [*hosts, *words], []  # a single word, too, is a host
    elif not words:
        raise ConfigError(f"{command} names no job", hint=f"clusterfn {command} ID, or --all for all jobs of a host")
    ids = [word for word in words if _is_id(word)]
    if len(ids) == len(words) and words and not any(word.isalpha() for word in words):
        return Selection([(word, _one_host(hosts, command)) for word in _without_filters(given, ids)], len(ids) == 1)
    found = _list_each(hosts or [_usual_host(words, command, given)], command)
    chosen: dict[str, str | None] = {}
    for word in words:
        named = [job for job in found if _is_named(job, word)]
        if _is_id(word) and not named:
            chosen[word] = _one_host(hosts, command)
            continue
        if not named:
            raise _no_such_name(word, found, hosts, command)
        chosen.update((job.id, job.host) for job in narrowed(named, given, states))
    if given.all:
        chosen.update((job.id, job.host) for job in narrowed(found, given, states))
    return Selection(list(chosen.items()), [*chosen] == words)


def select_one(given: argparse.Namespace, command: str) -> tuple[str, str | None]:
    """Return the id and the host of the one job that a command is about; a name must fit one job only.

    Raises:
        ConfigError: There is no such job, or there are several.
    """
    word, host = target.one_and_host(given.words, "ID", command)
    if _is_id(word) and not word.isalpha():
        return word, host
    found = _list_each([host or _usual_host([word], command)], command)
    named = [job for job in found if _is_named(job, word)]
    if len(named) > 1:
        lines = [f"{job.id} {job.state}" for job in named[:_SHOWN]]
        hint = f"the newest is clusterfn {command} {named[0].id[:8]}"
        raise ConfigError(f"{len(named)} jobs on {named[0].host} are named {word!r}", evidence=lines, hint=hint)
    if not named and not _is_id(word):
        raise _no_such_name(word, found, [host] if host else [], command)
    return (named[0].id, named[0].host) if named else (word, host)


def narrowed(found: Sequence[JobInfo], given: argparse.Namespace, states: Collection[str] = STATES) -> list[JobInfo]:
    """Keep the jobs, newest first, that -n, --state and --since ask for.

    Raises:
        ConfigError: One of the filters has no meaning.
    """
    wanted, since = wanted_states(given.state), sent_since(given.since)
    kept = [job for job in found if job.state in states and job.state in wanted and job.started >= since]
    if given.number is not None and given.number < 1:
        raise ConfigError(f"-n {given.number} shows no job", hint="give a number of at least 1")
    return kept if given.number is None else kept[: given.number]


def wanted_states(text: str | None) -> Collection[str]:
    """Return the states that a --state names.

    Example:
        >>> wanted_states("failed,running")
        ('RAISED', 'DIED', 'RUNNING')
    """
    wanted: tuple[str, ...] = ()
    for word in text.split(",") if text is not None else ():
        known = {**_KINDS, **{state.lower(): (state,) for state in STATES}}
        states = known.get(word.strip().lower())
        if states is None:
            near = did_you_mean(word.strip().lower(), known)
            raise ConfigError(f"--state has no value {word.strip()!r}{near}", hint=f"the states are {', '.join(known)}")
        wanted += states
    return wanted or STATES


def sent_since(text: str | None) -> float:
    """Return the time, in seconds since 1970, that a --since names: a duration before now, or a date.

    Raises:
        ConfigError: It is neither.
    """
    if text is None:
        return 0.0
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        return time.time() - parse_time(text, "--since")
    except ConfigError as error:
        message = f"--since {text} is neither a duration nor a date"
        raise ConfigError(message, hint="such as 2h, 7d or 2026-03-31") from error


def list_on(hosts: Sequence[str]) -> tuple[list[JobInfo], Mapping[str, ClusterfnError]]:
    """List the jobs on several hosts at once, newest first, each job once; and the error of each that cannot say."""
    failed: dict[str, ClusterfnError] = {}
    found: dict[str, JobInfo] = {}  # several hosts may show one home
    for name, answer in ask_each(hosts, list_jobs).items():
        if isinstance(answer, ClusterfnError):
            failed[name] = answer
        else:
            found.update((job.id, job) for job in answer)
    return sorted(found.values(), key=lambda job: job.started, reverse=True), failed


def ask_each(hosts: Sequence[str], ask: Callable[[str], R]) -> dict[str, R | ClusterfnError]:
    """Ask all hosts at the same time; return the answer of each, or its error.

    A host that does not answer keeps nothing from ending at Ctrl-C.
    """
    answers: dict[str, Future[R]] = {name: Future() for name in hosts}

    def fill(name: str) -> None:
        try:
            answers[name].set_result(ask(name))
        except Exception as error:  # noqa: BLE001 - a thread's outermost frame: the one who waits gets it
            answers[name].set_exception(error)

    if len(hosts) == 1:
        fill(hosts[0])
    else:
        for name in answers:
            threading.Thread(target=fill, args=[name], daemon=True).start()

    def describe() -> str:
        return f"waiting for {', '.join(name for name, answer in answers.items() if not answer.done())}"

    spoken_wait.wait_for(answers.values(), describe)
    told: dict[str, R | ClusterfnError] = {}
    for name, given in answers.items():
        error = given.exception()
        told[name] = error if isinstance(error, ClusterfnError) else given.result()
    return told


def _list_each(hosts: Sequence[str], command: str) -> list[JobInfo]:
    found, failed = list_on([target.host(name, command)[1].name for name in hosts])
    for error in failed.values():
        raise error
    return found


def _is_id(word: str) -> bool:
    digits = word.strip().lstrip("#").lower()
    return SHORT <= len(digits) <= 16 and set(digits) <= _HEX


def _one_host(hosts: Sequence[str], command: str) -> str | None:
    if len(hosts) > 1:
        raise ConfigError(f"{command} ID takes one HOST, not {' and '.join(hosts)}", hint="leave out all but one")
    return next(iter(hosts), None)


def _without_filters(given: argparse.Namespace, ids: list[str]) -> list[str]:
    if given.number is not None or given.state is not None or given.since is not None:
        hint = "leave them out, or name jobs by --all or by their name"
        raise ConfigError("-n, --state and --since do not apply to ids", hint=hint)
    return ids


def _usual_host(words: Sequence[str], command: str, given: argparse.Namespace | None = None) -> str:
    """Return the host that a call would use, on which the words are looked for as names of jobs."""
    try:
        return target.host(None, shlex.join([command, *words, *(_filters(given) if given else ())]))[1].name
    except ConfigError:
        if len(words) == 1 and _is_host(words[0]):
            raise _no_such_name(words[0], (), (), command) from None
        raise


def _filters(given: argparse.Namespace) -> Iterator[str]:
    """Yield the options that narrow what was meant, as they were given."""
    for name in ("all", "dry_run", "state", "since", "number"):
        value = getattr(given, name, None)
        if value not in (None, False):
            yield f"--{name.replace('_', '-')}"
        if value not in (None, False, True):
            yield str(value)


def _is_host(word: str) -> bool:
    return word in config_file.load().hosts


def _is_named(job: JobInfo, word: str) -> bool:
    """Whether a job has this name, however a keyboard or a file system writes its letters (NFC, NFD)."""
    return unicodedata.normalize("NFC", job.name) == unicodedata.normalize("NFC", word)


def _no_such_name(word: str, found: Sequence[JobInfo], hosts: Sequence[str], command: str) -> ConfigError:
    where = f" on {' or '.join(hosts)}" if hosts else f" on {found[0].host}" if found else ""
    near = did_you_mean(word, sorted({job.name for job in found}))
    hint = "clusterfn jobs HOST lists ids and names; an id has at least four digits of 0-9 and a-f"
    if _is_host(word):
        near = f"; {word} is a host"
        hint = f"clusterfn {command} ID"
        if command not in _FOR_ONE:
            hint = f"clusterfn {command} --all {word} is for all its jobs, and {hint} for one"
    session, _, call = word.partition("/")
    if call.isdecimal() and session:
        near, hint = "; that is a call of a session", f"clusterfn {command} {session} is for the session itself"
    return ConfigError(in_one_line(f"there is no job named {word!r}{where}{near}"), hint=hint)
