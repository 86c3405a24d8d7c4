"""Kernelspecs that start a kernel on a host: what Jupyter and VS Code read to offer it to their user."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn.config import config_file, places
from clusterfn.config.forms import names_a_file, split_file
from clusterfn.errors import ClusterfnError, ConfigError

if TYPE_CHECKING:
    from jupyter_client.kernelspec import KernelSpecManager

CONNECTION_FILE = "{connection_file}"
_RUN = ["kernel", "run"]


def add_kernelspec(shown: str, host: str, options: Sequence[str]) -> str:
    """Write a kernelspec for this user, and return its name; replace one of the same name.

    Args:
        shown: What users choose it by.
        options: As they are written after `clusterfn kernel run`, with the host.

    Raises:
        ConfigError: The name has no letter or digit, or another program's kernelspec has it.
    """
    manager = _manager()
    name = re.sub(r"[^a-z0-9._-]+", "-", shown.lower()).strip("-._")
    if not name:
        raise ConfigError(f"the name {shown!r} has no letter and no digit", hint='write --name "tensor01 · 1 GPU"')
    existing = manager.find_kernel_specs().get(name)
    if existing and not _is_ours(existing):
        problem = f"there is a kernel {name!r} already, and clusterfn has not added it: {existing}"
        raise ConfigError(problem, hint="choose another --name")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(_content(shown, host, options), indent=1), encoding="utf-8")
        manager.install_kernel_spec(folder, name, user=True)
    return name


def _is_ours(folder: str) -> bool:
    try:
        content = json.loads(Path(folder, "kernel.json").read_text(encoding="utf-8"))
        return "clusterfn" in content["metadata"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _content(shown: str, host: str, options: Sequence[str]) -> dict[str, Any]:
    """Return kernel.json. argv[0] is absolute, as VS Code hides others; an interrupt is a message, as SIGINT is not
    sent on Windows. The debugger would open ports without a password."""
    config = config_file.load().path
    return {
        "argv": [*_command(), *_RUN, *options, CONNECTION_FILE],
        "display_name": shown,
        "language": "python",
        "interrupt_mode": "message",
        "env": {places.VARIABLE: str(config.absolute())} if config else {},
        "metadata": {"debugger": False, "clusterfn": {"host": host}},
    }


# Packages that depend on the program of a kernel, and so bring it into an environment.
_BRING_IT = ("jupyter", "notebook", "spyder-kernels")


def _command() -> list[str]:
    """Return the words that start clusterfn, the first an absolute path."""
    script = Path(sysconfig.get_path("scripts"), "clusterfn.exe" if sys.platform == "win32" else "clusterfn")
    return [str(script)] if script.exists() else [sys.executable, "-m", "clusterfn"]


def absolute_environment(environment: str | None) -> str | None:
    """Return an environment as it is found from every folder: a file by its whole path.

    Raises:
        ConfigError: There is no such file.
    """
    if environment is None or not names_a_file(environment):
        return environment
    path = places.expanded(environment).absolute()
    file = Path(split_file(str(path))[0])
    if not file.is_file():
        raise ConfigError(f"there is no file {file}", hint="correct --environment")
    return str(path)


def check_has(environment: str | None, program: str) -> None:
    """Reject a file of an environment that does not name what a kernel needs, nor anything that brings it.

    Raises:
        ConfigError: It does not.
    """
    if environment is None or not names_a_file(environment):
        # Only the host knows what a named environment holds, and reports it when the kernel starts.
        return
    file = Path(split_file(environment)[0])
    text = file.read_text(encoding="utf-8", errors="replace").lower()
    if not any(word in text for word in (program, *_BRING_IT)):
        raise ConfigError(f"{file} does not name {program}, which a kernel needs", hint=f"add {program} to it")


def _manager() -> KernelSpecManager:
    try:
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError as error:
        hint = f"{sys.executable} -m pip install '.[notebook]' in your clone of clusterfn"
        raise ClusterfnError("kernelspecs need jupyter_client, which is not installed", hint=hint) from error
    return KernelSpecManager()
