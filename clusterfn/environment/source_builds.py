"""Find what builds a source distribution: its pyproject.toml says so, and its build backend may want more.

The lock then has all of it, with hashes, so that the host builds the same wheel at any time and without an index.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterfn.environment import download
from clusterfn.environment.chosen_versions import Solve
from clusterfn.environment.lock import LockedPackage
from clusterfn.environment.project import PYPROJECT, load_toml, normalize
from clusterfn.environment.specification import TORCHES
from clusterfn.environment.uv import UvResult
from clusterfn.errors import LockError

_LEGACY = "setuptools.build_meta:__legacy__"  # of PEP 517, for what has a setup.py alone
_SETUPTOOLS = ("setuptools", "wheel")  # older ones need the second, and do not always say so
_FRONTEND = "pip"
PKG_RESOURCES, WITH_PKG_RESOURCES = "pkg_resources", "setuptools<81"  # many an old setup.py imports it, undeclared
_UNDECLARED = 4  # modules that a setup.py imports and does not declare
_PATIENCE_S = 300.0
# The variables of this process that a build backend sees: not the user's tokens, and nothing that changes its answer.
_SEEN = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT",
    "USERPROFILE", "APPDATA", "LOCALAPPDATA",
)  # fmt: skip
_HOOK = """
import importlib, json, os, sys
top, backend, paths, answer, seen = json.loads(sys.argv[1])
for name in [each for each in os.environ if each.upper() not in seen]:
    del os.environ[name]
os.chdir(top)
sys.path[:0] = [os.path.join(top, each) for each in paths]
module, _, attributes = backend.partition(":")
found = importlib.import_module(module)
for name in filter(None, attributes.split(".")):
    found = getattr(found, name)
more = getattr(found, "get_requires_for_build_wheel", lambda settings: [])(None)
with open(answer, "w") as file:
    json.dump([str(each) for each in more], file)
"""


@dataclass(frozen=True)
class SourceDistribution:
    """A package that has no wheel.

    Args:
        uv_run: The words that start a program by uv, with the settings of the project.
        folder: Of the project: uv's own settings begin there, not in the source distribution.
    """

    package: LockedPackage
    uv_run: Sequence[str]
    variables: Mapping[str, str]
    folder: Path

    def resolve(
        self, folder: Path, indexes: Sequence[tuple[str, str]], solve: Solve, chosen: Mapping[str, str]
    ) -> UvResult:
        """Return the wheels that build it: in the versions of the environment, if it admits those.

        Args:
            folder: A new one, for its files.
            indexes: As for `download_packages`.
            chosen: name -> version of the packages of the environment.

        Raises:
            EnvironmentBuildError: It cannot be downloaded.
            LockError: It cannot be read.
        """
        top, wheels_only = self._unpack(folder, indexes), ("--only-binary", ":all:")
        lines = [*self._requirements(top, chosen), _FRONTEND]
        same = solve(*wheels_only, lines=lines, limits=[f"{name}=={version}" for name, version in chosen.items()])
        return solve(*wheels_only, lines=lines) if same.status else same

    def _requirements(self, top: Path, chosen: Mapping[str, str]) -> list[str]:
        pyproject = top / PYPROJECT
        system = load_toml(pyproject).get("build-system", {}) if pyproject.is_file() else {}
        requires = [str(each) for each in system.get("requires", _SETUPTOOLS)]
        if any(each.startswith("setuptools") for each in requires):
            requires = list(dict.fromkeys([*requires, "wheel"]))
            setup = top / "setup.py"
            old = setup.is_file() and PKG_RESOURCES in setup.read_text(encoding="utf-8", errors="replace")
            requires += [WITH_PKG_RESOURCES] if old else []
        for _ in range(_UNDECLARED):
            more, lacking = self._ask_backend(system, requires, top)
            if lacking not in chosen or lacking in requires:
                break
            requires.append(lacking)  # it counts on an environment that has it: flash-attn on torch
            if lacking in TORCHES:
                break  # gigabytes, only to ask
        return [*requires, *more]

    def _unpack(self, folder: Path, indexes: Sequence[tuple[str, str]]) -> Path:
        """Unpack it, and return the folder that has its files."""
        name = self.package.file
        ((_, path),) = download.download_packages([self.package], lambda *_: None, indexes)
        folder.mkdir()
        is_zip = name.endswith(".zip")
        safe: Mapping[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") and not is_zip else {}
        try:
            shutil.unpack_archive(path, folder, "zip" if is_zip else "tar", **safe)
        except (OSError, tarfile.TarError, ValueError) as error:
            raise LockError(f"{name} cannot be read: {error}", hint="name another version of it") from error
        inside = list(folder.iterdir())
        return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder

    def _ask_backend(self, system: Mapping[str, Any], requires: Sequence[str], top: Path) -> tuple[list[str], str]:
        """Ask the backend what it wants in addition, where this machine has nothing of it: no cmake, no compiler.

        Returns:
            That, and the module that is missing if it cannot say. It then says on the host what else it lacks.
        """
        answer = top.parent / "answer.json"
        given = [str(top), system.get("build-backend", _LEGACY), system.get("backend-path", []), str(answer), _SEEN]
        words = [word for each in requires for word in ("--with", each)]
        argv = [*self.uv_run, "--isolated", "--no-project", "--quiet", "--python", sys.executable]
        try:
            done = subprocess.run(
                [*argv, *words, "python", "-I", "-c", _HOOK, json.dumps(given)], cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8",
                errors="replace", timeout=_PATIENCE_S, env={**self.variables, "PATH": os.devnull},
            )  # fmt: skip
            missing = re.search(r"No module named '([\w-]+)", done.stderr)
            if done.returncode:
                return [], normalize(missing[1]) if missing else ""
            return [str(each) for each in json.loads(answer.read_text(encoding="utf-8"))], ""
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return [], ""
