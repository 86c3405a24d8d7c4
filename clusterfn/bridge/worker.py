"""Runs the user's function: loads the call, calls it, writes the value, and says at every step how far it came.

Called as `worker.py <attempt dir> <report fd>` by the supervisor, or for an item of a group as
`worker.py <attempt dir> <group dir> <offset> <size> <report fd>`, with where its arguments lie in items.pkl, or on a
further node as `worker.py <its dir> <job dir> <report fd>`, where nobody wants its value; in the environment's own
Python (3.9 and up). It must never decide how a job ended: it reports, the supervisor judges.
Everything it needs after the function has run (the value's file, the report's pipe) is opened before, so that a
function may close, remove or replace what it likes.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import sys
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from _clusterfn_wire import container  # type: ignore[import-not-found]

from . import children, devices, shipped
from .descriptors import keep_from_programs, out_of_reach
from .layout import FAILED_RANK, ITEMS, PAYLOAD, RAISED, RESULT, RETURNED, SPEC, STACKS, VALUE

_SHOWN = 1 << 16  # characters of a text in the report, which goes into outcome.json: the whole is in the value's file
_SHORTEST_SECRET = 4  # characters; a shorter one would be found in every other word
# Of a report, what only people read. The supervisor acts on the rest, which must stay as it is.
_FOR_PEOPLE = frozenset(["message", "note", "hint", "evidence", "path", "sender", "traceback"])
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Refused(Exception):
    """The call cannot be run here; `facts` is what the supervisor is told."""

    def __init__(self, kind: str, message: str, hint: str = "", **more: Any) -> None:
        super().__init__(message)
        self.facts = dict(more, done=kind, message=message, hint=hint or None)


class Report:
    """One JSON line per fact, to the supervisor; silent in forked children."""

    def __init__(self, fd: int) -> None:
        self._fd = out_of_reach(fd)
        self._pid = os.getpid()
        self.secrets: list[str] = []

    def hide(self, names: list[str]) -> None:
        """Let no value of these variables be said from now on; the longest first, as one may be a part of another."""
        values = [os.environ[name] for name in names if name in os.environ]
        parts = {part for value in values for part in [value, *value.splitlines()] if len(part) >= _SHORTEST_SECRET}
        self.secrets = sorted(parts, key=len, reverse=True)

    def say(self, **facts: Any) -> None:
        """Send one line. Nobody listens any more: nothing is lost, the supervisor has judged."""
        if os.getpid() != self._pid:
            return
        if self.secrets:
            facts = _masked(facts, self.secrets)
        data = (json.dumps(_shown(facts)) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BrokenPipeError:
            return


def _masked(facts: dict[str, Any], secrets: list[str]) -> dict[str, Any]:
    """`facts` with `***` for each secret in what only people read."""
    from _clusterfn_wire import exceptions

    def mask(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _masked(value, secrets)
        return exceptions.masked(value, secrets) if name in _FOR_PEOPLE else value

    return {name: mask(name, value) for name, value in facts.items()}


def _shown(value: Any) -> Any:
    """`value` with the middle of each very long text left out."""
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in value.items()}
    if not isinstance(value, str) or len(value) <= _SHOWN:
        return value
    half = _SHOWN // 2
    return "%s\n[... %d characters ...]\n%s" % (value[:half], len(value) - 2 * half, value[-half:])


def main(argv: list[str]) -> None:
    """Run the call of one attempt and report."""
    attempt, rest, fd = argv[1], argv[2:-1], int(argv[-1])
    job = rest[0] if rest else os.path.dirname(os.path.dirname(attempt))
    keep_from_programs()
    report = Report(fd)
    value_fd = value_file(attempt)
    shipped.become_program(argv[0])
    os.environ[shipped.FAILED] = os.path.join(attempt, FAILED_RANK)
    shipped.speak_utf8()
    _explain_crashes()
    shipped.show_stacks(os.path.join(attempt, STACKS))
    children.watch_forks()
    children.tell_own_end(report.say)
    try:
        facts = _work(job, rest, report, value_fd)
    except Refused as refused:
        facts = refused.facts
    last_word(report, facts)


def value_file(attempt: str) -> int:
    """Where the value will be written, opened before the function runs."""
    return out_of_reach(os.open(os.path.join(attempt, VALUE), os.O_RDWR | os.O_CREAT, 0o600))


def last_word(report: Report, facts: dict[str, Any]) -> None:
    """What became of the call; nothing of it is said after this."""
    _flush()
    report.say(**facts, usage=_usage())


def _work(job: str, rest: list[str], report: Report, value_fd: int) -> dict[str, Any]:
    with open(os.path.join(job, SPEC), encoding="utf-8") as file:
        spec = _native(json.load(file))
    report.hide(spec.get("secrets") or [])
    _check_version(spec)
    sys.meta_path.append(children.LastResort())
    if spec.get("session"):
        from .session import serve

        report.say(stage="function")
        told = serve.serve(job, spec)
        return _keep(RETURNED, told, value_fd, tuple(spec["session"]["caller"]), report)
    spec["discards"] = len(rest) == 1
    return perform(job, spec, [int(number) for number in rest[1:]], report, value_fd)


def perform(job: str, spec: dict[str, Any], item: list[int], report: Report, value_fd: int) -> dict[str, Any]:
    """Load a call, run it and keep what it gives; the facts for the last word.

    Args:
        job: The folder that its payload lies in.
        spec: `root`, the folders of the user's modules as `sys_path`, the names of variables that are `secrets`, and
            whether it `discards` the value.
        item: Where its arguments lie in items.pkl; empty if the payload holds them.

    Raises:
        Refused: It cannot be run here.
    """
    sys.path[:0] = spec["sys_path"]
    report.hide(spec.get("secrets") or [])
    watch = devices.Watch(spec["resources"], lambda text: report.say(note=text))
    try:
        watch.begin()
        report.say(stage="load")
        call, caller = _load(job, spec, item)
        watch.look_at(children.innermost(call[0]))
        report.say(stage="function")
        kind, result = _call(call)
        watch.over(result if kind == RAISED else None)
    except devices.OnTheCpu as refused:
        raise Refused("environment", str(refused), refused.hint) from refused
    if kind == RETURNED and spec.get("discards"):
        result = None
    report.say(stage="result")
    facts = _keep(kind, result, value_fd, caller, report)
    if kind == RAISED and spec.get("retries"):
        from . import transient

        facts["transient"] = transient.row_of(result)
    return facts


def _native(value: Any) -> Any:
    """`value` with its strings as this interpreter's own file system calls want them."""
    if isinstance(value, str):
        return os.fsdecode(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, list):
        return [_native(item) for item in value]
    return {_native(k): _native(v) for k, v in value.items()} if isinstance(value, dict) else value


