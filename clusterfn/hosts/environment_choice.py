"""Resolve the environment of a call on its host: an existing one, one to be made, or, if none is named, one that fits.

Asks the host each thing once, including its GPUs, and asks again after a job has failed because of its environment.
Makes nothing on the host. What makes an environment is imported late, because many calls make none.
"""

from __future__ import annotations

import json
import posixpath
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor import nvidia_smi
from clusterfn.config.environment_kinds import names_an_image
from clusterfn.environment import existing
from clusterfn.environment.existing import CALLER, ExistingEnvironment
from clusterfn.errors import ConfigError, EnvironmentBuildError, LockError
from clusterfn.hosts import remote_files
from clusterfn.hosts.host_capacity import ConnectedHost, ask_types
from clusterfn.scheduler import job_script, scheduler_for

if TYPE_CHECKING:
    from clusterfn.config.spec import Interpreter
    from clusterfn.environment.resolve import LockedEnvironment
    from clusterfn.environment.specification import Specification
    from clusterfn.environment.torch_build import GpuCapabilities

Say = Callable[[str], None]

_TIMEOUT_S = 60.0
_DRIVER_FIELDS = ("driver_version", "compute_cap")
# The variables of another interpreter: a build has none of them.
_MISLEADING = ("LD_LIBRARY_PATH", "PYTHON", "VIRTUAL_ENV")
_EXPAND = "import os, sys; print(os.path.expanduser(os.path.expandvars(sys.argv[1])))"


class EnvironmentRequest(NamedTuple):
    """What a call says about its environment."""

    text: str | None = None  # `environment=`; None for the host's own
    packages: tuple[str, ...] = ()  # `packages=`
    gpus: int = 0  # how many GPUs the job asks for: the build of PyTorch depends on them
    binds: tuple[str, ...] = ()  # `binds=`


class ResolvedEnvironment(NamedTuple):
    """An environment that can be used on the host."""

    interpreter: Interpreter  # its Python, with the variables that make it complete
    folders: Mapping[str, Mapping[str, bytes]]  # to be laid out first: absolute path -> files, each executable
    made: LockedEnvironment | None = None  # the lock that it is made from; None if clusterfn did not make it

    @property
    def python(self) -> tuple[int, int]:
        """The (major, minor) version of its Python."""
        return self.interpreter.version


