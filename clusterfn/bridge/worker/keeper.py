"""The keeper of a supervisor's workers: forks each from this clean process, and says how each ended.

It is a fork of the agent's template, or an interpreter that the supervisor of an element has started. It holds no GPU,
has one thread, and runs nothing of a call. What workers leave behind becomes its children. It ends with its supervisor,
and ends all of them.
"""

from __future__ import annotations

# The C half alone: `signal` makes enums of handlers, which copies a hundred pages in each fork.
import _signal  # type: ignore[import-not-found]
import json
import os
import select
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from ..agent.libc import become_subreaper, die_with_parent, enter_own_group, make_group
from ..supervisor import process_tree
from ..supervisor.text import native
from . import payload
from .descriptors import flush_output, redirect_output
from .report import receive_order

if TYPE_CHECKING:
    import _socket

# What ends a job is sent to all of its processes, as by scancel. The keeper ends with its supervisor, after its
# workers: would it end first, each of them would be killed, and count as killed.
_OF_ALL = (signal.SIGTERM, signal.SIGHUP)


def fork_worker(output: tuple[int, int], foreign: Iterable[int]) -> int:
    """Fork a process that is as one whose interpreter has just started, and that ends with this one.

    Args:
        output: The pipes that take what it prints. They are closed there under their own numbers.
        foreign: Descriptors of this process that it must not keep open.

    Returns:
        Its pid; in the new process 0.
    """
    parent = os.getpid()
    flush_output()
    # Python itself seeds `random` after this fork, and would not after one of the C library.
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, *_OF_ALL):
                _signal.signal(number, _signal.SIG_DFL)
            _signal.signal(signal.SIGINT, signal.default_int_handler)
            # A process that dies must leave no call behind without an outcome.
            die_with_parent(signal.SIGKILL, parent)
            for fd in foreign:
                os.close(fd)
            redirect_output(*output)
        except BaseException:  # noqa: BLE001 - after a fork nothing may run on as a second parent
            os._exit(1)
    return pid


def keep_workers(orders: _socket.socket, given: dict[str, str]) -> list[str]:
    """Fork a worker for each order of the supervisor; return in each worker, with its words.

    Args:
        given: The variables that its template was given; {} if the supervisor gave them itself.
    """
    become_subreaper()
    woken, waker = os.pipe()
    for fd in (woken, waker):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, *_OF_ALL):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(waker)
    poll = select.poll()
    for fd in (woken, orders.fileno()):
        poll.register(fd, select.POLLIN)
    group = make_group()
    _send(orders, ready=os.getpid(), given=given)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if woken in ready:
            os.read(woken, 512)
        if orders.fileno() in ready:
            line, fds = receive_order(orders)
            if not line:
                _end()
            words = _obey(native(json.loads(line)), fds, orders, [woken, waker], group)
            if words is not None:
                return words
        _collect(orders)


def _send(supervisor: _socket.socket, **facts: Any) -> None:
    """Say something to the supervisor; end if that has ended."""
    try:
        supervisor.sendall((json.dumps(facts) + "\n").encode())
    except (BrokenPipeError, ConnectionResetError):
        _end()


def _obey(
    order: dict[str, Any], fds: list[int], supervisor: _socket.socket, foreign: list[int], group: int
) -> list[str] | None:
    """Fork a worker, and say its pid; return its words in it, and None here.

    Args:
        order: Its `argv` and its `umask`.
        fds: What takes its stdout and stderr, its report, and the socket through which it may begin.
        group: As `make_group` returns it.
    """
    if len(order["argv"]) > 1:
        # It is an item. Both are kept, and each worker finds them read.
        payload.read_spec(order["argv"][1])
        payload.read_ahead(order["argv"][1])
    out, err, *ways = fds
    try:
        pid = fork_worker((out, err), foreign)
    except OSError as error:
        # The supervisor starts one by itself, and says what is wrong.
        answer = {"errno": error.errno}
    else:
        answer = {"pid": pid}
        if pid == 0:
            supervisor.close()
            try:
                os.umask(order["umask"])
                if group:
                    os.setpgid(0, group)
                else:
                    enter_own_group()
            except OSError:
                os._exit(1)
            return [*order["argv"], *map(str, ways)]
    for fd in fds:
        os.close(fd)
    _send(supervisor, **answer)
    return None


def _collect(supervisor: _socket.socket) -> None:
    """Collect the workers and orphans that have ended, and say so; also whether nothing of them is left."""
    ended: list[Any] = []
    pid = -1
    while pid:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid:
            ended.append((pid, status, (used.ru_utime, used.ru_stime, used.ru_maxrss)))
    if ended:
        # Orphans are children of this process: without a child, it has no descendants either.
        _send(supervisor, ended=ended, alone=pid != 0)


def _end() -> NoReturn:
    """End all that the workers have left, as the supervisor is gone."""

    def reap() -> None:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return

    process_tree.end(lambda: process_tree.descendants(os.getpid()), reap)
    os._exit(0)
