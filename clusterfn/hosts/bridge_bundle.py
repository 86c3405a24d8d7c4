"""The bridge: its files with a hash, by which it is sent once to every host; and what a host is known to have of it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import hashlib
import json
import os
import posixpath
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterfn.bridge import layout
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts import serialization

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Completed, HostConnection, Reply

_LIBRARY = Path(__file__).parents[1]
# A function may import clusterfn, so jobs get the library. These files
# are of no use in jobs, or are in the bridge already.
_NOT_IN_JOBS = (
    "bridge/agent/", "bridge/builder/", "bridge/kernel/", "bridge/login_shell.py", "bridge/queue/",
    "bridge/removal.py", "bridge/schedulers/", "bridge/serialization/", "bridge/session/", "bridge/stubs/",
    "bridge/supervisor/", "bridge/worker/",
    "calls/attach.py", "calls/call.py", "calls/demand.py", "calls/environment_upload.py",
    "calls/element.py", "calls/following.py", "calls/group_elements.py",
    "calls/group_run.py", "calls/host_choice.py", "calls/item_results.py", "calls/job_tracker.py", "calls/mapping.py",
    "calls/retry.py", "calls/sent_group.py", "calls/session_", "calls/sending.py", "cli/",
    "environment/build_plan.py", "environment/conda_", "environment/download.py", "environment/environment_files.py",
    "environment/lock", "environment/package", "environment/project", "environment/python_source.py",
    "environment/resolve.py", "environment/solve",
    "environment/source_distributions.py", "environment/specification.py", "environment/torch_build.py",
    "environment/standalone_python.py", "environment/uv", "environment/wheel",
    "hosts/environment_builder.py", "hosts/scheduler_commands.py", "hosts/survey.py", "hosts/volumes.py",
    "api/actor", "api/command.py", "api/executor.py", "api/login.py", "api/session",
    "integrations/dask/", "integrations/hydra_launcher.py", "integrations/joblib_backend.py",
    "sweeps/run.py", "sweeps/search.py",
    "config/writing.py", "packing/code_notes.py", "packing/notes.py", "packing/payload", "packing/unsendable.py",
    "hosts/transports/held_connections.py", "hosts/transports/host_keys.py",
    "hosts/transports/openssh.py", "hosts/transports/paramiko",
    "hosts/transports/shared_login.py",
    "hosts/transports/ssh_", "hosts/transports/trust.py",
    "scheduler/slurm/script.py",
    "integrations/jupyter/",
)  # fmt: skip
# Modules that jobs get import these: errors, for example, format themselves with `text`.
_NEEDED_BY_THE_REST = (
    *(f"bridge/supervisor/{name}.py" for name in ("__init__", "text", "eligible_gpus", "nvidia_smi")),
    *(f"bridge/worker/{name}.py" for name in ("__init__", "cuda_table")),
)

_OF_THE_AGENT = tuple(f"agent/{name}.py" for name in ("__init__", "byte_code", "files", "frames", "libc", "trusted"))
_BELIEVED_S = 3600.0
_REMOVE = '{ rm -rf -- "$2" && mv -- "$1" "$2"; } 2>/dev/null; rm -rf -- "$2"'
# A crash of a file server may leave zeros in a file of the right size.
_LOAD_ERRORS = re.compile(
    rb"^(?:ModuleNotFound|Import|Syntax|Indentation|EOF|UnicodeDecode)Error\b|^ValueError: source code|"
    rb"can't open file .*\[Errno 2\]"
)
_SINGLE_FILES = ("layout.py", "job_states.py", "attributes.py", "removal.py", *_OF_THE_AGENT)


class FileBundle(NamedTuple):
    """Files that travel together, by their names with slashes, and the SHA-256 of names and contents."""

    digest: str
    files: Mapping[str, bytes]


def make(files: Mapping[str, bytes]) -> FileBundle:
    """Bundle these files, whatever their order."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{len(name)} {len(files[name])} {name}".encode("utf-8", "surrogateescape"))
        digest.update(files[name])
    return FileBundle(digest.hexdigest(), files)


@functools.lru_cache(maxsize=1)
def bridge() -> FileBundle:
    """Return the files of supervisor, worker and builder, cloudpickle and the library: docs/reference/protocol.md."""
    # Imported late, because what is sent to a job does not include the agent.
    from clusterfn.bridge.agent.files import MANIFEST

    inside = _LIBRARY / "bridge"
    ours = "_clusterfn/bridge/"
    files = {"_clusterfn/__init__.py": b"", f"{ours}__init__.py": b"", **python_files(inside / "stubs", "")}
    for folder in ("supervisor", "builder", "kernel", "queue", "schedulers", "session", "worker"):
        files.update(python_files(inside / folder, f"{ours}{folder}/"))
    files.update({f"{ours}{name}": (inside / name).read_bytes() for name in _SINGLE_FILES})
    files.update(python_files(inside / "serialization", "_clusterfn_wire/"))
    files.update(python_files(serialization.cloudpickle_folder(), "_clusterfn_wire/cloudpickle/"))
    files.update(python_files(_LIBRARY, "library/clusterfn/", _is_for_jobs))
    # The agent compares the files of a bridge with this list, because a file system may remove old files one by one.
    files[MANIFEST] = json.dumps({name: len(data) for name, data in files.items()}).encode()
    return make(files)