class EnvironmentResolver:
    """The environments of one host, as this process knows them."""

    def __init__(self, host: ConnectedHost) -> None:
        self._host = host
        self._known: dict[ExistingEnvironment | str, ResolvedEnvironment] = {}
        # by `environment=` and `packages=`
        self._pythons: dict[tuple[str | None, tuple[str, ...]], tuple[int, int]] = {}
        # It is held while the host is asked, so no thread that delivers answers may take it.
        self._finding = threading.Lock()

    def expected_python(self, wanted: EnvironmentRequest) -> tuple[int, int]:
        """Return the Python of an environment that exists on the host, or was resolved before; else this process's."""
        text, named = self._named(wanted)
        if named is None:
            return self._pythons.get((text, wanted.packages), CALLER)
        with self._finding:
            return self.resolve_existing(named).python

    def find(
        self, wanted: EnvironmentRequest, say: Say = lambda _: None, imports: Iterable[str] = ()
    ) -> ResolvedEnvironment:
        """Find the environment of a call on the host, or lock it so that it can be made there.

        Args:
            wanted: What the call says of it; its silence means the host's own.
            say: Gets sentences about what takes time, and what was decided.
            imports: The top-level names of the modules that the call needs; read if no environment is named.

        Raises:
            ConfigError: No such kind of environment.
            LockError: It cannot be locked.
            EnvironmentBuildError: It does not exist, or cannot be built.
        """
        with self._finding:
            text, named = self._named(wanted)
            if named:
                found = self.resolve_existing(named)
            elif wanted.packages or not existing.is_existing(text):
                # It takes time to import, with what it needs, and many calls make no environment.
                from clusterfn.environment import resolve

                found = self.resolve_made(resolve.read_specification(text, wanted.packages), wanted.gpus, say)
            else:
                found = self._found_or_made(wanted, say, set(imports))
            self._pythons[text, wanted.packages] = found.python
            return found

    def must_be_built(self, wanted: EnvironmentRequest) -> bool:
        """Whether the environment of a call would have to be built first; raise as `find`. Solves no lock.

        Without a name, what the call imports would decide: then only whether the host has a Python for it.
        """
        text, named = self._named(wanted)
        if not wanted.packages and existing.is_existing(text):
            try:
                with self._finding:
                    self.resolve_existing(named or existing.parse_existing(None, self._host.settings))
            except EnvironmentBuildError:
                if named:
                    raise
                return True
            return False
        from clusterfn.environment import resolve

        spec = resolve.read_specification(text, wanted.packages)
        with self._finding:
            if explain_stale_lock(self._host, spec, wanted.gpus):
                return True
            made = self.resolve_made(spec, wanted.gpus, lambda _: None).made
        return made is not None and bool(self._host.missing([made.ready]))

    def _named(self, wanted: EnvironmentRequest) -> tuple[str | None, ExistingEnvironment | None]:
        """Return `environment=` of the call or its host, and the existing environment that it names, if it does."""
        text = wanted.text or (None if wanted.packages else self._host.settings.environment)
        if wanted.binds and not names_an_image(text or ""):
            what = f"binds= shows folders in a container's image, and environment={text!r} names none"
            raise ConfigError(what, hint='name an image, environment="apptainer:/image.sif", or leave out binds=')
        if wanted.packages or not existing.is_existing(text):
            return text, None
        named = existing.parse_existing(text, self._host.settings, wanted.binds)
        return text, named if named.kind != "found" else None

    def forget(self) -> None:
        """Ask again before the next call: an environment has changed, or the GPUs are only known now. Do not block."""
        # The thread that calls this delivers answers, so it must not wait for the lock. What is being asked meanwhile
        # goes into the former dict.
        self._known = {}

    def resolve_existing(self, environment: ExistingEnvironment) -> ResolvedEnvironment:
        known = self._known
        if environment not in known:
            # A module of the host may have the runtime of an image.
            loading = job_script.modules_setup(self._host.settings) if environment.is_image else ""
            connection, probe = self._host.connection, environment.probe(loading)
            answer = connection.run(probe, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
            try:
                found = environment.read(answer.rc, answer.out, answer.err, self._host.root)
            except EnvironmentBuildError as error:
                error.host = self._host.settings.name
                raise
            known[environment] = ResolvedEnvironment(*found)
        return known[environment]

    def resolve_made(self, spec: Specification, gpus: int, say: Say) -> ResolvedEnvironment:
        key = f"{bool(gpus)} {spec.title} {spec.input_hash}"
        known = self._known
        made = known[key].made if key in known else None
        if made is None or made.lock.is_changed():
            made = lock_environment(self._host, spec, gpus, say)
            known[key] = ResolvedEnvironment(made.interpreter, {}, made)
        return known[key]

    def _found_or_made(self, wanted: EnvironmentRequest, say: Say, imports: set[str]) -> ResolvedEnvironment:
        """Find the host's Python of the caller's version if it has what the function imports; else make one."""
        from clusterfn.environment import packages

        try:
            own = existing.parse_existing(None, self._host.settings)
            return self.resolve_existing(own._replace(needed=tuple(packages.needed(imports))))
        except EnvironmentBuildError as lacking:
            say(f"{self._host.settings.name}: {lacking.message}")
            spec = packages.automatic(imports, CALLER)
            try:
                return self.resolve_made(spec, wanted.gpus, say)
            except LockError as error:
                lacking.evidence = (*lacking.evidence, f"none could be built: {error.message}", *error.evidence)
                names = " ".join(package.name for package in spec.pip)
                by_pip = f"python{'.'.join(map(str, CALLER))} -m venv ~/v"
                by_pip += f"; ~/v/bin/pip install {names}" if names else ""
                create = f'create one on the host ({by_pip}) and set environment="venv:~/v"'
                lacking.hint = f"{error.hint}; or {lacking.hint if lacking.message == existing.NO_PYTHON else create}"
                raise lacking from error


def lock_environment(host: ConnectedHost, spec: Specification, gpus: int, say: Say) -> LockedEnvironment:
    """Lock a specification for a host; raise as `resolve.resolve_environment`."""
    from clusterfn.environment import resolve, torch_build

    facts, known = _facts(host, gpus)

    def ask() -> GpuCapabilities | None:
        found, scheduler = known_gpus(host, facts["root"]), scheduler_for(host.settings)
        # A machine without a scheduler has no other GPUs than its own.
        if found or not scheduler.has_nodes:
            return found
        return None if ask_types(host.connection, scheduler) == [] else torch_build.UNKNOWN_GPUS

    spec = with_python(host, spec)
    try:
        return resolve.resolve_environment(spec, host.settings, facts, known, CALLER, say, ask)
    except EnvironmentBuildError as error:
        error.host = host.settings.name
        raise


def explain_stale_lock(host: ConnectedHost, spec: Specification, gpus: int) -> str:
    """Say why the existing lock does not fit the host; "" if it does."""
    from clusterfn.environment import resolve

    facts, known = _facts(host, gpus)
    return resolve.why_stale(with_python(host, spec), host.settings, facts, known, CALLER)


def with_python(host: ConnectedHost, spec: Specification) -> Specification:
    """Return a specification with the source of its Python, which clusterfn.yml may name, and the host's interpreter.

    Raises:
        EnvironmentBuildError: The host has no interpreter that fits.
        LockError: The project admits no Python.
    """
    from clusterfn.environment import python_source

    if spec.project is None or spec.python.found:
        return spec
    source = spec.python if spec.python.kind else python_source.parse_source(host.settings.making.python)
    if source.kind == python_source.HOST:
        argv = python_source.question(source, spec.project, CALLER)
        answer = host.connection.run(argv, unset=_MISLEADING, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
        printed, platform = answer.out.decode("utf-8", "replace"), host.connection.facts.platform
        found = python_source.choose(source, spec.project, platform, printed, host.settings.name)
        source = replace(source, found=found)
    return replace(spec, python=source)


def _facts(host_state: ConnectedHost, gpus: int) -> tuple[dict[str, str], GpuCapabilities | None]:
    """Return what a lock for the host depends on, with the root of environments; and the GPUs that a job will get.

    clusterfn.yml, the machine or an earlier job says which GPUs there are; else they are guessed. It is None for a job
    without GPUs.
    """
    from clusterfn.environment import torch_build

    host, root = host_state.connection.facts, environments_root(host_state)
    known = known_gpus(host_state, root) or torch_build.UNKNOWN_GPUS if gpus else None
    return {"platform": host.platform, "glibc": host.glibc, "root": root}, known


def environments_root(host: ConnectedHost) -> str:
    """Return the absolute folder of environments on the host; raise ConfigError if `env_root:` is no absolute path."""
    wanted = host.settings.making.root
    if wanted is None or wanted == host.settings.root:
        return host.root
    if wanted.startswith("/") and "$" not in wanted:
        return posixpath.normpath(wanted)
    python = host.connection.facts.python
    answer = host.connection.run([python, "-I", "-S", "-c", _EXPAND, wanted]).result(_TIMEOUT_S)
    found = answer.out.decode("utf-8", "surrogateescape").strip()
    if not found.startswith("/") or "$" in found:
        message = f"env_root: {wanted} is not an absolute path on {host.settings.name}"
        evidence = [found or "nothing"]
        raise ConfigError(message, host=host.settings.name, evidence=evidence, hint="is a variable unset there?")
    return posixpath.normpath(found)


def known_gpus(host_state: ConnectedHost, environments: str) -> GpuCapabilities | None:
    """Return what the machine or an earlier job says of the GPUs of a job; None if they say nothing."""
    from clusterfn.environment import torch_build

    host = host_state.settings
    if not scheduler_for(host).has_nodes:
        question = nvidia_smi.query(_DRIVER_FIELDS)
        argv = ["/bin/sh", "-c", 'command -v "$1" >/dev/null && exec "$@"', "sh", *question]
        answer = host_state.connection.run(argv, timeout_s=20.0).result(_TIMEOUT_S)
        printed = answer.out.decode("utf-8", "replace")
        rows = nvidia_smi.read_table(printed, _DRIVER_FIELDS).rows
        if nvidia_smi.has_failed(answer.rc, printed) or not rows:
            return None
        listed, driver = [row["compute_cap"] for row in rows], rows[0]["driver_version"]
        source = f"nvidia-smi says on {host.name}"
    else:
        # Login nodes have no GPUs, so what the last job on the partition saw counts.
        name = scheduler_for(host).gpus().partition or layout.DEFAULT
        path = posixpath.join(environments, layout.OBSERVED_GPUS, f"{name}.json")
        text = remote_files.read_text(host_state.connection, path)
        try:
            seen: dict[str, Any] = json.loads(text) if text else {}
            listed, driver, source = list(seen["capabilities"]), seen["driver"], f"the last job saw on {seen['node']}"
        except (ValueError, KeyError, TypeError):
            return None
    names = {str(name).strip() for name in listed}
    capabilities = {name for name in names if name.replace(".", "").isdigit()}
    return torch_build.GpuCapabilities(driver, tuple(sorted(capabilities)), source)
