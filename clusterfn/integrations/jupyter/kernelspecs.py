"""Kernelspecs that start a kernel on a host: what Jupyter and VS Code read to offer it to their user."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn.config import config_file, places
from clusterfn.config.environment_kinds import names_a_file, split_file
from clusterfn.errors import ClusterfnError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from jupyter_client.kernelspec import KernelSpecManager

CONNECTION_FILE = "{connection_file}"
_RUN = ["kernel", "run"]


@dataclass(frozen=True)
class KernelSpecInfo:
    """A kernelspec that clusterfn has written.

    Attributes:
        name: Its folder's name.
        shown: What users choose it by.
        options: The words after `clusterfn kernel run`.
        trouble: Why it cannot start; "" if nothing is known.
    """

    name: str
    shown: str
    host: str
    options: Sequence[str]
    folder: str
    trouble: str


def add_kernelspec(shown: str, host: str, options: Sequence[str]) -> KernelSpecInfo:
    """Write a kernelspec for this user; replace one of the same name.

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
    existing = manager.find_kernel_specs()
    if name in existing and name not in {spec.name for spec in list_kernelspecs()}:
        problem = f"there is a kernel {name!r} already, and clusterfn has not added it: {existing[name]}"
        raise ConfigError(problem, hint="choose another --name")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(_content(shown, host, options), indent=1), encoding="utf-8")
        placed = manager.install_kernel_spec(folder, name, user=True)
    return KernelSpecInfo(name, shown, host, options, placed, "")


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


def list_kernelspecs() -> list[KernelSpecInfo]:
    """Return the kernelspecs that clusterfn has written."""
    specs = []
    for name, folder in sorted(_manager().find_kernel_specs().items()):
        try:
            content = json.loads(Path(folder, "kernel.json").read_text(encoding="utf-8"))
            host, argv = content["metadata"]["clusterfn"]["host"], [str(word) for word in content["argv"]]
            shown, env = str(content["display_name"]), content.get("env") or {}
        except (OSError, ValueError, KeyError, TypeError):
            # Another program has written this kernelspec.
            continue
        words = argv[argv.index("run") + 1 : -1] if "run" in argv else []
        specs.append(KernelSpecInfo(name, shown, str(host), words, folder, _trouble(str(host), argv, env)))
    return specs


def _trouble(host: str, argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return why a kernelspec cannot start its kernel; "" if nothing is known."""
    if not os.access(argv[0], os.X_OK):
        return f"{argv[0]} is gone: clusterfn was moved or removed"
    config = env.get(places.VARIABLE)
    if config and not Path(config).is_file():
        return f"{config} is gone"
    try:
        read_config = config_file.read(Path(config)) if config else config_file.Config({"local": config_file.LOCAL})
    except ConfigError as error:
        return error.message
    return "" if host in read_config.hosts else f"{config or 'clusterfn.yml'} has no host {host}"


def remove_kernelspec(name: str) -> KernelSpecInfo:
    """Remove a kernelspec by its name, or by what it is shown as.

    Raises:
        ConfigError: clusterfn has added none of that name.
    """
    specs = list_kernelspecs()
    for spec in specs:
        if name in (spec.name, spec.shown):
            _manager().remove_kernel_spec(spec.name)
            return spec
    near = did_you_mean(name, [each for spec in specs for each in (spec.name, spec.shown)])
    raise ConfigError(f"clusterfn has added no kernel {name!r}{near}", hint="clusterfn kernel list shows them")


def _manager() -> KernelSpecManager:
    try:
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError as error:
        hint = f"{sys.executable} -m pip install '.[notebook]' in your clone of clusterfn"
        raise ClusterfnError("kernelspecs need jupyter_client, which is not installed", hint=hint) from error
    return KernelSpecManager()
