"""Move a root to another folder of the host: what `clusterfn move` runs there.

    check → note → copy → build environments → close the old root → copy what changed → hand over → remove the old one

Until the hand-over, which is one rename, the old root is whole; from then on the new one is. Each step does only what
is left of it, so a move that was interrupted continues when it is started again. docs/decisions/0048-move.md
"""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time

from ..agent.trusted import Trusted
from ..builder import build as building
from ..builder import cleanup
from ..builder.locks import FolderLock, LockHolder
from ..layout import (
    ABOUT,
    ARRIVED,
    BLOBS,
    BRIDGE,
    BUILD,
    BUILDS,
    CACHE,
    CARDS,
    ENVIRONMENTS,
    FILES,
    JOBS,
    LOOKED,
    LOOKED_SOON,
    MACHINES,
    MOVED,
    MOVING,
    PACKAGES,
    PACKED,
    PLAN,
    SHIMS,
    SOURCES,
    USES,
    build_dir,
    environment_dir,
)  # fmt: skip
from . import publish
from .copy_root import RootCopy, remove, size_below
from .expire import LivingJobs, runs_still, started_files
from .job import DAMAGED, JobFolder, job_folders
from .listing import state_of
from .text import native, portable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_COPIED = (
    BRIDGE, BLOBS, SOURCES, FILES, SHIMS, MACHINES, USES, CARDS, CACHE, LOOKED, LOOKED_SOON, JOBS,
)  # fmt: skip
_OWN = (*_COPIED, PACKAGES, ENVIRONMENTS, BUILDS, PACKED)
_LOCK = ".move"
_BEATS = ".beats"
_PART = re.compile(r"[0-9a-f]{16}\.part-\d+-\d+\Z")  # a job that a client is sending
_RECENT_S = 120.0
_PATIENCE_S = 70.0  # after which a mover on another machine counts as dead
_TELL_S = 0.5
_ENDING_S, _LOOK_S = 20.0, 0.1
_CLOSED, _OPEN = 0o500, 0o700
_ASIDE, _PART_OF_NOTE = ".moved-", ".move-note"


class MoveRefused(Exception):
    """It cannot be moved now; nothing has changed."""

    def __init__(self, message: str, evidence: "list[str]", hint: str) -> None:
        Exception.__init__(self, message)
        self.told = {"step": "refused", "message": message, "evidence": evidence, "hint": hint}


def move_root(old: str, new: str, owners: str) -> int:
    """Move a root, and print a JSON line for each step; the last has the step `done` or `refused`.

    Args:
        old: The root, absolute; if it is `new`, only the one from which it came remains to be removed.
        new: The other folder, as clusterfn.yml may have it.
        owners: JSON: the users and groups whose folders are trusted.
    """

    def stop(*_: object) -> None:
        raise KeyboardInterrupt  # so that what was closed is opened again

    signal.signal(signal.SIGTERM, stop)
    try:
        target = _expanded(new)
        _refuse_untrusted(target, json.loads(owners))
        tell(Move(old, target).run())
        return 0
    except MoveRefused as refused:
        tell(refused.told)
    except OSError as error:
        where = error.filename or new
        hint = "correct that, then run the same command again: it continues where it stopped"
        tell(MoveRefused("%s: %s" % (where, error.strerror or error), [], hint).told)
    return 1


def tell(told: "dict[str, Any]") -> None:
    """Print one line for the client."""
    sys.stdout.write(json.dumps(portable(told)) + "\n")
    sys.stdout.flush()


