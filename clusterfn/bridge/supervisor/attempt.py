"""One attempt's folder and everything that is written there: owner, events, heartbeat, usage, outcome.

Holds the rules that give one job one outcome: a new attempt fences all before it.
"""

import contextlib
import errno
import json
import os
import stat
import time

from .. import layout
from . import publish
from .job import EVENT, JOB_OUTCOME, USAGE, DamagedFile, parse_record
from .process_tree import boot_id, is_alive, start_time
from .publish import names_in
from .text import portable
from .verdict import Verdict, document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .job import JobFolder


# A process looks every second whether it is fenced.
SETTLE_S = 2.0
_STARTED, _WITHDRAWN = b"started", b"withdrawn"
# The state of an attempt -> the file that shows it and what that holds, the states that may follow, and who may say so.
# Each file appears once, and never changes: the first process decides. docs/architecture.md shows this table.
ATTEMPT_STATES = {
    "open": (layout.OWNER, b"", ("waiting", "followed", "overtaken", "ended"), "the supervisor that has the claim"),
    "waiting": (layout.WAITING, b"", ("begun", "withdrawn", "followed", "overtaken", "ended"), "its supervisor"),
    "begun": (layout.BEGUN, _STARTED, ("followed", "overtaken", "ended"),
              "its supervisor, before it starts the worker"),
    "withdrawn": (layout.BEGUN, _WITHDRAWN, ("followed", "overtaken", "ended"), "`conclude`, on request"),
    "followed": (layout.FOLLOWED, b"", ("overtaken", "ended"), "`after`, if its supervisor has died"),
    "overtaken": (layout.OUTCOME, b'"final": false', (),
                  "its supervisor, for `retries=` or `requeue=`; or the next attempt"),
    "ended": (layout.OUTCOME, b'"final": true', (), "its supervisor, `after` or `conclude`"),
}  # fmt: skip


class RunnableAttempt:
    """What `AttemptRun` needs of an attempt: that of a job, of an item, of one node, or of a session's call.

    What is here suits an attempt that belongs to another one, whose events and heartbeat serve both.

    Attributes:
        number: 1 for the first.
        folder: attempts/<n>, or what one node or one call has instead.
    """

    number = 1
    folder = ""

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def call(self) -> "list[str]":
        """Return the arguments of the worker: where its value goes, and where its arguments are."""
        return [self.folder]

    def variables(self) -> "dict[str, str]":
        """Return what the worker finds in its environment because of this attempt."""
        return {}

    def wait(self, reason: str) -> None:
        """Note that it waits for something on the host itself."""

    def begin(self) -> bool:
        """Return whether the worker may start."""
        return True

    def event(self, name: str, **facts: "Any") -> None:
        """Inform those who follow it."""

    def beat(self) -> None:
        """Show those who follow it that it is alive."""

    def publish(self, verdict: Verdict) -> bool:
        """Publish how it ended; False if that is published already."""
        raise NotImplementedError


class WholeAttempt(RunnableAttempt):
    """An attempt of a job or of an item, and not of one of its nodes: another may follow it."""

    def prepare(self) -> None:
        """Do what comes before its run."""
        raise NotImplementedError

    def retries_used(self) -> int:
        """Return how often `retries=` was used before it."""
        raise NotImplementedError

    def words_of_tasks(self) -> "list[str]":
        """Return what its other tasks must know in addition to its number."""
        return []

    def has_ended(self) -> bool:
        """Return whether its other tasks can see that it has ended."""
        raise NotImplementedError


