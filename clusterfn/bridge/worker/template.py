"""The template of workers: it has loaded the worker's code, and forks a process for each order that comes.

An element of a group has one for the workers of its items, and an agent one for jobs with their supervisors and workers
(`forked_job`). A worker that is forked costs a tenth of one that starts an interpreter. It is a child of its
supervisor, as any worker: the process between the two ends at once, and the supervisor adopts what it leaves. Then it
waits until it may begin, and goes on as `main` does. Calls share only what was loaded before any of them ran.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..agent.libc import libc_function
from ..layout import JOBS, LOOK, TEMPLATE
from ..supervisor import process_tree
from ..supervisor.environ import changed_names
from ..supervisor.text import native
from ..supervisor.worker_process import die_with_parent
from . import fork_rules, payload, shown_words
from .descriptors import flush_output, take_output
from .report import open_orders, receive_order

if TYPE_CHECKING:
    import _socket

# This is SIGKILL, without an import of `signal`.
_ENDED = 9
# What gives the environment's random number generators their states in a worker.
_seeds: list[Callable[[], object]] = []


def await_order(argv: list[str], is_fit: bool = False) -> tuple[list[str], int] | None:
    """Fork a worker, or a job with a worker, for each order; return in each worker. None once there are no more orders.

    Args:
        argv: Words of the template: its report and the socket through which orders come are the last two. The third is
            JOBS if it forks jobs.
        is_fit: Whether this process was itself forked from a template, and has run nothing of the environment's since.

    Returns:
        The words of the worker, the descriptors of its report and of `begin` included, and the pid of its supervisor.
    """
    # The supervisor sees what the environment prints when it starts, and forks nothing in that case.
    flush_output()
    variables = process_tree.environment_of(os.getpid()) or {}
    trouble, jobs = "" if is_fit else _find_trouble(variables), None
    generators = {} if is_fit else _generators()
    if argv[2] == LOOK:
        _say(1, trouble=trouble, states=fork_rules.generator_states(generators))
        # The environment may have started threads, which do not end.
        os._exit(0)
    report, control = map(int, argv[-2:])
    orders = open_orders(control)
    if generators and not trouble:
        _learn_seeds(argv[0], generators)
    if not trouble and argv[2] == JOBS:
        # This import is late, because the templates of items do not need the supervisor.
        from . import forked_job

        try:
            jobs = forked_job.JobForks()
        except (OSError, ImportError, AttributeError) as error:
            trouble = str(error) or type(error).__name__
    _say(report, trouble=trouble)
    if trouble:
        return None
    fork_rules.settle_memory()
    own, can_show = [sys.executable, argv[0]], jobs is not None
    if jobs is None:
        payload.use_utf8()
        can_show = _show([*own, argv[1]], variables)
    while True:
        line, fds = receive_order(orders)
        if not line or jobs is not None and jobs.is_stale():
            return None
        order = json.loads(line)
        if jobs is None:
            order = native(order)
            # Both are kept, and each worker finds them read.
            payload.read_spec(order["argv"][1])
            payload.read_ahead(order["argv"][1])
            shown = shown_words.prepare([*own, *order["argv"]], variables) if can_show else None
        answer = _fork(fds, report, orders)
        if answer is None:
            continue
        if jobs is not None:
            return jobs.begin(order, fds, answer)
        os.write(answer, b"%d" % os.getpid())
        os.close(answer)
        out, err, *ways = fds
        # Its variables come when it may begin.
        take_output(out, err)
        if shown is not None:
            shown_words.show_prepared(shown)
        return [*order["argv"], *map(str, ways)], order["parent"]


def begin_anew(supervisor: int) -> None:
    """Draw the random numbers of a process that has just started; be killed when the supervisor ends.

    That only works once the supervisor has adopted the worker: it says so by letting it begin.
    """
    die_with_parent(_ENDED, supervisor)
    for seed in _seeds:
        seed()


def look(program: str) -> dict[str, Any]:
    """Start the environment's interpreter once more, and return what it says: its `trouble` and `states`."""
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writing, number) for number in (1, 2)]
    words = [sys.executable, program, TEMPLATE, LOOK]
    # With the variables as they were before the environment changed some.
    variables = process_tree.environment_of(os.getpid()) or os.environ
    pid = os.posix_spawn(sys.executable, words, variables, file_actions=actions)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="replace") as file:
        *printed, said = file.read().splitlines() or [""]
    os.waitpid(pid, 0)
    try:
        found: dict[str, Any] = json.loads(said)
    except ValueError:
        return {"trouble": "it ends the process", "states": {}}
    return {**found, "trouble": found["trouble"] or ("it prints" if printed else "")}


