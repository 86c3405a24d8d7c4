"""A real conda of 2017 for hosts of the lab: `python -m tests.lab.conda36` makes it once, in about 20 s.

conda 4.3.16 in an environment of the lab's Python 3.6, from PyPI; owned by root, for whoever has no right to it must
be able to use it too.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from pathlib import Path

from .layout import ROOT
from .processes import LabError, State, run

HOME = ROOT / "conda36"
CONDA = HOME / "bin" / "conda"
REQUIREMENTS = (
    "ruamel.yaml==0.16.12", "ruamel.yaml.clib==0.2.7", "requests==2.27.1", "urllib3==1.26.18", "certifi==2022.12.7",
    "idna==3.4", "charset-normalizer==2.0.12", "pycosat==0.6.3",
)  # fmt: skip
# The sdist's own program refuses an installation by pip.
_PROGRAM = f"#!{HOME}/bin/python\nimport sys\nfrom conda.cli import main\nsys.exit(main())\n"


def provide() -> Path:
    """The path of the conda, made first where it is missing.

    Raises:
        LabError: The lab has no Python 3.6, or pip finds a package no more.
    """
    if (HOME / "complete").exists():
        return CONDA
    pythons = State.load().pythons
    if "3.6" not in pythons:
        raise LabError("conda 4.3 needs the lab's Python 3.6")
    with (ROOT / "conda36.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # tests run side by side
        if not (HOME / "complete").exists():
            _make(pythons["3.6"]["path"])
    return CONDA


def _make(python: str) -> None:
    shutil.rmtree(HOME, ignore_errors=True)
    run([python, "-m", "venv", str(HOME)])
    pip = [str(HOME / "bin" / "python"), "-m", "pip", "install", "-q"]
    run([*pip, *REQUIREMENTS])
    run([*pip, "--no-deps", "conda==4.3.16"])
    CONDA.write_text(_PROGRAM)
    (HOME / "conda-meta").mkdir(exist_ok=True)
    (HOME / "conda-meta" / "history").touch()  # by which conda knows its own folder
    run(["chmod", "-R", "a+rX", str(HOME)])
    os.chmod(HOME, 0o755)
    (HOME / "complete").touch()


if __name__ == "__main__":
    try:
        print(provide())
    except LabError as error:
        sys.exit(f"conda36: {error}")