def _explain_crashes() -> None:
    faulthandler.enable(file=out_of_reach(os.dup(2)))


def _check_version(spec: dict[str, Any]) -> None:
    wanted, here = tuple(spec["version"]), sys.version_info[:2]
    if wanted != here:
        raise Refused(
            "environment",
            "the environment's interpreter is Python %d.%d, expected %d.%d" % (*here, *wanted),
            "the environment was changed since it was looked at: call again, and it will be looked at anew",
        )


def _load(job: str, spec: dict[str, Any], item: list[int]) -> tuple[tuple[Any, Any, Any], tuple[int, ...]]:
    """The call, and the version of the Python that made it; `item` is where the arguments of an item lie."""
    shipped.tell_processes(job, spec, item)
    header: dict[str, Any] = {"python": sys.version_info[:2]}
    try:
        function, args, kwargs = shipped.read(os.path.join(job, PAYLOAD), spec["root"], header)
        if item:
            args = shipped.read(os.path.join(job, ITEMS), spec["root"], {}, item)
    except devices.OnTheCpu:
        raise
    except container.OtherPython as other:
        raise Refused(
            "environment",
            "the call was made by Python %d.%d, the environment has %d.%d" % (*other.wanted, *other.here),
            "use an environment with Python %d.%d" % tuple(other.wanted),
        ) from other
    except BaseException as error:  # loading runs the user's own code, which may raise anything
        raise _not_loaded(error, tuple(header["python"])) from error
    children.fill_main(function)
    return (function, args, kwargs), tuple(header["python"])


def _not_loaded(error: BaseException, caller: tuple[int, ...]) -> Refused:
    facts = _summary(error)
    message = "the call could not be loaded in the environment: %s: %s" % (facts["type"], facts["message"])
    return Refused("payload", message + _between(caller), _hint_for(error, caller), exception=facts)


def _between(caller: tuple[int, ...]) -> str:
    """Both versions, where they differ."""
    here = sys.version_info[:2]
    return "" if caller == here else " (the call is of Python %d.%d, the environment has %d.%d)" % (*caller, *here)


def _summary(error: BaseException) -> dict[str, Any]:
    """The exception as text, and which module it missed in which interpreter: only the caller knows whose it is."""
    from _clusterfn_wire import exceptions

    facts: dict[str, Any]
    try:
        facts = exceptions.summary(error)
    except BaseException as broken:  # noqa: BLE001 - raised by the error's own __str__, not by somebody at a keyboard
        facts = exceptions.bare_summary(error, broken)
    if isinstance(error, ModuleNotFoundError) and isinstance(error.name, str):
        facts["missing"] = {"module": error.name, "python": sys.executable}
        if type(error).__name__ == "PackageNotFoundError":  # of importlib.metadata
            facts["missing"]["metadata"] = True
    return facts


