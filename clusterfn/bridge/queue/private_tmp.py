"""Whether a folder that all users of a machine share is the machine's own, as far as this process sees.

Some machines give each user, each login (pam_namespace) or a service (systemd's PrivateTmp) another /tmp.
"""

import functools
import os

from ..supervisor.process_tree import user_name

MOUNTS = "/proc/self/mountinfo"
_OF_SYSTEMD, _OF_PAM = "systemd-private-", "tmp-inst"


def private_source(folder: str) -> str:
    """Return what is mounted in place of a folder for this user, login or service alone; "" if that is not so."""
    status = os.stat(folder)
    return _private_source(folder, status.st_dev, status.st_ino, MOUNTS)


@functools.lru_cache(maxsize=None)
def _private_source(folder: str, _dev: int, _ino: int, mounts: str) -> str:
    try:
        with open(mounts, encoding="utf-8", errors="replace") as file:
            rows = [line.split(" ") for line in file]
    except OSError:
        # Only Linux has this file.
        return ""
    # Of several mounts at the same place, the last one hides the others.
    shown = [row[3] for row in rows if len(row) > 4 and row[4] == folder][-1:]
    return next(iter(source for source in shown if _is_private(source)), "")


def _is_private(source: str) -> bool:
    names, own = source.strip("/").split("/"), user_name(os.geteuid())
    is_named = names[-1] == own or names[-1].endswith("_" + own)
    return is_named or any(name.startswith((_OF_SYSTEMD, _OF_PAM)) for name in names)
