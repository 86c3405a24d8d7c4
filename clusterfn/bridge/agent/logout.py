"""Whether logind ends what this user runs when he logs out, as its files say; its bus is not asked, which may hang.

Reads only.
"""

import glob
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

_CGROUP, _SESSION = "/proc/self/cgroup", "/user.slice/"
# What comes later counts more; a comment in the first ones tells what logind was built to do.
_FILES = (
    "/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf", "/usr/lib/systemd/logind.conf.d/*.conf",
    "/run/systemd/logind.conf.d/*.conf", "/etc/systemd/logind.conf.d/*.conf",
)  # fmt: skip
_SETTING = re.compile(r"\s*(#?)\s*(KillUserProcesses|KillOnlyUsers|KillExcludeUsers)\s*=\s*(.*)")
_YES = ("yes", "true", "on", "1")


def ends_jobs(user: str) -> bool:
    """Whether it does; False also where nobody says."""
    if _SESSION not in _text(_CGROUP):
        return False
    return is_ended(user, (line for pattern in _FILES for path in sorted(glob.glob(pattern)) for line in _lines(path)))


def is_ended(user: str, lines: "Iterable[str]") -> bool:
    """What the lines of logind's configuration, in the order in which they count, mean for a user."""
    said = {}  # type: dict[str, str]
    for match in filter(None, map(_SETTING.match, lines)):
        comment, name, value = match.groups()
        if not comment or name == "KillUserProcesses" and name not in said:
            said[name] = value.strip()
    only, spared = said.get("KillOnlyUsers", "").split(), said.get("KillExcludeUsers", "root").split()
    return said.get("KillUserProcesses", "").lower() in _YES and user not in spared and (not only or user in only)


def _lines(path: str) -> "list[str]":
    return _text(path).splitlines()


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
