"""What end-to-end tests need of clusterfn's internals: the state of a host, and a patient second Ctrl-C."""

from __future__ import annotations

from clusterfn.config import config_file
from clusterfn.hosts.host_state import HostState, open_host

# Goes before a script in which a second Ctrl-C counts: a busy machine may take longer than three seconds to send it.
PATIENT = "from clusterfn.calls import leaving\nleaving._SECOND_INTERRUPT_S = 60\n"


def host_of(host: str) -> HostState:
    """Return what this process knows of a host of clusterfn.yml; it connects where there is no connection."""
    return open_host(config_file.load().resolve(host)[0])
