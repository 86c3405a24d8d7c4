"""The journal of a sweep: a JSON line for each decision, on the disk before the next step; one writer at a time.

A sweep that is resumed reads from it what has been done. Its first line says what makes a sweep the same as one before:
its function, configurations, seed and way of scoring. A `Store` keeps the values, beside the journal or as a cache.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterfn.bridge.supervisor.text import counted, format_size
from clusterfn.config import places
from clusterfn.config.options import Options
from clusterfn.display import console
from clusterfn.environment import existing
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts import serialization
from clusterfn.sweeps.fingerprint import Unstable, fingerprint
from clusterfn.sweeps.space import ConfigurationList, Grid

FORMAT = 1
_BEGIN = b'{"event": "begin"'
# The levels are: a record, its configurations, and one of these.
_LEVELS = 3
# The offset of a byte that is never written, because Windows locks bytes and not files.
_LOCK_AT = 1 << 40
# NFS whose lock manager does not run, and Lustre without `flock`.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
_LONG = 200
_COMPARED = ("function", "max_configs", "sampler", "seed", "score", "minimize")


class SweepJournal:
    """One file, open and locked until `close`.

    Args:
        path: Created if it does not exist.

    Attributes:
        records: What was in it when it was opened.

    Raises:
        ConfigError: Another process has it, it cannot be written, or it is something else than a journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = places.expanded(path).absolute()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            hint = "choose another file: journal="
            raise ConfigError(f"the journal cannot be written: {error}", hint=hint) from error
        self._before = b""
        try:
            self._lock()
            self.records = self._read()
        except BaseException:
            # After Ctrl-C, nothing else closes the file.
            self._file.close()
            raise

    def __enter__(self) -> SweepJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close and unlock the file."""
        self._file.close()

    def _lock(self) -> None:
        try:
            if sys.platform == "win32":
                import msvcrt

                os.lseek(self._file.fileno(), _LOCK_AT, os.SEEK_SET)
                msvcrt.locking(self._file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                console.tell(f"{self.path} is on a file system without locks: run only one program at a time with it")
                return
            hint = "wait for it, or choose another file: journal="
            raise ConfigError(f"another process is using {self.path}", hint=hint) from None

    def _read(self) -> list[dict[str, Any]]:
        """Read it without a torn line; what is appended then begins a line of its own."""
        self._file.seek(0)
        text = self._file.read()
        if text[: len(_BEGIN)] != _BEGIN[: len(text)]:
            raise ConfigError(f"{self.path} is not the journal of a sweep", hint="choose another file: journal=")
        # Not even the first line was written completely.
        if b"\n" not in text:
            self._file.truncate(0)
            return []
        self._before = b"" if text.endswith(b"\n") else b"\n"
        records = [_record(line) for line in text.splitlines()]
        return [each for each in records if each]

    def add(self, event: str, **facts: Any) -> None:
        """Append one line, which is then on the disk. What JSON has no word for is written as Python shows it.

        Raises:
            ClusterfnError: The disk does not take it.
        """
        line = _json({"event": event, **facts, "t": round(time.time(), 3)}).encode("utf-8", "backslashreplace")
        view = memoryview(self._before + line + b"\n")
        try:
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ClusterfnError(
                f"the journal cannot be written: {error}", log=str(self.path),
                hint="free some space, then run the same sweep with the same journal=: the rest comes from the host",
            ) from error  # fmt: skip
        self._before = b""

    def records_of(self, event: str) -> list[dict[str, Any]]:
        """Return the records of one kind of event."""
        return [each for each in self.records if each["event"] == event]


def _json(value: Any, levels: int = _LEVELS) -> str:
    """Write as JSON; write an object with keys that are no text, or that contains itself, by its `repr`."""
    try:
        return json.dumps(value, default=repr, ensure_ascii=False)
    except (TypeError, ValueError):
        if levels and isinstance(value, dict) and all(isinstance(key, str) for key in value):
            parts = [f"{json.dumps(key, ensure_ascii=False)}: {_json(each, levels - 1)}" for key, each in value.items()]
            return f"{{{', '.join(parts)}}}"
        return json.dumps(repr(value), ensure_ascii=False)


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) and "event" in record else {}


def code_of(function: Callable[..., Any], options: Options) -> str | None:
    """Return a digest of a function and its decorator's environment; None if there can be none."""
    environment: tuple[str | None, tuple[str, ...]] = options.environment, options.packages
    if not options.packages and not existing.is_existing(options.environment):
        # This import is late: jobs do not have this package, and their modules may import `sweep`.
        from clusterfn.environment import resolve

        # The digest covers what the file asks for, because the same file may ask for something else tomorrow.
        environment = resolve.read_specification(options.environment, ()).input_hash, ()
    try:
        return fingerprint(function, environment, options.modules, sorted(options.env.items()))
    except Unstable:
        return None


def describe(space: Grid | ConfigurationList) -> dict[str, dict[str, Any]]:
    """Describe the configurations for a reader and as digests, each key apart."""
    if isinstance(space, ConfigurationList):
        parts: dict[str, Any] = {"configurations": [dict(sorted(each.items())) for each in space.configurations]}
    else:
        parts = {key: space.drawn.get(key) or list(space.values[key]) for key in space.keywords()}
    texts = {key: repr(value) for key, value in parts.items()}
    return {
        "space": {key: text if len(text) <= _LONG else f"{text[: _LONG - 1]}…" for key, text in texts.items()},
        "digests": {key: _digest(value) for key, value in parts.items()},
    }


