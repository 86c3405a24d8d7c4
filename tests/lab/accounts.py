"""The lab's Unix accounts and their homes: useradd, start-up files, small and read-only homes.

Names start with "cf" and homes lie in the lab; an account of such a name that lives elsewhere is not ours and is left
alone.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
from pathlib import Path

from .layout import ACCOUNT_LIST, HOMES, Account
from .processes import LabError, State, run, runs

NOISE = b"""\
echo "Welcome to the lab. Quota: 80% used."
echo "-------- { [ frames start here? ] } --------"
printf 'caf\\351 \\377\\376 \\000 \\033[31mred\\033[0m\\n'
echo "warning: module system not found" >&2
printf '\\200\\201 noise\\n' >&2
read x
false
ls /does/not/exist
printf 'no newline at the end'
"""
START_UP = {"cfnoisy": NOISE, "cfexit": b"exit 7\n"}


def entry(account: Account) -> pwd.struct_passwd | None:
    """The account as the machine knows it."""
    try:
        return pwd.getpwnam(account.name)
    except KeyError:
        return None


def is_ours(found: pwd.struct_passwd) -> bool:
    """Its home lies in the lab."""
    return found.pw_dir.startswith(f"{HOMES}/")


def create(account: Account) -> None:
    """One account that public keys can enter: `*` as password means none, where `!` would mean locked."""
    found = entry(account)
    if found is not None and not is_ours(found):
        raise LabError(f"the account {account.name} exists with the home {found.pw_dir}: the lab will not touch it")
    if found is None:
        place = ["--no-create-home", "--home-dir", str(account.home), "--shell", account.shell]
        run(["useradd", *place, "--user-group", account.name])
        run(["usermod", "--password", "*", account.name])
    furnish(account)


def furnish(account: Account) -> None:
    """Home, its mount, its start-up file."""
    owner = pwd.getpwnam(account.name)
    account.home.mkdir(exist_ok=True)
    if account.mount and not os.path.ismount(account.home):
        options = f"{account.mount},uid={owner.pw_uid},gid={owner.pw_gid}"
        run(["mount", "-t", "tmpfs", "-o", options, "clusterfn-lab", str(account.home)])
    if not account.mount:
        os.chown(account.home, owner.pw_uid, owner.pw_gid)
    if account.name in START_UP:
        (account.home / ".bashrc").write_bytes(START_UP[account.name])


def are_shared() -> bool:
    """Whether the homes are a mount of their own."""
    return subprocess.run(["mountpoint", "--quiet", str(HOMES)], check=False).returncode == 0


def build(_: State) -> None:
    """All accounts; what is there stays. The hosts, with mount namespaces of their own, see what is mounted below."""
    HOMES.mkdir(exist_ok=True)
    if not are_shared():
        run(["mount", "--bind", str(HOMES), str(HOMES)])
        run(["mount", "--make-shared", str(HOMES)])
    for account in ACCOUNT_LIST:
        create(account)


def processes_of(uids: set[int]) -> list[int]:
    """Pids whose real owner is one of these."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid in uids and runs(int(folder.name)):
                found.append(int(folder.name))
        except FileNotFoundError:
            continue
    return found


def end_processes(uids: set[int]) -> None:
    """Kill what the accounts left running, and what those start meanwhile."""
    deadline = time.monotonic() + 10
    while pids := processes_of(uids):
        if time.monotonic() > deadline:
            raise LabError(f"processes of lab accounts cannot be killed: {pids}")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def existing() -> list[pwd.struct_passwd]:
    """The lab accounts that are there and ours."""
    return [found for found in map(entry, ACCOUNT_LIST) if found is not None and is_ours(found)]


def remove() -> None:
    """End their processes, take their mounts down, delete the accounts. Homes go with the lab's folder."""
    found = existing()
    end_processes({account.pw_uid for account in found})
    for account in ACCOUNT_LIST:
        if os.path.ismount(account.home):
            run(["umount", "--lazy", str(account.home)])
    if are_shared():
        run(["umount", "--lazy", str(HOMES)])
    for each in found:
        # Not --remove: it would follow the home of an account whatever it is by then.
        subprocess.run(["userdel", each.pw_name], capture_output=True, check=True)
