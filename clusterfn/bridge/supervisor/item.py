"""One item of a group: run as the attempt of a job is, by the same `Run`, and told in the element's journal."""

import errno
import os

from ..layout import OUTCOME, STDERR, STDOUT, USAGE, VALUE, WORK, item_usage
from . import lastuse, retries
from .run import AttemptRun, run_through
from .verdict import Fenced, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .attempt import Attempt
    from .job import JobFolder
    from .journal import ItemJournal
    from .watch import EndWatch


class ItemAttempt:
    """What `Run` takes for the item's attempt.

    Args:
        attempt: The element's.
        journal: Where it is told.
        index: Which item.
        place: Offset and size of its arguments in items.pkl.
        before: What was said of each time that it ran and was followed by another; grows with them.
    """

    def __init__(
        self, attempt: "Attempt", journal: "ItemJournal", index: int, place: "tuple[int, int]", before: "list[str]"
    ) -> None:
        self.number = attempt.number
        self.folder = attempt.folder
        self._attempt = attempt
        self._journal = journal
        self._index = index
        self._place = place
        self.before = before
        self._waited = False
        self._from = [_size(attempt.path(name)) for name in (STDOUT, STDERR)]

    def path(self, name: str) -> str:
        """As the element's; a folder to work in and a file of what it uses are its own."""
        own = {WORK: os.path.join(WORK, str(self._index)), USAGE: item_usage(self._index)}
        return self._attempt.path(own.get(name, name))

    def call(self) -> "list[str]":
        """What the worker is told: where its value goes, and where its arguments are."""
        return [self.folder, self._attempt.job.home, *map(str, self._place)]

    def wait(self, reason: str) -> None:
        """It waits for something on the host itself."""
        self._waited = True
        self._attempt.event("pending", reason=reason)

    def begin(self) -> bool:
        """From here on it counts as begun."""
        self._look_at_fence()
        os.makedirs(self.path(WORK), mode=0o700, exist_ok=True)
        self._journal.begin(self._index, out=self._from[0], err=self._from[1])
        if self._waited:
            self._attempt.event("running", node=self._attempt.job.node)
        return True

    def event(self, name: str, **facts: "Any") -> None:
        """Its steps are not told one by one, but that it does nothing is."""
        if name in ("quiet", "active"):
            self._attempt.event(name, item=str(self._index), **facts)

    def beat(self) -> None:
        """The element's heart beats for it."""

    def publish(self, kind: str, facts: "dict[str, Any]") -> bool:
        """Its one line."""
        self._look_at_fence()
        sizes = [_size(self.path(name)) for name in (STDOUT, STDERR)]
        out, err = ([begin, end - begin] for begin, end in zip(self._from, sizes))
        told = dict(facts, out=out, err=err, earlier=self.before, transient=None)
        self._journal.end(self._index, kind, told, self.path(VALUE))
        lastuse.forget(self.path(USAGE))
        return True

    def again(self, told: str) -> None:
        """It is to run once more."""
        self._look_at_fence()
        self._journal.again(self._index, told)
        self.before.append(told)

    def _look_at_fence(self) -> None:
        """Another may have concluded the element, and told of this item already."""
        if os.path.exists(self._attempt.path(OUTCOME)):
            raise Fenced()

    def tidy(self) -> None:
        """Leave nothing that is of no use: the value has been copied, the folder may be empty."""
        os.truncate(self.path(VALUE), 0)
        try:
            os.rmdir(self.path(WORK))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def run(job: "JobFolder", item: ItemAttempt, watch: "EndWatch") -> "Optional[Verdict]":
    """See one item through to its line; the verdict that stands there, None if it is to run again.

    Raises:
        Verdict: Nothing could be told of it: another has the element now, or nobody knows yet why it ends.
    """
    work = AttemptRun(job, item, watch)  # type: ignore[arg-type]  # it is all of an attempt that Run asks for
    try:
        return _see_through(work, item)
    finally:
        watch.stop_clock()
        work.release()
        work.close()
        item.tidy()


def _see_through(work: AttemptRun, item: ItemAttempt) -> "Optional[Verdict]":
    verdict, alive = run_through(work)
    if verdict.kind is None:
        raise verdict
    used, of = 1 + len(item.before), retries.allowed(work.job)
    if retries.passes(verdict) and used <= of:
        _leave(work, item, verdict, used, of)
        return None
    work.publish(verdict)
    if alive:
        work.finish()
    return verdict


def _leave(work: AttemptRun, item: ItemAttempt, verdict: Verdict, used: int, of: int) -> None:
    """End what is to be run again."""
    item.again(retries.in_words(used, work.where(), verdict.facts["message"], used, of))
    work.finish()
    work.job.failed_cards += retries.suspects(verdict, work.cards())
