"""The bridge as files with a hash: what is sent once to every host, and found there again by name."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from clusterfn.hosts import serialization

_LIBRARY = Path(__file__).parents[1]
# A function may import clusterfn, so jobs get the library. These files
# are of no use in jobs, or are in the bridge already.
_NOT_IN_JOBS = (
    "bridge/agent/", "bridge/builder/", "bridge/kernel/", "bridge/login_shell.py", "bridge/queue/",
    "bridge/removal.py", "bridge/schedulers/", "bridge/serialization/", "bridge/session/", "bridge/stubs/",
    "bridge/supervisor/", "bridge/worker/",
    "calls/attach.py", "calls/call.py", "calls/environment_upload.py",
    "calls/group_elements.py", "calls/group_tracker.py", "calls/job_tracker.py", "calls/mapping.py",
    "calls/sent_group.py", "calls/session_", "calls/submit.py", "cli/",
    "environment/conda_", "environment/download.py", "environment/environment_files.py",
    "environment/lock", "environment/package", "environment/project", "environment/python_source.py",
    "environment/resolve.py", "environment/solve",
    "environment/source_distributions.py", "environment/specification.py", "environment/torch_build.py",
    "environment/uv", "environment/wheel",
    "hosts/environment_builder.py", "hosts/environment_facts.py", "hosts/scheduler_commands.py", "hosts/survey.py",
    "api/actor", "api/command.py", "api/executor.py", "api/login.py", "api/session",
    "integrations/dask/", "integrations/hydra_launcher.py", "integrations/joblib_backend.py",
    "sweeps/choice.py", "sweeps/run.py", "sweeps/search.py",
    "config/writing.py", "display/argument_table.py", "packing/code_notes.py", "packing/module_notes.py",
    "packing/notes.py", "packing/payload",
    "hosts/transports/auto.py", "hosts/transports/held_connections.py", "hosts/transports/host_keys.py",
    "hosts/transports/openssh.py", "hosts/transports/paramiko",
    "hosts/transports/shared_login.py",
    "hosts/transports/ssh_", "hosts/transports/trust.py",
    "scheduler/login_node.py", "scheduler/slurm/script.py",
    "integrations/jupyter/",
)  # fmt: skip
# Modules that jobs get import these: errors, for example, format themselves with `text`.
_NEEDED_BY_THE_REST = (
    *(f"bridge/supervisor/{name}.py" for name in ("__init__", "text", "eligible_gpus", "nvidia_smi")),
    *(f"bridge/worker/{name}.py" for name in ("__init__", "cuda_table")),
)

_OF_THE_AGENT = tuple(
    f"agent/{name}.py"
    for name in ("__init__", "byte_code", "files", "frames", "inotify", "libc", "pipes", "site_rules", "trusted")
)
_SINGLE_FILES = ("layout.py", "job_states.py", "attributes.py", "removal.py", *_OF_THE_AGENT)


class FileBundle(NamedTuple):
    """Files that travel together.

    Attributes:
        digest: SHA-256 over names and contents.
        files: Name, relative and with slashes -> content.
    """

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
    # Imported late, because jobs import this module too, and what is sent to a job does not include the agent.
    from clusterfn.bridge.agent.files import MANIFEST

    inside, ours = _LIBRARY / "bridge", "_clusterfn/bridge/"
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
) -> dict[str, bytes]:  # fmt: skip
    """Return the Python files below a folder. By os.scandir, as each first call in a process waits for it.

    Raises:
        OSError: A folder or a file cannot be read.
    """
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