def _digest(value: Any) -> str | None:
    try:
        return fingerprint(value)
    except Unstable:
        return None


def score_of(by: Any) -> str | None:
    """Describe a way of scoring in one word."""
    return (_digest(by) or "a function") if callable(by) else by


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say in words how the tasks of two first lines of a journal differ.

    Args:
        before: That of the journal.
        now: What is asked for.
    """
    lines = [
        f"{key}: {before.get(key)} in the journal, {now[key]} now" for key in _COMPARED if before.get(key) != now[key]
    ]
    if before.get("code") and now["code"] and before["code"] != now["code"]:
        name, modules = now["function"], (before.get("module"), now["module"])
        if modules[0] == modules[1] or "__main__" not in modules:
            lines.append(f"code: {name}, or something that it calls, has changed since")
        else:
            # The same file has another digest as `__main__` than as a module, so the two cannot be compared.
            lines.append(
                f"module: {name} of {modules[0]} in the journal, of {modules[1]} now; clusterfn cannot compare the "
                "code of the two, so start the sweep as before: run the file as a script, or import it"
            )
    digests, earlier = now["digests"], before.get("digests", {})
    shown = [facts.get("space", {}) for facts in (before, now)]
    # Without a study, the names of configurations are numbers in the order of the keys.
    counts = now["sampler"] != "optuna"
    if counts and digests.keys() == earlier.keys() and [*digests] != [*earlier]:
        lines.append(f"order of the keys: {', '.join(earlier)} in the journal, {', '.join(digests)} now")
    return lines + [
        f"{key}: {shown[0].get(key, 'nothing')} in the journal, {shown[1].get(key, 'nothing')} now"
        for key in dict.fromkeys([*earlier, *digests])
        if earlier.get(key) != digests.get(key)
    ]


_SUFFIX, _BESIDE = ".pkl", ".values"
# As long as hosts keep jobs by default.
_KEEP_S = 14 * 86400.0


@dataclass(frozen=True)
class Kept:
    """A value and how long it took."""

    value: Any
    seconds: float


class Store:
    """A folder of values, each in a file of its own that is whole or missing.

    Serves the cache, where a file is named by what was called with what, and the journal, where it is named by the
    configuration. What cannot be read costs a line and is computed again.

    Args:
        folder: Created if it does not exist.

    Raises:
        ConfigError: It cannot be made, or belongs to another user: to load a value may run any code.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            ours = places.is_ours(folder.lstat()) and places.is_ours(folder.stat())
        except OSError as error:
            raise ConfigError(f"{folder} cannot hold cached values: {error}") from error
        if not ours:
            problem = f"{folder} belongs to another user, whose code could run when clusterfn loads a value from it"
            raise ConfigError(problem, hint="name a folder of your own")

    def get(self, key: str, name: str) -> Kept | None:
        """Return what was kept under that key; None if there is nothing, or, with a message, nothing readable."""
        path = self._path(key)
        if not path.exists():
            return None
        try:
            with path.open("rb") as file:
                if not places.is_ours(os.fstat(file.fileno())):
                    raise PermissionError("it belongs to another user")
                value, seconds = serialization.part("container").loads(file.read())
            return Kept(value, float(seconds))
        except Exception as error:  # noqa: BLE001 - loading a value runs code of the user's
            console.warn(f"the value of {name} cannot be read ({_in_one_line(error)}) and is computed again: {path}")
            return None

    def put(self, key: str, kept: Kept) -> None:
        """Keep a value; where that fails, it is said."""
        path = self._path(key)
        part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
        try:
            with part.open("xb") as file:
                # Windows has no fchmod.
                os.fchmod(file.fileno(), 0o600) if hasattr(os, "fchmod") else None
                serialization.part("container").dump((kept.value, kept.seconds), file)
            part.replace(path)
        except Exception as error:  # noqa: BLE001 - pickling a value runs code of the user's
            console.tell(f"a value cannot be cached ({_in_one_line(error)}): {path}")
            with contextlib.suppress(OSError):
                part.unlink()

    def in_words(self) -> str:
        """Say how many values there are, how large, and where."""
        sizes = [path.stat().st_size for path in self.folder.glob(f"*{_SUFFIX}")]
        return f"{counted(len(sizes), 'result')}, {format_size(sum(sizes))}, in {self.folder}"

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"


def values_beside(journal: Path) -> Path:
    """Return the folder with the values of a journal."""
    return journal.with_name(f"{journal.name}{_BESIDE}")


def forget_values(journal: Path) -> None:
    """Remove the values of a journal; what it says stays."""
    shutil.rmtree(values_beside(journal), ignore_errors=True)


def forget_old_values(folder: Path) -> None:
    """Forget the journals of a folder that no sweep has used for two weeks."""
    for values in folder.glob(f"*{_BESIDE}"):
        journal = values.with_name(values.name[: -len(_BESIDE)])
        with contextlib.suppress(ConfigError, OSError):
            # Another process has the journal open, or the journal is gone by now.
            if time.time() - journal.stat().st_mtime > _KEEP_S:
                with SweepJournal(journal):
                    forget_values(journal)


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:120]
