"""Who of one user's waiting jobs may start now, who is the next of its line, and why the others wait. Pure.

There is a line for each kind of card that is asked for, and one for jobs without cards, each first come first served.
Who is first in its line and finds no room reserves all that it needs, in all lines; others may pass it only with what
would be left then. Jobs with cards come one after another: who finds a stranger on a card takes another, which the
next must not have taken meanwhile.
"""

from . import fairness, words
from .room import OWN, Room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, Sequence

    from .demand import Demand, Kind
    from .names import Seen, Waiting
    from .room import Machine
    from .tickets import Ticket


class View:
    """What the spooler sees.

    Attributes:
        machine: What there is.
        seen: The names of one look.
        uid: Whose tickets they are.
        starting: Jobs whose script was started, and is not in yet.
        late: Jobs whose turn has come and which nobody awaits now: their script takes long, or failed and rests.
        cards_of: The cards of a kind.
        around: What is to be said about these cards, with uid and number of cards of each that has some of them kept
            for it, and how many are.
    """

    def __init__(
        self, machine: "Machine", seen: "Seen", uid: int, starting: "set[str]", late: "set[str]",
        cards_of: "Callable[[Kind], list[str]]",
        around: "Callable[[list[str], list[tuple[int, int]], int], words.Around]",
    ) -> None:  # fmt: skip
        self.machine = machine
        self.seen = seen
        self.uid = uid
        self.starting = starting
        self.late = late
        self.cards_of = cards_of
        self.around = around


class Plan:
    """What is to be done.

    Attributes:
        start: Whose turn it is.
        named: Who may keep others away: the next of each line, and who is about to start.
        reasons: Why a job waits.
    """

    def __init__(self) -> None:
        self.start: "list[Ticket]" = []
        self.named: "list[Ticket]" = []
        self.reasons: "dict[str, str]" = {}


def plan(tickets: "Sequence[Ticket]", view: View) -> Plan:
    """What is to be done with these tickets, the oldest first."""
    if not tickets:
        return Plan()
    return _Planning(tickets, view).all()


class _Planning:
    def __init__(self, tickets: "Sequence[Ticket]", view: View) -> None:
        self.view = view
        self.tickets = tickets
        self.room = Room(view.machine, view.seen.running, view.uid, tickets[0].limits)
        self.made = Plan()
        self._runs = {job.job for job in view.seen.running if job.uid == view.uid}
        own = {ticket.job for ticket in tickets}
        self._others = [job for job in view.seen.waiting if job.uid != view.uid or job.job not in own]
        self._lines: "set[Optional[Kind]]" = set()
        self._one_comes = False
        self._others_before = 0
        self._ahead: "list[tuple[int, int, list[str]]]" = []
        self._of_groups: "dict[str, int]" = {}

    def all(self) -> Plan:
        """Each in its turn."""
        for before, ticket in enumerate(self.tickets):
            while self._others and self._others[0].ms < ticket.ms:
                other = self._others.pop(0)
                self._others_before += 1
                self._keep_for(other.uid, other.asked, other.kind)
            self.room.limits = ticket.limits
            self._one(ticket, before + self._others_before)
        return self.made

    def _keep_for(self, uid: int, asked: "Demand", kind: "Kind") -> None:
        cards = self.view.cards_of(kind) if asked.gpus else []
        self._ahead.append((uid, asked.gpus, cards))
        self.room.reserve(asked, cards)

    def _one(self, ticket: "Ticket", before: int) -> None:
        kind = self._cards_of(ticket)
        if ticket.job in self._runs or ticket.job in self.view.starting:
            self._goes(ticket, kind)
            self._one_comes = self._one_comes or self._is_awaited(ticket)
            return
        why = self._group_has_its_half(ticket, kind)
        missing = self.room.lacks(ticket.asked, kind) if kind is not None else []
        if not missing and not why:
            self._comes(ticket, before)
            self._goes(ticket, kind)
            return
        text = words.reason(missing, ticket.asked, self._around(kind or []), self.room, ticket.limits) or why
        self.made.reasons[ticket.job] = words.behind(text, before)
        if missing and not why:  # a group that has its half keeps nothing from those for whom it waits
            self._stays(ticket, missing)

    def _cards_of(self, ticket: "Ticket") -> "Optional[list[str]]":
        """Those that its job may get; None if they are too few or unknown, which its supervisor then explains."""
        cards = self.view.cards_of(ticket.kind) if ticket.asked.gpus else []
        return cards if len(cards) >= ticket.asked.gpus else None

    def _around(self, kind: "list[str]") -> words.Around:
        ahead = [(uid, gpus) for uid, gpus, cards in self._ahead if set(cards).intersection(kind)]
        return self.view.around(kind, ahead, len(self.room.suitable(kind)) - len(self.room.left(kind)))

    def _comes(self, ticket: "Ticket", before: int) -> None:
        """It fits: its turn has come, unless one with cards is about to be let in."""
        if ticket.asked.gpus and self._one_comes:
            self.made.reasons[ticket.job] = words.behind("", before)
            return
        self._one_comes = self._one_comes or self._is_awaited(ticket)
        self.made.start.append(ticket)

    def _is_awaited(self, ticket: "Ticket") -> bool:
        return bool(ticket.asked.gpus) and ticket.job not in self.view.late

    def _goes(self, ticket: "Ticket", kind: "Optional[list[str]]") -> None:
        self.made.named.append(ticket)
        if ticket.job not in self._runs:
            self.room.take(ticket.asked, kind)
            self._count(ticket)

    def _stays(self, ticket: "Ticket", missing: "list[str]") -> None:
        """The first of its line reserves; who waits for the user's own jobs keeps nothing from others."""
        line = ticket.kind if ticket.asked.gpus else None
        if line in self._lines:
            return
        self._lines.add(line)
        self.room.count(ticket.asked)
        if missing != [OWN]:
            self._keep_for(self.view.uid, ticket.asked, ticket.kind)
            self.made.named.append(ticket)

    def _group_has_its_half(self, ticket: "Ticket", kind: "Optional[list[str]]") -> str:
        if ticket.element is None or not fairness.others_wait(self._rivals(kind), self.view.uid):
            return ""
        group = _group(ticket)
        has = fairness.of_group(self.view.seen.running, self.view.uid, group) + self._of_groups.get(group, 0)
        return "" if fairness.may_have(has + ticket.asked.gpus, len(kind or []), ticket.asked.gpus) else words.HALF

    def _rivals(self, kind: "Optional[list[str]]") -> "list[Waiting]":
        """Those that wait for some of these cards; where these are not known, for any."""
        waiting = [other for other in self.view.seen.waiting if other.asked.gpus]
        return [other for other in waiting if kind is None or set(self.view.cards_of(other.kind)).intersection(kind)]

    def _count(self, ticket: "Ticket") -> None:
        group = _group(ticket)
        self._of_groups[group] = self._of_groups.get(group, 0) + ticket.asked.gpus


def _group(ticket: "Ticket") -> str:
    return str(ticket.job.partition(".")[0])
