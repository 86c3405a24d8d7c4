"""`configure()`: hosts for this process alone, as a notebook without clusterfn.yml has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterfn.config import config_file
from clusterfn.config.option_checks import host_names, yes_or_no
from clusterfn.errors import ConfigError
from clusterfn.public_api import public_api

_EXAMPLE = 'configure(hosts={"tensor01": {"scheduler": "bare", "address": "ada@tensor01"}})'


@public_api
def configure(
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    default_host: str | None = None,
    quiet: bool = False,
    **unknown: object,
) -> None:
    """Describe hosts for this process, in place of clusterfn.yml; without arguments, the file decides again.

    Without `hosts`, the hosts of clusterfn.yml stay, and the other arguments override its keys. Other processes do not
    know these hosts: not `clusterfn jobs` in a terminal, nor another notebook.

    Args:
        hosts: By name; each has the keys that it would have in clusterfn.yml. Paths of environments are relative to
            the working directory.
        default_host: The host of calls that name none.
        quiet: Whether progress is hidden.

    Raises:
        ConfigError: A key is unknown or has a value that it cannot have, or there is no such `default_host`.

    Example:
        >>> clusterfn.configure(hosts={"tensor01": {"scheduler": "bare", "address": "ada@tensor01"}})
        >>> clusterfn.configure()
    """
    for word in unknown:
        raise ConfigError(f"configure() has no argument {word!r}", hint=f"describe hosts: {_EXAMPLE}")
    if hosts is not None and not isinstance(hosts, Mapping):
        raise ConfigError(f"hosts={hosts!r} is not a dict", hint=f"write {_EXAMPLE}")
    content: dict[str, Any] = {} if hosts is None else {"hosts": hosts}
    if default_host is not None:
        content["default_host"] = host_names(default_host, "default_host")
    is_quiet = yes_or_no(quiet, "quiet")
    config_file.configure({**content, "quiet": is_quiet} if content or is_quiet else None)
