"""How a job ends: its outcome becomes the value or error of its `Job`. A kept value is fetched later."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, RETURNED, SHORT
from clusterfn.bridge.supervisor.text import format_size, in_one_line
from clusterfn.calls import outcome, outcome_errors
from clusterfn.calls.arriving import RECEIVING, Arriving
from clusterfn.display import console
from clusterfn.errors import Cancelled, ClusterfnError, HostError, ResultError, Unreachable
from clusterfn.hosts import exit_flush, remote_files
from clusterfn.hosts.transfer import Transfer

if TYPE_CHECKING:
    from clusterfn.calls.job_run import JobRun

# The result in place of a value that stays on the host.
ON_HOST: Any = object()


def end(run: JobRun, state: str, how: Mapping[str, Any] | ClusterfnError, arriving: Arriving | None = None) -> None:
    """End it with its published outcome or an error, in a thread of its own, unless it has ended. Does not wait.

    Loading a value runs the user's code, and callbacks may wait for the host, whose answers this thread brings.
    """

    def end_once() -> None:
        with run.settling:
            if run.done():
                return
            if isinstance(how, ClusterfnError):
                # What was stopped while it was sent is cancelled.
                _raise(run, how, CANCELLED if isinstance(how, Cancelled) else state, how.message)
            else:
                _receive(run, state, how, arriving)

    exit_flush.run_in_thread(end_once, "clusterfn-ended")


def _receive(run: JobRun, state: str, published: Mapping[str, Any], arriving: Arriving | None) -> None:
    """Load the value, or make the exception, and end it with that."""
    try:
        _end(run, state, published, arriving.take() if arriving is not None else None)
    except BaseException as unexpected:  # loading runs the user's code, which may raise anything
        # This is the outermost frame of its thread: those who wait must get an error.
        if run.done():
            raise
        refused = ResultError(
            f"the job has ended, but its result could not be received: {type(unexpected).__name__}: {unexpected}",
            host=run.host, job=run.id, stage="result",
            hint=f"it stays on the host: clusterfn.attach({run.id!r}).result()",
        )  # fmt: skip
        refused.__cause__ = unexpected
        _raise(run, refused, state, "its result could not be received")


def _end(run: JobRun, state: str, published: Mapping[str, Any], value: bytearray | None) -> None:
    run.published = published
    if published["kind"] != layout.RETURNED:
        error = _error_of(run, published, value)
        if published.get("checkpoint") and published["kind"] == layout.RAISED:
            run.tell("note", f"{run.id[:SHORT]} failed; {outcome_errors.how_to_resume(run.id)}")
        _raise(run, error, state, published.get("message") or "")
        return
    result = ON_HOST
    try:
        if not run.at.keeps and not outcome.is_too_large(published, run.at.results):
            if run.at.is_fetched_apart or value is None:
                value = _fetch_value(run)
            result = outcome.value_of(published, value, run.at.place, run.given)
    except ResultError as unloadable:
        _raise(run, unloadable, RETURNED, unloadable.message)
        return
    for pattern, to in run.outputs:
        try:
            connection, folder = run.at.connection, run.at.work_folder
            remote_files.fetch(connection, folder, pattern, to, on_transfer=run.show_transfer)
        except (ClusterfnError, OSError) as failed:
            line = remote_files.not_fetched(failed, pattern, run.id)
            # If a display shows the job, the line comes after what the function has printed.
            if run.is_shown:
                run.tell("note", line)
            else:
                console.warn(in_one_line(line))
    for note in published.get("notes") or ():
        # The outcome repeats notes that came as events while the job ran.
        if note not in run.shown_notes:
            run.tell("note", note)
    if published.get("left"):
        run.tell("note", remote_files.left_behind(published["left"], run.host, run.id))
    kept = ""
    if result is ON_HOST:
        large = outcome.too_large(published, run.at.place)
        kept = f"its value{f', {format_size(large.size_bytes)},' if large else ''} is on {run.host}"
    finish(run, RETURNED, kept, lambda job: job.set_result(result))


def _error_of(run: JobRun, published: Mapping[str, Any], value: bytearray | None) -> BaseException:
    """Return the error of a job that has not returned; its exception is fetched if it has not come."""
    place = run.at.place
    unread = place.results.data_only or outcome.is_too_large(published, place.results)
    if (run.at.is_fetched_apart or value is None) and published.get("value") and not unread:
        # The exception's value may be gone; the outcome also has its traceback as text.
        with contextlib.suppress(ResultError):
            value = _fetch_value(run)
    return outcome_errors.exception_of(published, value, place)


def _fetch_value(run: JobRun, timeout: float | None = None) -> bytearray | None:
    """Fetch the value, or the exception, which the host has kept."""
    arriving = Arriving(run.at.place)
    arriving.expect(run.published)
    receiving = run.at.connection.get(run.at.log_path(layout.VALUE), arriving.write)
    run.show_transfer(Transfer(RECEIVING, [receiving]))
    try:
        receiving.result(timeout)
    except Unreachable:
        if receiving.done():
            raise
        receiving.cancel()
        raise concurrent.futures.TimeoutError(f"the value has not come within {timeout} s") from None
    except HostError as error:
        if error.kind != "missing":
            raise
        raise ResultError(
            "the value is not on the host any more", host=run.host, job=run.id, stage="result",
            hint="it was removed, or was there for longer than the host's `keep:`; call the function again",
        ) from None  # fmt: skip
    except BaseException:  # a handler of a signal may raise anything
        # After Ctrl-C the rest of the value would come all the same.
        receiving.cancel()
        raise
    return arriving.value


def fetch(run: JobRun, timeout: float | None, most: int | None) -> Any:
    """Fetch the value that was kept on the host, once; a large one only if the user wants it."""
    with run.settling:
        if not run.fetched:
            place = run.at.place
            place = place._replace(results=place.results._replace(max_bytes=most)) if most else place
            # The size is known from the outcome, so the user is asked before anything is fetched.
            large = outcome.too_large(run.published, place)
            if large is not None:
                size = format_size(large.size_bytes)
                if not console.agrees(f"Fetch {size}, the value of {run.name} ({run.id[:SHORT]})?", run.host):
                    raise large
            run.fetched = [outcome.value_of(run.published, _fetch_value(run, timeout), run.at.place, run.given)]
            run.step(RETURNED, "")
        return run.fetched[0]


def _raise(run: JobRun, error: BaseException, state: str, reason: str) -> None:
    finish(run, state, reason.partition("\n")[0], lambda job: job.set_exception(error))


def finish(run: JobRun, state: str, reason: str, end: Callable[[concurrent.futures.Future[Any]], None]) -> None:
    """End it in this state; `end` ends its future, of which this then keeps no more."""
    future = run.future
    assert future is not None
    run.step(state, reason)
    run.begin()
    end(future)
    # Displays and lists may keep this run, which must not keep the value with it.
    run.future = None
    run.tell("done", None)
