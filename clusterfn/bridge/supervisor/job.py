"""A job as the bridge sees it: its folder, its spec, which submission this process belongs to, and where it runs.

Names and reads; writes nothing."""

import errno
import json
import os
from collections import namedtuple

from .. import layout
from ..schedulers.registry import scheduler_named
from .environ import DescribedJob
from .process_tree import boot_id, start_time
from .publish import last_bytes, names_in, numbers_in
from .text import native
from .worker_process import WorkerSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Optional, Sequence

    from .spec import Spec
    from .verdict import Verdict


# A job whose value another takes; items: indices of a group's items; None for the value of a job, or of all items.
Dependency = namedtuple("Dependency", ("job", "name", "items"))
_ID_DIGITS = frozenset("0123456789abcdef")
_ID_LENGTH = 16

# The shape of a text that can be the name of a file. It has no half of a character, for one.
NAME = object()
# The shapes of JSON that is read from a job's folder: a type, `NAME`, a list with the shape of each, or fields by name.
# "?" is one that may be missing or null, "*" is each. What only the job itself looks at may be anything.
_LARGEST = 1 << 62
NUMBER = (int, float)
WHOLE = (int,)
USAGE: "dict[str, Any]" = {
    "wall_s?": NUMBER, "cpu_s?": NUMBER, "longest_s?": NUMBER, "peak_memory_bytes?": NUMBER,
    "gpus?": [{"peak_memory_bytes?": NUMBER, "peak_use_percent?": NUMBER, "mean_use_percent?": NUMBER}],
    "now?": {"cores?": NUMBER, "memory_bytes?": NUMBER, "gpus?": [{}]},
}  # fmt: skip
JOB_SPEC: "dict[str, Any]" = {
    "id": NAME, "name": str, "host": str, "scheduler": str, "root": NAME, "bridge?": NAME,
    "keep_days": NUMBER, "sys_path?": [NAME], "resume?": NAME, "clusters?": NAME, "retries?": WHOLE,
    "resources": {
        "cores?": WHOLE, "gpus?": WHOLE, "nodes?": WHOLE, "tasks_per_node?": WHOLE, "memory_bytes?": WHOLE,
        "time_s?": NUMBER, "gpu_type?": str, "gpu_memory_bytes?": WHOLE, "gpus_only?": [str],
    },
    "limits?": {"*?": NUMBER},
    "after?": {"*": {"name": str, "items?": [WHOLE]}},
    "group?": {"count": WHOLE, "elements?": WHOLE},
    "building?": {"root?": NAME, "id?": NAME},
}  # fmt: skip
ENDED: "dict[str, Any]" = {
    "kind": str, "message?": str, "value?": {"size?": WHOLE}, "usage?": USAGE, "earlier?": [str], "by?": str,
    "cause?": {"kind": str, "message?": str}, "retried?": {"cards?": [str]}, "requeued?": {"cause?": str},
}  # fmt: skip
JOB_OUTCOME = dict(ENDED, final=bool)
JOURNAL_LINE = {"index?": WHOLE, "begin?": WHOLE, "retry?": WHOLE, "told?": str}  # type: dict[str, Any]
ITEM_LINE = dict(ENDED, **{"index": WHOLE, "at?": WHOLE})
EVENT = {"event": str, "t": NUMBER, "reason?": str, "node?": str, "stopped_s?": NUMBER}  # type: dict[str, Any]


class DamagedFile(Exception):
    """A file holds what clusterfn has not written there: a function may write anything into its own folder."""


def checked(value: "Any", shape: "Any", what: str) -> "Any":
    """Return what was read from a file if it has this shape; raise DamagedFile if it does not."""
    if isinstance(shape, dict):
        _of_type(value, (dict,), what)
        for name, inner_shape in shape.items():
            key = name.rstrip("?")
            for known in value if key == "*" else [key]:
                checked(known, NAME, what)
                if value.get(known) is not None:
                    checked(value[known], inner_shape, "%s: %s" % (what, known))
                elif key == name:
                    raise DamagedFile("%s has no %s" % (what, known))
    elif isinstance(shape, list):
        for entry in _of_type(value, (list,), what):
            checked(entry, shape[0], what)
    elif shape is NAME:
        if not _can_be_name(_of_type(value, (str,), what)):
            raise DamagedFile("%s holds a zero byte, or half of a character" % what)
    else:
        _of_type(value, shape, what)
    return value


def _can_be_name(text: str) -> bool:
    """Whether a text can be the name of a file: it has no zero byte, and no half of a character."""
    if "\0" in text:
        return False
    # Nearly all texts are plain. The range within holds the bytes of names that are not UTF-8.
    is_plain = max(text, default="") < "\ud800"
    return is_plain or not any("\ud800" <= sign <= "\udfff" and not "\udc80" <= sign <= "\udcff" for sign in text)


