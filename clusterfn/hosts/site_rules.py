"""What the administrator of a machine without a scheduler allows there: its /etc/clusterfn.yml, as the agent told it.

The supervisors there obey it themselves. Here it makes a call that can never run fail before anything is sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from clusterfn.config.spec import Host, Limits, Resources
from clusterfn.config.units import exact_memory, exact_time
from clusterfn.errors import Unsatisfiable

FILE = "/etc/clusterfn.yml"
_SHOWN: dict[str, Callable[[Any], str]] = {
    "gpus": str, "cores": str, "memory_bytes": exact_memory, "jobs": str, "time_s": exact_time,
}  # fmt: skip


class SiteRules(NamedTuple):
    """The rules of one machine.

    Attributes:
        limits: Of all running jobs of one user together.
        longest_s: The longest time of one job.
        memory_bytes, time_s: Of a job that asks for none.
        trouble: The lines that could not be read, and why.
    """

    limits: Limits = Limits()
    longest_s: float | None = None
    memory_bytes: int | None = None
    time_s: float | None = None
    trouble: tuple[str, ...] = ()

    def limit(self, host: Host) -> Host:
        """Return the host with limits that are no wider than these, and with these defaults where it has none."""
        pairs = zip(host.limits, self.limits)
        least = Limits(*(min((each for each in pair if each is not None), default=None) for pair in pairs))
        memory = host.defaults.memory_bytes or self.memory_bytes or self.limits.memory_bytes
        defaults = host.defaults._replace(memory_bytes=memory, time_s=host.defaults.time_s or self.time_s)
        return host._replace(limits=least, defaults=defaults)

    def limit_time(self, request: Resources, host: str) -> Resources:
        """Return what a job asks for with a time that is allowed.

        Raises:
            Unsatisfiable: It asks for more.
        """
        if self.longest_s is None:
            return request
        if request.time_s is not None and request.time_s > self.longest_s:
            most = exact_time(self.longest_s)
            raise Unsatisfiable(
                f"time={exact_time(request.time_s)!r} is more than a job on {host} may take: {most}", host=host,
                stage="submit", evidence=[f"the administrator has set it in {FILE} on {host}"],
                hint=f"ask for time={most!r} at most, and continue in a further job (resume=)",
            )  # fmt: skip
        return request._replace(time_s=request.time_s or self.longest_s)

    def in_words(self) -> list[str]:
        """List the limits as they stand in the file."""
        limits = {**self.limits._asdict(), "time_s": self.longest_s}
        return [f"{name.partition('_')[0]}: {_SHOWN[name](each)}" for name, each in limits.items() if each is not None]


def read(text: str) -> SiteRules:
    """Read what an agent told of the file: a JSON object. A host that tells nonsense limits nothing."""
    try:
        rules = json.loads(text)
        most, defaults = dict(rules["limits"]), dict(rules["defaults"])
        trouble = tuple(str(line)[:200] for line in rules["trouble"])
        longest = _number(most.pop("time_s", None))
        limits = Limits(**{name: _whole(most.get(name)) for name in Limits._fields})
        memory, time_s = _whole(defaults.get("memory_bytes")), _number(defaults.get("time_s"))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return SiteRules(trouble=(f"it was not understood: {error}",))
    return SiteRules(limits, longest, memory, time_s, trouble)


def _whole(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError(ascii(value)[:40])
    return value


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < float(value) < math.inf:
        raise ValueError(ascii(value)[:40])
    return float(value)
