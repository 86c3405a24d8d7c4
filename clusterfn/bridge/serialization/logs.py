"""Configure logging in a job as it is where the call was made, writing to the job's stderr.

Handlers do not travel, only a level and a format. `logging` is imported only if the caller had imported it: a job that
logs nothing would lose some milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging


def describe() -> dict[str, Any] | None:
    """Return the level and the format of this process's root logger; None if it was not configured."""
    logging = sys.modules.get("logging")
    if logging is None:
        return None
    root = logging.getLogger()
    if not root.handlers and root.level == logging.WARNING:
        return None
    streams = [each for each in root.handlers if isinstance(each, logging.StreamHandler)]
    handler = next((each for each in streams if not isinstance(each, logging.FileHandler)), None)
    level = max(root.level, handler.level if handler else 0)
    return {"level": level, **_format(handler)}


def _format(handler: logging.Handler | None) -> dict[str, Any]:
    """Describe its formatter, if that is logging's own and needs nothing that a filter adds to a record."""
    logging = sys.modules["logging"]
    formatter = handler.formatter if handler else None
    if handler is not None and formatter is None:
        return {"format": "%(message)s", "datefmt": None, "style": "%"}
    if formatter is not None and type(formatter) is logging.Formatter:
        styles = {type(made): sign for sign, made in ((sign, logging._STYLES[sign][0]("")) for sign in "%{$")}
        facts = {"format": formatter._fmt, "datefmt": formatter.datefmt, "style": styles.get(type(formatter._style))}
        if facts["style"]:
            made = logging.Formatter(facts["format"], facts["datefmt"], facts["style"])  # type: ignore[arg-type]
            with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):
                made.format(logging.LogRecord("name", 20, "path", 1, "message", (), None))
                return facts
    return {"format": logging.BASIC_FORMAT, "datefmt": None, "style": "%"}


def show(facts: dict[str, Any]) -> None:
    """Write log records to stderr as `describe` said, until the function configures logging itself.

    `basicConfig` does nothing where the root logger has a handler: called with options, it must not find this one.
    Called without, as by `logging.info()`, it must find it, or it would add a handler of its own.
    """
    import logging

    basic_config, root = logging.basicConfig, logging.getLogger()

    @functools.wraps(basic_config)
    def own_config(**options: Any) -> None:
        if options:
            root.removeHandler(handler)
        basic_config(**options)

    handler = logging.StreamHandler()
    handler.setLevel(facts["level"])
    handler.setFormatter(logging.Formatter(facts["format"], facts["datefmt"], facts["style"]))
    handler.addFilter(lambda record: root.handlers == [handler])
    root.setLevel(facts["level"])
    root.addHandler(handler)
    logging.basicConfig = own_config