def _of_type(value: "Any", kinds: "Any", what: str) -> "Any":
    is_number = isinstance(value, (int, float))
    if not isinstance(value, kinds) or is_number and not -_LARGEST < value < _LARGEST:
        raise DamagedFile("%s is %s" % (what, "%r" % value if is_number else "of the type " + type(value).__name__))
    return value


def describe_damage(error: Exception) -> str:
    """Say why a job's folder could not be read."""
    return str(error) if isinstance(error, DamagedFile) else "%s: %s" % (type(error).__name__, error)


def parse_record(data: "Optional[bytes]", shape: "Any", what: str) -> "dict[str, Any]":
    """Return the JSON object that a file holds; raise DamagedFile if it holds something else."""
    try:
        found = json.loads((data or b"").decode())
    except (ValueError, RecursionError) as error:
        raise DamagedFile("%s is no JSON: %s" % (what, error)) from error
    return dict(checked(found, shape, what))


def read_spec(folder: str) -> "Spec":
    """Return a job's spec.json, its strings native; raise DamagedFile if it is none, OSError if unreadable."""
    with open(os.path.join(folder, layout.SPEC), "rb") as file:
        spec: "Spec" = native(parse_record(file.read(), JOB_SPEC, layout.SPEC))
    return spec


class HeldResources:
    """What a job holds of its machine: nothing, as here, or an `Admission` on a machine without a scheduler.

    Attributes:
        uuids: The GPUs that it holds, in PCI order.
        refusal: Why it was admitted although it can have nothing: it ends with that.
    """

    def __init__(self) -> None:
        self.uuids: "list[str]" = []
        self.refusal: "Optional[Verdict]" = None

    def gpu_uuids(self, failed: "Sequence[str]" = ()) -> "list[str]":
        """Return the job's GPUs; exchange those that failed it."""
        return self.uuids

    def cuda_names(self) -> "list[str]":
        """Return what CUDA_VISIBLE_DEVICES calls the job's GPUs."""
        return self.uuids

    def refuse(self) -> None:
        """Raise the verdict on a job that was admitted only because its environment cannot be made."""

    def in_words(self) -> str:
        return ""

    def worker_fds(self) -> "list[int]":
        """Return the files that the worker must inherit to hold what the job has."""
        return []

    def confirm(self) -> None:
        """Remove the ticket of the job, which is claimed now."""

    def queue_again(self, reason: str) -> bool:
        """Write the ticket of a job that is to start again; False where there is no queue."""
        return False

    def yield_to_other_users(self, first: "Callable[[], None]") -> bool:
        """Return whether the job waits in the queue again for another user; call `first` before that."""
        return False

    def release(self) -> None:
        """Release all that the job holds."""


def _refuse_shared(root: str, folder: str) -> None:
    """Raise PermissionError if another user could put a result into a job's folder, or another in its place."""
    above = folder
    while above.startswith(root + "/"):
        try:
            status = os.stat(above)
        except FileNotFoundError:
            # The function has removed it, so there is nothing in it to be planted.
            above = os.path.dirname(above)
            continue
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            # This import is late, because nearly all of these folders are private.
            from ..agent.trusted import Trusted

            objection = Trusted().objection_below(root, os.path.join(folder, layout.SPEC))
            if objection is not None:
                how = "%s, so another user could plant a result: run `chmod go-w %s`" % (objection[1], objection[0])
                raise PermissionError(errno.EPERM, how, objection[0])
            return
        above = os.path.dirname(above)


# What the elements of a group have in common.
_SHARED = frozenset([layout.SPEC, layout.PAYLOAD, layout.SCRIPT, layout.CANCEL, layout.SECRETS, layout.CHECKPOINT])


