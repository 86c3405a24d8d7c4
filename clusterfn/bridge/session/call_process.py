"""What a runner makes for its next call ahead of need: its process, and the disk space for an outcome.

Both are the same for each call, and take longer than most of what is left to do once the call has come. The process
waits with everything loaded, belongs to one call only, and exits after it. Its pipes are there before the call is: to
give it a call takes one write.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from _clusterfn_wire import pickler  # type: ignore[import-not-found]

from ..layout import RAISED, WORK
from ..supervisor.environ import expand_cwd
from ..supervisor.publish import Reserve
from ..supervisor.worker_process import Pipes, WorkerProcess
from ..worker import devices, execute, finish, payload, preload
from ..worker.descriptors import out_of_reach
from ..worker.fork_rules import reseed
from ..worker.keeper import fork_worker
from ..worker.report import Report, open_orders, peak_bytes, receive_order

if TYPE_CHECKING:
    import _socket


class CallProcess(WorkerProcess):
    """A process that waits for its call. That of an actor can be given more, and ends after the last."""

    def give(self, folder: str, attempt: str, facts: Mapping[str, Any]) -> bool:
        """Give it a call; False if it has died while it waited.

        Args:
            folder: The call's, with its payload.
            attempt: With what it prints, its value and its outcome.
            facts: Of the call's call.json.
        """
        order = (json.dumps({**facts, "folder": folder, "attempt": attempt}) + "\n").encode()
        try:
            return self.order(order)
        finally:
            if "actor" not in facts:
                self.give_no_more()

    def dismiss(self) -> None:
        """End it and wait for that: it has nothing to lose, and is none of the next call's."""
        super().dismiss()
        # It was killed, and has been collected.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def fork_call_process(spec: dict[str, Any], loaded: preload.Preloader, foreign: Iterable[int] = ()) -> CallProcess:
    """Fork the process of the next call, which keeps none of the `foreign` descriptors open."""
    with Pipes() as pipes:
        out, err, *ways = pipes.theirs
        pid = fork_worker((out, err), foreign)
        if pid == 0:
            pipes.detach_theirs()
            _live(spec, loaded, *ways)
        return CallProcess({}, pid, *pipes.detach_ours())


class Ahead:
    """The process of the next call, and disk space for an outcome.

    Args:
        folder: On the file system of the calls.
        fork: Forks a process that waits for a call.
    """

    def __init__(self, folder: str, fork: Callable[[], CallProcess]) -> None:
        self._folder = folder
        self._fork = fork
        self._process: CallProcess | None = None
        self._reserve: Reserve | None = None

    def prepare(self) -> None:
        """Make again what the last call has used."""
        if self._process is None:
            self._process = self._fork()
        try:
            self.reserve()
        except OSError:
            # The disk is full. The call tries again, and reports it.
            return

    def pids(self) -> list[int]:
        return [] if self._process is None else [self._process.pid]

    def give(self, folder: str, attempt: str, facts: Mapping[str, Any]) -> CallProcess:
        """Give the call to the process, or to another if something has killed it; as `CallProcess.give`."""
        while True:
            process, self._process = self._process or self._fork(), None
            if process.give(folder, attempt, facts):
                return process
            process.dismiss()

    def reserve(self) -> Reserve:
        """Return the disk space, which serves each call until an outcome finds none; raise OSError if there is none."""
        if self._reserve is None or not os.path.exists(self._reserve.path):
            self._reserve = Reserve(self._folder)
        return self._reserve

    def dismiss_process(self) -> None:
        """End the process: the next one will have loaded what was loaded since."""
        if self._process is not None:
            self._process.dismiss()
            self._process = None

    def dismiss(self) -> None:
        self.dismiss_process()
        if self._reserve is not None:
            self._reserve.release()


def _live(spec: dict[str, Any], loaded: preload.Preloader, report: int, control: int) -> NoReturn:
    """Wait for the call, run it, and end this process."""
    status = 1
    # All that is left at the end has come after this.
    gc.freeze()
    known = finish.last_loaded()
    try:
        # The stack of a crash belongs to the output of this call, and not to that of the session.
        faulthandler.enable(file=out_of_reach(os.dup(2)))
        said = Report(report)
        # torch is left out, because it starts from the same seed in every process, forked or not.
        reseed(loaded.generators)
        orders = open_orders(out_of_reach(control))
        call = _next_call(orders)
        if call is not None:
            loaded.make_way(call["sys_path"])
        if call is not None and "actor" in call:
            _enter(spec, call["attempt"])
            serve_actor(spec, call, lambda: _next_call(orders), said)
        elif call is not None:
            orders.close()
            _run(spec, call, said)
        status = 0
        if call is not None:
            # Nothing but what came with the call is to be removed.
            del call
            finish.end(known, is_of_runner=True)
    finally:
        os._exit(status)


