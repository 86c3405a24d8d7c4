"""Runs the post-link scripts of conda packages (`bin/.<name>-post-link.sh`), as conda does, at the final path.

A script that fails fails the build: what it was to make is missing. Pre-link scripts are not run: conda has given them
up.
"""

import os

from .failure import Failed
from .running import Ended, Patience, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .plan import Package, Plan
    from .progress import Progress

_MESSAGES = ".messages.txt"


def run_all(plan: "Plan", prefix: str, stopping: "Callable[[], None]", progress: "Progress") -> "list[str]":
    """Run them in the order of the plan; the lines that they leave for people."""
    scripts = [(os.path.join(prefix, "bin", ".%s-post-link.sh" % package.name), package) for package in plan.packages]
    there = [(script, package) for script, package in scripts if os.path.isfile(script)]
    for number, (script, package) in enumerate(there):
        progress.tell("scripts", number, len(there), text="post-link script of %s" % package.label)
        _run(script, package, plan.timeout_s, prefix, stopping)
    if there:
        progress.tell("scripts", len(there), len(there))
    return _messages(prefix)


def _run(script: str, package: "Package", timeout_s: float, prefix: str, stopping: "Callable[[], None]") -> None:
    more = {"PREFIX": prefix, "ROOT_PREFIX": prefix, "PKG_NAME": package.name, "PKG_VERSION": package.version,
            "PKG_BUILDNUM": package.build.rpartition("_")[2]}  # fmt: skip
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    try:
        run([shell, script], prefix, more, stopping, Patience(timeout_s, timeout_s))
    except Ended as error:
        message = "the post-link script of %s failed: %s (%s)" % (package.label, error, os.path.basename(script))
        hint = "it may want the network, or a program that the host lacks; build_timeout: of the host is its limit"
        raise Failed(message, stage="script", evidence=error.evidence, hint=hint) from error


def _messages(prefix: str) -> "list[str]":
    path = os.path.join(prefix, _MESSAGES)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip() for line in file if line.strip()]
    except FileNotFoundError:
        return []
    os.unlink(path)
    return lines