class Attempt(WholeAttempt):
    """One attempt of a job, or of an element of a group.

    Attributes:
        overtook: Whether one before it may still run somewhere, and sees only now that it is fenced.
    """

    def __init__(self, job: "JobFolder", number: int) -> None:
        self.job = job
        self.overtook = False
        self.number = number
        self.folder = layout.attempt_dir(job.folder, number)
        self.reserve: "Optional[publish.Reserve]" = None
        # These are the two files that it appends to and rewrites, once they are open.
        self._events = self._heart = -1
        self._said = self._beats = 0

    @classmethod
    def new(cls, job: "JobFolder") -> "Attempt":
        """Create the attempt with the next free number, and write its owner."""
        make_folder(job.path(layout.ATTEMPTS))
        attempt = cls(job, max(job.attempts() or [0]))
        while True:
            following = attempt.following()
            if following is not None:
                return following
            attempt = cls(job, attempt.number + 1)

    def following(self) -> "Optional[Attempt]":
        """Create the one right after this, and write its owner; None if another process has created it."""
        following = Attempt(self.job, self.number + 1)
        try:
            os.mkdir(following.folder, 0o700)
        except FileExistsError:
            return None
        with open(following.path(layout.OWNER), "w") as file:
            file.write(self.job.start)
        return following

    def owner(self) -> str:
        """The start of job.sh that made this attempt; empty if it died before it could say."""
        return (publish.read(self.folder, layout.OWNER) or b"").decode("ascii", "replace").strip()

    def prepare(self) -> None:
        """Open the files that a running attempt writes."""
        self.reserve = publish.Reserve(self.folder)
        for folder in (self.path(layout.WORK), self.job.path(layout.CHECKPOINT)):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT
        self._events = os.open(self.path(layout.EVENTS), flags | os.O_APPEND, 0o600)
        self._heart = os.open(self.path(layout.HEARTBEAT), flags, 0o600)
        # An empty file counts as no heartbeat.
        os.pwrite(self._heart, b"%08d" % 0, 0)

    def wait(self, reason: str) -> None:
        """It waits for something on the host itself, and may be withdrawn until it begins."""
        os.close(os.open(self.path(layout.WAITING), os.O_WRONLY | os.O_CREAT, 0o600))
        self.event("pending", reason=reason)

    def begin(self) -> bool:
        """Whether the worker may start; false if the attempt was withdrawn while it waited."""
        return not os.path.exists(self.path(layout.WAITING)) or publish.publish(self.folder, layout.BEGUN, _STARTED)

    def follow(self) -> bool:
        """Leave the job to another try, once: one that dies before it makes an attempt would come back for ever."""
        return publish.publish(self.folder, layout.FOLLOWED, b"")

    def withdraw(self) -> bool:
        """Keep an attempt that waits from ever starting its worker; false if it did not wait, or has begun."""
        if not os.path.exists(self.path(layout.WAITING)):
            return False
        won = publish.publish(self.folder, layout.BEGUN, _WITHDRAWN)
        return won or publish.read(self.folder, layout.BEGUN) == _WITHDRAWN

    def event(self, name: str, **facts: "Any") -> None:
        """Append one line to events.jsonl, once that is open: news for those who follow it. A full disk loses it."""
        if self._events < 0:
            return
        requeue: "dict[str, int]" = self.job.spec.get("requeue") or {}
        if requeue and self.number > 1 and name in ("starting", "running"):
            of = max(self.number, 1 + sum(requeue.values()) + int(self.job.spec.get("retries") or 0))
            which = "attempt %d of %d" % (self.number, of)
            facts["reason"] = ", ".join(filter(None, [which, facts.get("node")]))
        self._said += 1
        record = dict(portable(facts), n=self._said, event=name, t=round(time.time(), 3))
        line = (json.dumps(record) + "\n").encode()
        try:
            os.write(self._events, line)
        except OSError as error:
            with contextlib.suppress(OSError):
                if self._has_reopened(error):
                    os.write(self._events, line)

    def beat(self) -> None:
        """Increase the count in the heartbeat, eight bytes that are rewritten in place."""
        self._beats += 1
        try:
            os.pwrite(self._heart, b"%08d" % (self._beats % 10**8), 0)
            os.fsync(self._heart)
        except OSError as error:
            # The disk is full or its server is away. The reader waits for two beats and asks the scheduler.
            with contextlib.suppress(OSError):
                self._has_reopened(error)

    def _has_reopened(self, error: OSError) -> bool:
        """Open both files again if their server no longer knows them as they are open, as after a failover."""
        if error.errno != errno.ESTALE:
            return False
        for name, fd, append in ((layout.EVENTS, self._events, os.O_APPEND), (layout.HEARTBEAT, self._heart, 0)):
            again = os.open(self.path(name), os.O_WRONLY | append)
            os.dup2(again, fd, inheritable=False)
            os.close(again)
        return True

    def publish(self, verdict: Verdict) -> bool:
        kept = verdict.kind != layout.RETURNED and self.job.has_checkpoint()
        # These are the attempts after which the job was retried or requeued.
        before = [outcome for outcome in self.outcomes_before() if outcome.get("retried") or outcome.get("requeued")]
        complete = verdict.replace(earlier=[outcome["message"] for outcome in before], checkpoint=kept)
        # The scheduler starts it again by itself.
        if verdict.requeued and "count" not in verdict.requeued:
            complete = complete.replace(message="attempt %d was requeued: %s" % (self.number, verdict.message))
        outcome = document(self.job.id, self.number, complete)
        won = self._put(outcome)
        # The secrets of a group remain until it is removed.
        if won and outcome["final"] and self.job.element is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.job.path(layout.SECRETS))
        return won

    def supersede(self, by: int, verdict: "Optional[Verdict]" = None) -> bool:
        """Publish that attempt `by` took over, and why if that is known."""
        known = verdict or Verdict(layout.SUPERSEDED, "attempt %d took over" % by)
        return self._put(document(self.job.id, self.number, known.replace(superseded_by=by)))

    def retries_used(self) -> int:
        return sum(bool(outcome.get("retried")) for outcome in self.outcomes_before())

    def outcomes_before(self) -> "list[dict[str, Any]]":
        before = (Attempt(self.job, number) for number in self.job.attempts() if number < self.number)
        return [outcome for outcome in (attempt.outcome() for attempt in before) if outcome is not None]

    def _put(self, outcome: "dict[str, Any]") -> bool:
        # The attempt runs here, and the function may have removed the folder.
        if self.reserve is not None:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
        make_folder(self.job.path(layout.ATTEMPTS))
        make_folder(self.folder)
        data = (json.dumps(outcome) + "\n").encode()
        won = publish.publish(self.folder, layout.OUTCOME, data, self.reserve)
        if self.reserve is None:
            # A supervisor that was killed has left these, or the server of a session.
            for folder in (self.folder, self.job.path(layout.CALLS)):
                publish.remove_reserves(folder)
        if won:
            self.event("ended", kind=outcome["kind"])
        return won

    def has_ended(self) -> bool:
        return self.outcome() is not None

    def outcome(self) -> "Optional[dict[str, Any]]":
        """Return the published outcome, or None; raise DamagedFile if the file holds something else."""
        data = publish.read(self.folder, layout.OUTCOME)
        return None if data is None else parse_record(data, JOB_OUTCOME, layout.OUTCOME)

    def fence(self, verdict: "Optional[Verdict]" = None) -> "Optional[int]":
        """End the right of every earlier attempt to publish; the number of one that has a final outcome, if any.

        Args:
            verdict: How the one right before this ended, if that is known: such as that its supervisor died.
        """
        for number in self.job.attempts():
            if number >= self.number:
                break
            earlier = Attempt(self.job, number)
            known = verdict if number == self.number - 1 else None
            if earlier.supersede(self.number, known):
                self.overtook |= known is None or bool(known.requeued) or self.job.tasks != (1, 1)
                continue
            if (earlier.outcome() or {}).get("final"):
                return number
        return None


