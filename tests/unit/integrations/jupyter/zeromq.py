"""What a socket of ZeroMQ sends: for tests that speak to what reads it."""

from __future__ import annotations

from clusterfn.integrations.jupyter import kernel_proxy

GREETING, message, socket_ready = kernel_proxy.GREETING, kernel_proxy.message, kernel_proxy.socket_ready
