"""`login()` and `logout()`: one login for all programs of this user, from a script, a notebook or the command line."""

from __future__ import annotations

from clusterfn.config import config_file
from clusterfn.config.option_checks import host_names
from clusterfn.config.spec import Host
from clusterfn.hosts.transports import prompts, shared_login
from clusterfn.hosts.transports.held_connections import HeldConnection
from clusterfn.public_api import public_api


@public_api
def login(host: str | None = None) -> None:
    """Log in once and hold the connection for all of your programs on this machine.

    You are asked for what the host wants, in the terminal or below the cell. The connection is held until nothing has
    used it for the host's `login_ttl` (8 hours), or until `logout`. Nothing is done if it is held already.

    Args:
        host: The host's name; without it the one that a call would use.

    Raises:
        ConfigError: There is no such host, it is this machine, or this machine has no ssh that can hold a connection.
        HostError: AuthenticationError, Unreachable or HostKeyError.

    Example:
        >>> clusterfn.login("tensor01")
    """
    hold(host)


@public_api
def logout(host: str | None = None) -> bool:
    """End the connection that `login` holds, with all that goes through it now; jobs on the host keep running.

    Args:
        host: The host's name; without it the one that a call would use.

    Returns:
        Whether there was one.

    Raises:
        ConfigError: There is no such host, or it is this machine.

    Example:
        >>> clusterfn.logout("tensor01")
    """
    return shared_login.log_out(_chosen(host))


def hold(host: str | None) -> tuple[HeldConnection, bool]:
    """Log in, and return the held connection and whether that login was made now."""
    return shared_login.log_in(_chosen(host), prompts.person())


def _chosen(host: str | None) -> Host:
    return config_file.load().resolve(None if host is None else host_names(host, "host"))[0]
