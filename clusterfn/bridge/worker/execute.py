"""Run one call: load it, call the function, write its value or exception, and report each stage."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import Any

from _clusterfn_wire import container, pickler, references  # type: ignore[import-not-found]

from ..layout import (
    DISK,
    DISK_ERRORS,
    IMAGE_VARIABLE,
    ITEMS,
    PAYLOAD,
    RAISED,
    RESULT,
    RETURNED,
    ROOM_PAUSES_S,
    SOURCES,
    VALUE,
)
from ..supervisor.publish import once_there_is_room
from . import devices, payload, warning
from .descriptors import flush_output, out_of_reach
from .report import Report

# Most errors of a full disk name no file.
_FULL = "`df -h . /tmp ~ /dev/shm` in a function shows which disk is full; a quota may be lower, which `quota -s` shows"


class CallRejected(Exception):
    """The call cannot be run in this environment; `facts` is what the supervisor gets."""

    def __init__(self, kind: str, message: str, hint: str = "", **more: Any) -> None:
        super().__init__(message)
        self.facts = dict(more, done=kind, message=message, hint=hint or None)


def open_value_file(attempt: str) -> int:
    """Open the file for the value, before the function runs."""
    return out_of_reach(os.open(os.path.join(attempt, VALUE), os.O_RDWR | os.O_CREAT, 0o600))


def report_outcome(report: Report, facts: dict[str, Any], cpu_before_s: float = 0.0) -> None:
    """Report what became of the call, as the last line."""
    flush_output()
    report.send(**facts, usage={"cpu_s": round(sum(os.times()[:4]) - cpu_before_s, 3)})


def run_call(job: str, spec: dict[str, Any], item: list[int], report: Report, value_fd: int) -> dict[str, Any]:
    """Load a call, run it and write its result; return the facts for `report_outcome`.

    Args:
        job: The folder with its payload.
        spec: `root`, the folders of the user's modules as `sys_path`, the names of variables that are `secrets`,
            whether it `discards` the value, and whether no client waits until the value is on the disk: `syncs_later`.
        item: Where its arguments are in items.pkl; empty if the payload holds them.

    Raises:
        CallRejected: It cannot be run in this environment.
    """
    sys.path[:0] = spec["sys_path"]
    report.hide(spec.get("secrets") or [])
    watch = devices.TorchWatch(spec["resources"], lambda text: report.send(note=text))
    warned = _prepare_warning() if spec.get("warn_s") else None
    try:
        watch.begin()
        payload.export_call(job, spec, item)
        call, caller = load_call(job, spec, item)
        report.send(stage="function")
        kind, result = call_function(call, warned)
        watch.finish(result if kind == RAISED else None)
    except devices.OnTheCpu as on_cpu:
        raise CallRejected("environment", str(on_cpu), on_cpu.hint) from on_cpu
    if kind == RETURNED and spec.get("discards"):
        result = None
    report.send(stage="result")
    # The supervisor copies the value of an item beside its journal, and brings that copy to the disk.
    facts = keep_result(kind, result, value_fd, caller, report, not (item or spec.get("syncs_later")), as_data(spec))
    if kind == RAISED and spec.get("retries"):
        facts["transient"] = _transient_fault(result)
    if kind == RAISED and warned is not None:
        facts["heeded"] = warned.has_ended(result)
    return facts


def _prepare_warning() -> warning.EndWarning:
    try:
        warned = warning.EndWarning(warning.load_ending())
    except ImportError as missing:
        message = "the clusterfn in the environment is too old for warn_before=: %s" % missing
        raise CallRejected("environment", message, "update clusterfn there, or remove it") from missing
    warned.prepare()
    return warned


def load_call(job: str, spec: dict[str, Any], item: list[int]) -> tuple[tuple[Any, Any, Any], tuple[int, ...]]:
    """Load the call, and the version of the Python that made it; `item` is where the arguments of an item are."""
    root = spec["root"]
    read_blob = functools.partial(container.check_blob, removes=spec.get("scheduler") == "bare")
    header: dict[str, Any] = {"python": sys.version_info[:2]}
    try:
        function, args, kwargs = payload.load_payload(os.path.join(job, PAYLOAD), root, header, None, read_blob)
        if item:
            args = payload.load_payload(os.path.join(job, ITEMS), root, {}, item, read_blob)
        references.forget()
    except devices.OnTheCpu:
        raise
    except references.InputUnavailable as missing:
        more = {"cause": missing.cause} if missing.cause else {}
        raise CallRejected(missing.kind, str(missing), missing.hint, **more) from missing
    except container.OtherPython as other:
        raise CallRejected(
            "environment",
            "the call was made by Python %d.%d, the environment has %d.%d" % (*other.wanted, *other.here),
            "use an environment with Python %d.%d" % tuple(other.wanted),
        ) from other
    except BaseException as error:
        # Loading runs the user's own code, which may raise anything.
        from _clusterfn_wire import load_failure

        failure = load_failure.of(error)
        facts = _summary(error)
        caller = tuple(header["python"])
        said = "%(type)s: %(message)s" % facts
        again = "call map again; retry_failed() sends the same again" if item else "call again"
        hint = _hint_for(error, caller, failure, again)
        where = failure.where()
        # The user has a module of their own called clusterfn.
        if type(error).__module__ == "clusterfn.errors":
            said = error.message  # type: ignore[attr-defined]
            hint = error.hint or hint  # type: ignore[attr-defined]
            where = ""
        message = "the call could not be loaded in the environment: %s%s" % (said, where)
        raise CallRejected("payload", message + _between(caller), hint, exception=facts) from error
    payload.fill_main(function)
    return (function, args, kwargs), tuple(header["python"])


def _between(caller: tuple[int, ...]) -> str:
    """Name both versions, if they differ."""
    here = sys.version_info[:2]
    return "" if caller == here else " (the call is of Python %d.%d, the environment has %d.%d)" % (*caller, *here)


def _summary(error: BaseException) -> dict[str, Any]:
    """Describe the exception, and which module it missed in which interpreter: only the caller knows whose it is."""
    from _clusterfn_wire import exceptions

    facts: dict[str, Any]
    try:
        facts = exceptions.summary(error)
    except BaseException as broken:  # noqa: BLE001 - raised by the error's own __str__, not by a user at a keyboard
        facts = exceptions.bare_summary(error, broken)
    if isinstance(error, ModuleNotFoundError) and isinstance(error.name, str):
        facts["missing"] = {"module": error.name, "python": sys.executable}
        if os.environ.get(IMAGE_VARIABLE):
            facts["missing"]["image"] = os.environ[IMAGE_VARIABLE]
        if _is_in_user_site(error.name.partition(".")[0]):
            facts["missing"]["user"] = True
        if "." in error.name:
            from _clusterfn_wire import load_failure

            facts["missing"]["version"] = load_failure.version_of(error.name.partition(".")[0])
        # importlib.metadata raises this error.
        if type(error).__name__ == "PackageNotFoundError":
            facts["missing"]["metadata"] = True
    return facts


def _is_in_user_site(module: str) -> bool:
    """Whether `pip install --user` has installed a module, which no job finds."""
    import site
    from importlib.machinery import PathFinder

    return PathFinder.find_spec(module, [site.getusersitepackages()]) is not None


def _own_module_in(error: BaseException) -> str:
    """Return the name of the module of the user whose import has raised an error; "" if it was none."""
    import traceback

    name = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "<module>" and "/%s/" % SOURCES in frame.f_code.co_filename:
            name = str(frame.f_globals.get("__name__"))
    return name


def _hint_for(error: BaseException, caller: tuple[int, ...], failure: Any, again: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] not in sys.modules:
        return "install the package that provides %r in the environment" % error.name
    if isinstance(error, container.Damaged):
        return again
    if failure.differing:
        return "use an environment with %s" % " and ".join("%s %s" % package[:2] for package in failure.differing)
    if caller != sys.version_info[:2]:
        return "use an environment with Python %d.%d, or use only syntax that both versions support" % caller
    if isinstance(error, ImportError):
        return "the environment has another version of %s than the caller" % (error.name or "a package")
    own = _own_module_in(error)
    if own:
        return (
            "importing %s fails there: a function has no files beside its code, but a command has a copy of the "
            "project: clusterfn run HOST -- python ..." % own
        )
    made = failure.name or "the object"
    return "make %s inside the function, or pass the data that it is made from" % made


def call_function(
    call: tuple[Callable[..., Any], Any, Any],
    warned: warning.EndWarning | None,
    run_coroutine: Callable[[Any], Any] | None = None,
) -> tuple[str, Any]:
    """Call the function; return RETURNED with its value, or RAISED with what it raised."""
    function, args, kwargs = call
    pid = os.getpid()

    def run() -> Any:
        value = function(*args, **kwargs)
        # `value.__class__` may return anything.
        if type(value) is CoroutineType:
            import asyncio

            value = (run_coroutine or asyncio.run)(value)
        return value

    try:
        value = run() if warned is None else warned.around(run)
    except BaseException as error:
        # Whatever the function raises is its outcome, SystemExit included.
        if os.getpid() != pid:
            # This is the end of a forked child.
            raise
        return RAISED, error
    # A process that the function has forked returned from it as well, and has nothing to report.
    if os.getpid() != pid:
        flush_output()
        os._exit(0)
    return RETURNED, value


def _transient_fault(error: BaseException) -> dict[str, str] | None:
    """Return the name of a transient CUDA error and where a retry can help; None for other errors."""
    # This import is late: few errors are of GPUs, and the table takes milliseconds.
    from . import cuda_table

    known = cuda_table.find_known_error(cuda_table.message_of(error))
    return {"name": known.name, "retry": known.retry} if known and known.retry != cuda_table.NEVER else None


def as_data(spec: Mapping[str, Any]) -> bool:
    """Whether the caller accepts plain data alone."""
    return spec.get("results") == "data"


def keep_result(
    kind: str, result: Any, value_fd: int, caller: tuple[int, ...], report: Report, sync: bool, is_data: bool
) -> dict[str, Any]:
    """Write a value or an exception to its file and close it; return the facts of the outcome."""
    # A function of clusterfn's own has returned it.
    if type(result) is CallRejected:
        os.close(value_fd)
        return result.facts
    try:
        file = os.fdopen(value_fd, "w+b")
    except OSError as error:
        # The function has closed the file.
        return _described(result) if kind == RAISED else _not_written(error.errno or 0)
    if kind == RAISED:
        facts = _keep_exception(result, file, caller, report, sync)
    else:
        try:
            facts = dict(_write(result, file, caller, report, sync, is_data), done=RETURNED)
        except BaseException as error:  # noqa: BLE001 - pickling runs the user's own code, which may raise anything
            facts = _not_kept(result, error, caller)
    for note in dict.fromkeys(pickler.notes):
        report.send(note=note)
    # What could not be written has been reported. btrfs needs room to truncate.
    with contextlib.suppress(OSError):
        if "size" not in facts:
            # What was half written is of no use, and the disk may be full.
            os.ftruncate(value_fd, 0)
    with contextlib.suppress(OSError):
        file.close()
    return facts


def _not_kept(value: Any, error: BaseException, caller: tuple[int, ...]) -> dict[str, Any]:
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        return _not_written(error.errno)
    from _clusterfn_wire import unpicklable

    try:
        path, part = unpicklable.find(value, "result", caller)
    except KeyboardInterrupt:
        # The value's own __reduce__ has raised it, and not a user at a keyboard.
        path = "result: its pickling raised KeyboardInterrupt"
        part = value
    return {
        "done": RESULT,
        "message": "the function returned, but its value cannot be pickled: %s%s" % (path, _between(caller)),
        "path": path,
        "exception": _summary(error),
        "hint": unpicklable.instead_of(part),
    }


def _not_written(number: int) -> dict[str, Any]:
    """Describe a failed write. An error that pickling itself raises names a file or has no number."""
    message = "the value could not be written: %s" % os.strerror(number)
    if number in DISK_ERRORS:
        return {"done": DISK, "message": "%s, for %.0f s" % (message, sum(ROOM_PAUSES_S))}
    hints = {
        errno.EFBIG: "raise the limit of the size of files there (ulimit -f), or return less",
        errno.EBADF: "the function closed a file of clusterfn's: let it close only what it opened",
    }
    return {"done": RESULT, "message": message, "hint": hints.get(number, "look at the file system of root: there")}


def _keep_exception(
    error: BaseException, file: Any, caller: tuple[int, ...], report: Report, sync: bool
) -> dict[str, Any]:
    from _clusterfn_wire import exceptions

    facts = _described(error)
    try:
        records = exceptions.to_records(error, caller, report.secrets)
        return dict(_write(records, file, caller, report, sync), **facts)
    except BaseException:  # noqa: BLE001 - an odd exception may refuse anything; its text has been taken already
        return facts


def _described(error: BaseException) -> dict[str, Any]:
    facts = _summary(error)
    is_full = isinstance(error, OSError) and error.errno in DISK_ERRORS
    if is_full and type(error) is OSError:
        where = ": %s" % error.filename if error.filename else ""
        message = "the function could not write: %s%s" % (error.strerror, where)
        return {"done": DISK, "message": message, "exception": facts, "hint": _FULL, "stage": "function"}
    # An exception of the function's own class comes back as itself.
    message = "%s: %s" % (facts["type"], facts["message"])
    hint = _FULL if is_full else _hint_for_image(error)
    return {"done": RAISED, "message": message, "exception": facts, "hint": hint}


def _hint_for_image(error: BaseException) -> str | None:
    """Return how to show a missing file to a container; None for any other error, and outside of a container."""
    image = os.environ.get(IMAGE_VARIABLE)
    path = getattr(error, "filename", None)
    if not image or not isinstance(error, FileNotFoundError) or not isinstance(path, str) or not os.path.isabs(path):
        return None
    folder = os.path.dirname(os.path.normpath(path))
    if os.path.isdir(folder):
        return None
    return "the image %s has no %s: if the host has it, write `binds: [%s]` below the host" % (image, folder, folder)


def _write(
    value: Any, file: Any, caller: tuple[int, ...], report: Report, sync: bool, is_data: bool = False
) -> dict[str, Any]:
    def writing(write: Callable[[], None]) -> None:
        def write_whole() -> None:
            # After an error, a client may have received what is there already: the same bytes are written again.
            file.seek(0)
            write()
            file.flush()
            if sync:
                os.fsync(file.fileno())
            else:
                # With this call, NFS reports that its disk is full.
                os.close(os.dup(file.fileno()))

        once_there_is_room(write_whole, lambda: report.send(note="the disk was full: the value waited for room"))

    written: dict[str, Any] = container.dump(value, file, caller, writing, is_data)
    return written