def _is_for_jobs(name: str) -> bool:
    # A job never submits to another scheduler, as it has no ssh. It
    # needs the packages of schedulers only to import them.
    if name.startswith("scheduler/") and name.count("/") > 1:
        return name.endswith("/__init__.py")
    return name in _NEEDED_BY_THE_REST or not name.startswith(_NOT_IN_JOBS)


def python_files(
    folder: Path, prefix: str, is_included: Callable[[str], bool] = lambda _: True, below: str = ""
) -> dict[str, bytes]:
    """Return the Python files below a folder, by os.scandir because the first call waits; may raise OSError."""
    files = {}
    with os.scandir(os.path.join(folder, below)) as entries:
        for entry in entries:
            path = below + entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    files.update(python_files(folder, prefix, is_included, path + "/"))
            # Editors put lock files such as `.#module.py` next to the file that they edit.
            elif entry.name.endswith(".py") and is_included(path) and not entry.name.startswith("."):
                with open(entry.path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path takes as long as the read
                    files[prefix + path] = file.read()
    return files


class HostContents:
    """Paths on one host, absolute. A host that answers slowly is sent nothing twice.

    What is there is forgotten after an hour: the host removes what no client has asked for in a long time.
    """

    def __init__(self) -> None:
        self._since = time.time()
        self._present: set[str] = set()
        self._coming: dict[str, Reply[bool]] = {}
        self._sending = threading.Lock()

    def __contains__(self, path: str) -> bool:
        """Whether it has arrived."""
        # Unlike the monotonic clock, this one also counts the time in
        # which a laptop sleeps. It may be set back, hence `abs`.
        if abs(time.time() - self._since) > _BELIEVED_S:
            self.distrust()
        self._take_answer(path)
        return path in self._present

    def add(self, paths: Iterable[str]) -> None:
        """Take note that these are there."""
        self._present.update(paths)

    def distrust(self, paths: Sequence[str] | None = None) -> None:
        """Believe no longer that these, or any, are there; what is on its way still comes."""
        if paths is None:
            self._since = time.time()
        for path in list(self._coming) if paths is None else paths:
            self._take_answer(path)
        self._present.difference_update(set(self._present) if paths is None else paths)

    def unknown(self, paths: Iterable[str]) -> list[str]:
        """Return those that neither are there nor come."""
        return [path for path in paths if path not in self and path not in self._coming]

    def expect(self, path: str, coming: Reply[bool]) -> None:
        """Take note that it comes, with what is answered once it is there."""
        self._coming[path] = coming

    def send(self, path: str, upload: Callable[[], Reply[bool]]) -> list[Reply[bool]]:
        """Call `upload` if the path neither is there nor comes; return what must succeed before it is there.

        Each that gets the same request may cancel it, which ends it with the last of them.
        """
        with self._sending:
            if path in self:
                return []
            coming = self._coming.get(path)
            # An upload that has just failed or was cancelled cannot be shared. Then start another one below.
            if coming is not None and coming.share():
                return [coming]
            coming = self._coming[path] = upload()
        return [coming]

    def _take_answer(self, path: str) -> None:
        """Take note if it has arrived since."""
        reply = self._coming.get(path)
        if reply is not None and reply.done():
            self._coming.pop(path, None)
            if reply.exception(0) is None:
                self._present.add(path)


class HostBridge:
    """The bridge of this version on one host.

    Args:
        contents: What is known to be there, or is on its way.
        unset: Prefixes of variables that its programs must not inherit.
    """

    def __init__(self, connect: Callable[[], HostConnection], contents: HostContents, unset: Sequence[str]) -> None:
        self._connect = connect
        self._contents = contents
        self._unset = unset
        self._suffix = ""
        # By the folder that each removes.
        self._removals: dict[str, Reply[Completed]] = {}
        # Counts how often a lost bridge was sent again. Only the loop's thread changes it, so it needs no lock.
        self._sends = 0

    @functools.cached_property
    def name(self) -> str:
        """Its folder as it is first sent, below the host's root."""
        return posixpath.join(layout.BRIDGE, bridge().digest)

    @property
    def folder(self) -> str:
        """Its folder, absolute."""
        return posixpath.join(self._connect().facts.root, self.name + self._suffix)

    @property
    def is_there(self) -> bool:
        """Whether the host is known to have it."""
        return self.folder in self._contents

    def words(self, program: str, *words: str, folder: str = "") -> list[str]:
        """Return the command that starts a program of it, in its own folder or that of another version."""
        python = self._connect().facts.python
        # With -I and -S, neither variables nor packages of the user change what the programs of the bridge import.
        return [python, "-I", "-S", posixpath.join(folder or self.folder, program), *words]

    def lay_out(self) -> list[Reply[bool]]:
        """Send it if the host lacks it; what needs it is sent after these."""
        folder = self.folder
        return [] if folder in self._contents else self._contents.send(folder, lambda: self.put(folder))

    def put(self, folder: str) -> Reply[bool]:
        """Send it to that folder; the agent leaves what is there only if it is whole."""
        # Imported late, here and below, because jobs import this module too.
        from clusterfn.hosts.connection import TreeFile

        files = [TreeFile(name, data) for name, data in bridge().files.items()]
        # A removal that is slow to start would take what comes now under that name.
        removal = self._removals.get(folder)
        after = [removal] if removal is not None and not removal.done() else []
        return self._connect().put_tree(folder, files, after=after)

    def distrust(self) -> None:
        """Look again for all that was there, which may be gone or damaged; send the bridge under another name."""
        with contextlib.suppress(HostError):
            # The bridge gets another name below, so a failed removal does no
            # harm. The next request reports a lost connection.
            self._removals[self.folder] = self._connect().run(removal_command(self.folder))
        self._suffix = f"-{secrets.token_hex(4)}"
        self._contents.distrust()

    def mend(self, folder: str) -> list[Reply[bool]]:
        """Send again, under its own name, the one that jobs were sent with, unless it is of another version.

        What needs it goes after these.
        """
        self._contents.distrust()
        return self._contents.send(folder, lambda: self.put(folder)) if self._is_own(folder) else []

    def supervise(
        self, command: str, *args: str, bridge: str = "", stdin: bytes = b"", timeout_s: float = 60.0
    ) -> Reply[Completed]:
        """Run one of the supervisor's commands, `conclude`, `list` or `clean`, next to the jobs that run.

        Args:
            bridge: The folder of the bridge that a job was sent with; else this version's.
        """
        return self.run([layout.SUPERVISE, command, *args], bridge, stdin, timeout_s)

    def run(
        self, words: Sequence[str], bridge: str = "", stdin: bytes = b"", timeout_s: float = 60.0
    ) -> Reply[Completed]:
        """Run a program of it to its end; once more if the host turns out to have lost or damaged it."""
        # Read the counter before asking: of many requests that miss the bridge together, only the first sends it again.
        before = [] if bridge else self.lay_out()
        folder, sends = bridge or self.folder, self._sends
        argv = self.words(*words, folder=folder)

        def ask(after: Sequence[Reply[bool]]) -> Reply[Completed]:
            forks = words[0] == layout.SUPERVISE
            unset = self._unset
            return self._connect().run(argv, stdin=stdin, unset=unset, timeout_s=timeout_s, after=after, forks=forks)

        async def answer(reply: Reply[Completed]) -> None:
            try:
                ended = await attempts[-1]
                is_damaged = ended.rc != 0 and _cannot_load(folder, ended.err)
                if ended.rc == 0 and not ended.out and not ended.err and self._is_own(folder):
                    # Before Python 3.11.4, a file that a crash has zeroed is a program that does nothing.
                    attempts.append(self._connect().run(["head", "-c1", argv[3]]))
                    with contextlib.suppress(HostError):
                        is_damaged = (await attempts[-1]).out == b"\0"
                if is_damaged and self._is_own(folder):
                    attempts.append(ask(self._send_again(folder, sends)))
                    ended = await attempts[-1]
                reply.resolve(ended)
            except (ClusterfnError, concurrent.futures.CancelledError) as error:
                reply.reject(error)

        attempts = [ask(before)]
        reply = attempts[0].substitute(lambda: attempts[-1].cancel())
        from clusterfn.hosts import loop

        loop.begin(answer(reply))
        return reply

    def _is_own(self, folder: str) -> bool:
        """Whether it is of this version."""
        return posixpath.basename(folder).startswith(bridge().digest)

    def _send_again(self, folder: str, sends: int) -> list[Reply[bool]]:
        """Replace what the host has lost or damaged, unless that was done after `sends` times. Does not wait."""
        if sends == self._sends:
            self._sends += 1
            self._contents.distrust()
            self._removals[folder] = self._connect().run(removal_command(folder))
        return self._contents.send(folder, lambda: self.put(folder))


def _cannot_load(folder: str, stderr: bytes) -> bool:
    """Whether Python says that a file of the bridge is not there, or holds something else than what was sent."""
    *_, last = stderr.splitlines() or [b""]
    is_of_it = folder.encode() in stderr or b"named '_clusterfn" in last
    return is_of_it and _LOAD_ERRORS.search(last) is not None


def removal_command(folder: str) -> list[str]:
    """Return the command that removes a folder of a host, after it has renamed it.

    Renamed first: a late write into it, such as a conclusion, fails and cannot restore it. A removal that is cut short,
    as by the end of the program, leaves nothing that is taken for the whole.
    """
    aside = posixpath.join(posixpath.dirname(folder), layout.REMOVED + posixpath.basename(folder))
    return ["/bin/sh", "-c", _REMOVE, "sh", folder, aside]
