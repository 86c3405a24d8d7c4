"""`python -m tests.lab up | down | status | torch`: builds the test hosts on this machine, as root on Debian.

`up` may be repeated: what is there stays, what died is started, a lab of older sources is replaced.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from . import accounts, gpubox, grid_engine, hosts, images, layout, packages, pythons, slurm, teardown, torchenv
from .processes import LabError, State, exclusive, is_alive


def why_not() -> str:
    """Why this machine cannot have a lab; empty if it can."""
    if sys.platform != "linux" or not Path("/etc/debian_version").exists():
        return "the lab needs Debian: this machine is another system"
    if os.geteuid() != 0:
        return "the lab needs root: it adds accounts and starts daemons"
    return ""


def announce(missing: list[str]) -> None:
    """What is about to happen, before it happens."""
    what = f"{len(layout.HOST_LIST)} ssh hosts, a SLURM of {len(layout.NODES)} nodes, a Grid Engine and a GPU box"
    print(f"The lab: {what}, under {layout.ROOT}")
    print(f"  packages to install: {' '.join(missing) or 'none'}")
    print(f"  accounts: {' '.join(account.name for account in layout.ACCOUNT_LIST)}")
    ports = [host.port for host in layout.HOST_LIST] + [layout.SLURMCTLD_PORT, *layout.NODES.values()]
    print(f"  ports on 127.0.0.1: {min(ports)} to {max(ports)}; no sshd, SLURM or munge of this machine is touched")


def all_alive(state: State) -> bool:
    """Built by these sources, complete, and every daemon runs."""
    daemons = "sge_qmaster" in state.daemons and all(map(is_alive, state.daemons.values()))
    return state.complete and state.version == layout.version() and daemons


def up(*, keep: bool) -> None:
    """Build what is missing, start what does not run."""
    state = State.load()
    if all_alive(state) and not packages.missing():
        print(f"The lab is up ({len(state.daemons)} daemons, {layout.ROOT})")
        return
    announce(packages.missing())
    if layout.ROOT.exists() and state.version != layout.version() and not keep:
        print("  the lab that is there was built by other sources: it is taken down first")
        teardown.down()
        state = State()
    packages.install(packages.missing())
    layout.ROOT.mkdir(mode=0o755, exist_ok=True)
    layout.LOGS.mkdir(exist_ok=True)
    state.version, state.complete = layout.version(), False
    state.save()
    build(state)
    state.complete = True
    state.save()


def build(state: State) -> None:
    """Every part in its order, with the time it took."""
    parts = {
        "interpreters": pythons.build,
        "images": images.build,
        "accounts": accounts.build,
        "hosts": hosts.build,
        "gpu box": gpubox.build,
        "slurm": slurm.build,
        "grid engine": grid_engine.build,
    }
    for name, make in parts.items():
        began = time.monotonic()
        make(state)
        print(f"  {name}: {time.monotonic() - began:.1f} s", flush=True)


def status() -> bool:
    """Print every daemon and interpreter; False if something does not run."""
    state = State.load()
    if not state.version:
        print("There is no lab")
        return False
    for name, found in state.pythons.items():
        print(f"python {name}: {found['path']} from {found['source']}")
    for record in state.daemons.values():
        print(f"{record.name}: pid {record.pid}, {'runs' if is_alive(record) else 'DEAD'}")
    print(f"sources: {'these' if state.version == layout.version() else 'others (up would replace the lab)'}")
    return all(map(is_alive, state.daemons.values()))


def parsed() -> argparse.Namespace:
    description = "The test hosts of clusterfn on this machine."
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=description)
    parser.add_argument("action", choices=("up", "down", "status", "torch", "why-not"))
    parser.add_argument("--keep", action="store_true", help="up: go on with a lab that was built by other sources")
    return parser.parse_args()


def act(arguments: argparse.Namespace) -> None:
    """One action that changes the lab."""
    if arguments.action == "up":
        up(keep=arguments.keep)
    elif arguments.action == "down":
        teardown.down()
    else:
        torchenv.build(State.load())


def main() -> int:
    arguments = parsed()
    reason = why_not()
    if arguments.action == "why-not":
        print(reason)
        return 0
    if reason:
        print(reason, file=sys.stderr)
        return 2
    if arguments.action == "status":
        return 0 if status() else 1
    try:
        with exclusive():
            act(arguments)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
