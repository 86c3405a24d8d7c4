"""The bridge as files with a hash: what is sent once to every host, and found there again by name.

Reads the library's own source and the installed cloudpickle's; touches no host.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterfn.hosts import serialization

_LIBRARY = Path(__file__).parents[1]
# A function may import clusterfn; what these are for happens outside of jobs, or lies in the bridge already.
_NOT_IN_JOBS = (
    "bridge/agent/", "bridge/builder/", "bridge/session/", "bridge/queue/", "bridge/schedulers/", "bridge/stubs/",
    "bridge/supervisor/", "bridge/worker/", "cli/", "environment/solve/", "hosts/survey/",
)  # fmt: skip
# Errors print themselves by `text`; Executor and the like import the client's side of schedulers.
_NEEDED_BY_THE_REST = tuple(f"bridge/supervisor/{name}.py" for name in ("__init__", "text", "eligible_gpus"))

_SINGLE_FILES = ("layout.py", "agent/__init__.py", "agent/inotify.py", "agent/trusted.py")


@dataclass(frozen=True)
class FileBundle:
    """Files that travel together.

    Attributes:
        digest: SHA-256 over names and contents.
        files: Name, relative and with slashes -> content.
    """

    digest: str
    files: Mapping[str, bytes]


def make(files: Mapping[str, bytes]) -> FileBundle:
    """A parcel of these files, whatever their order."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{len(name)} {len(files[name])} {name}".encode("utf-8", "surrogateescape"))
        digest.update(files[name])
    return FileBundle(digest.hexdigest(), files)


@functools.lru_cache(maxsize=1)
def bridge() -> FileBundle:
    """The files of supervisor, worker and builder, cloudpickle and the library, as in `docs/reference/protocol.md`."""
    return make(dict(_bridge_files()))


def _bridge_files() -> Iterator[tuple[str, bytes]]:
    yield "_clusterfn/__init__.py", b""
    yield "_clusterfn/bridge/__init__.py", b""
    yield from _python_files(_LIBRARY / "bridge" / "stubs", "")
    yield from _python_files(_LIBRARY / "bridge" / "supervisor", "_clusterfn/bridge/supervisor/")
    yield from _python_files(_LIBRARY / "bridge" / "builder", "_clusterfn/bridge/builder/")
    yield from _python_files(_LIBRARY / "bridge" / "queue", "_clusterfn/bridge/queue/")
    yield from _python_files(_LIBRARY / "bridge" / "schedulers", "_clusterfn/bridge/schedulers/")
    yield from _python_files(_LIBRARY / "bridge" / "session", "_clusterfn/bridge/session/")
    yield from _python_files(_LIBRARY / "bridge" / "worker", "_clusterfn/bridge/worker/")
    for name in _SINGLE_FILES:
        yield f"_clusterfn/bridge/{name}", (_LIBRARY / "bridge" / name).read_bytes()
    yield from _python_files(_LIBRARY / "bridge" / "serialization", "_clusterfn_wire/")
    yield from _python_files(serialization.cloudpickle_folder(), "_clusterfn_wire/cloudpickle/")
    library = _python_files(_LIBRARY, "")
    for name, data in library:
        if name in _NEEDED_BY_THE_REST or not name.startswith(_NOT_IN_JOBS):
            yield f"library/clusterfn/{name}", data


def _python_files(folder: Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*.py")):
        yield prefix + path.relative_to(folder).as_posix(), path.read_bytes()
