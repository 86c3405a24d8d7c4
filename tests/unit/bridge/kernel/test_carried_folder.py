"""The folder of the sockets of kernels and sessions, among those of other users."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from clusterfn.bridge.kernel.carried import SOCKET, make_private_folder

BOB = 64_001  # nobody has this number


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_left_alone_and_ones_own_has_a_name_that_nobody_can_guess():
    theirs = Path(tempfile.mkdtemp(prefix="clusterfn-kernel-", dir="/tmp"))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(theirs / SOCKET))
    os.chown(theirs, BOB, BOB)

    made = [Path(make_private_folder()) for _ in range(2)]

    assert theirs.exists() and len({theirs, *made}) == 3
    assert all(path.stat().st_mode & 0o777 == 0o700 and path.stat().st_uid == os.getuid() for path in made)
    for path in (theirs, *made):
        shutil.rmtree(path)
