"""Lay out an environment on the host's own interpreter as `venv` does: a link to it, and pyvenv.cfg, which isolates it.

Neither `venv` nor `ensurepip` is used: Debian has packages of their own for them.
"""

import os

from .link import SYMLINK, WRITE, TargetFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .plan import BasePython


def venv_files(base: "BasePython", python: "tuple[int, int]") -> "list[TargetFile]":
    """Return the files by which an interpreter takes a folder for its prefix, and has no packages but those in it."""
    config = "home = %s\ninclude-system-site-packages = false\nversion = %s\nexecutable = %s\n" % (
        os.path.dirname(base.path), base.version, base.path,
    )  # fmt: skip
    return [
        TargetFile("bin/python", SYMLINK, "", content=os.fsencode(base.path)),
        TargetFile("bin/python3", SYMLINK, "", content=b"python"),
        TargetFile("bin/python%d.%d" % python, SYMLINK, "", content=b"python"),
        TargetFile("pyvenv.cfg", WRITE, "", content=os.fsencode(config)),
    ]
