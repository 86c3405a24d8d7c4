"""What an environment's activation scripts set (`etc/conda/activate.d/*.sh`), found once, so that no job runs them.

The scripts run in a shell with the environment's prefix; variables that differ after them are told.
"""

import os

from .failure import Failed
from .running import Ended, Patience, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_MARK = b"\0clusterfn\0"
_SHELLS_OWN = ("_", "SHLVL", "PWD", "OLDPWD", "PATH")
_SCRIPT = r"""
env -0; printf '\0clusterfn\0'
for script in "$@"; do . "$script" >/dev/null 2>&1; done
env -0
"""


def variables(prefix: str, stopping: "Callable[[], None]", timeout_s: float) -> "dict[str, str]":
    """Variables that activating sets or changes; PATH is known without."""
    folder = os.path.join(prefix, "etc", "conda", "activate.d")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".sh")) if os.path.isdir(folder) else []
    if not names:
        return {}
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    argv = [shell, "-c", _SCRIPT, shell] + [os.path.join(folder, name) for name in names]
    try:
        before, _, after = run(argv, prefix, {}, stopping, Patience(timeout_s, timeout_s)).partition(_MARK)
    except Ended as error:
        raise Failed(
            "the environment cannot be activated: %s" % error, stage="script", evidence=error.evidence
        ) from error
    old, new = _parsed(before), _parsed(after)
    return {name: value for name, value in new.items() if name not in _SHELLS_OWN and old.get(name) != value}


def _parsed(printed: bytes) -> "dict[str, str]":
    pairs = [os.fsdecode(each).partition("=") for each in printed.split(b"\0") if b"=" in each]
    return {name: value for name, _, value in pairs}
