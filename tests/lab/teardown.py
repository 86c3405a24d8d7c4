"""Taking the lab down: what would go, and making it go. Nothing that the lab did not make is touched."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from . import accounts, cable, grid_engine, layout, newcomer
from .processes import State, is_alive, stop


def removals(state: State) -> list[str]:
    """Everything `down` would stop or remove, one line each."""
    daemons = [f"process {record.pid} {record.name}" for record in state.daemons.values() if is_alive(record)]
    cables = [f"cable {host.name}" for host in layout.CABLE_LIST if cable.is_laid(host)]
    cables += [f"bridge {grid_engine.BRIDGE}"] if grid_engine.is_laid() else []
    users = [f"account {found.pw_name}" for found in (*accounts.existing(), *newcomer.everyone())]
    mounts = [f"mount {account.home}" for account in layout.ACCOUNT_LIST if os.path.ismount(account.home)]
    mounts += [f"mount {layout.HOMES}"] if accounts.are_shared() else []
    places = [path for path in (*map(Path, state.created), layout.ROOT) if path.exists()]
    return daemons + cables + users + mounts + [f"{'folder' if path.is_dir() else 'file'} {path}" for path in places]


def step_daemons() -> list[int]:
    """Pids of the slurmstepd of this lab's jobs: they outlive their slurmd, and no one recorded them."""
    ours = b"SLURM_CONF=" + str(layout.SLURM_CONF).encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text() == "slurmstepd\n" and ours in (folder / "environ").read_bytes().split(
                b"\0"
            ):
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def end_steps(*, patience_s: float = 10) -> None:
    """Their jobs are dead by now, so they are about to end; after patience_s they are killed."""
    deadline = time.monotonic() + patience_s
    while pids := step_daemons():
        if time.monotonic() > deadline:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def remove_created(place: Path) -> None:
    """A file the lab made outside its folder, or a folder if nobody put anything there."""
    if place.is_file() or place.is_symlink():
        place.unlink()
    elif place.exists() and not any(place.iterdir()):
        place.rmdir()


def down() -> None:
    """Stop what was started (by pid and start time), remove accounts, mounts and the lab's folder. Packages stay."""
    state = State.load()
    for record in reversed(list(state.daemons.values())):
        stop(record)
    for host in layout.CABLE_LIST:
        cable.remove(host)
    for found in newcomer.everyone():
        newcomer.remove(found)
    grid_engine.remove()
    accounts.remove()
    end_steps()
    for place in map(Path, state.created):
        remove_created(place)
    if layout.ROOT.exists():
        shutil.rmtree(layout.ROOT)
