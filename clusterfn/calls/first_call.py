"""The first call of a process connects before it loads what calls need, and loads that while the host starts its agent.

Both take a noticeable time, and wait for nothing of each other.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.config import config_file
from clusterfn.config.hosts import for_call
from clusterfn.hosts.environment_choice import EnvironmentRequest
from clusterfn.hosts.host_state import open_session
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
    collects = gc.isenabled()
    gc.disable()  # all that is loaded stays: to look for garbage among it takes 2 % of a first call
    try:
        host, _ = config_file.load().resolve(options.host)
        session = open_session(host)
        session.expect(EnvironmentRequest(options.environment, options.packages))
        if options.scheduler_options:
            for_call(host, options)
        session.connect(meanwhile=lambda: importlib.import_module("clusterfn.calls.call"))
    except KeyboardInterrupt:
        from clusterfn.calls import job_display

        with job_display.nothing_runs():
            raise
    finally:
        if collects:
            gc.enable()
