"""Start the template of a job's environment for the agent, which has it fork keepers for further jobs (`keeper`)."""

import json
import os

from .. import layout
from .environ import DescribedJob, add_script_variables, worker_environment
from .job import JobFolder
from .text import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def start_template(folder: str) -> int:
    """Become the template for the environment of a job that was sent to this folder; return only if there is none yet.

    The descriptors 0, 1 and 2 are the socket of its orders, what its interpreter prints, and its report.
    """
    control, report = os.dup(0), os.dup(2)
    os.dup2(1, 2)
    job = JobFolder(folder)
    spec = job.spec
    if spec.get("building") and not _has_environment(job):
        return 1
    host = {name: value for name, value in os.environ.items() if name != layout.TURN}
    # It outlives this job, and has none of its secrets.
    env = worker_environment(DescribedJob(job.id, folder, spec), 1, host, [])
    for name in (layout.TAG, layout.CHECKPOINT_VARIABLE):
        del env[name]
    for fd in (control, report):
        os.set_inheritable(fd, True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir("/")
    words = [spec["python"], os.path.join(spec["bridge"], layout.WORKER), layout.TEMPLATE, layout.JOBS]
    return os.execve(words[0], [*words, str(report), str(control)], env)


def _has_environment(job: JobFolder) -> bool:
    """Whether the environment that the builder makes is there, and stays; learn what its own scripts set."""
    # These imports are late, because few jobs have an environment that is built.
    from ..builder import leases
    from ..builder.errors import BuildFailed

    wanted: "Any" = job.spec["building"]
    if wanted["purged"]:
        return False
    try:
        leases.refuse_untrusted(wanted["root"], wanted.get("owners") or (), wanted["id"])
        # The lease comes before the look, because an environment with a lease is not removed.
        leases.add_lease(wanted["root"], wanted["id"], job.folder)
        with open(os.path.join(layout.environment_dir(wanted["root"], wanted["id"]), layout.READY)) as file:
            add_script_variables(job.spec["activation"], native(json.load(file)))
    except (BuildFailed, OSError, ValueError):
        # The supervisor says what is wrong.
        return False
    return True
