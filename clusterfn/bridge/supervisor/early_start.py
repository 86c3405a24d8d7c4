"""Start a job's worker ahead of its attempt, so that it loads its code while the supervisor loads, claims and prepares.

Both take about as long. A worker that was started ahead runs nothing of the user's before its attempt lets it begin,
and ends with this process. An element of a group has the template of its workers started in this way. Until the worker
is started, this imports nothing that takes long: not even `json`.

Where there is no scheduler, the agent may have a template of such workers started instead, with their supervisors
(`agent/job_template.py`).
"""

import json
import os

from .. import layout
from ..schedulers.registry import gives_out_gpus
from .environ import DescribedJob, add_script_variables, depends_on_cwd, expand_cwd, worker_environment
from .publish import names_in
from .worker_process import launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

    from .worker_process import WorkerProcess


def start_worker(folder: str) -> "Optional[WorkerProcess]":
    """Start the worker of a job's first attempt; None where it is not known yet, or the job is likely to wait.

    The attempt takes it only if it needs exactly this one. Without one, the attempt starts its own and says what fails.
    """
    plan = plan_worker(folder)
    try:
        return None if plan is None else launch(*plan)
    except OSError:
        # There is no memory for a worker.
        return None


def plan_worker(folder: str) -> "Optional[tuple[list[str], dict[str, str], str, Mapping[str, Any]]]":
    """Return with which words, variables and folder the worker of a job's first attempt starts, and its spec.

    Returns:
        None where that is not known yet, or the job is likely to wait.
    """
    try:
        job = SentJob(os.path.abspath(folder))
        spec = job.spec
        if not job.is_plain() or job.has_begun() or job.will_wait():
            return None
        if spec.get("building") and not has_environment(job):
            return None
        host = {name: value for name, value in os.environ.items() if name != layout.TURN}
        # GPUs of this machine are leased later: until then it has none.
        env = worker_environment(job, 1, host, None if gives_out_gpus(spec["scheduler"]) else [])
        # Where the interpreter starts may not exist yet.
        if depends_on_cwd(env):
            return None
        word = layout.TEMPLATE if job.is_element else layout.attempt_dir(job.folder, 1)
        argv = [spec["python"], os.path.join(spec["bridge"], layout.WORKER), word]
        # Nothing here looks at a folder of the user's: on a file system that hangs, only the worker may wait.
        return argv, env, expand_cwd(spec) or job.folder, spec
    except (OSError, LookupError, TypeError, ValueError, AttributeError):
        # The spec is damaged.
        return None


def start_template(folder: str) -> int:
    """Become the template for the environment of a job that was sent to this folder; return only if there is none yet.

    The descriptors 0, 1 and 2 are the socket of its orders, what its interpreter prints, and its report.
    """
    control, report = os.dup(0), os.dup(2)
    os.dup2(1, 2)
    sent = SentJob(folder)
    if sent.spec.get("building") and not has_environment(sent):
        return 1
    spec = sent.spec
    host = {name: value for name, value in os.environ.items() if name != layout.TURN}
    # It outlives this job, and has none of its secrets.
    env = worker_environment(DescribedJob(sent.id, sent.folder, spec), 1, host, [])
    for name in (layout.TAG, layout.CHECKPOINT_VARIABLE):
        del env[name]
    for fd in (control, report):
        os.set_inheritable(fd, True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir("/")
    words = [spec["python"], os.path.join(spec["bridge"], layout.WORKER), layout.TEMPLATE, layout.JOBS]
    return os.execve(words[0], [*words, str(report), str(control)], env)


def _holds_tickets(queue: str) -> bool:
    """Whether there is a ticket: a queue of thousands is not listed to its end."""
    try:
        with os.scandir(queue) as entries:
            return any(not entry.name.startswith(".") for entry in entries)
    except OSError:
        return False


class SentJob(DescribedJob):
    """The folder of a job or an element as its client has sent it: a `JobFolder` before its modules are loaded."""

    def __init__(self, folder: str) -> None:
        above, name = os.path.split(folder)
        self.is_element = os.path.basename(above) == layout.ELEMENTS
        self._home = os.path.dirname(above) if self.is_element else folder
        spec: "dict[str, Any]" = _read(os.path.join(self._home, layout.SPEC)) or {"id": ""}
        super().__init__("%s.%s" % (spec["id"], name) if self.is_element else spec["id"], folder, spec)

    def is_plain(self) -> bool:
        """Whether its worker can be known yet."""
        asked = self.spec.get("resources", {})
        tasks = asked.get("nodes", 1) * asked.get("tasks_per_node", 1)
        return bool(self.spec["id"]) and tasks == 1 and not self.spec.get("after")

    def has_begun(self) -> bool:
        """Whether it has begun before, or another process has it; the script of a step claims the job itself."""
        names = (layout.ATTEMPTS, layout.CLAIM)
        return any(os.path.exists(self.path(name)) for name in names)

    def will_wait(self) -> bool:
        """Whether other jobs wait in the queue of a machine below this root, and it is not this one's turn."""
        if layout.TURN in os.environ:
            return False
        machines = os.path.join(self.spec["root"], layout.MACHINES)
        return any(_holds_tickets(os.path.join(machines, name, layout.QUEUE)) for name in names_in(machines))

    def secrets(self) -> "dict[str, str]":
        return _read(os.path.join(self._home, layout.SECRETS)) or {}


def has_environment(job: SentJob) -> bool:
    """Whether the environment that the builder makes is there, and stays; learn what its own scripts set."""
    # These imports are late, because few jobs have an environment that is built.
    from ..builder import leases, permissions
    from ..builder.errors import BuildFailed

    wanted = job.spec["building"]
    if wanted["purged"]:
        return False
    try:
        permissions.refuse_untrusted(wanted["root"], wanted.get("owners") or (), wanted["id"])
        # The lease comes before the look, because an environment with a lease is not removed.
        leases.add_lease(wanted["root"], wanted["id"], job.folder)
    except (BuildFailed, OSError):
        # The supervisor says later what is wrong.
        return False
    ready = _read(os.path.join(layout.environment_dir(wanted["root"], wanted["id"]), layout.READY))
    if ready is not None:
        add_script_variables(job.spec["activation"], ready)
    return ready is not None


def _read(path: str) -> "Optional[dict[str, Any]]":
    """Read a file of JSON; None if it is not to be had."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode("ascii")
        found = json.loads(text)
        if "\\u" in text:
            # This import is late, because few jobs have such names.
            from .text import native

            found = native(found)
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        # The supervisor says later what is wrong.
        return None
