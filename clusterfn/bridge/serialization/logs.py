"""Configure logging in a job as it is where the call was made, writing to the job's stderr.

Handlers do not travel, only levels and formats of the root logger and of named ones. `logging` is imported only if the
caller had imported it: a job that logs nothing would lose some milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import time
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
        if isinstance(logger, logging.Logger)
        and not name.startswith("clusterfn.")
        and type(logger).__module__ in ("logging", "__main__")
        and (facts := _of_logger(logger))
    }
    of_root = bool(root.handlers) or root.level != logging.WARNING
    of_all = _of_all(logging)
    if not of_root and not named and not of_all:
        return None
    handler = _stream_handler(root)
    shown = _format(handler) if of_root else {}
    return {"level": root.level, "from": handler.level if handler else 0, **shown, "loggers": named, **of_all}


def _of_all(logging: Any) -> dict[str, Any]:
    """Describe what was set for all loggers: names of levels, below which none says anything, and `captureWarnings`."""
    names = {str(level): name for level, name in logging._levelToName.items() if _LEVELS.get(level) != name}
    facts = {"names": names, "disable": logging.root.manager.disable}
    facts["warnings"] = getattr(logging, "_warnings_showwarning", None) is not None
    return {key: value for key, value in facts.items() if value}


_LEVELS = {50: "CRITICAL", 40: "ERROR", 30: "WARNING", 20: "INFO", 10: "DEBUG", 0: "NOTSET"}


def _stream_handler(logger: logging.Logger) -> logging.Handler | None:
    """Return the handler that shows a logger's records on a terminal."""
    logging = sys.modules["logging"]
    streams = (each for each in logger.handlers if isinstance(each, logging.StreamHandler))
    return next((each for each in streams if _is_seen(getattr(each, "stream", None))), None)


def _is_seen(stream: object) -> bool:
    """Whether what a handler writes to this stream is seen. PyTorch has one whose file is open only on demand."""
    name = getattr(stream, "name", "") if type(stream) is io.TextIOWrapper else ""
    # The standard streams are called `<stderr>` and `<stdout>`. Other names are paths.
    return stream is not None and (not isinstance(name, str) or name[:1] in ("", "<"))


def _of_logger(logger: logging.Logger) -> dict[str, Any]:
    """Describe what was set of a named logger; {} if nothing was."""
    handler = _stream_handler(logger)
    facts: dict[str, Any] = {"level": logger.level} if logger.level else {}
    if logger.disabled:
        facts["disabled"] = True
    if not logger.propagate:
        facts["propagate"] = False
    if handler is not None:
        facts.update({"from": handler.level, **_format(handler)})
    return facts


def _format(handler: logging.Handler | None) -> dict[str, Any]:
    """Describe its formatter, if that is logging's own and needs nothing that a filter adds to a record."""
    logging = sys.modules["logging"]
    formatter = handler.formatter if handler else None
    if handler is not None and formatter is None:
        return {"format": "%(message)s", "datefmt": None, "style": "%"}
    if formatter is not None and type(formatter) is logging.Formatter:
        styles = {type(sample): sign for sign, sample in ((sign, logging._STYLES[sign][0]("")) for sign in "%{$")}
        style = styles.get(type(formatter._style))
        facts: dict[str, Any] = {"format": formatter._fmt, "datefmt": formatter.datefmt, "style": style}
        if formatter.converter is time.gmtime:
            facts["utc"] = True
        if facts["style"]:
            result = logging.Formatter(facts["format"], facts["datefmt"], facts["style"])
            with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):
                result.format(logging.LogRecord("name", 20, "path", 1, "message", (), None))
                return facts
    return {"format": logging.BASIC_FORMAT, "datefmt": None, "style": "%"}


def show(facts: dict[str, Any]) -> None:
    """Write log records to stderr as `describe` said, until the function configures logging itself.

    `basicConfig` does nothing where the root logger has a handler: called with options, it must not find this one.
    Called without, as by `logging.info()`, it must find it, or it would add a handler of its own.
    """
    import logging

    basic_config, root = logging.basicConfig, logging.getLogger()
    for level, name in facts.get("names", {}).items():
        logging.addLevelName(int(level), name)
    logging.disable(facts.get("disable", logging.NOTSET))
    if facts.get("warnings"):
        logging.captureWarnings(True)
    for name, settings in facts.get("loggers", {}).items():
        logger = logging.getLogger(name)
        logger.setLevel(settings.get("level", 0))
        logger.disabled, logger.propagate = settings.get("disabled", False), settings.get("propagate", True)
        _add_handler(logger, settings)
    root.setLevel(facts["level"])
    handler = _add_handler(root, facts)
    if handler is None:
        return

    @functools.wraps(basic_config)
    def own_config(**options: Any) -> None:
        if options:
            root.removeHandler(handler)
        basic_config(**options)

    logging.basicConfig = own_config


def _add_handler(logger: logging.Logger, facts: dict[str, Any]) -> logging.Handler | None:
    """Show a logger's records as its handler did; a handler that a library adds takes its place."""
    import logging

    if not facts.get("format"):
        return None
    handler = logging.StreamHandler()
    handler.setLevel(facts.get("from", facts.get("level", 0)))
    formatter = logging.Formatter(facts["format"], facts["datefmt"], facts["style"])
    if facts.get("utc"):
        formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    handler.addFilter(lambda record: logger.handlers == [handler])
    logger.addHandler(handler)
    return handler
