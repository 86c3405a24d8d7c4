"""An open request: what every kind of it has in common."""

import traceback

from .failures import Failure, failure_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional, Set

    from .frames import Header
    from .loop import Agent


def seconds(header: "Header", name: str, default: float) -> float:
    """A duration of a request; `default` if it is not said. A negative one, or none, would keep the loop busy."""
    value = header.get(name)
    value = default if value is None else value
    if not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise Failure("bad", "%s is no number of seconds: %r" % (name, value))
    return float(value)


class Request:
    """One open request; it ends exactly once, by `end` or `fail`."""

    def __init__(self, agent: "Agent", header: "Header", body: bytes) -> None:
        self.agent = agent
        self.id: "int" = header["id"]
        self.header = header
        self.body = body
        self.after: "Set[int]" = set()
        self.started = False
        self.ended = False
        self.queued = False

    def begin(self) -> None:
        """At arrival, before what it comes `after` has ended."""

    def start(self) -> None:
        """What it does."""

    def chunk(self, body: bytes, last: bool) -> None:
        raise Failure("bad", "this request takes no chunks")

    def hot(self) -> bool:
        """Whether its frames go before the bodies of transfers."""
        return False

    def frame(self) -> "Optional[bytes]":
        """The next piece to send; None if there is none now, b"" to be asked again."""
        return None

    def stop(self) -> None:
        """The client wants no more of it."""
        self.fail(Failure("stopped", "stopped on request"))

    def release(self) -> None:
        """Leave nothing behind."""

    def send(self, header: "Header", body: bytes = b"") -> None:
        self.agent.out.answer(dict(header, id=self.id), body)

    def end(self, body: bytes = b"", **more: "Any") -> None:
        self.close(None, dict(more, end=True, ok=True), body)

    def fail(self, failure: Failure, body: bytes = b"", **more: "Any") -> None:
        self.close(failure.data, dict(more, end=True, ok=False, error=failure.data), body)

    def close(self, error: "Optional[Header]", header: "Header", body: bytes) -> None:
        if self.ended:
            return
        self.ended = True
        self.release()
        self.send(header, body)
        self.agent.forget(self, error)

    def safely(self, action: "Callable[[], Any]") -> "Any":
        """Do it; what goes wrong ends this request and nothing else."""
        try:
            return action()
        except Failure as failure:
            self.fail(failure)
        except OSError as error:
            self.fail(failure_of(error, str(error.filename or self.header.get("path") or "")))
        except (KeyError, TypeError, ValueError) as error:
            self.fail(Failure("bad", "%s: %s" % (type(error).__name__, error)))
        except Exception:  # noqa: BLE001 - the agent's outermost frame: other requests must go on; the client gets all of it
            self.fail(Failure("bad", traceback.format_exc()))
        return None