def _hint_for(error: BaseException, caller: tuple[int, ...]) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return "install the package that provides %r in the environment" % error.name
    if isinstance(error, ImportError):
        return "the environment has another version of %s than the caller" % (error.name or "a package")
    if isinstance(error, container.Damaged):
        return "call again; the payload was damaged on its way"
    if caller != sys.version_info[:2]:
        return "use an environment with Python %d.%d, or write what both versions know" % caller
    return "compare the versions of the packages here and in the environment"


def _call(call: tuple[Callable[..., Any], Any, Any]) -> tuple[str, Any]:
    function, args, kwargs = call
    pid = os.getpid()
    try:
        value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            import asyncio

            value = asyncio.run(value)
    except BaseException as error:  # whatever the function raises is its outcome, SystemExit included
        if os.getpid() != pid:
            raise  # a forked child's own end
        return RAISED, error
    if os.getpid() != pid:  # a fork made by the function came out of it as well: it has nothing to report
        _flush()
        os._exit(0)
    return RETURNED, value


def _keep(kind: str, result: Any, value_fd: int, caller: tuple[int, ...], report: Report) -> dict[str, Any]:
    try:
        file = os.fdopen(value_fd, "w+b")
    except OSError as error:  # the function closed it
        return _described(result) if kind == RAISED else _not_written(error.errno or 0)
    if kind == RAISED:
        facts = _keep_exception(result, file, caller, report.secrets)
    else:
        facts = _keep_value(result, file, caller)
    _note_changes(report)
    if "size" not in facts:
        os.ftruncate(value_fd, 0)  # what was half written is of no use, and the disk may be full
    _close(file)
    return facts


def _close(file: Any) -> None:
    try:
        file.close()
    except OSError:  # what could not be written has been reported
        return


def _keep_value(value: Any, file: Any, caller: tuple[int, ...]) -> dict[str, Any]:
    try:
        written = _write(value, file, caller)
    except BaseException as error:  # noqa: BLE001 - pickling runs the user's own code, which may raise anything
        return _not_kept(value, error, caller)
    return dict(written, done=RETURNED)


def _not_kept(value: Any, error: BaseException, caller: tuple[int, ...]) -> dict[str, Any]:
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        return _not_written(error.errno)
    from _clusterfn_wire import unpicklable

    try:
        path, part = unpicklable.find(value, "result", caller)
    except KeyboardInterrupt:  # raised by the value's own __reduce__, not by somebody at a keyboard
        path, part = "result: its pickling raised KeyboardInterrupt", value
    return {
        "done": RESULT,
        "message": "the function returned, but its value cannot be pickled: %s%s" % (path, _between(caller)),
        "path": path,
        "exception": _summary(error),
        "hint": unpicklable.instead_of(part),
    }


def _not_written(number: int) -> dict[str, Any]:
    """The file refused the bytes: an error that pickling raises by itself names a file or has no number."""
    message = "the value could not be written: %s" % os.strerror(number)
    if number in _FULL:
        return {"done": "disk", "message": message}
    hints = {
        errno.EFBIG: "raise the limit of the size of files there (ulimit -f), or return less",
        errno.EBADF: "the function closed a file of clusterfn's: let it close only what it opened",
    }
    return {"done": RESULT, "message": message, "hint": hints.get(number, "look at the file system of root: there")}


def _keep_exception(error: BaseException, file: Any, caller: tuple[int, ...], secrets: list[str]) -> dict[str, Any]:
    from _clusterfn_wire import exceptions

    report = _described(error)
    try:
        return dict(_write(exceptions.to_records(error, caller, secrets), file, caller), **report)
    except BaseException:  # noqa: BLE001 - an odd exception may refuse anything; its text has been taken already
        return report


def _described(error: BaseException) -> dict[str, Any]:
    facts = _summary(error)
    return {"done": RAISED, "message": "%s: %s" % (facts["type"], facts["message"]), "exception": facts}


def _write(value: Any, file: Any, caller: tuple[int, ...]) -> dict[str, Any]:
    file.truncate(0)
    written: dict[str, Any] = container.dump(value, file, caller)
    file.flush()
    os.fsync(file.fileno())
    return written


def _note_changes(report: Report) -> None:
    from _clusterfn_wire import pickler

    for note in dict.fromkeys(pickler.notes):
        report.say(note=note)


def _flush() -> None:
    """Let out what was printed; the value has been written, and no stream of the function's may cost it now."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name, None).flush()  # type: ignore[union-attr]
        except BaseException:  # noqa: BLE001, S112 - deleted, closed, full, or the function's own, which raises anything
            continue


def _usage() -> dict[str, float]:
    return {"cpu_s": round(sum(os.times()[:4]), 3)}
