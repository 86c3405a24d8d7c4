"""Resolve the environment of a call on its host: an existing one, one to be made, or, if none is named, one that fits.

Asks the host each thing once per process; makes nothing on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from clusterfn.environment import existing
from clusterfn.environment.existing import CALLER, ExistingEnvironment
from clusterfn.errors import EnvironmentBuildError, LockError

if TYPE_CHECKING:
    from clusterfn.config.spec import Interpreter
    from clusterfn.environment.resolve import LockedEnvironment
    from clusterfn.environment.specification import Specification
    from clusterfn.hosts.host_state import HostState

Say = Callable[[str], None]

_TIMEOUT_S = 60.0


class EnvironmentRequest(NamedTuple):
    """What a call says about its environment."""

    text: str | None = None  # `environment=`; None for the host's own
    packages: tuple[str, ...] = ()  # `packages=`
    gpus: int = 0  # how many GPUs the job asks for: the build of PyTorch depends on them
    imports: Callable[[], Iterable[str]] = tuple  # gives the top-level names of the modules that the call needs


class ResolvedEnvironment(NamedTuple):
    """An environment that can be used on the host."""

    interpreter: Interpreter  # its Python, with the variables that make it complete
    folders: Mapping[str, Mapping[str, bytes]]  # to be laid out first: absolute path -> files, each executable
    made: LockedEnvironment | None = None  # the lock that it is made from; None if clusterfn did not make it


class EnvironmentResolver:
    """The environments of one host, as this process knows them."""

    def __init__(self, session: HostState) -> None:
        self._session = session
        self._known: dict[ExistingEnvironment | str, ResolvedEnvironment] = {}
        # by `environment=` and `packages=`
        self._pythons: dict[tuple[str | None, tuple[str, ...]], tuple[int, int]] = {}
        self._outdated = False
        # It is held while the host is asked, so no thread that delivers answers may take it.
        self._finding = threading.Lock()

    def expected_python(self, wanted: EnvironmentRequest) -> tuple[int, int] | None:
        """Return the Python of an environment that exists on the host, or was resolved before; else None."""
        text, named = self._named(wanted)
        if named is None:
            return self._pythons.get((text, wanted.packages))
        with self._finding:
            return self.resolve_existing(named).interpreter.version

    def find(self, wanted: EnvironmentRequest, say: Say = lambda _: None) -> ResolvedEnvironment:
        """Find the environment of a call on the host, once in a process, or lock it so that it can be made there.

        Args:
            wanted: What the call says of it; its silence means the host's own.
            say: Gets sentences about what takes time, and what was decided.

        Raises:
            ConfigError: No such kind of environment.
            LockError: It cannot be locked.
            EnvironmentBuildError: It does not exist, or cannot be built.
        """
        with self._finding:
            if self._outdated:
                self._outdated = False
                self._known = {key: ready for key, ready in self._known.items() if ready.made is None}
            text, named = self._named(wanted)
            if named:
                found = self.resolve_existing(named)
            elif wanted.packages or not existing.is_existing(text):
                # It takes time to import, with what it needs, and many calls make no environment.
                from clusterfn.environment import resolve

                found = self.resolve_made(resolve.read_specification(text, wanted.packages), wanted.gpus, say)
            else:
                found = self._found_or_made(wanted, say)
            self._pythons[text, wanted.packages] = found.interpreter.version
            return found

    def _named(self, wanted: EnvironmentRequest) -> tuple[str | None, ExistingEnvironment | None]:
        """Return `environment=` of the call or its host, and the existing environment that it names, if it does."""
        text = wanted.text or (None if wanted.packages else self._session.host.environment)
        if wanted.packages or not existing.is_existing(text):
            return text, None
        named = existing.parse_existing(text, self._session.host.scheduler)
        return text, named if named.kind != "found" else None

    def forget(self) -> None:
        """Choose again what was made for unknown GPUs: they are known now. Does not block."""
        # The thread that calls this delivers answers, so it must not wait for the lock.
        self._outdated = True

    def resolve_existing(self, environment: ExistingEnvironment) -> ResolvedEnvironment:
        if environment not in self._known:
            connection, probe = self._session.connection, environment.probe()
            answer = connection.run(probe, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
            try:
                found = environment.read(answer.rc, answer.out, answer.err, self._session.root)
            except EnvironmentBuildError as error:
                error.host = self._session.host.name
                raise
            self._known[environment] = ResolvedEnvironment(*found)
        return self._known[environment]

    def resolve_made(self, spec: Specification, gpus: int, say: Say) -> ResolvedEnvironment:
        from clusterfn.hosts import environment_facts

        key = f"{bool(gpus)} {spec.title} {spec.input_hash}"
        known = self._known.get(key)
        if known is None or known.made is None or known.made.lock.is_changed():
            made = environment_facts.lock_environment(self._session, spec, gpus, say)
            self._known[key] = known = ResolvedEnvironment(made.interpreter, {}, made)
        return known

    def _found_or_made(self, wanted: EnvironmentRequest, say: Say) -> ResolvedEnvironment:
        """Find the host's Python of the caller's version if it has what the function imports; else make one."""
        from clusterfn.environment import packages

        imports = set(wanted.imports())
        try:
            own = existing.parse_existing(None, self._session.host.scheduler)
            return self.resolve_existing(own._replace(needed=tuple(packages.needed(imports))))

        except EnvironmentBuildError as lacking:
            say(f"{self._session.host.name}: {lacking.message}")
            spec = packages.automatic(imports, CALLER)
            try:
                return self.resolve_made(spec, wanted.gpus, say)
            except LockError as error:
                lacking.evidence = (*lacking.evidence, f"none could be built: {error.message}", *error.evidence)
                names = " ".join(each.name for each in spec.pip)
                by_pip = f"python{'.'.join(map(str, CALLER))} -m venv ~/v"
                by_pip += f"; ~/v/bin/pip install {names}" if names else ""
                create = f'create one on the host ({by_pip}) and set environment="venv:~/v"'
                lacking.hint = f"{error.hint}; or {lacking.hint if lacking.message == existing.NO_PYTHON else create}"
                raise lacking from error
