"""Check the host's own interpreter, on which an environment is built: it must be what it was when that was locked.

The builder asks before it builds, and each job on the machine that runs it.
"""

import os
import subprocess

from .errors import BuildFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .plan import BasePython

_TIMEOUT_S = 60.0
_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
_DROPPED = ("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")


def refuse_changed(base: "BasePython") -> None:
    """Raise unless the interpreter on this machine is the one that the environment was locked for.

    Raises:
        BuildFailed: It is gone, cannot be started, or has another version.
    """
    kept = {name: value for name, value in os.environ.items()
            if name not in _DROPPED and not name.startswith("PYTHON")}  # fmt: skip
    try:
        ran = subprocess.run(
            [base.path, "-I", "-S", "-c", _VERSION], env=kept, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        # Not its own text, which repeats the path in Python 3.6.
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "it does not answer"
        raise _changed(base, "cannot be started: %s" % why, []) from error
    said = ran.stdout.decode("utf-8", "replace").strip()
    if ran.returncode:
        raise _changed(base, "ended with exit status %d" % ran.returncode, said.splitlines()[-5:])
    if said != base.version:
        raise _changed(base, "is Python %s" % said, [])


def _changed(base: "BasePython", what: str, evidence: "list[str]") -> BuildFailed:
    return BuildFailed(
        "it is built on Python %s of the host, and %s %s on %s" % (base.version, base.path, what, os.uname()[1]),
        stage="python", evidence=evidence,
        hint="if the host was updated, run your program again: it locks and builds for the Python that is there now; "
        "if its machines differ, name a Python that all have, or take it from elsewhere (env_python: conda)",
    )  # fmt: skip
