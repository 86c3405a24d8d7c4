"""Choose one of several hosts for a call: the first that can start it now, else the one that is expected to.

All are asked at the same moment. Afterwards the call is one to a single host, and nothing knows of the others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any, NamedTuple

from clusterfn.bridge.job_states import PENDING
from clusterfn.bridge.supervisor.text import format_duration, in_one_line, last_lines, shortened
from clusterfn.calls import history, leaving
from clusterfn.calls.demand import Demand, demand_of
from clusterfn.calls.job_run import JobRun
from clusterfn.config.config_file import CallHost
from clusterfn.config.host_text import reading
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, ConfigError, HostError, Unsatisfiable
from clusterfn.hosts import loop
from clusterfn.hosts.transports import prompts
from clusterfn.packing.dependencies import JobArgument, reference_of
from clusterfn.scheduler.base import Answer

# A host that has not answered by then is passed over, and not asked for a while.
PATIENCE_S = 5.0
_PASSED_OVER_S = 60.0
# Assumed where no host knows better: for the build of an environment, and for the call and each job before it on a
# machine without room for it now.
BUILD_S = 180.0
JOB_S = 3600.0
_TIMEOUT_S = 60.0
_LOOK_S = 0.1
_REASON = 80
_silent_until: dict[str, float] = {}


class Outlook(NamedTuple):
    """In how many seconds a host is expected to start a call, and why, as it says."""

    wait_s: float = 0.0
    words: str = "can start it now"


# A host that can start the call at once.
NOW = Outlook()
# What each host said, in the order of the list; its error if it cannot run the call.
Said = dict[str, "Outlook | ClusterfnError"]


def first_to_start(said: Said) -> str | None:
    """Return the host that is expected to start a call first; of several the first of the list. None can if None.

    Example:
        >>> first_to_start({"tensor01": Outlook(JOB_S), "tensor02": Outlook(), "cluster": Outlook(7200.0)})
        'tensor02'
    """
    can = {name: answer.wait_s for name, answer in said.items() if isinstance(answer, Outlook)}
    return min(can, key=lambda name: can[name], default=None)


def choose(
    among: Sequence[CallHost], name: str, given: Sequence[Any], every: bool = False
) -> list[tuple[CallHost, bool]]:
    """Choose the host of a call, and whether it can start it soon; say in one line where it goes and why.

    Args:
        name: What its job is called after.
        given: Its arguments: the value of a job that lies on one of the hosts keeps the call there.
        every: Choose all that can run it, for the items of a map; one host if these need something that lies there.

    Raises:
        Unsatisfiable: None of them can ever run it; there is a line for each.
        HostError: None of them can now.
    """
    name = among[0].options.name or name
    for call, why in _bound_to(among, given):
        console.tell(f"{name} on {call.host.name} ({why})")
        return [(call, True)]
    every = every and next(_jobs_in(given), None) is None and not among[0].options.resume
    said = _ask_all(among, name, every)
    first = first_to_start(said)
    waits_s = {host: answer.wait_s for host, answer in said.items() if isinstance(answer, Outlook)}
    chosen = [host for host in waits_s if every or host == first]
    # Of the one that is chosen, only what is not plain.
    others = [host for host, answer in said.items() if answer != NOW and (every or host != first)]
    words = [f"{host}: {_in_words(said[host])}" for host in others]
    if not every and (not words or said[chosen[0]] != NOW):
        words.insert(0, _in_words(said[chosen[0]]))
    why = f" ({'; '.join(words)})" if words else ""
    console.tell(f"{name} on {', '.join(chosen)}{why}")
    return [(call, waits_s[call.host.name] <= BUILD_S) for call in among if call.host.name in chosen]


def _in_words(answer: Outlook | ClusterfnError) -> str:
    return shortened(answer.words if isinstance(answer, Outlook) else in_one_line(answer.message), _REASON)


def _none_can(among: Sequence[CallHost], name: str, errors: Mapping[str, ClusterfnError]) -> ClusterfnError:
    """Return the error where no host can run a call."""
    first = next(iter(errors.values()))
    if isinstance(first, ConfigError) and {error.message for error in errors.values()} == {first.message}:
        # The call itself is wrong, and would be for any host.
        return first
    evidence = [
        in_one_line("; ".join([f"{host}: {error.message}", *error.evidence[:1]])) for host, error in errors.items()
    ]
    if any(isinstance(error, HostError) for error in errors.values()):
        message = f"no host can take {name} now ({among[0].because})"
        hint = "call again later; `clusterfn check HOST` shows what a host lacks"
        return HostError(message, stage="submit", evidence=evidence, hint=hint, retryable=True)
    message = f"no host can ever run {name} ({among[0].because})"
    return Unsatisfiable(message, stage="submit", evidence=evidence, hint="ask for less, or add a host that has it")


def _bound_to(among: Sequence[CallHost], given: Sequence[Any]) -> Iterator[tuple[CallHost, str]]:
    """Yield each host on which something lies that the call needs there, and what."""
    by_name = {call.host.name: call for call in among}
    for reference in map(reference_of, _jobs_in(given)):
        if reference.place is not None and reference.host in by_name:
            yield by_name[reference.host], f"the value of {reference.label} is there"
    resumed = among[0].options.resume
    for entry in history.entries(resumed) if resumed else ():
        if entry.host in by_name:
            yield by_name[entry.host], f"the checkpoint of {resumed} is there"


def _jobs_in(value: Any) -> Iterator[JobArgument]:
    """Yield the jobs among arguments, also those in their lists and dicts."""
    if isinstance(value, JobArgument):
        yield value
    elif isinstance(value, Mapping):
        yield from _jobs_in(list(value.values()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for member in value:
            yield from _jobs_in(member)


def _ask_all(among: Sequence[CallHost], name: str, every: bool) -> Said:
    """Ask all hosts; those that were silent a moment ago only if no other can run the call. Raise if none can.

    Args:
        every: Whether the answers of all are awaited, and not only those that may change the choice of one.
    """
    silent = [call for call in among if _silent_until.get(repr(call.host), 0.0) > time.monotonic()]
    said = _answers_of([call for call in among if call not in silent], name, every)
    if first_to_start(said) is None:
        said.update(_answers_of(silent, name, every))
    in_order = {call.host.name: said[call.host.name] for call in among if call.host.name in said}
    errors = {host: answer for host, answer in in_order.items() if isinstance(answer, ClusterfnError)}
    if len(errors) == len(in_order):
        raise _none_can(among, name, errors)
    return in_order


def _answers_of(asked: Sequence[CallHost], name: str, every: bool) -> Said:
    """Return what these hosts say; what cannot change the choice is not waited for, and left out."""
    by_name = {call.host.name: call for call in asked}
    answers = loop.ask_at_once(list(by_name), lambda host: ask(by_name[host], name))
    until = time.monotonic() + PATIENCE_S
    late = list(answers)
    with loop.speaking(lambda: f"asking {', '.join(late)}: when could {name} start there?"):
        while True:
            said = {host: answer.result() for host, answer in answers.items() if answer.done()}
            # What a host says that comes after one that can start the call at once would not change the choice.
            first = next((place for place, host in enumerate(answers) if said.get(host) == NOW), None)
            late[:] = [host for host in list(answers)[: None if every else first] if host not in said]
            if not late or (time.monotonic() >= until and first_to_start(said) is not None):
                break
            wait([answers[host] for host in late], _LOOK_S, FIRST_COMPLETED)
            # The time of the person who logs in does not count.
            until = time.monotonic() + PATIENCE_S if prompts.is_asking() else until
    said.update({host: HostError(f"no answer within {format_duration(PATIENCE_S)}", host=host) for host in late})
    until_s = time.monotonic() + _PASSED_OVER_S
    _silent_until.update({repr(by_name[host].host): until_s for host in said if isinstance(said[host], HostError)})
    return said


def ask(chosen: CallHost, name: str) -> Outlook:
    """Ask one host when it would start the call; raise why it cannot run it."""
    demand = demand_of(chosen, name)
    builds = demand.host.environments.must_be_built(demand.wanted)
    outlook = _of_cluster(demand) if demand.host.scheduler.has_nodes else _of_machine(demand)
    return Outlook(outlook.wait_s + BUILD_S, f"{outlook.words}, once its environment is built") if builds else outlook


def _of_cluster(demand: Demand) -> Outlook:
    scheduler, wait_s = demand.host.scheduler, None
    if command := scheduler.test_command(demand.job):
        ran = demand.host.connection.run(command, unset=scheduler.unset, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
        answer = Answer(ran.rc, ran.out.decode("utf-8", "replace"), ran.err.decode("utf-8", "replace"))
        wait_s = scheduler.expected_wait_s(answer)
    if wait_s is None:
        return Outlook(JOB_S, f"{scheduler.title} does not say when")
    return Outlook(wait_s, f"about {format_duration(wait_s)}") if wait_s >= 1 else NOW


def _of_machine(demand: Demand) -> Outlook:
    host = demand.host
    name = host.settings.name
    spec = demand.job.record()
    asks = {key: spec[key] for key in ("scheduler", "limits", "resources")}
    # A job that was sent just now may not be in the queue of the machine yet.
    going = [job for job in leaving.known_jobs() if isinstance(job, JobRun) and job.host == name]
    waiting = [job for job in going if job.state == PENDING and not job.done()]
    sent = {job.id: {**asks["resources"], **job.asked._asdict()} for job in waiting if job.asked is not None}
    question = json.dumps({**asks, "priority": spec.get("priority", 0), "sent": sent}).encode()
    answer = host.bridge.supervise("outlook", host.root, stdin=question).result(_TIMEOUT_S)
    if answer.rc != 0:
        raise HostError(f"{name} could not say when", host=name, evidence=last_lines(answer.err, 5))
    with reading(name, "when it could start a job"):
        said = json.loads(answer.out)
        return NOW if said["starts"] is True else Outlook(JOB_S * (1 + int(said["before"])), str(said["reason"]))
