"""Sees one attempt through, from its start to its verdict. Publishes nothing."""

from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .run import Run


def run_through(work: "Run") -> "tuple[Verdict, bool]":
    """The verdict, and whether that is the worker's own last word; after any other its tree has been ended."""
    try:
        work.start()
        return work.result(), True
    except Verdict as found:
        work.end_tree()
        return found, False
