"""One attempt's folder and everything that is written there: owner, events, heartbeat, usage, outcome.

Holds the rules that give one job one outcome: a new attempt fences all before it. One line says what the attempt has
used so far. It is rewritten in place and not synced, less and less often, down to every five seconds. If the supervisor
dies, the process that concludes the attempt publishes it.
"""

import json
import os
import stat
import time

from ..layout import (
    ATTEMPTS,
    BEGUN,
    CHECKPOINT,
    CLAIM,
    EVENTS,
    FOLLOWED,
    HEARTBEAT,
    HEARTBEAT_S,
    JOURNAL,
    OUTCOME,
    OWNER,
    RETURNED,
    WAITING,
    WORK,
    attempt_dir,
)
from . import publish
from .text import portable
from .verdict import document, superseded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional, Protocol

    from .job import JobFolder

    class RunnableAttempt(Protocol):
        """What `AttemptRun` needs of an attempt: that of a job, of an item, of one node, or of a session's call."""

        number: int
        folder: str

        def path(self, name: str) -> str:
            """Return a path in its folder."""

        def call(self) -> "list[str]":
            """The arguments of the worker: where its value goes, and where its arguments are."""

        def variables(self) -> "dict[str, str]":
            """Return what the worker finds in its environment because of this attempt."""

        def wait(self, reason: str) -> None:
            """Note that it waits for something on the host itself."""

        def begin(self) -> bool:
            """Whether the worker may start."""

        def event(self, name: str, **facts: Any) -> None: ...
        def beat(self) -> None: ...

        def publish(self, kind: str, facts: "dict[str, Any]") -> bool:
            """Publish how it ended; False if that is published already."""


_WITHDRAWN = b"withdrawn"


