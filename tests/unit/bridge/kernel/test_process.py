"""How long a kernel is idle, by what it publishes."""

from __future__ import annotations

from typing import Any

from jupyter_client.session import Session

from clusterfn.bridge.kernel.process import KernelActivity


def test_a_kernel_is_idle_while_no_cell_runs_whatever_clients_ask():
    kernel, session = KernelActivity(), Session(key=b"key")
    cell, completion, info = (session.msg(f"{kind}_request") for kind in ("execute", "complete", "kernel_info"))

    def publish(request: Any, state: str) -> None:
        made = session.msg("status", content={"execution_state": state}, parent=request)
        kernel.note([b"kernel.7.status", *session.serialize(made)])

    kernel.note([])
    assert kernel.idle_s() > 0
    publish(cell, "busy")
    assert not kernel.idle_s()
    publish(completion, "busy")
    publish(cell, "idle")
    publish(info, "busy")
    assert not kernel.idle_s()
    publish(completion, "idle")
    assert kernel.idle_s() > 0, "kernel_info_request counts"