class JobFolder(DescribedJob):
    """One job's folder, or that of an element of a group, which is a job in all but what belongs to the group.

    Attributes:
        folder: jobs/<id>, or jobs/<id>/elements/<k>.
        home: jobs/<id>.
        element: k; None for a job by itself.
        spec: spec.json, strings native.
        scheduler: What started it, or will.
        held: What it has of the machine; nothing before it is admitted, and where a scheduler gives that out.
        workers: Where its workers come from.
        id: 16 hex digits; of an element with its number, 7f3a….3.
        submission: The same for all that one job.sh starts, and after a requeue; another for another job.sh.
        start: The same, and which of its starts this is: a requeue's is not that of the attempt before.
        failed_gpus: UUIDs of GPUs that failed it, as far as this process knows.
    """

    def __init__(self, folder: str, spec: "Optional[Spec]" = None) -> None:
        folder = os.path.abspath(folder)
        above, name = os.path.split(folder)
        is_element = os.path.basename(above) == layout.ELEMENTS
        self.home = os.path.dirname(above) if is_element else folder
        self.element: "Optional[int]" = int(name) if is_element else None
        self.spec: "Spec" = read_spec(self.home) if spec is None else spec
        whole: "str" = self.spec["id"]
        super().__init__(whole if self.element is None else "%s.%d" % (whole, self.element), folder, self.spec)
        self.root: "str" = self.spec["root"]
        # Who may write there may have written another root into the spec.
        _refuse_shared(os.path.dirname(os.path.dirname(self.home)), folder)
        self.scheduler = scheduler_named(self.spec["scheduler"])
        self.held = HeldResources()
        self.workers = WorkerSource()
        script = os.getppid()
        self.submission = self.scheduler.submission_id() or "%s:%d:%s" % (boot_id(), script, start_time(script))
        self.failed_gpus: "list[str]" = []
        restarts = self.scheduler.restarts()
        self.start = "%s restart %d" % (self.submission, restarts) if restarts else self.submission

    @property
    def asked_memory(self) -> "Optional[int]":
        """Bytes of memory that it asked for, for messages."""
        asked: "Optional[int]" = self.spec["resources"]["memory_bytes"]
        return asked

    @property
    def tasks(self) -> "tuple[int, int]":
        """On how many nodes the function is called, and by how many tasks of each."""
        asked = self.spec["resources"]
        return asked.get("nodes", 1), asked.get("tasks_per_node", 1)

    def path(self, *names: str) -> str:
        """Return a path below the job's folder, or below the group's for what its elements share."""
        if names[0] == layout.SCHEDULER_LOG and self.element is not None:
            log = self.scheduler.element_log(self.element, self.submission)
            return os.path.join(self.home, layout.element_log(log))
        return os.path.join(self.home if names[0] in _SHARED else self.folder, *names)

    def attempts(self) -> "list[int]":
        """Return the numbers of the attempts that exist, in order."""
        try:
            names = os.listdir(self.path(layout.ATTEMPTS))
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def elements(self) -> "list[JobFolder]":
        """Return the elements of a group that have a folder, in order."""
        folder = os.path.join(self.home, layout.ELEMENTS)
        return [JobFolder(os.path.join(folder, str(number))) for number in numbers_in(folder)]

    def cancelled(self) -> bool:
        """Whether it was asked to end."""
        return os.path.exists(self.path(layout.CANCEL))

    def has_checkpoint(self) -> bool:
        """Whether the function has left a checkpoint."""
        return bool(names_in(self.path(layout.CHECKPOINT)))

    def secrets(self) -> "dict[str, str]":
        """Return the secret variables and their values; none once the job is final."""
        try:
            with open(self.path(layout.SECRETS), encoding="utf-8") as file:
                return dict(native(json.loads(file.read())))
        except FileNotFoundError:
            return {}

    @property
    def node(self) -> str:
        """Return the machine's name, as the scheduler knows it."""
        return self.scheduler.node_name()


def job_folders(root: str) -> "list[str]":
    """The folders of all jobs below a root, and not what an upload or a removal left half done."""
    folder = os.path.join(root, layout.JOBS)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    ids = [name for name in sorted(names) if len(name) == _ID_LENGTH and _ID_DIGITS.issuperset(name)]
    return [os.path.join(folder, name) for name in ids]


def each_folder(home: str) -> "list[str]":
    """Return the folder of a job, and those of the elements of a group."""
    elements = os.path.join(home, layout.ELEMENTS)
    return [home, *(os.path.join(elements, name) for name in names_in(elements))]


def dependencies_of(spec: "Mapping[str, Any]") -> "list[Dependency]":
    after: "dict[str, Any]" = spec.get("after") or {}
    return [Dependency(job, facts["name"], facts.get("items")) for job, facts in sorted(after.items())]


def describe_waiting(open_ones: "Sequence[Dependency]") -> str:
    """Say which jobs a job waits for.

    Example:
        >>> describe_waiting([Dependency("7f3a9b2200000000", "train", None)])
        'waiting for train (7f3a)'
    """
    named = ["%s (%s)" % (dependency.name, dependency.job[:4]) for dependency in open_ones[:3]]
    more = " and %d more" % (len(open_ones) - 3) if len(open_ones) > 3 else ""
    return "waiting for %s%s" % (", ".join(named), more)


DRIVER_FILE = "/sys/module/nvidia/version"
_LIBC_VERSION = "CS_GNU_LIBC_VERSION"


def describe_place(job: "JobFolder") -> "dict[str, Any]":
    """Describe this machine and the environment; None for what it does not have."""
    made = job.spec.get("building")
    machine = os.uname()
    libc = os.confstr(_LIBC_VERSION) if _LIBC_VERSION in os.confstr_names else None
    kernel = "%s %s %s" % (machine.sysname, machine.release, machine.machine)
    lock = [layout.environment_dir(made["root"], made["id"]), layout.ABOUT, layout.PLAN] if made else []
    return {
        "node": job.node,
        "platform": ", ".join(filter(None, (kernel, libc))),
        "driver": last_bytes(DRIVER_FILE).decode("ascii", "replace").strip() or None,
        "python": job.spec["python"],
        "environment": made["id"] if made else None,
        "lock": "/".join(lock) or None,
    }
