"""The process that a Jupyter client takes for its kernel: it carries the client's connections to the kernel's holder.

A client interrupts it by SIGINT, and ends it by SIGTERM. To shut the kernel down in order, it sends a message, which
the holder obeys. It answers the client itself while the job waits.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from clusterfn.display import console
from clusterfn.integrations.jupyter.near_end import NearEnd
from clusterfn.integrations.jupyter.waiting_kernel import WaitingKernel

if TYPE_CHECKING:
    from clusterfn.integrations.jupyter.connection_file import ConnectionFile
    from clusterfn.integrations.jupyter.kernel_job import JobSearch


def kernel_proxy(
    connection_file: ConnectionFile, listeners: Mapping[int, socket.socket], search: JobSearch,
    say: Callable[[str], None] = console.warn,
) -> NearEnd:  # fmt: skip
    """Return what serves the client of a kernel."""
    key = connection_file.key, connection_file.signature_scheme
    proxy = NearEnd("the kernel", listeners, search.run, say, key)
    proxy.on_sigint, proxy.last_word = "interrupt", "orphan"
    proxy.withdraw, proxy.record = search.withdraw, search.record
    proxy.waiting = WaitingKernel(key, proxy.deliver, proxy.send_data)
    return proxy


def run_proxy(connection_file: ConnectionFile, listeners: Mapping[int, socket.socket], search: JobSearch) -> int:
    """Serve a Jupyter client; return the exit code."""
    proxy = kernel_proxy(connection_file, listeners, search)
    console.show_also(lambda text: proxy.events.post_at_once("said", text))
    code = proxy.run()
    proxy.flush()
    return code
