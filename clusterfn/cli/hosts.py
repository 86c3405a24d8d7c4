"""`clusterfn hosts`: the hosts of clusterfn.yml, and which of them a call uses; connects to none."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from clusterfn.calls import console
from clusterfn.cli import screen
from clusterfn.config import config_file
from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError

_HEAD = ("", "HOST", "ADDRESS", "SCHEDULER", "ENVIRONMENT", "ROOT", "DEFINED IN")


def hosts(given: argparse.Namespace) -> int:
    """Print the hosts; a star marks the one that a call uses if it names none."""
    known = config_file.load()
    try:
        chosen, because = known.resolve(None)
    except ConfigError as error:  # several hosts and no default
        chosen, because = None, error.message
    found = [_facts(known.hosts[name], chosen) for name in (*known.named, *({*known.hosts} - {*known.named}))]
    if given.json:
        print(screen.as_json(found))
        return 0
    rows = [("*" if each["default"] else "", each["name"], each["address"] or "this machine", each["scheduler"],
             each["environment"] or "-", each["root"], _short(each["source"])) for each in found]  # fmt: skip
    print(screen.table(_HEAD, rows))
    console.tell(f"a call without a host uses {chosen.name}: {because}" if chosen else because)
    return 0


def _facts(host: Host, chosen: Host | None) -> dict[str, Any]:
    return {
        "name": host.name, "address": host.address, "scheduler": host.scheduler, "transport": host.transport,
        "environment": host.environment, "root": host.root, "source": host.source, "default": host == chosen,
    }  # fmt: skip


def _short(source: str) -> str:
    """Return a place without the working directory.

    Example:
        >>> _short("built in")
        'built in'
    """
    return source.replace(f"{Path.cwd()}/", "", 1)
