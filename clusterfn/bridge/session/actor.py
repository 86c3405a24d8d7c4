"""The process of an actor: it constructs an object, and calls its methods, one after another, until it is closed.

Each call is loaded, reported and written as any call of a session. The object, the modules and all else stay from one
to the next.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from _clusterfn_wire import pickler  # type: ignore[import-not-found]

from ..layout import RAISED
from ..worker import devices, execute, payload
from ..worker.report import Report, peak_bytes


def serve(
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
    """The object, and how a call reaches it.

    Attributes:
        held: It; nothing before it is constructed, and if that failed.
    """

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
        folder, is_first = call["folder"], not self.held
        # Processes that it starts find the names of its class there, and not those of a later call.
        if is_first:
            payload.export_call(folder, {**self._spec, "sys_path": call["sys_path"]}, [])
        else:
            payload.forbid_again()
        watch = devices.TorchWatch(self._spec["resources"], lambda text: self._report.say(note=text))
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
