"""The first call of a process connects before it loads what calls need, and loads that while the host starts its agent.

Both take a noticeable time, and neither waits for the other.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.config import config_file
from clusterfn.public_api import check_arguments

if TYPE_CHECKING:
    from clusterfn.config.options import Options


def connect(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
) -> None:  # fmt: skip
    """Connect to the host of a call.

    Raises:
        TypeError, ConfigError, HostError: As the call itself would.
    """
    check_arguments(function, args, kwargs)
    try:
        chosen = config_file.host_of_call(options)
        with contextlib.ExitStack() as stack:
            if chosen.host.address and not chosen.host.is_this_machine:
                from clusterfn.hosts.transports import ssh_config

                stack.enter_context(ssh_config.resolving_ahead(chosen.host))
            # These imports come after that, because ssh reads its configuration in the meantime.
            from clusterfn.hosts.environment_choice import EnvironmentRequest
            from clusterfn.hosts.host_state import open_session

            session = open_session(chosen.host)
            session.expect(EnvironmentRequest(chosen.options.environment, chosen.options.packages))
            session.connect(meanwhile=_load_calls)
    except KeyboardInterrupt:
        from clusterfn.calls import job_display

        with job_display.nothing_runs():
            raise


def _load_calls() -> None:
    # The caller imports the module again, and gets the error there: it must not look like one of the connection.
    with contextlib.suppress(ImportError, OSError):
        importlib.import_module("clusterfn.calls.call")