def _generators() -> dict[str, Any]:
    """Return the random number generators that the environment has loaded, which it did before this package."""
    loaded = itertools.takewhile(lambda name: name != __name__.partition(".")[0], list(sys.modules))
    return fork_rules.generators_of(loaded)


def _learn_seeds(program: str, generators: Mapping[str, Any]) -> None:
    """Find which of these are in another state in each process, and which the environment seeds itself."""
    states, others = fork_rules.generator_states(generators), look(program)["states"]
    for place, generator in generators.items():
        if others.get(place) != states[place]:
            _seeds.append(functools.partial(fork_rules.reseed, [generator]))
        elif hasattr(generator, "setstate"):
            # `random` seeds its own after each fork.
            _seeds.append(functools.partial(generator.setstate, generator.getstate()))


def _show(words: list[str], variables: Mapping[str, str]) -> bool:
    """Show what this process is, if the kernel lets it, and so its workers: nothing but people depends on that here."""
    try:
        shown_words.show(words, variables)
    except (OSError, ImportError, AttributeError):
        return False
    return True


def _say(report: int, **facts: Any) -> None:
    os.write(report, (json.dumps(facts) + "\n").encode())


def _fork(fds: list[int], report: int, orders: _socket.socket) -> int | None:
    """Fork a process that gets these descriptors, and not the template's.

    Returns:
        In that process, the descriptor that takes its pid; None in the template.
    """
    answer, theirs = os.pipe()
    # What Python itself does after a fork would take longer than this process, which only forks again.
    between = libc_function("fork")()
    if between < 0:
        raise OSError("no process can be started")
    if between == 0:
        _fork_orphan()
        for fd in (answer, report, orders.detach()):
            os.close(fd)
        return theirs
    for fd in (theirs, *fds):
        os.close(fd)
    # From here on, what it has forked is a child of the supervisor, or of the agent.
    os.waitpid(between, 0)
    _say(report, pid=int(os.read(answer, 32) or 0))
    os.close(answer)
    return None


def _find_trouble(given: Mapping[str, str]) -> str:
    """Say why a worker that is forked here would not be as one whose interpreter starts for it; "" if it would be."""
    # This is about what the environment itself loads when its interpreter starts.
    trouble = fork_rules.lasting_trouble(fork_rules.inherited())
    # The one of `logging` writes what its handlers hold, and there are none yet.
    if not trouble and atexit._ncallbacks() > ("logging" in sys.modules):
        trouble = "it registers exit functions"
    # An interpreter itself sets this one for the locale "C".
    if not trouble and set(changed_names(given, dict(os.environ))) - {"LC_CTYPE"}:
        trouble = "it changes variables"
    if not trouble:
        try:
            libc_function("prctl")
        except (ImportError, OSError, AttributeError):
            trouble = "it has a Python that cannot let a process end with its parent"
    return trouble


def _fork_orphan() -> None:
    """Fork once more and end this process, which leads its group; return in the new one.

    A worker that led its group itself could not call setsid, as a function that daemonises does.
    """
    own = os.getpid()
    try:
        os.setpgid(0, 0)
        os.fork()
    finally:
        # Without an answer, as when no process can be started, the other side starts one itself, or reports why it
        # cannot.
        if os.getpid() == own:
            os._exit(0)