class Move:
    """One root on its way to another folder.

    Args:
        old: Where it is.
        new: Where it shall be.
    """

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new
        self._told = time.monotonic()
        self._size = 0
        self._environments: "list[dict[str, Any]]" = []
        self._copied = (0, 0)
        self._mode = _OPEN  # of jobs, as long as it is open

    def run(self) -> "dict[str, Any]":
        """Do all that is left to do; return the last line."""
        # Closed by a move that was killed, or by one that still runs: only the lock below tells them apart.
        note = _read_note(self.old, MOVING, None)
        is_closed = note is not None
        self._mode = int((note or {}).get("mode") or _mode_of(os.path.join(self.old, JOBS)))
        if _same(self.old, self.new):
            note = _read_note(self.new, ARRIVED, None)
            if note is None:
                return self._done([])
            self.old = note["from"]
        elif not self._has_arrived():
            self._refuse_target()
            if not is_closed:
                self._check()
        os.makedirs(self.new, mode=_OPEN, exist_ok=True)
        with LockHolder(self.new) as holder:
            lock = FolderLock(os.path.join(self.new, BUILDS, _LOCK), holder)
            self._wait_for_other_mover(lock)
            try:
                if not self._has_arrived():
                    self._refuse_other_move()
                    if is_closed:
                        self._check()
                    self._bring()
                left = self._leave()
            finally:
                lock.release()
        lock.forget()
        return self._done(left)

    def _done(self, left: "list[str]") -> "dict[str, Any]":
        files, size = self._copied
        told = {"step": "done", "from": self.old, "root": self.new, "files": files, "bytes": size}
        return dict(told, environments=self._environments, left=left)

    def _check(self) -> None:
        try:
            self._refuse_busy()
            self._refuse_full()
        except BaseException:  # a signal, too, must not leave it closed
            if _read_note(self.old, MOVING, None) is not None:
                self._open_again()
            raise

    def _bring(self) -> None:
        """Bring everything to the new root; hand over at the end."""
        self._note(self.new, MOVING)
        remove(os.path.join(self.new, MOVED))  # of a root that was here before, and moved away
        self._copy()
        self._build_environments()
        self._refuse_other_move()
        self._note(self.old, MOVING)
        self._close()
        try:
            self._refuse_busy()
            self._copy()
            building.sync_file_system(self.new)
            os.rename(os.path.join(self.new, MOVING), os.path.join(self.new, ARRIVED))  # the hand-over
            publish.sync_folder(self.new)
        except BaseException:  # a signal, too, must not leave it closed
            if not self._has_arrived():
                self._open_again()
            raise

    def _refuse_other_move(self) -> None:
        """Refuse a root that is on its way to another folder: what arrives there must not be removed here."""
        note = _read_note(self.old, MOVING, None)
        if note is not None and not _same(note["to"], self.new):
            hint = "finish that move first; if you have given it up, remove %s" % os.path.join(self.old, MOVING)
            raise MoveRefused("%s is being moved to %s" % (self.old, note["to"]), [], hint)

    def _refuse_target(self) -> None:
        """Refuse a folder that holds anything else, and one that would be moved into itself."""
        if not os.path.isdir(os.path.join(self.old, JOBS)):
            hint = "write the other root: at once"
            raise MoveRefused("%s has no jobs: there is nothing to move" % self.old, [], hint)
        below = os.path.relpath(os.path.realpath(self.new), os.path.realpath(self.old))
        if below.partition("/")[0] in _OWN:
            hint = "choose a folder outside of it"
            raise MoveRefused("%s is inside a folder that would be moved" % self.new, [], hint)
        if not os.path.lexists(self.new) or _read_note(self.new, MOVING, self.old) is not None:
            return
        names = set(os.listdir(self.new))
        names -= {name for name, own in ((BUILDS, {_LOCK, _BEATS}), (JOBS, set())) if self._holds_only(name, own)}
        if names - {MOVED, _PART_OF_NOTE}:
            raise MoveRefused(
                "%s is not empty" % self.new, sorted(names)[:10], "choose a folder that is empty, or does not exist"
            )

    def _holds_only(self, name: str, own: "set[str]") -> bool:
        folder = os.path.join(self.new, name)
        return os.path.isdir(folder) and set(os.listdir(folder)) <= own

    def _refuse_busy(self) -> None:
        """Refuse while a job waits or runs, or a client sends one, or an environment is built."""
        living = LivingJobs(self.old)
        found = []  # type: list[str]
        ending = []  # type: list[str]
        for folder in job_folders(self.old):
            try:
                job = JobFolder(folder)
                if living.has(job):
                    found.append("%s %s %s" % (job.id, job.spec["name"], state_of(job)[0]))
                else:
                    ending += filter(runs_still, started_files(job))
            except DAMAGED:  # its files move as they are
                continue
        if not found:
            names = {os.path.relpath(each, os.path.join(self.old, JOBS)) for each in _wait_for_end(ending)}
            found = ["%s is ending" % name.partition("/")[0] for name in sorted(names)]
        found += ["%s is being sent" % name.partition(".")[0] for name in self._arriving()]
        if found:
            count = "1 job waits or runs" if len(found) == 1 else "%d jobs wait or run" % len(found)
            hint = "wait for them, or end them: clusterfn cancel ID"
            raise MoveRefused("%s below %s" % (count, self.old), found, hint)
        with LockHolder(self.old) as holder:
            building_now = cleanup.builds_under_way(self.old, holder)
        if building_now:
            hint = "run the same command again once they are built"
            raise MoveRefused("environments are being built below %s" % self.old, building_now, hint)

    def _arriving(self) -> "list[str]":
        folder = os.path.join(self.old, JOBS)
        names = [name for name in os.listdir(folder) if _PART.match(name)]
        return [name for name in names if time.time() - os.stat(os.path.join(folder, name)).st_mtime < _RECENT_S]

    def _refuse_full(self) -> None:
        """Refuse a file system without room, before anything is written to it."""
        self._size = sum(size_below(os.path.join(self.old, name)) for name in (*_COPIED, PACKAGES))
        there = self.new
        while not os.path.isdir(there):
            there = os.path.dirname(there)
        if os.stat(self.old).st_dev == os.stat(there).st_dev:
            return
        disk = os.statvfs(there)
        free = disk.f_bavail * disk.f_frsize + size_below(self.new)
        if free < self._size:
            seen = "%d MB free, %d MB needed" % (free >> 20, self._size >> 20)
            hint = "make room there, or here: clusterfn clean, clusterfn env gc"
            raise MoveRefused("%s has too little room" % self.new, [seen], hint)

    def _copy(self) -> None:
        copy = RootCopy(self.old, self.new, self._tell_copied)
        for name in _COPIED:
            if os.path.lexists(os.path.join(self.old, name)):
                copy.copy(name)
        if os.path.isdir(os.path.join(self.old, PACKAGES)):
            copy.copy_each(PACKAGES)
        os.chmod(os.path.join(self.new, JOBS), self._mode)
        self._copied = max(self._copied, (copy.files, copy.bytes))

    def _tell_copied(self, copy: RootCopy) -> None:
        if time.monotonic() - self._told > _TELL_S:
            self._told = time.monotonic()
            tell({"step": "copy", "files": copy.files, "bytes": copy.bytes, "of": self._size})

    def _build_environments(self) -> None:
        """Build each environment again from the packages: its programs and libraries name the folder that it is in."""
        for env_id in cleanup.list_environments(self.old):
            if building.is_ready(self.new, env_id):
                continue
            try:
                with open(os.path.join(environment_dir(self.old, env_id), ABOUT, PLAN), encoding="utf-8") as file:
                    plan = dict(native(json.load(file)), root=self.new)
            except (OSError, ValueError) as error:
                self._environments.append({"id": env_id, "about": env_id, "why": "its plan is lost: %s" % error})
                continue
            self._environments.append(self._build(env_id, plan))

    def _build(self, env_id: str, plan: "dict[str, Any]") -> "dict[str, Any]":
        about, path = plan.get("about") or env_id, os.path.join(build_dir(self.new, env_id), PLAN)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        publish.replace(path, json.dumps(portable(plan)).encode("ascii"))
        builder = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), BUILD)
        argv = [sys.executable, "-I", "-S", builder, "build", path]
        last: "dict[str, Any]" = {}
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            for line in process.stdout or ():
                last = _parsed(line) or last
                tell({"step": "build", "about": about, "told": last})
        why = "" if process.returncode == 0 else last.get("message") or last.get("text") or "the builder gave no reason"
        return {"id": env_id, "about": about, "why": why}

    def _close(self) -> None:
        """Let no client put a job into the old root any more: also one that has connected long ago."""
        os.chmod(os.path.join(self.old, JOBS), _CLOSED)

    def _open_again(self) -> None:
        os.chmod(os.path.join(self.old, JOBS), self._mode)
        remove(os.path.join(self.old, MOVING))

    def _leave(self) -> "list[str]":
        """Remove the old root, except a note that says where it is now; return what else is left."""
        notes = [_read_note(self.old, name, None) for name in (MOVING, MOVED)]
        if not any(note is not None and _same(note["to"], self.new) for note in notes) or _same(self.old, self.new):
            remove(os.path.join(self.new, ARRIVED))  # it is gone, or another folder has its name by now
            return []
        self._note(self.old, MOVED)
        tell({"step": "remove"})
        late = self._late_jobs()
        if late:
            return late
        self._replace_jobs_by_closed_folder()
        own = os.path.join(BRIDGE, os.path.basename(os.path.dirname(os.path.abspath(sys.argv[0]))))
        names = [name for name in os.listdir(self.old) if name in _OWN or name.startswith(_ASIDE)]
        ours = [name for name in names if name not in (JOBS, BRIDGE)]
        for name in [*ours, MOVING, *self._bridges(own), own, BRIDGE]:
            _try_to_remove(os.path.join(self.old, name))
        left = [os.path.join(self.old, name) for name in names if name != JOBS]
        left = [path for path in left if os.path.lexists(path)]
        if not left:
            remove(os.path.join(self.new, ARRIVED))
        others = [name for name in os.listdir(self.old) if name not in (*_OWN, MOVED) and not name.startswith(_ASIDE)]
        return left + [os.path.join(self.old, name) for name in others if not self._holds_new(name)]

    def _bridges(self, own: str) -> "list[str]":
        folder = os.path.join(self.old, BRIDGE)
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return [each for each in (os.path.join(BRIDGE, name) for name in names) if each != own]

    def _holds_new(self, name: str) -> bool:
        below = os.path.relpath(os.path.realpath(self.new), os.path.realpath(self.old))
        return below.partition("/")[0] == name

    def _late_jobs(self) -> "list[str]":
        """Return jobs that came after the old root was closed, as only the superuser's can."""
        there = {os.path.basename(folder) for folder in job_folders(self.new)}
        return [folder for folder in job_folders(self.old) if os.path.basename(folder) not in there]

    def _replace_jobs_by_closed_folder(self) -> None:
        jobs = os.path.join(self.old, JOBS)
        if os.path.isdir(jobs) and os.listdir(jobs):
            os.rename(jobs, os.path.join(self.old, "%s%s-%d" % (_ASIDE, JOBS, time.time() * 1000)))
        if not os.path.isdir(jobs):
            os.mkdir(jobs, _CLOSED)

    def _note(self, root: str, name: str) -> None:
        part = os.path.join(root, _PART_OF_NOTE)  # always the same: a killed process leaves it to the next one
        with open(part, "w") as file:
            json.dump(portable({"from": self.old, "to": self.new, "mode": str(self._mode)}), file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, os.path.join(root, name))
        publish.sync_folder(root)

    def _has_arrived(self) -> bool:
        return _read_note(self.new, ARRIVED, self.old) is not None

    def _wait_for_other_mover(self, lock: FolderLock) -> None:
        until = time.monotonic() + _PATIENCE_S

        def look(other: "Optional[Any]") -> None:
            if other is not None and time.monotonic() > until:
                raise MoveRefused("another process moves it: %s" % other.who(), [], "wait until it has ended")

        lock.wait(look)


