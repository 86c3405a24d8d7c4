"""Runs the post-link scripts of conda packages (`bin/.<name>-post-link.sh`), as conda does, at the final path.

A script that fails fails the build: what it was to make is missing. Pre-link scripts are not run: conda has given
them up. Called by `story`.
"""

import os

from .failure import Failed
from .running import Ended, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .plan import Plan

_MESSAGES = ".messages.txt"


def run_all(plan: "Plan", prefix: str, stopping: "Callable[[], None]") -> "list[str]":
    """Run them in the order of the plan; the lines that they leave for people."""
    for package in plan.packages:
        script = os.path.join(prefix, "bin", ".%s-post-link.sh" % package.name)
        if os.path.isfile(script):
            _run(script, package.name, package.version, package.build, prefix, stopping)
    return _messages(prefix)


def _run(script: str, name: str, version: str, build: str, prefix: str, stopping: "Callable[[], None]") -> None:
    number = build.rpartition("_")[2]
    more = {"PREFIX": prefix, "ROOT_PREFIX": prefix, "PKG_NAME": name, "PKG_VERSION": version, "PKG_BUILDNUM": number}
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    try:
        run([shell, script], prefix, more, stopping)
    except Ended as error:
        raise Failed(
            "the post-link script of %s %s failed: %s" % (name, version, error), stage="script",
            evidence=error.evidence, hint="it may want the network, or a program that the host lacks",
        ) from error  # fmt: skip


def _messages(prefix: str) -> "list[str]":
    path = os.path.join(prefix, _MESSAGES)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip() for line in file if line.strip()]
    except FileNotFoundError:
        return []
    os.unlink(path)
    return lines
