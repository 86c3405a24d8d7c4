"""Configure logging in a job as it is where the call was made, writing to the job's stderr.

Handlers do not travel, only levels and formats of the root logger and of named ones. `logging` is imported only if the
caller had imported it: a job that logs nothing would lose some milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging


def describe() -> dict[str, Any] | None:
    """Return level and format of this process's loggers; None if none was configured."""
    logging = sys.modules.get("logging")
    if logging is None:
        return None
    root = logging.getLogger()
    named = {
        name: facts
        for name, logger in list(root.manager.loggerDict.items())
        # A library that has a class of loggers makes its own when it is imported. It would fail on one that is there
        # already. Those of clusterfn are for this process, and most jobs would load `logging` for them alone.
        if type(logger) is logging.Logger and not name.startswith("clusterfn.") and (facts := _of_logger(logger))
    }
    of_root = bool(root.handlers) or root.level != logging.WARNING
    if not of_root and not named:
        return None
    facts = _of_logger(root)
    if of_root and "format" not in facts:
        facts["format"] = logging.BASIC_FORMAT
    return {"level": root.level, **facts, "loggers": named}


def _of_logger(logger: logging.Logger) -> dict[str, Any]:
    """Describe what was set of a logger, and the handler that shows its records; {} if nothing was."""
    logging = sys.modules["logging"]
    facts: dict[str, Any] = {"level": logger.level} if logger.level else {}
    if not logger.propagate:
        facts["propagate"] = False
    for handler in logger.handlers:
        is_shown = isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler)
        # PyTorch has a handler whose stream is open only on demand.
        if is_shown and getattr(handler, "stream", None) is not None:
            return {**facts, "from": handler.level, **_format(handler.formatter)}
    return facts


def _format(formatter: logging.Formatter | None) -> dict[str, Any]:
    """Describe a formatter, if it is logging's own and needs nothing that a filter adds to a record."""
    logging = sys.modules["logging"]
    if formatter is None:
        return {"format": "%(message)s"}
    if type(formatter) is logging.Formatter and type(formatter._style) is logging.PercentStyle:
        with contextlib.suppress(KeyError, ValueError, TypeError):
            formatter.format(logging.LogRecord("name", 20, "path", 1, "message", (), None))
            return {"format": formatter._fmt, "datefmt": formatter.datefmt}
    return {"format": logging.BASIC_FORMAT}


def show(facts: dict[str, Any]) -> None:
    """Write log records to stderr as `describe` said, until the function configures logging itself.

    `basicConfig` does nothing where the root logger has a handler: called with options, it must not find this one.
    Called without, as by `logging.info()`, it must find it, or it would add a handler of its own.
    """
    import logging

    basic_config = logging.basicConfig
    root = logging.getLogger()
    for name, settings in facts.get("loggers", {}).items():
        logger = logging.getLogger(name)
        logger.setLevel(settings.get("level", 0))
        logger.propagate = settings.get("propagate", True)
        _add_handler(logger, settings)
    root.setLevel(facts["level"])
    handler = _add_handler(root, facts)

    @functools.wraps(basic_config)
    def own_config(**options: Any) -> None:
        if options and handler is not None:
            root.removeHandler(handler)
        basic_config(**options)

    logging.basicConfig = own_config


def _add_handler(logger: logging.Logger, facts: dict[str, Any]) -> logging.Handler | None:
    """Show a logger's records as its handler did; a handler that a library adds takes its place."""
    import logging

    if not facts.get("format"):
        return None
    handler = logging.StreamHandler()
    handler.setLevel(facts.get("from", 0))
    handler.setFormatter(logging.Formatter(facts["format"], facts.get("datefmt")))
    handler.addFilter(lambda record: logger.handlers == [handler])
    logger.addHandler(handler)
    return handler
