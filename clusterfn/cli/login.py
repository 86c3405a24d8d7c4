"""`clusterfn trust`, `login` and `logout`: the host's key, and one login for all programs.

`trust` asks only on a terminal; without one, a fingerprint given as an option must match. It writes where ssh looks.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterfn.api import login as api_login
from clusterfn.bridge.supervisor.text import format_duration, in_one_line
from clusterfn.cli import target
from clusterfn.config.spec import Host
from clusterfn.display import console, live
from clusterfn.errors import ConfigError, HostKeyError
from clusterfn.hosts.transports import host_keys, shared_login
from clusterfn.hosts.transports.held_connections import HeldConnection
from clusterfn.hosts.transports.trust import (
    HostKeys,
    ShownKey,
    fetch_keys,
    hosts_on_the_way,
    refuse_unwritable,
    write_known_hosts,
)

_HEAD = ("HOST", "ACCOUNT", "SINCE", "KEPT UNUSED FOR")


def login(args: argparse.Namespace) -> int:
    """Log in and hold the connection; without a host, list what is held."""
    if args.host is None:
        connections = list(shared_login.all_held())
        if args.json:
            print(console.as_json([_facts(connection) for connection in connections]))
        elif connections:
            now = time.time()
            rows = []
            for held in connections:
                since = f"{format_duration(now - held.since)} ago"
                rows.append((held.host, held.place, since, format_duration(held.ttl_s)))
            print(live.table(_HEAD, rows))
        else:
            print("clusterfn: no shared connections", file=sys.stderr)
        return 0
    host = target.host(args.host, "login")[1]
    held, new = api_login.hold(host.name)
    if args.json:
        print(console.as_json({**_facts(held), "new": new}))
        return 0
    state = "logged in" if new else "already logged in"
    until = f"until it is unused for {format_duration(held.ttl_s)} (clusterfn logout {host.name} ends it)"
    print(f"{host.name}: {state} as {held.place}, for all your programs on this machine, {until}")
    return 0


def logout(args: argparse.Namespace) -> int:
    """End what is held; return 1 if there was nothing."""
    _, host, _ = target.host(args.host, "logout")
    ended = api_login.logout(host.name)
    if args.json:
        print(console.as_json({"host": host.name, "ended": ended}))
    elif ended:
        print(f"{host.name}: logged out; jobs on the host keep running")
    else:
        print(f"clusterfn: no shared connection to {host.name}", file=sys.stderr)
    return 0 if ended else 1


def _facts(held: HeldConnection) -> dict[str, Any]:
    return {"host": held.host, "account": held.place, "since": held.since, "kept_unused_s": held.ttl_s}


def trust(args: argparse.Namespace) -> int:
    """Trust each host on the way; return 1 if one is not trusted."""
    _, host, _ = target.host(args.host, "trust")
    if not host.address:
        raise ConfigError(f"{host.name} is this machine, and is not reached by ssh", host=host.name)
    files = trust_hosts(host, args.fingerprint, f"clusterfn trust {host.name}", replace=args.replace)
    return 1 if files is None else 0


def trust_hosts(host: Host, fingerprints: Sequence[str], command: str, *, replace: bool = False) -> list[Path] | None:
    """Ask about each host on the way whose key is unknown.

    Args:
        fingerprints: Of keys that are taken without asking.
        command: What was typed, for the hint to give it a fingerprint.
        replace: Whether another key that is remembered may be forgotten.

    Returns:
        The files that were written; None if a host is not trusted.

    Raises:
        HostKeyError: A key is not the one that is remembered or was named.
        ConfigError: No person can be asked.
    """
    files: list[Path] = []
    for settings in hosts_on_the_way(host):
        met = fetch_keys(host, settings)
        if met.trusted is not None:
            entry = met.trusted
            print(f"{settings.place} is known: {entry.kind} {host_keys.fingerprint(entry.blob)} at {entry.place}")
            continue
        if met.remembered and not replace:
            shown = ", ".join(str(key) for key in met.shown)
            error = host_keys.changed(settings, host.name, f"{shown} by {settings.place}", met.remembered)
            error.hint = (error.hint or "").replace(f"clusterfn trust {host.name}", command)
            raise error
        refuse_unwritable(host, settings)
        lines = [f"{met.settings.place} shows", *(f"  {key}" for key in met.shown)]
        if met.remembered:
            remembered = [f"  {key.kind} {host_keys.fingerprint(key.blob)} at {key.place}" for key in met.remembered]
            lines += ["in place of", *remembered]
        print("\n".join(in_one_line(line) for line in lines), flush=True)
        chosen = _chosen(host, met, fingerprints, command)
        if not chosen:
            again = f"Once you know the fingerprint: {command} --fingerprint SHA256:…"
            print(f"Nothing was written. {again}", file=sys.stderr)
            return None
        files.append(write_known_hosts(host, met, chosen))
        print(f"Written to {files[-1]}")
    return files


def _chosen(host: Host, met: HostKeys, fingerprints: Sequence[str], command: str) -> Sequence[ShownKey]:
    """Return the keys to write: those of the given fingerprints, or all of them once the person said yes."""
    if fingerprints:
        return _keys_with(host, met, fingerprints)
    if not sys.stdin.isatty():
        problem = "There is no terminal on which to ask whether these are the right keys"
        hint = f"{command} --fingerprint SHA256:… with the fingerprint that the administrator gives you"
        raise ConfigError(problem, host=host.name, evidence=[str(key) for key in met.shown], hint=hint)
    question = "Do these match the administrator's fingerprints? [y/N, or paste one] "
    while True:
        print(question, end="", file=sys.stderr, flush=True)
        typed = sys.stdin.readline().strip()
        if typed.startswith("SHA256:"):
            return _keys_with(host, met, [typed])
        if typed.lower() in ("y", "yes"):
            return met.shown
        if typed.lower() in ("", "n", "no"):
            return ()


def _keys_with(host: Host, met: HostKeys, fingerprints: Sequence[str]) -> Sequence[ShownKey]:
    """Return the keys of these fingerprints; raise HostKeyError if none of them is shown."""
    accepted = {"SHA256:" + text.removeprefix("SHA256:").rstrip("=") for text in fingerprints}
    chosen = [key for key in met.shown if key.fingerprint in accepted]
    if not chosen:
        message = f"{met.settings.place} shows no key with that fingerprint"
        evidence = [*(f"wanted: {wanted}" for wanted in sorted(accepted)), *(f"shown:  {key}" for key in met.shown)]
        hint = "ask its administrator again; someone may be intercepting the connection"
        raise HostKeyError(message, host=host.name, evidence=evidence, hint=hint)
    return chosen
