"""What tickets wait for before they wait for their turn: the jobs whose values they take.

An element of a group whose items start one by one may start as soon as an item can run that no element has. Of such
elements as many may start as there are such items, in the order of their tickets.
"""

from ..supervisor.awaiting import item_inputs_of
from ..supervisor.dependencies import Dependencies
from ..supervisor.job import DamagedFile, read_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Sequence

    from ..supervisor.awaiting import ItemInputs
    from .tickets import Ticket


class HeldBack:
    """The inputs of the tickets below one root.

    Attributes:
        values: What has become of the jobs whose values are taken.
    """

    def __init__(self, root: str) -> None:
        self.values = Dependencies(root)
        self._groups: "dict[str, Optional[ItemInputs]]" = {}

    def reasons(self, tickets: "Sequence[Ticket]") -> "dict[str, str]":
        """Return those of these tickets that must not start yet, each with what it waits for."""
        reasons: "dict[str, str]" = {}
        room: "dict[str, int]" = {}
        for ticket in tickets:
            if not ticket.after or not self.values.still_open(ticket.after):
                continue
            inputs = self._inputs_of(ticket)
            if inputs is not None:
                items_left = room.setdefault(ticket.home, len(inputs.untaken()))
                room[ticket.home] = items_left - 1
                if items_left > 0:
                    continue
            reasons[ticket.job] = self.values.describe_open(ticket.after)
        for home in set(self._groups) - {ticket.home for ticket in tickets}:
            del self._groups[home]
        return reasons

    def _inputs_of(self, ticket: "Ticket") -> "Optional[ItemInputs]":
        if ticket.element is None:
            return None
        if ticket.home not in self._groups:
            try:
                self._groups[ticket.home] = item_inputs_of(ticket.home, read_spec(ticket.home), self.values)
            except (OSError, DamagedFile):
                self._groups[ticket.home] = None
        return self._groups[ticket.home]