def final_attempt(job: "JobFolder") -> "Optional[Attempt]":
    """Return the attempt of a job, or of an element of a group, whose outcome is final; None while there is none."""
    attempts = (Attempt(job, number) for number in job.attempts())
    return next((attempt for attempt in attempts if (attempt.outcome() or {}).get("final")), None)


def read_events(attempt: Attempt) -> "list[dict[str, Any]]":
    """Return what is in events.jsonl so far, without lines that a full disk or the function has damaged."""
    found = []
    for line in (publish.read(attempt.folder, layout.EVENTS) or b"").splitlines(keepends=True):
        with contextlib.suppress(DamagedFile):
            if line.endswith(b"\n"):
                found.append(parse_record(line, EVENT, layout.EVENTS))
    return found


def make_folder(path: str) -> None:
    """Make it unless it is there, but never the job's own folder above it: a removed job must stay removed."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)


def release_claim(job: "JobFolder") -> None:
    """Remove the claim: the job waits until it is started again."""
    # The function may have removed it.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(job.folder, layout.CLAIM))


def restore_owner_permissions(folder: str) -> None:
    """Give the owner the rights to a job's folders back: a function may take them, and no outcome could be written."""
    attempts = os.path.join(folder, layout.ATTEMPTS)
    for path in (folder, attempts):
        _restore_permissions(path)
    for name in names_in(attempts):
        _restore_permissions(os.path.join(attempts, name))


