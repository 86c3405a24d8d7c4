"""Resolve the environment of a call on its host: an existing one, one to be made, or, if none is named, one that fits.

Asks the host each thing once per process; makes nothing on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from clusterfn.config.spec import Interpreter
from clusterfn.environment import existing
from clusterfn.environment.existing import CALLER, ExistingEnvironment
from clusterfn.errors import EnvironmentBuildError, LockError

if TYPE_CHECKING:
    from clusterfn.environment.python_source import PythonSource
    from clusterfn.environment.resolve import LockedEnvironment
    from clusterfn.environment.specification import Specification
    from clusterfn.hosts.connection import ConnectedHost

Say = Callable[[str], None]

_TIMEOUT_S = 60.0


class EnvironmentRequest(NamedTuple):
    """What a call says about its environment.

    Attributes:
        text: `environment=`; None for the host's own.
        packages: `packages=`.
        gpus: How many GPUs the job asks for: the build of PyTorch depends on them.
        imports: Gives the top-level names of the modules that the call needs.
    """

    text: str | None = None
    packages: tuple[str, ...] = ()
    gpus: int = 0
    imports: Callable[[], Iterable[str]] = tuple


class ResolvedEnvironment(NamedTuple):
    """An environment that can be used on the host.

    Attributes:
        interpreter: Its Python, with the variables that make it complete.
        folders: What must be laid out first: absolute path -> files, each executable.
        made: The lock that it is made from; None if clusterfn did not make it.
    """

    interpreter: Interpreter
    folders: Mapping[str, Mapping[str, bytes]]
    made: LockedEnvironment | None = None


class EnvironmentResolver:
    """The environments of one host, as this process knows them."""

    def __init__(self, session: ConnectedHost) -> None:
        self._session = session
        self._known: dict[str, ResolvedEnvironment] = {}
        # by `environment=` and `packages=`
        self._named: dict[tuple[str | None, tuple[str, ...]], ResolvedEnvironment | None] = {}
        self._pythons: dict[tuple[str | None, tuple[str, ...]], tuple[int, int]] = {}
        self._pythons_of_host: dict[str, PythonSource] = {}  # by what is wanted: each call names it again
        self._outdated = False
        self._finding = threading.Lock()  # held while the host is asked, so never by a thread that delivers answers

    def expected_python(self, wanted: EnvironmentRequest) -> tuple[int, int] | None:
        """Return the Python of an environment that exists on the host, or was resolved before; else None."""
        with self._finding:
            named = self._named_on_host(wanted)
        return named.interpreter.version if named else self._pythons.get((self._text(wanted), wanted.packages))

    def early_probe(self, wanted: EnvironmentRequest) -> Sequence[str]:
        """Return the command that finds the existing environment that is named, if it has not been found yet.

        Raises:
            ConfigError: No such kind of environment.
        """
        text = self._text(wanted)
        if (text, wanted.packages) in self._named or wanted.packages or not existing.is_existing(text):
            return ()
        spec = existing.parse_existing(text, self._session.host.scheduler)
        return () if spec.kind == "found" else ExistingEnvironment(spec).probe()

    def find(self, wanted: EnvironmentRequest, say: Say) -> ResolvedEnvironment:
        """As `HostState.environment`."""
        with self._finding:
            if self._outdated:
                self._outdated = False
                self._known = {key: ready for key, ready in self._known.items() if ready.made is None}
            found = self._named_on_host(wanted) or self._find(wanted, say)
            self._pythons[self._text(wanted), wanted.packages] = found.interpreter.version
            return found

    def _text(self, wanted: EnvironmentRequest) -> str | None:
        return wanted.text or (None if wanted.packages else self._session.host.environment)

    def _named_on_host(self, wanted: EnvironmentRequest) -> ResolvedEnvironment | None:
        """Return the existing environment that the call or its host names; None if they name none."""
        key = text, packages = self._text(wanted), wanted.packages
        if key not in self._named:
            is_existing = not packages and existing.is_existing(text)
            spec = existing.parse_existing(text, self._session.host.scheduler) if is_existing else None
            self._named[key] = (
                self.resolve_existing(ExistingEnvironment(spec)) if spec and spec.kind != "found" else None
            )
        return self._named[key]

    def _find(self, wanted: EnvironmentRequest, say: Say) -> ResolvedEnvironment:
        text = self._text(wanted)
        if wanted.packages or not existing.is_existing(text):
            from clusterfn.environment import resolve  # it, and what it needs, takes time to import

            return self.resolve_made(resolve.read_specification(text, wanted.packages), wanted.gpus, say)
        return self._found_or_made(wanted, say)

    def forget(self) -> None:
        """Choose again what was made for unknown GPUs: they are known now. Does not block."""
        self._outdated = True

    def resolve_existing(self, environment: ExistingEnvironment) -> ResolvedEnvironment:
        key = environment.key()
        if key not in self._known:
            connection, probe = self._session.connection, environment.probe()
            asked = connection.probed(probe) or connection.run(probe, timeout_s=_TIMEOUT_S)
            answer = asked.result(_TIMEOUT_S)
            try:
                found = environment.verification(answer.rc, answer.out, answer.err)
            except EnvironmentBuildError as error:
                error.host = self._session.host.name
                raise
            root = self._session.root
            interpreter = Interpreter(found.path, found.version, environment.activation(found, root))
            self._known[key] = ResolvedEnvironment(interpreter, environment.plan(found, root))
        return self._known[key]

    def resolve_made(self, spec: Specification, gpus: int, say: Say) -> ResolvedEnvironment:
        from clusterfn.environment import resolve
        from clusterfn.hosts import environment_facts

        asked = f"{spec.title} {spec.input_hash}"
        if asked not in self._pythons_of_host:
            self._pythons_of_host[asked] = environment_facts.with_python(self._session, spec, CALLER).python
        spec = replace(spec, python=self._pythons_of_host[asked])
        key = f"{bool(gpus)} {resolve.fingerprint_files(spec)}"
        if key not in self._known:
            made = environment_facts.lock_environment(self._session, spec, gpus, CALLER, say)
            if made.base and not spec.python.found:  # no other place gave a Python
                spec = replace(spec, python=replace(spec.python, found=made.base))
                self._pythons_of_host[asked] = spec.python
            key = f"{bool(gpus)} {resolve.fingerprint_files(spec)}"  # the lock may have been written just now
            self._known[key] = ResolvedEnvironment(made.interpreter, {}, made)
        return self._known[key]

    def _found_or_made(self, wanted: EnvironmentRequest, say: Say) -> ResolvedEnvironment:
        """Find the host's Python of the caller's version if it has what the function imports; else make one."""
        from clusterfn.environment import imports

        names = set(wanted.imports())
        needed = imports.needed(names)
        try:
            return self.resolve_existing(
                ExistingEnvironment(existing.parse_existing(None, self._session.host.scheduler), needed)
            )
        except EnvironmentBuildError as lacking:
            from clusterfn.environment import resolve

            say(f"{self._session.host.name}: {lacking.message}")
            spec = resolve.with_own_channels(imports.automatic(names, CALLER))
            try:
                return self.resolve_made(spec, wanted.gpus, say)
            except LockError as error:
                lacking.evidence = (*lacking.evidence, f"none could be built: {error.message}", *error.evidence)
                by_pip = f"python{'.'.join(map(str, CALLER))} -m venv ~/v"
                if spec.pip:
                    by_pip += f"; ~/v/bin/pip install {' '.join(each.name for each in spec.pip)}"
                lacking.hint = f'{error.hint}; or create one on the host ({by_pip}) and set environment="venv:~/v"'
                raise lacking from error
