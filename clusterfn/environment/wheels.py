"""Solve what wants wheels: first what they run on, then the wheels by uv, for the host and not for this machine.

The lines of pip in an environment.yml, or in `packages=`, run on packages of conda. uv sees a stand-in for each of
those, so that it neither replaces one nor brings one twice. A project's file runs on a Python alone, from
python-build-standalone or the host: the caller's minor version, or the nearest that has a solution.

`WheelFinder` finds the files of a project with uv: markers, tags and glibc are the host's.
`uv pip compile` chooses versions from a pyproject.toml or a requirements.txt. A uv.lock or pylock.toml has chosen them:
then markers and tags decide, and no server is asked. What has no wheel stays a source distribution, which the host
builds.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterfn.bridge.builder.plan import masked
from clusterfn.environment import conda_solver, download, package_sources, source_distributions, standalone_python, uv
from clusterfn.environment import lock as locks
from clusterfn.environment.conda_solver import MANY, Say, SolveTarget, unreachable
from clusterfn.environment.lock import WHEEL, EnvironmentLock, LockedPackage, Unsolved
from clusterfn.environment.project import PIP_LINES, PYPROJECT, REQUIREMENTS, UV_LOCK, ProjectFile, load_toml, normalize
from clusterfn.environment.python_source import STANDALONE, nearest_minors
from clusterfn.environment.source_distributions import Solve
from clusterfn.environment.specification import Specification, conda_requirement
from clusterfn.environment.uv import PEP_440, check_hashes, choose_file, packages_for, write_placeholders
from clusterfn.errors import LockError

_PLACEHOLDERS = "brought-by-conda"
_NAMES_PACKAGES = ("-c", "--constraint", "-e", "--editable")
# uv writes the first lines, and a build backend the last ones.
_FIRST = 3
_GIT_FAILED = "Git operation failed"
_STALE = "needs to be updated"
_NO_EXTRA = re.compile(r"The package `([\w.-]+) @ [^`]*` does not have an extra named")


def solve_with_wheels(
    spec: Specification, target: SolveTarget, before: EnvironmentLock | None, say: Say
) -> list[LockedPackage]:
    """Return the packages for the host; a project keeps the Python of the lock before, if that fits.

    Raise LockError if there is no solution, a tool is missing, or a channel, an index or the mirror does not answer.
    """
    # uv may say the same twice.
    project = spec.wheels
    once = functools.lru_cache(maxsize=None)(say)
    assert project is not None, "only what wants wheels is solved so"
    if unread := package_sources.unread_settings():
        once(unread)
    finder = WheelFinder(spec, project, target, once)
    near = int(target.python.split(".")[1])
    found = spec.python.found
    minors = [target.python] if spec.wants_python else nearest_minors(project, near)
    if found:
        minors = [found.version]
    first: LockError | None = None
    tried: set[str] = set()
    for minor in minors:
        try:
            if spec.project:
                base = [_python_for(finder, minor, before)]
            else:
                # Users of a `pip:` section expect that their environment has pip.
                has_pip = any(requirement.name == "pip" for requirement in spec.conda)
                more = [] if has_pip else [conda_requirement("pip")]
                conda = replace(spec, conda=(*spec.conda, *more))
                base = conda_solver.solve(conda, replace(target, python=minor), say)
            python = next(package.version for package in base if package.name == "python")
            if python not in tried:
                tried.add(python)
                wheels = _wheels_for(finder, base, python)
                # The mirror is asked last, once it is known that there is a solution.
                if base[0].manager == STANDALONE and not base[0].sha256:
                    base = [standalone_python.with_hash(base[0], once)]
                return [*base, *wheels]
        except Unsolved as unsolved:
            first = first or unsolved
    assert first is not None, "there is at least one Python to try"
    raise LockError(first.message, evidence=first.evidence, hint=first.hint)


def _wheels_for(finder: WheelFinder, base: Sequence[LockedPackage], python: str) -> list[LockedPackage]:
    """Return the wheels, without those that conda brings."""
    if finder.spec.project:
        # Markers may ask for the patch version of Python, so it is given in full.
        return finder.find(python)
    if not finder.project.lines:
        return []
    known: Mapping[str, str] = json.loads(Path(__file__).with_name("pypi_names.json").read_text(encoding="utf-8"))
    provided: dict[str, str] = {}
    for package in base:
        # An index may have another name for what conda brings, or several.
        names = [pypi for pypi, conda in known.items() if conda == package.name]
        if package.name not in known:
            names.append(normalize(package.name))
        provided.update(dict.fromkeys(names, package.version))
    found, placeholders = finder.find(python, provided), provided
    # Only the index knows what an extra wants, so uv resolves conda's version from there.
    while finder.extended & placeholders.keys():
        placeholders = {name: version for name, version in provided.items() if name not in finder.extended}
        versions = [(name, provided[name]) for name in sorted(finder.extended)]
        pins = [f"{name}=={version}" for name, version in versions if PEP_440.fullmatch(version)]
        finder = replace(finder, spec=replace(finder.spec, pins=(*finder.spec.pins, *pins)))
        found = finder.find(python, placeholders)
    return [package for package in found if package.name not in provided]


def _python_for(finder: WheelFinder, minor: str, before: EnvironmentLock | None) -> LockedPackage:
    """Return a Python for a project; one that is new to its lock has no hash yet."""
    found = finder.spec.python.found
    platform = finder.target.platform
    if found:
        finder.say(f"Python {found.version} is the host's own: {found.path} (glibc {found.glibc})")
        return LockedPackage("python", found.version, locks.HOST, "", "", platform)
    # Only the deletion of a lock changes its Python.
    for package in before.on(platform) if before else ():
        if package.name == "python" and package.manager == STANDALONE and package.version.startswith(f"{minor}."):
            return package
    return standalone_python.find_python(minor, platform, finder.project.path.parent)


@dataclass(frozen=True)
class WheelFinder:
    """Finds the wheels of a project for one host.

    Attributes:
        say: Called with sentences about what is not among them, and what takes long.
        extended: What conda brings and of which something wants an extra, as far as it was found out.
    """

    spec: Specification
    project: ProjectFile
    target: SolveTarget
    say: Say
    extended: set[str] = field(default_factory=set, compare=False)

    @property
    def _parts(self) -> list[str]:
        extras, groups = self.project.extras, self.project.groups
        return [*(f"--extra={extra}" for extra in extras), *(f"--group={group}" for group in groups)]

    def find(self, python: str, provided: Mapping[str, str] | None = None) -> list[LockedPackage]:
        """Return the wheels for a Python, "3.11.7", in the order of their names.

        Args:
            provided: name -> version of what the environment has without them.

        Raises:
            Unsolved: There are none.
            LockError: An index does not answer, a hash is not among the user's, or a uv.lock is out of date.
            ConfigError: uv's own settings cannot be read.
        """
        with tempfile.TemporaryDirectory(prefix="clusterfn-uv-") as name:
            folder = Path(name)
            platform = uv.platform_of(self.target)
            solve = self._solver(folder, python, provided or {})
            if self.project.is_locked:
                tree, base = self._locked
                found = packages_for(tree, self.project, python, platform)
            else:
                first, base = solve(), folder
                if first.status:
                    # Where uv cannot read a line of a pyproject.toml, it asks the build backend, and reports what that
                    # says.
                    wanted = self.spec.pip if self.project.kind == PYPROJECT else ()
                    texts = [requirement.text for requirement in wanted]
                    why = solve("--no-deps", lines=texts) if texts else first
                    raise self._failure(first if why.status in (0, 1) else why)
                minor = ".".join(python.split(".")[:2])
                best, changed = source_distributions.prefer_wheels(first.found, solve, platform, minor)
                for sentence in changed:
                    self.say(f"{self.spec.title}: {sentence}")
                found = best.get("packages", [])
            wheels = sorted(self._wheels(found, base, python), key=lambda wheel: wheel.name)
            torch = next((wheel for wheel in wheels if wheel.name == "torch"), None)
            narrowed = self.target.torch(torch.version) if torch and self.target.torch else None
            if not narrowed:
                wheels = [
                    self._with_builds(wheel, wheels, solve, folder, python) if wheel.is_source else wheel
                    for wheel in wheels
                ]
        # uv has chosen a PyTorch that does not run there, so all is resolved once more with one that does.
        if narrowed:
            pins = (*self.spec.pins, f"torch=={narrowed.torch}.*")
            spec = replace(self.spec, pins=pins, torch_backend=narrowed.backend)
            return replace(self, spec=spec, target=replace(self.target, torch=None)).find(python, provided)
        check_hashes(wheels, self.project)
        return wheels

    @property
    def _flags(self) -> list[str]:
        """What makes lines that name an index mean what they mean to pip: the best version of all that are named.

        uv's own rule is safer, as no stranger's package replaces a private one of its name: the first index that has a
        package counts alone. It stays where the user has named an index to uv.
        """
        named = self.spec.indexes if self.project.kind in (REQUIREMENTS, PIP_LINES) else ()
        is_of_pip = named and not any(map(os.environ.get, package_sources.MORE_INDEXES))
        return ["--no-config", "--index-strategy", "unsafe-best-match"] if is_of_pip else []

    def _solver(self, folder: Path, python: str, provided: Mapping[str, str]) -> Solve:
        """Return a function that resolves the requirements, or other lines, with the settings of the project."""
        project = self.project
        numbers = itertools.count()
        brought = write_placeholders(provided, folder / _PLACEHOLDERS) if provided else []
        more = ["--torch-backend", self.spec.torch_backend] if self.spec.torch_backend else []
        more += ["--prerelease", "allow"] if "--pre" in project.lines else []
        wanted = ["-"] if project.kind in (REQUIREMENTS, PIP_LINES) else [project.path.name, *self._parts]
        # uv does not run the build backend of a pyproject.toml here, but that of an editable project.
        if project.is_dynamic:
            extras = f"[{','.join(project.extras)}]" if project.extras else ""
            editable = folder / "wanted.txt"
            editable.write_text(f"-e {project.path.parent.absolute()}{extras}\n", encoding="utf-8")
            wanted = [str(editable), *(f"--group={group}" for group in project.groups)]
        options = [text for text in project.lines if text.startswith("-") and not text.startswith(_NAMES_PACKAGES)]
        variables = {name: value for name, value in uv.plain_variables().items() if name not in uv.OF_CHOICE}
        ours = ["--python-platform", uv.platform_of(self.target), "--python-version", python]

        def solve(*words: str, lines: Sequence[str] = (), limits: Sequence[str] = ()) -> uv.UvResult:
            # uv would keep the versions of an output that is there, so each gets a name of its own.
            number = next(numbers)
            made, constraints = folder / f"pylock.made{number}.toml", folder / f"constraints{number}.txt"
            # What builds has wheels alone, whatever of the environment has to be built.
            barred = "--no-binary" if "--only-binary" in words else "\n"
            kept = [option for option in options if not option.startswith(barred)] if lines else project.lines
            given = "\n".join([*kept, *lines, ""])
            from_lines = ["-"] if lines else wanted
            last = [] if source_distributions.ANYWHERE in words else ours
            form = ["--format", "pylock.toml", "--no-header", "--python", sys.executable, "-o", str(made)]
            argv = ["pip", "compile", *from_lines, *self._flags, *more, *words, *form, *last]
            all_limits = [*self.spec.pins, *brought, *limits]
            # uv warns about an empty file of constraints.
            if all_limits:
                constraints.write_text("\n".join([*all_limits, ""]), encoding="utf-8")
                argv += ["--constraint", str(constraints)]
            reply = self._run(argv, variables, given)
            # An old setup.py that imports pkg_resources can be built only by older setuptools.
            if reply.status and source_distributions.PKG_RESOURCES in reply.text:
                older = folder / "builds.txt"
                older.write_text(f"{source_distributions.WITH_PKG_RESOURCES}\n", encoding="utf-8")
                argv += ["--build-constraints", str(older)]
                reply = self._run(argv, variables, given)
            self.extended.update(map(normalize, _NO_EXTRA.findall(reply.text)))
            return reply if reply.status else replace(reply, found=load_toml(made))

        return solve

    def _with_builds(
        self, wheel: LockedPackage, others: Sequence[LockedPackage], solve: Solve, folder: Path, python: str
    ) -> LockedPackage:
        """Return a source distribution with what builds it."""
        self.say(f"{self.spec.title}: {wheel.name} {wheel.version} has no wheel, so the host builds it once")
        chosen = {package.name: package.version for package in others}

        def start(words: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
            """Start a program in an environment of its own, without what this machine has: no cmake, no compiler."""
            options = [*self._flags, "--isolated", "--no-project", "--quiet", "--python", sys.executable]
            return subprocess.run(
                [uv.find_uv(), "run", *options, *words],
                cwd=self.project.path.parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
                env={**uv.plain_variables(), "PATH": os.devnull},
            )

        unpacked = folder / f"source-{wheel.name}"
        reply = source_distributions.resolve_builds(wheel, unpacked, self.spec.addresses, solve, chosen, start)
        if reply.status:
            raise self._failure(reply, f"what builds {wheel.name} {wheel.version} ({self.spec.title})")
        builds = sorted(self._wheels(reply.found.get("packages", []), folder, python), key=lambda wheel: wheel.name)
        return replace(wheel, builds_with=tuple(builds))

    @functools.cached_property
    def _locked(self) -> tuple[dict[str, Any], Path]:
        """What the lock has, as a pylock.toml would, and the folder from which its paths count."""
        project, folder = self.project, self.project.path.parent
        if project.kind != UV_LOCK:
            return load_toml(project.path), folder
        with tempfile.TemporaryDirectory(prefix="clusterfn-uv-") as name:
            made = Path(name) / "pylock.exported.toml"
            variables = uv.plain_variables()
            of_script = [] if project.path.name == UV_LOCK else ["--script", project.path.stem]
            of_project = [] if of_script else ["--no-emit-project", "--no-default-groups", *self._parts]
            form = ["--format", "pylock.toml", "--no-header"]
            argv = ["export", *of_script, "--quiet", *form, *of_project, "-o", str(made)]
            reply = self._run([*argv, "--locked", "--python", sys.executable], variables)
            if reply.status and _STALE in reply.text:
                what = (
                    f"{project.path.name} is out of date: {of_script[-1] if of_script else PYPROJECT} has changed since"
                )
                hint = f"run `{' '.join(['uv', 'lock', *of_script])}` in {folder}"
                raise LockError(what, evidence=reply.lines[:MANY], hint=hint)
            # uv checks a lock only with a Python that fits the project, and may need the network for it.
            if reply.status:
                frozen = self._run([*argv, "--frozen"], variables)
                if frozen.status:
                    raise self._failure(frozen)
                self.say(f"{project.path.name} may be out of date, uv cannot check it here: {reply.lines[0]}")
            return load_toml(made), made.parent

    def _run(self, argv: Sequence[str], variables: Mapping[str, str], given: str = "") -> uv.UvResult:
        """Run uv in the folder of the project: relative paths and uv's own settings begin there."""
        ended = conda_solver.run_program(
            [uv.find_uv(), *argv],
            lambda seconds: self.say(f"still resolving {self.spec.title} ({seconds:.0f} s)"),
            given=given,
            folder=self.project.path.parent,
            variables=variables,
        )
        return uv.UvResult(ended.returncode, masked(ended.stderr))

    def _failure(self, reply: uv.UvResult, title: str = "") -> Exception:
        title = title or self.spec.title
        lines = [line.replace(" in `-` at position 0", "") for line in reply.lines[:MANY]]
        for number, line in enumerate(self.project.lines, 1):
            lines = [text.replace(f": -:{number}:1", f': "{masked(line)}"') for text in lines]
        if _GIT_FAILED in reply.text:
            said = f"{title} could not be locked: git cannot read a repository that it names"
            return LockError(said, evidence=lines, hint=download.GIT_HINT)
        if reply.unreachable:
            return unreachable(title, "a package index", lines, self.spec)
        if reply.status != 1:
            said = f"{title} could not be locked: uv rejects it"
            return LockError(said, evidence=lines, hint="correct what uv names above")
        hint = "loosen or correct the packages named above"
        torch = self.spec.wheel("torch")
        if torch and "+" in torch.versions and not self.spec.indexes:
            index = f"{package_sources.PYTORCH}{torch.versions.partition('+')[2]}"
            hint = f'{torch.text} is not on PyPI: name its index too, "--extra-index-url {index}"'
        elif self.spec.replaces_index:
            hint = "--index-url replaces PyPI, as for pip; --extra-index-url searches both"
        hint = source_distributions.way_to_a_wheel(reply.text) or hint
        failed = source_distributions.failed_build(reply.text)
        if failed:
            said = f"{title} could not be locked: {failed} has no wheel, and what it depends on cannot be read here"
            return Unsolved(said, evidence=[*reply.lines[:_FIRST], *reply.lines[_FIRST:][-MANY:]], hint=hint)
        return Unsolved(f"there is no solution for {title}", evidence=lines, hint=hint)

    def _wheels(self, found: Sequence[Mapping[str, Any]], folder: Path, python: str) -> Iterator[LockedPackage]:
        """Read packages of a pylock.toml whose paths count from a folder: one file for each, a wheel if it has one."""
        made = functools.partial(LockedPackage, platform=self.target.platform)
        title = self.spec.title
        # The user's own packages are sent as source, if they are editable or beside the script.
        local = {normalize(str(package["name"])): package["directory"] for package in found if "directory" in package}
        if local:
            self.say(f"{', '.join(sorted(local))}: clusterfn sends local packages as source")
        copied = ", ".join(sorted(name for name, directory in local.items() if not directory.get("editable")))
        if copied:
            self.say(f"{copied}: make it editable (editable = true, or -e), as clusterfn sends no copy of it")
        for package in (package for package in found if "directory" not in package):
            name = normalize(str(package["name"]))
            if "vcs" in package:
                commit = download.commit_of(package["vcs"], title)
                packed = download.pack_commit(commit, name, self.spec.addresses)
                yield made(name, str(package.get("version", "0")), WHEEL, commit, packed)
                continue
            version, url, sha256 = choose_file(package, folder, python, uv.platform_of(self.target), title)
            # conda brings the packages for which there are placeholders.
            if _PLACEHOLDERS not in url:
                yield made(name, version, WHEEL, url, sha256)
