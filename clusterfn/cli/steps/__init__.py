"""The steps of `clusterfn check`. Each takes what earlier ones found, and returns a sentence or raises what is wrong.

Prints nothing; `check` runs them. One module for each theme; `found` says what a step is. What the host offers is asked
once for all of them, by `survey`.
"""

from __future__ import annotations

from clusterfn.cli.steps import disk, machine, queue, way, work
from clusterfn.cli.steps.found import Failed, Found, Skipped, Step, Warned

__all__ = ["STEPS", "Failed", "Found", "Skipped", "Step", "Warned"]

STEPS = (
    Step("configuration", (), way.configuration),
    Step("name", ("configuration",), way.name),
    Step("connection", ("configuration", "name"), way.connection),
    Step("host key", ("connection",), way.host_key),
    Step("login", ("connection", "host key"), way.login),
    Step("shell", ("login",), way.shell),
    Step("python", ("login",), way.python),
    Step("root", ("python",), disk.root),
    Step("space", ("root",), disk.space),
    Step("stored", ("root",), disk.stored),
    Step("noexec", ("root",), disk.noexec),
    Step("links", ("root",), disk.links),
    Step("scheduler", ("root",), queue.scheduler),
    Step("account", ("scheduler",), queue.account),
    Step("gpus", ("root",), machine.gpus),
    Step("lingering", ("root",), machine.lingering),
    Step("modules", ("root",), work.modules),
    Step("environment", ("root",), work.environment),
    Step("function", ("space", "noexec", "scheduler", "account", "modules", "environment"), work.function),
    Step("pytorch", ("function",), work.pytorch),
)