class Attempt:
    """One attempt.

    Attributes:
        number: 1 for the first.
        folder: attempts/<n>.
        overtook: Whether one before it may still run somewhere, and sees only now that it is fenced.
    """

    def __init__(self, job: "JobFolder", number: int) -> None:
        self.job = job
        self.overtook = False
        self.number = number
        self.folder = attempt_dir(job.folder, number)
        self.reserve: "Optional[publish.Reserve]" = None
        self._events = -1
        self._said = 0
        self._heart = -1
        self._beats = 0

    @classmethod
    def new(cls, job: "JobFolder") -> "Attempt":
        """Create the attempt with the next free number, and write its owner."""
        make_folder(job.path(ATTEMPTS))
        number = 1 + max(job.attempts() or [0])
        while True:
            try:
                os.mkdir(attempt_dir(job.folder, number), 0o700)
                break
            except FileExistsError:
                number += 1
        attempt = cls(job, number)
        attempt._write_owner()
        return attempt

    def following(self) -> "Optional[Attempt]":
        """The one right after this, which the same supervisor begins; None if another has begun it."""
        following = Attempt(self.job, self.number + 1)
        try:
            os.mkdir(following.folder, 0o700)
        except FileExistsError:
            return None
        following._write_owner()
        return following

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def call(self) -> "list[str]":
        """Return the worker's arguments: where its value goes."""
        return [self.folder]

    def variables(self) -> "dict[str, str]":
        """Return nothing: its environment is the job's."""
        return {}

    def _write_owner(self) -> None:
        with open(self.path(OWNER), "w") as file:
            file.write(self.job.start)

    def owner(self) -> str:
        """The start of job.sh that made this attempt; empty if it died before it could say."""
        return (publish.read(self.folder, OWNER) or b"").decode("ascii", "replace").strip()

    def prepare(self) -> None:
        """Open the files that a running attempt writes."""
        self.reserve = publish.Reserve(self.folder)
        for folder in (self.path(WORK), self.job.path(CHECKPOINT)):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        self._events = os.open(self.path(EVENTS), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._heart = os.open(self.path(HEARTBEAT), os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(self._heart, b"%08d" % 0, 0)  # an empty file counts as no heartbeat

    def wait(self, reason: str) -> None:
        """It waits for something on the host itself, and may be withdrawn until it begins."""
        os.close(os.open(self.path(WAITING), os.O_WRONLY | os.O_CREAT, 0o600))
        self.event("pending", reason=reason)

    def begin(self) -> bool:
        """Whether the worker may start; false if the attempt was withdrawn while it waited."""
        return not os.path.exists(self.path(WAITING)) or publish.publish(self.folder, BEGUN, b"started")

    def follow(self) -> bool:
        """Leave the job to another try, once: one that dies before it makes an attempt would come back for ever."""
        return publish.publish(self.folder, FOLLOWED, b"")

    def has_begun_items(self) -> bool:
        """Whether an item of the element began in this attempt."""
        try:
            return os.stat(self.path(JOURNAL)).st_size > 0
        except FileNotFoundError:
            return False

    def withdraw(self) -> bool:
        """Keep an attempt that waits from ever starting its worker; false if it did not wait, or has begun."""
        if not os.path.exists(self.path(WAITING)):
            return False
        return publish.publish(self.folder, BEGUN, _WITHDRAWN) or publish.read(self.folder, BEGUN) == _WITHDRAWN

    def event(self, name: str, **facts: "Any") -> None:
        """Append one line to events.jsonl. A full disk loses it: events are news, not the record."""
        if self._events < 0:
            return
        self._said += 1
        which = which_attempt(self.job.spec, self.number) if name in ("starting", "running") else ""
        if which:
            facts["reason"] = ", ".join(filter(None, [which, facts.get("node")]))
        record = dict(portable(facts), n=self._said, event=name, t=round(time.time(), 3))
        try:
            os.write(self._events, (json.dumps(record) + "\n").encode())
        except OSError:
            return

    def events(self) -> "list[dict[str, Any]]":
        """Return what is in events.jsonl so far, without lines that a full disk or the function has damaged."""
        found = []
        try:
            with open(self.path(EVENTS), encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        event = json.loads(line) if line.endswith("\n") else None
                    except (ValueError, RecursionError):
                        continue
                    if isinstance(event, dict) and "event" in event:
                        found.append(event)
        except FileNotFoundError:
            return []
        return found

    def beat(self) -> None:
        """Increase the count in the heartbeat, eight bytes that are rewritten in place."""
        self._beats += 1
        try:
            os.pwrite(self._heart, b"%08d" % (self._beats % 10**8), 0)
            os.fsync(self._heart)
        except OSError:  # full, or the file server is away: the reader waits for two beats and asks the scheduler
            return

    def publish(self, kind: str, facts: "dict[str, Any]") -> bool:
        """Publish this attempt's outcome; False if it has one already."""
        kept = kind != RETURNED and self.job.has_checkpoint()
        told = dict(facts, earlier=self.earlier(), checkpoint=kept)
        outcome = document(self.job.id, self.number, kind, portable(told))
        won = self._put(outcome)
        if won and outcome["final"]:
            self.job.forget_secrets()
        return won

    def supersede(self, by: int, facts: "Optional[dict[str, Any]]" = None) -> bool:
        """Publish that attempt `by` took over, and why if that is known."""
        return self._put(superseded(self.job.id, self.number, by, portable(facts or {})))

    def earlier(self) -> "list[str]":
        """Return the message of each earlier attempt after which the job was retried or requeued."""
        before = self.outcomes_before()
        return [outcome["message"] for outcome in before if outcome.get("retried") or outcome.get("requeued")]

    def retries_used(self) -> int:
        """Return how often the job was retried before this attempt."""
        return sum(bool(outcome.get("retried")) for outcome in self.outcomes_before())

    def outcomes_before(self) -> "list[dict[str, Any]]":
        """Return the outcomes of the attempts before this one."""
        before = (Attempt(self.job, number) for number in self.job.attempts() if number < self.number)
        return [outcome for outcome in (attempt.outcome() for attempt in before) if outcome is not None]

    def _put(self, outcome: "dict[str, Any]") -> bool:
        if self.reserve is not None:  # it runs here, and the function may have removed the folder
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
        make_folder(self.job.path(ATTEMPTS))
        make_folder(self.folder)
        data = (json.dumps(outcome) + "\n").encode()
        won = publish.publish(self.folder, OUTCOME, data, self.reserve)
        if won:
            self.event("ended", kind=outcome["kind"])
        return won

    def words_of_tasks(self) -> "list[str]":
        """Return nothing: the job's folder and the attempt's number say all to its other tasks."""
        return []

    def has_ended(self) -> bool:
        """Whether there is an outcome."""
        return self.outcome() is not None

    def outcome(self) -> "Optional[dict[str, Any]]":
        """Return the published outcome, or None."""
        data = publish.read(self.folder, OUTCOME)
        return None if data is None else dict(json.loads(data.decode()))

    def fence(self, facts: "Optional[dict[str, Any]]" = None) -> "Optional[int]":
        """End the right of every earlier attempt to publish; the number of one that has a final outcome, if any.

        Args:
            facts: What else is in the outcome of the one right before this, such as that its supervisor died.
        """
        for number in self.job.attempts():
            if number >= self.number:
                break
            earlier, told = Attempt(self.job, number), facts if number == self.number - 1 else None
            if earlier.supersede(self.number, told):
                self.overtook |= told is None or bool(told.get("requeued")) or self.job.tasks != (1, 1)
                continue
            if (earlier.outcome() or {}).get("final"):
                return number
        return None


def which_attempt(spec: "dict[str, Any]", number: int) -> str:
    """Say which attempt of how many this is, such as "attempt 2 of 4"; "" for the first, and without `requeue=`."""
    requeue: "dict[str, int]" = spec.get("requeue") or {}
    if number == 1 or not requeue:
        return ""
    return "attempt %d of %d" % (number, max(number, 1 + sum(requeue.values()) + int(spec.get("retries") or 0)))


def make_folder(path: str) -> None:
    """Make it unless it is there, but never the job's own folder above it: a removed job must stay removed."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return


def release_claim(job: "JobFolder") -> None:
    """Remove the claim: the job waits until it is started again."""
    try:
        os.unlink(os.path.join(job.folder, CLAIM))
    except FileNotFoundError:  # the function may remove what it likes
        return


def restore_owner_permissions(folder: str) -> None:
    """Give the owner the rights to a job's folders back: a function may take them, and no outcome could be written."""
    attempts = os.path.join(folder, ATTEMPTS)
    for path in (folder, attempts):
        _restore_permissions(path)
    try:
        names = os.listdir(attempts)
    except OSError:  # there are none
        return
    for name in names:
        _restore_permissions(os.path.join(attempts, name))


def _restore_permissions(path: str) -> None:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(path, mode | stat.S_IRWXU)
    except OSError:  # missing, or another's: the step that needs it will report that
        return


def claim(job: "JobFolder", holder: "Optional[str]" = None) -> "Optional[str]":
    """Claim the job for this submission; return None on success, else who has the claim."""
    holder = holder or job.submission
    if publish.publish(job.folder, CLAIM, holder.encode()):
        return None
    standing = (publish.read(job.folder, CLAIM) or b"").decode("ascii", "replace")
    return None if standing == holder else standing


_FIRST_S = 1.0


class UsageFile:
    """Keeps it for one attempt."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._began = time.monotonic()
        self._next = self._began + _FIRST_S

    def due(self) -> bool:
        """Whether it is time: after one second, two, four, then every five."""
        return time.monotonic() >= self._next

    def keep(self, usage: "dict[str, Any]") -> None:
        """Write the usage; lose it if the disk refuses."""
        now = time.monotonic()
        self._next = now + min(HEARTBEAT_S, max(_FIRST_S, now - self._began))
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError:
            return
        try:
            os.pwrite(file, (json.dumps(usage) + "\n").encode(), 0)  # the rest of a longer line may follow it
        except OSError:
            return
        finally:
            os.close(file)


def read_usage(path: str) -> "Optional[dict[str, Any]]":
    """Return the usage that was written last, marked as such; None if there is none."""
    try:
        with open(path, "rb") as file:
            usage = json.loads(file.readline().decode("utf-8", "replace"))
    except (OSError, ValueError):  # there is none, or the machine went down while it was written
        return None
    return dict(usage, last_known=True) if isinstance(usage, dict) else None


def remove_usage(path: str) -> None:
    """Remove the file: the outcome has the usage now."""
    try:
        os.unlink(path)
    except OSError:  # there was none
        return
