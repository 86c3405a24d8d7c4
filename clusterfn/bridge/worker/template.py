"""The template: an interpreter that has loaded the worker's code, and is forked instead of starting another one.

An agent has one for the last environment, of which each fork is the keeper of one supervisor (`keeper`). An element
that has no such keeper starts an interpreter that is its keeper itself. A worker that is forked costs a tenth of one
that starts an interpreter. Workers share only what was loaded before any of them ran.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from ..agent.libc import libc_function
from ..layout import GIVEN_VARIABLE, JOBS, LOOK, TEMPLATE
from ..supervisor import process_tree
from ..supervisor.environ import LATE, changed_names
from . import fork_rules, keeper, payload
from .descriptors import flush_output
from .report import open_orders, receive_order

if TYPE_CHECKING:
    import _socket

# The random number generators that the environment has loaded.
_generators: list[Any] = []
# The interpreter reads files of these folders when it starts.
_SITES = ("site-packages", "dist-packages")


def await_order(argv: list[str]) -> list[str] | None:
    """Fork workers as they are ordered; return in each worker, with its words. None once there are no more orders.

    Args:
        argv: Words of the template: its report and the socket through which orders come are the last two. The third is
            JOBS if each of its forks is the keeper of a supervisor, LOOK if it only says what it finds.
    """
    # The other side sees what the environment prints when it starts, and forks nothing in that case.
    flush_output()
    trouble = _find_trouble()
    if argv[2] == LOOK:
        _send(1, trouble=trouble)
        # The environment may have started threads, which do not end.
        os._exit(0)
    is_shared = argv[2] == JOBS
    given = json.loads(os.environ.pop(GIVEN_VARIABLE, "{}")) if is_shared else {}
    if is_shared and not given:
        trouble = trouble or "a script that is its interpreter removes variables, or there are too many"
    report, control = map(int, argv[-2:])
    _note_generators()
    orders = open_orders(control)
    if is_shared or trouble:
        _send(report if is_shared else control, trouble=trouble)
    if trouble:
        return None
    payload.use_utf8()
    fork_rules.settle_memory()
    if is_shared:
        supervisor = _fork_keepers(orders, report)
    else:
        supervisor = orders
        os.close(report)
    return None if supervisor is None else keeper.keep_workers(supervisor, given)


def _note_generators() -> None:
    # Only those of modules that were loaded before this package. Each fork would free a list in the caller's frame, and
    # copy the page of each name.
    loaded = itertools.takewhile(lambda name: name != __name__.partition(".")[0], list(sys.modules))
    _generators.extend(fork_rules.generators_of(loaded))


def reseed() -> None:
    """Draw the random numbers of a process that has just started."""
    fork_rules.reseed(_generators)


def look(program: str) -> str:
    """Start the environment's interpreter once more, and return why no worker may be forked from it; "" if one may."""
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
        return str(json.loads(said)["trouble"]) or ("it prints" if printed else "")
    except ValueError:
        return "it ends the process"


def _fork_keepers(orders: _socket.socket, report: int) -> _socket.socket | None:
    """Fork a keeper for each supervisor; return in each, with its socket. None once there are no more orders."""
    files = _files_read_at_start()
    stamp = _stamp(files)
    # The kernel collects keepers that have ended. Each keeper restores this signal.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        line, fds = receive_order(orders)
        # An interpreter that starts now may find other modules than this one.
        if not line or _stamp(files) != stamp:
            return None
        pid = os.fork()
        if pid == 0:
            orders.close()
            os.close(report)
            os.setsid()
            return open_orders(fds[0])
        for fd in fds:
            os.close(fd)
        _send(report, pid=pid)


def _send(fd: int, **facts: Any) -> None:
    os.write(fd, (json.dumps(facts) + "\n").encode())


def _find_trouble() -> str:
    """Say why a worker that is forked here would not be as one whose interpreter starts for it; "" if it would be."""
    # This is about what the environment itself loads when its interpreter starts.
    trouble = fork_rules.lasting_trouble(fork_rules.inherited())
    given = process_tree.environment_of(os.getpid()) or {}
    if not trouble and not LATE.isdisjoint(changed_names(given, dict(os.environ))):
        trouble = "it changes variables that a worker gets last"
    if not trouble:
        try:
            libc_function("prctl")
        except (ImportError, OSError, AttributeError):
            trouble = "it has a Python that cannot let a process end with its parent"
    return trouble


def _files_read_at_start() -> list[str]:
    """Return the files and folders that decide which modules an interpreter finds when it starts."""
    paths = [sys.executable, os.path.join(sys.prefix, "pyvenv.cfg"), sys.argv[0]]
    for folder in [path for path in sys.path if os.path.basename(path) in _SITES and os.path.isdir(path)]:
        # A new file changes the date of its folder.
        paths += [folder, *(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pth"))]
    paths += [os.path.join(folder, name) for folder in sys.path for name in ("sitecustomize.py", "usercustomize.py")]
    own = (os.path.dirname(os.__file__), os.path.dirname(os.path.abspath(sys.argv[0])))
    for file in [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]:
        if file.startswith("/") and (not file.startswith(own) or any("/%s/" % name in file for name in _SITES)):
            paths.append(file)
    return paths


def _stamp(files: list[str]) -> list[object]:
    stamp: list[object] = []
    for path in files:
        try:
            facts = os.stat(path)
            stamp.append((facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime))
        except OSError:
            stamp.append(None)
    return stamp