def _enter(spec: dict[str, Any], attempt: str) -> None:
    payload.enter(expand_cwd(spec) or os.path.join(attempt, WORK))


def _next_call(orders: _socket.socket) -> dict[str, Any] | None:
    """Wait for a call; None if there is none to come. The runner gives the next one only once this one has ended."""
    line, _ = receive_order(orders)
    return dict(json.loads(line)) if line else None


def _run(spec: dict[str, Any], call: dict[str, Any], report: Report) -> None:
    attempt: str = call["attempt"]
    known = finish.last_loaded()
    spec["sys_path"] = call["sys_path"]
    _enter(spec, attempt)
    value = execute.open_value_file(attempt)
    try:
        facts = execute.run_call(call["folder"], spec, [], report, value)
    except execute.CallRejected as rejected:
        facts = rejected.facts
    # In the line that says the end: each further line would wake the runner once more.
    facts.update(loaded=finish.loaded_since(known), peak=peak_bytes())
    execute.report_outcome(report, facts)


def serve_actor(
    spec: dict[str, Any], first: dict[str, Any], following: Callable[[], dict[str, Any] | None], report: Report
) -> None:
    """Construct the actor, and call its methods until the last call has come, or there is no actor.

    Args:
        first: The call that constructs it.
        following: Waits for the next call, and returns it; None if there is none to come.
        report: Takes what became of each.
    """
    report.hide(spec.get("secrets") or [])
    actor = ActorObject(spec, report)
    call: dict[str, Any] | None = first
    while call is not None:
        actor.run(call)
        if call.get("closes") or not actor.held:
            break
        call = following()
    # The `__del__` of the object runs before the exit functions.
    actor.held.clear()


class ActorObject:
    """The object, as `held` once it is constructed, and how a call reaches it."""

    def __init__(self, spec: dict[str, Any], report: Report) -> None:
        self.held: list[Any] = []
        self._spec = spec
        self._report = report
        self._loop: Any = None

    def run(self, call: dict[str, Any]) -> None:
        attempt: str = call["attempt"]
        cpu_before_s = sum(os.times()[:4])
        sys.path[:0] = [folder for folder in call["sys_path"] if folder not in sys.path]
        pickler.notes.clear()
        value = execute.open_value_file(attempt)
        try:
            facts = self._call(call, value)
        except execute.CallRejected as rejected:
            facts = rejected.facts
            # The method may have closed the file.
            with contextlib.suppress(OSError):
                os.close(value)
        facts.update(peak=peak_bytes())
        execute.report_outcome(self._report, facts, cpu_before_s)

    def _call(self, call: dict[str, Any], value: int) -> dict[str, Any]:
        folder = call["folder"]
        is_first = not self.held
        # Processes that it starts find the names of its class there, and not those of a later call.
        if is_first:
            payload.export_call(folder, {**self._spec, "sys_path": call["sys_path"]}, [])
        else:
            payload.forbid_again()
        watch = devices.TorchWatch(self._spec["resources"], lambda text: self._report.send(note=text))
        try:
            if is_first or "torch" not in sys.modules:
                watch.begin()
            (function, args, kwargs), caller = execute.load_call(folder, self._spec, [])
            bound = (self._construct if is_first else self._invoke), (function, *args), kwargs
            kind, result = execute.call_function(bound, None, self._await)
            if kind == RAISED:
                watch.finish(result)
        except devices.OnTheCpu as on_cpu:
            raise execute.CallRejected("environment", str(on_cpu), on_cpu.hint) from on_cpu
        finally:
            watch.end()
        return execute.keep_result(kind, result, value, caller, self._report, False, execute.as_data(self._spec))

    def _construct(self, cls: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.held.append(cls(*args, **kwargs))

    def _invoke(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the method of this name; or a function, which is none of the actor's."""
        called = function(self.held[0]) if isinstance(function, attrgetter) else function
        return called(*args, **kwargs)

    def _await(self, coroutine: Any) -> Any:
        """Run an async method in the loop of all of them, to which what they keep may belong."""
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(coroutine)
