"""Find the wheels of a project for a host with uv: markers, tags and glibc are the host's, not this machine's.

`uv pip compile` chooses versions from a pyproject.toml or a requirements.txt. A uv.lock or pylock.toml has chosen them:
then uv sees an index that has its files alone, so it only chooses among them, and asks no server.
"""

from __future__ import annotations

import functools
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterfn.environment import cuda, older_versions, solver_tools, uv
from clusterfn.environment.conda_solver import MANY, OLDEST_GLIBC, SolveTarget
from clusterfn.environment.lock import Unsolved
from clusterfn.environment.project import PIP_LINES, PYPROJECT, REQUIREMENTS, UV_LOCK, ProjectFile, normalize
from clusterfn.environment.specification import Specification
from clusterfn.environment.toml_file import load_toml
from clusterfn.environment.uv_settings import has_index_variables, names_indexes
from clusterfn.environment.wheel_files import (
    Wheel,
    address_of,
    check_hashes,
    entries_of_one_version,
    file_name,
    hash_of_local,
    repository_error,
    stand_ins,
    version_of,
    wheel_rank,
    without_password,
    write_index,
    write_stand_ins,
)
from clusterfn.errors import LockError

Say = Callable[[str], None]

_MACHINES = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
# Platforms without glibc, for a lock that serves other machines than the host, too.
_OTHERS = {
    "osx-64": "x86_64-apple-darwin", "osx-arm64": "aarch64-apple-darwin", "win-64": "x86_64-pc-windows-msvc",
}  # fmt: skip
_GLIBC = (17, 28, *range(31, 41))  # the minor versions that uv knows
_STAND_INS = "brought-by-conda"
_STALE = "needs to be updated"
_UNREADABLE = "Building source distributions is disabled"


def uv_platform(target: SolveTarget) -> str:
    """Return a host's platform as uv names it: uv knows some versions of glibc, and an older one fits, too.

    Raises:
        LockError: uv knows no such platform.

    Example:
        >>> uv_platform(SolveTarget("linux-64", "2.27", None, "3.11"))
        'x86_64-manylinux_2_17'
    """
    if target.platform in _OTHERS:
        return _OTHERS[target.platform]
    machine = _MACHINES.get(target.platform)
    numbers = [int(part) for part in re.findall(r"\d+", target.glibc or OLDEST_GLIBC)[:2]]
    fitting = [minor for minor in _GLIBC if [2, minor] <= numbers]
    if machine is None or not fitting:
        what = target.platform if machine is None else f"glibc {target.glibc}"
        raise LockError(
            f"uv resolves nothing for {what}", hint="name conda's packages, in an environment.yml or in packages="
        )
    return f"{machine}-manylinux_2_{fitting[-1]}"


