"""Accounts that nobody has used yet, with a password: a test gets one by `lab.newcomer()` and leaves nothing of it.

They can enter the hosts `password` and `campus` alone. Each is held by a lock that the kernel lets go when its holder
dies: the next newcomer removes those that nobody holds, and so does `down`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .accounts import end_processes, is_ours
from .layout import HOMES, NEWCOMERS, SSHD
from .processes import held, held_if_free, run

ACCOUNTS = SSHD / "accounts.lock"


@dataclass(frozen=True)
class Newcomer:
    """An account as its owner got it by mail.

    Attributes:
        name: Its name, for `ssh NAME@password` with the lab's ssh_config, or NAME@127.0.0.1 at the host's port.
        password: What the hosts `password` and `campus` take.
        home: Its home, as Debian's useradd has filled it.
        uid: Its number.
    """

    name: str
    password: str
    home: Path
    uid: int


def lock(name: str) -> Path:
    return SSHD / f"{name}.lock"


def everyone() -> list[pwd.struct_passwd]:
    """The newcomers that are there."""
    return [found for found in pwd.getpwall() if found.pw_name.startswith(NEWCOMERS) and is_ours(found)]


def add(name: str) -> Newcomer:
    """An account with a home of its own and a password."""
    home, password = HOMES / name, secrets.token_urlsafe(12)
    run(["useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/bash", "--user-group", name])
    subprocess.run(["chpasswd"], input=f"{name}:{password}\n", text=True, capture_output=True, check=True)
    return Newcomer(name, password, home, pwd.getpwnam(name).pw_uid)


def remove(found: pwd.struct_passwd) -> None:
    """Its processes, its account, its home."""
    end_processes({found.pw_uid})
    subprocess.run(["userdel", found.pw_name], capture_output=True, check=True)
    shutil.rmtree(found.pw_dir, ignore_errors=True)
    lock(found.pw_name).unlink(missing_ok=True)


def remove_unheld() -> None:
    """Those that a killed test has left."""
    for found in everyone():
        with held_if_free(lock(found.pw_name)) as free:
            if free:
                remove(found)


@contextlib.contextmanager
def arrived() -> Iterator[Newcomer]:
    """A new account for the length of a with block. useradd and userdel are run by one process at a time."""
    name = f"{NEWCOMERS}{os.getpid()}{secrets.token_hex(2)}"
    with held(lock(name)):
        with held(ACCOUNTS):
            remove_unheld()
            newcomer = add(name)
        try:
            yield newcomer
        finally:
            with held(ACCOUNTS):
                remove(pwd.getpwnam(name))