def _wait_for_end(started: "list[str]") -> "list[str]":
    """Wait a while for supervisors that have published the end of their jobs; return the files of those that run on."""
    until = time.monotonic() + _ENDING_S
    while started and time.monotonic() < until:
        time.sleep(_LOOK_S)
        started = list(filter(runs_still, started))
    return started


def _expanded(path: str) -> str:
    found = os.path.expanduser(os.path.expandvars(path))
    if "$" in found or not os.path.isabs(found):
        raise MoveRefused("%s is not an absolute path here: is a variable unset?" % path, [], "write the full path")
    return os.path.normpath(found)


def _refuse_untrusted(path: str, owners: "list[str]") -> None:
    found = Trusted(owners).objection(path)
    if found is not None:
        hint = "choose a folder of your own; or if you trust who can write to it, name that user or group in owners:"
        raise MoveRefused("%s is not safe to use: %s: another user could plant code there" % found, [], hint)


def _mode_of(folder: str) -> int:
    try:
        mode = stat.S_IMODE(os.stat(folder).st_mode)
    except OSError:  # there is none: it is rejected, or has moved
        return _OPEN
    return _OPEN if mode == _CLOSED else mode


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _read_note(root: str, name: str, old: "Optional[str]") -> "Optional[dict[str, str]]":
    """Return the note of a move from `old`, or from anywhere if that is None."""
    data = publish.read(root, name)
    found = _parsed(data) if data is not None else None
    if found is None or "from" not in found:
        return None
    note = native(found)
    return note if old is None or _same(note["from"], old) else None


def _parsed(line: bytes) -> "Optional[dict[str, Any]]":
    try:
        found = json.loads(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _try_to_remove(path: str) -> None:
    try:
        remove(path)
    except OSError:  # it is named among what is left
        return
