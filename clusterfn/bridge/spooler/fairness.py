"""The rule between a group and everybody else: while another user waits for cards, a group has at most half of them.

Pure.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

    from .names import Running, Waiting


def others_wait(waiting: "Iterable[Waiting]", uid: int) -> bool:
    """Whether another user's job waits for cards."""
    return any(job.uid != uid and job.asked.gpus for job in waiting)


def of_group(running: "Iterable[Running]", uid: int, group: str) -> int:
    """How many cards the elements of a group have."""
    return sum(job.asked.gpus for job in running if job.uid == uid and job.job.startswith(group + "."))


def may_have(cards: int, of: int, element: int) -> bool:
    """Whether a group may have so many cards of all; one element it may always have."""
    return cards <= max(of // 2, element)
