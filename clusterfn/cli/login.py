"""`clusterfn login [HOST]` and `clusterfn logout HOST`: one login for all programs, and the list of held ones."""

from __future__ import annotations

import argparse
import sys
import time

from clusterfn.api import login as api_login
from clusterfn.cli import screen, target
from clusterfn.hosts.transports import shared_login

_HEAD = ("HOST", "ACCOUNT", "SINCE", "KEPT UNUSED FOR")


def login(given: argparse.Namespace) -> int:
    """Log in and hold the connection; without a host, list what is held."""
    if given.host is None:
        return _list()
    _, host, _ = target.host(given.host, "login")
    made, new = api_login.hold(host.name)
    state = "logged in" if new else "is held already"
    print(f"{host.name}: {state} as {made.place}, for all your programs here until it was not used for "
          f"{screen.age(made.ttl_s)} (clusterfn logout {host.name} ends it)")  # fmt: skip
    return 0


def logout(given: argparse.Namespace) -> int:
    """End what is held; return 1 if there was nothing."""
    _, host, _ = target.host(given.host, "logout")
    if api_login.logout(host.name):
        print(f"{host.name}: logged out; jobs there go on")
        return 0
    print(f"clusterfn: no connection to {host.name} is held", file=sys.stderr)
    return 1


def _list() -> int:
    found = list(shared_login.all_held())
    if found:
        now = time.time()
        rows = [
            [each.host, each.place, f"{screen.age(now - each.since)} ago", screen.age(each.ttl_s)] for each in found
        ]
        print(screen.table(_HEAD, rows))
    else:
        print("clusterfn: no connection is held", file=sys.stderr)
    return 0