@dataclass(frozen=True)
class WheelFinder:
    """Finds the wheels of a project for one host.

    Args:
        say: Called with sentences about what is not among them, and what takes long.

    Raises:
        LockError: uv can neither be found nor be installed.
    """

    spec: Specification
    project: ProjectFile
    target: SolveTarget
    say: Say

    @functools.cached_property
    def program(self) -> str:
        """The path of uv."""
        return uv.find_uv(self.say)

    @functools.cached_property
    def _checked(self) -> set[str]:
        """The Pythons for which it is known that nothing without a wheel holds others back."""
        return set()

    @functools.cached_property
    def pip(self) -> solver_tools.PipConfig:
        """pip's settings, for which pip has to be asked."""
        return solver_tools.pip_config()

    def find(self, python: str, provided: Mapping[str, str] | None = None) -> list[Wheel]:
        """Return the wheels in the order of their names.

        Args:
            python: A version of Python, "3.11.7".
            provided: name -> version of what the environment has without them.

        Raises:
            Unsolved: There are none.
            LockError: An index does not answer, a file has another hash than the user allows, or a uv.lock is out of
                date.
            ConfigError: uv's own settings cannot be read.
        """
        with tempfile.TemporaryDirectory(prefix="clusterfn-uv-") as name:
            folder = Path(name)
            if self.project.is_locked:
                found = self._choose(folder, python)
            else:
                found = self._resolve(folder, python, provided or {})
            wheels = sorted(self._wheels(found, folder), key=lambda each: each.name)
            torch = next((each for each in wheels if each.name == "torch"), None)
            narrowed = self.target.torch.narrow(torch.version) if torch and self.target.torch else None
        if narrowed:
            spec, target = self.spec.with_wheels(*narrowed), replace(self.target, torch=None)
            return replace(self, spec=spec, target=target).find(python, provided)
        check_hashes(wheels, self.project)
        return wheels

    def _resolve(self, folder: Path, python: str, provided: Mapping[str, str]) -> dict[str, Any]:
        """Let uv choose versions and wheels."""
        project, made = self.project, folder / "pylock.made.toml"
        pips = project.kind in (REQUIREMENTS, PIP_LINES)
        own = (False, False) if pips else names_indexes(project.path.parent)
        pip = self.pip
        variables = uv.variables_with_indexes(pip, has_indexes=own[0], has_default=own[1] or self.spec.replaces_index)
        more = ["--no-config"] if pips else []  # pip does not read uv's settings
        more += ["--no-index"] if not pip.indexes and not any(own) else []
        # As pip does: the best version of all its indexes. If the user names an index to uv, uv's rule stays: the
        # first index that has a package counts alone. So no stranger's package replaces a private one of its name.
        if (pips or len(pip.indexes) > 1) and not (own[0] or has_index_variables()):
            more += ["--index-strategy", "unsafe-best-match"]
        if provided:
            more += ["--constraint", str(write_stand_ins(provided, folder / _STAND_INS))]
        argv = [*self._wanted(folder), *more, *self._choices(folder), "-o", str(made)]
        given = "\n".join([*(text for text, _ in project.lines), ""])
        reply = self._compile(argv, python, project.path.parent, variables, given)
        if reply.status and project.kind == PYPROJECT and _UNREADABLE in reply.text:  # or a requirement in it is bad
            lines = folder / "lines.txt"
            lines.write_text("\n".join(each.text for each in self.spec.pip) + "\n", encoding="utf-8")
            why = self._compile([lines.name, "--no-deps", "--no-index", "--no-config"], python, folder, variables)
            reply = why if why.status not in (0, 1) else reply
        if reply.status:
            raise self._failure(reply)
        found = load_toml(made)

        def again(constraints: Sequence[str], flags: Sequence[str]) -> tuple[uv.UvResult, dict[str, Any]]:
            file, other = folder / "more.txt", folder / "pylock.again.toml"
            file.write_text("\n".join([*constraints, ""]), encoding="utf-8")
            words = [*argv[:-1], str(other), *flags, "--constraint", str(file)]
            reply = self._compile(words, python, project.path.parent, variables, given)
            return reply, {} if reply.status else load_toml(other)

        def alone(lines: Sequence[str], flags: Sequence[str]) -> tuple[uv.UvResult, dict[str, Any]]:
            other = folder / "pylock.newest.toml"
            early = ["--prerelease", "allow"] if project.prerelease else []
            words = ["-", *more, *early, *flags, "-o", str(other)]
            reply = self._compile(words, python, project.path.parent, variables, "\n".join([*lines, ""]))
            return reply, {} if reply.status else load_toml(other)

        minor = python.rpartition(".")[0]
        instead, reasons = ("", []) if minor in self._checked else older_versions.find_culprit(found, again, alone)
        self._checked.add(minor)
        if instead:
            raise Unsolved(LockError(
                f"{self.spec.title}: uv would take {instead}, as something has no wheel", evidence=reasons[:MANY],
                hint=f"{older_versions.way_to_a_wheel(' '.join(reasons))}; or name the older version",
            ))  # fmt: skip
        return found

    def _wanted(self, folder: Path) -> list[str]:
        """Return the file that uv reads, with the extras and groups of it.

        uv does not run the build backend of a pyproject.toml here, but that of an editable project.
        """
        project = self.project
        if project.kind in (REQUIREMENTS, PIP_LINES):
            return ["-"]
        groups = _flags("--group", project.groups)
        if not project.is_dynamic:
            return [project.path.name, *_flags("--extra", project.extras), *groups]
        wanted = folder / "wanted.txt"
        extras = f"[{','.join(project.extras)}]" if project.extras else ""
        wanted.write_text(f"-e {project.path.parent.absolute()}{extras}\n", encoding="utf-8")
        return [str(wanted), *groups]

    def _choices(self, folder: Path) -> list[str]:
        """Return the flags for the user's own packages, and for what was chosen for this host."""
        flags = ["--prerelease", "allow"] if self.project.prerelease else []
        flags += _flags("--no-binary", self.project.local)  # only these may be built, to read what they depend on
        if self.spec.pins:
            pins = folder / "pins.txt"
            pins.write_text("\n".join(self.spec.pins) + "\n", encoding="utf-8")
            flags += ["--constraint", str(pins)]
        for index in self.spec.chosen_indexes:
            official = index.startswith(cuda.INDEX)
            tag = index.rstrip("/").rpartition("/")[2]
            flags += ["--torch-backend", tag] if official else ["--index", index]
        return flags

    def _choose(self, folder: Path, python: str) -> dict[str, Any]:
        """Let uv choose among the wheels of a lock, from an index in a folder that has these alone."""
        tree, base = self._locked
        self._say_local(tree)
        beside = entries_of_one_version(tree)
        if beside:
            named = {f"entry-{number}": entry for number, entry in enumerate(beside)}
            holding = self._choose_from(stand_ins(named), base, folder / "entries", python)
            names = {str(each["name"]) for each in holding.get("packages", [])}
            others = [entry for name, entry in named.items() if name not in names]
            tree = {**tree, "packages": [each for each in tree["packages"] if each not in others]}
        return self._choose_from(tree, base, folder / "chosen", python)

    def _choose_from(self, tree: Mapping[str, Any], base: Path, folder: Path, python: str) -> dict[str, Any]:
        folder.mkdir()
        lines = list(write_index(tree, base, folder / "simple", self.spec.title))
        wanted, made = folder / "wanted.txt", folder / "pylock.made.toml"
        wanted.write_text("\n".join(lines) + "\n", encoding="utf-8")
        argv = [wanted.name, "--no-deps", "--no-config", "--default-index", (folder / "simple").as_uri()]
        reply = self._compile([*argv, "-o", str(made)], python, folder, uv.plain_variables())
        if reply.status:
            raise self._failure(reply)
        return load_toml(made)

    def _compile(
        self, argv: Sequence[str], python: str, folder: Path, variables: Mapping[str, str], given: str = ""
    ) -> uv.UvResult:
        return self._run([
            "pip", "compile", *argv, "--format", "pylock.toml", "--no-header", "--only-binary", ":all:",
            "--python-platform", uv_platform(self.target), "--python-version", python, "--python", sys.executable,
        ], folder, uv.without_choices(variables), given)  # fmt: skip

    @functools.cached_property
    def _locked(self) -> tuple[dict[str, Any], Path]:
        """What the lock has, as a pylock.toml would, and the folder from which its paths count."""
        path = self.project.path
        if self.project.kind != UV_LOCK:
            return load_toml(path), path.parent
        with tempfile.TemporaryDirectory(prefix="clusterfn-uv-") as name:
            exported = self._exported(Path(name))
            return load_toml(exported), exported.parent

    def _exported(self, folder: Path) -> Path:
        """Write what a uv.lock has as a pylock.toml.

        Raises:
            LockError: It is out of date.
        """
        made, project = folder / "pylock.exported.toml", self.project
        argv = [
            "export", "--format", "pylock.toml", "--no-header", "--no-emit-project", "--no-default-groups",
            *_flags("--extra", project.extras), *_flags("--group", project.groups), "-o", str(made),
        ]  # fmt: skip
        variables = uv.variables_with_indexes(solver_tools.PipConfig(()), has_indexes=True, has_default=True)
        reply = self._run([*argv, "--locked", "--python", sys.executable], project.path.parent, variables)
        if reply.status and _STALE in reply.text:
            raise LockError(
                f"{project.path.name} is out of date: {PYPROJECT} has changed since", evidence=reply.lines[:MANY],
                hint=f"run `uv lock` in {project.path.parent}",
            )  # fmt: skip
        if reply.status:  # uv checks with a Python that fits the project alone, and may need the network
            frozen = self._run([*argv, "--frozen"], project.path.parent, variables)
            if frozen.status:
                raise self._failure(frozen)
            self.say(f"{project.path.name} may be out of date, uv cannot check it here: {reply.lines[0]}")
        return made

    def _run(
        self, argv: Sequence[str], folder: Path, variables: Mapping[str, str], given: str = ""
    ) -> uv.UvResult:
        def waiting(seconds: float) -> None:
            self.say(f"still resolving {self.spec.title} ({seconds:.0f} s)")

        return uv.run([self.program, *argv, "--quiet"], folder, variables, waiting, given)

    def _failure(self, reply: uv.UvResult) -> Exception:
        title = self.spec.title
        lines = [line.replace(" in `-` at position 0", "") for line in reply.lines[:MANY]]
        if reply.unreachable:
            return LockError(
                f"{title} could not be locked: a package index cannot be reached", evidence=lines,
                hint="check your network, proxy and certificate settings, and the address if it is yours, then call "
                f"again; without network: run `clusterfn env lock {shlex.quote(title)}` on another machine, and copy "
                "its lock",
            )  # fmt: skip
        if reply.status != 1:
            return LockError(f"{title} could not be locked: uv rejects it", evidence=lines,
                             hint="correct what uv names above")  # fmt: skip
        hint, torch = "loosen or correct the packages named above", self.spec.wheel("torch")
        if torch and "+" in torch.exact and not self.spec.indexes:
            index = f"{cuda.INDEX}{torch.exact.partition('+')[2]}"
            hint = f'{torch.text} is not on PyPI: name its index too, "--extra-index-url {index}"'
        elif self.spec.replaces_index:
            hint = "--index-url replaces PyPI, as for pip; --extra-index-url searches both"
        if older_versions.names_no_wheel(reply.text):
            hint = older_versions.way_to_a_wheel(reply.text)
        return Unsolved(LockError(f"there is no solution for {title}", evidence=lines, hint=hint))

    def _wheels(self, found: Mapping[str, Any], folder: Path) -> Iterator[Wheel]:
        """Read what uv wrote: one wheel for each package."""
        self._say_local(found)
        for package in found.get("packages", []):
            name = normalize(str(package["name"]))
            if "directory" in package:
                continue
            if "vcs" in package:
                raise repository_error(name, package["vcs"], self.spec.title)
            files = [*package.get("wheels", []), *([package["archive"]] if "archive" in package else [])]
            if any(_STAND_INS in str(file.get("path") or file.get("url")) for file in files):
                continue  # conda brings it
            best = max(files, key=lambda file: wheel_rank(file_name(address_of(file, folder))))
            url = without_password(address_of(best, folder))
            version = str(package.get("version", "")) or version_of(file_name(url))
            sha256 = str(best.get("hashes", {}).get("sha256", "")).lower()
            yield Wheel(name, version, url, sha256 or hash_of_local(url))

    def _say_local(self, found: Mapping[str, Any]) -> None:
        """Say which packages are the user's own: they are sent as source, if they are editable or beside the script."""
        local = {normalize(str(each["name"])): each["directory"] for each in found.get("packages", [])
                 if "directory" in each}  # fmt: skip
        if local:
            self.say(f"{', '.join(sorted(local))}: clusterfn sends local packages as source")
        copied = sorted(name for name, directory in local.items() if not directory.get("editable"))
        if copied:
            self.say(
                f"{', '.join(copied)}: make it editable (editable = true, or -e), as clusterfn sends no copy of it"
            )


def _flags(flag: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]