def _restore_permissions(path: str) -> None:
    # It is missing or belongs to another user. The step that needs it reports that.
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(path, mode | stat.S_IRWXU)


def claim(job: "JobFolder", holder: "Optional[str]" = None) -> "Optional[str]":
    """Claim the job for this submission; return None on success, else who has the claim."""
    holder = holder or job.submission
    if publish.publish(job.folder, layout.CLAIM, holder.encode()):
        return None
    claimed = claim_of(job)
    return None if claimed == holder else claimed


def claim_of(job: "JobFolder") -> str:
    return (publish.read(job.folder, layout.CLAIM) or b"").decode("ascii", "replace")


def script_of(job: "JobFolder") -> "Optional[int]":
    """Return the pid of the job.sh that has claimed a job; 0 if that is gone, None if no job.sh has."""
    boot, pid, start = (claim_of(job) + "::").split(":")[:3]
    if not pid.isdecimal():
        return None
    lives = boot == boot_id() and is_alive(int(pid)) and start_time(int(pid)) == start
    return int(pid) if lives else 0


_FIRST_S = 1.0


class UsageFile:
    """One line about what an attempt has used so far, and uses now.

    It is rewritten in place and not synced, less and less often, down to every five seconds. If the supervisor dies,
    the process that concludes the attempt publishes it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._began = time.monotonic()
        self._next = self._began + _FIRST_S
        # These are the wall and CPU seconds when it was last kept.
        self._before = (0.0, 0.0)

    def due(self) -> bool:
        """Whether it is time: after one second, two, four, then every five."""
        return time.monotonic() >= self._next

    def keep(self, usage: "dict[str, Any]", now: "Optional[dict[str, Any]]" = None) -> None:
        """Write the usage; lose it if the disk refuses.

        Args:
            now: What is used now, to which this adds the cores that were busy since the last time.
        """
        if now is not None:
            (wall_s, cpu_s), self._before = self._before, (usage["wall_s"], usage["cpu_s"])
            passed_s = usage["wall_s"] - wall_s
            cores = round(max(0.0, usage["cpu_s"] - cpu_s) / passed_s, 2) if passed_s > 0 else None
            usage = dict(usage, now=dict(now, cores=cores))
        at = time.monotonic()
        self._next = at + min(layout.HEARTBEAT_S, max(_FIRST_S, at - self._began))
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                # The rest of a longer line may follow it.
                os.pwrite(file, (json.dumps(usage) + "\n").encode(), 0)
            finally:
                os.close(file)


def read_usage(path: str) -> "Optional[dict[str, Any]]":
    """Return the usage that was written last by a process that is gone, marked as such; None if there is none."""
    usage = read_live_usage(path)
    if usage is not None:
        usage.pop("now", None)
        usage["last_known"] = True
    return usage


def read_live_usage(path: str) -> "Optional[dict[str, Any]]":
    """Return the usage of an attempt that runs, as it was written last; None if there is none."""
    try:
        with open(path, "rb") as file:
            return parse_record(file.readline(), USAGE, layout.USAGE)
    except (OSError, DamagedFile):
        # There is none, another process is writing it, or the machine went down meanwhile.
        return None
