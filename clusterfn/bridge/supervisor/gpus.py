"""What nvidia-smi says: which GPUs this machine has, who uses them, and how much a job uses its own while it runs.

Reads only; which GPUs are free is decided by the queue. While a job runs, one nvidia-smi at a time is asked and never
waited for, and none again after one hangs. A job has its GPUs to itself, so what is used of a GPU is the job's. What
cannot be known stays None. A function that asks for GPUs raises `AttemptEnded` if nvidia-smi is missing, hangs, or
answers something else; the others say nothing where there is no nvidia-smi."""

import os
import re
import signal
import time
from collections import namedtuple

from ..layout import ENVIRONMENT, UNSATISFIABLE
from . import eligible_gpus as eligible
from . import nvidia_smi, process_tree
from .process_tree import PROC, is_hidden
from .process_tree import user_name as user_name
from .text import format_size, last_lines, number, printable
from .verdict import AttemptEnded, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, Iterable, Mapping, Optional, Sequence

    from .eligible_gpus import GpuInfo

GpuLoad = namedtuple("GpuLoad", ("uuid", "name", "index", "total_mib", "used_mib", "use_percent", "unified"))
GpuProcess = namedtuple("GpuProcess", ("name", "pid", "user"))
# A server with eight GPUs and no persistence mode takes over ten seconds.
LIMIT_S = 30.0
# An answer that is no table may be one a moment later.
_TRIES = 3
AGAIN_S = 0.5
_PROCESSES = "compute-apps"
_HIDDEN = "another user"
_UNNAMED = "a process"
# The first namespace of pids, which is the machine's, has this inode.
_MACHINES_PIDS = 0xEFFFFFFC
_ROW = r"(GPU|MIG)-[\w-]+,[^,]+,"
# An older driver rejects the question with these words, and is not asked again.
_mig = [eligible.MIG]
_UNKNOWN_FIELD = "is not a valid field"
# A driver itself uses less. More use without a visible process is that of a container.
QUIET_MIB = 300


def candidates(there: "Sequence[GpuInfo]", resources: "Mapping[str, Any]") -> "list[str]":
    """The UUIDs of all GPUs that are as asked for, whether they are free or not, in the order of `there`.

    Raises:
        AttemptEnded: They are fewer than are wanted.
    """
    wanted, kind, memory = resources["gpus"], resources.get("gpu_type"), resources.get("gpu_memory_bytes")
    only = eligible.only_of(resources)
    there = eligible.allowed_gpus(there, only)
    fitting = eligible.eligible_gpus(there, kind, memory)
    if len(fitting) >= wanted:
        return [gpu.uuid for gpu in fitting]
    asked, has = eligible.describe_request(wanted, kind, memory), eligible.describe_gpus(there)
    advice = eligible.suggest_gpus(there, kind)
    if kind is None and memory is None:
        asked, has = "%d GPUs" % wanted, "only %d" % len(there) if there else "none"
        advice = "ask for fewer, or choose another host"
    of_which = " that %s in clusterfn.yml leaves" % eligible.describe_only(only) if only else ""
    message = "the job asks for %s, and the host has %s%s" % (asked, has, of_which)
    raise AttemptEnded(Verdict(UNSATISFIABLE, message, stage="lease", hint=advice))


def list_gpus(*more: str) -> "list[GpuInfo]":
    """All GPUs with what they are, in PCI order; `more`: "memory.used", if that is to be known."""
    fields = ["pci.bus_id", "index", "uuid", "memory.total", *more, "name"]
    try:
        rows = query_nvidia_smi(*fields[:-1], *_mig, fields[-1]).rows
    except AttemptEnded as ended:
        if not _mig or _UNKNOWN_FIELD not in ended.verdict.message:
            raise
        _mig.clear()
        rows = query_nvidia_smi(*fields).rows
    return eligible.gpus_in(sorted(rows, key=lambda row: row["pci.bus_id"]), nvidia_smi.machine_memory()[0])


def gpu_loads() -> "tuple[list[GpuLoad], list[str]]":
    """All GPUs with what is in use of them, in PCI order, and what is said of those that do not answer.

    A number that the driver does not know is None.
    """
    table = query_nvidia_smi("pci.bus_id", "index", "memory.total", "memory.used", "utilization.gpu", "uuid", "name")
    rows = sorted(table.rows, key=lambda row: row["pci.bus_id"])
    machine_mib = nvidia_smi.machine_memory()[0]
    loads = []
    for gpu, row in zip(eligible.gpus_in(rows, machine_mib), rows):
        used, percent = nvidia_smi.count(row["memory.used"]), nvidia_smi.count(row["utilization.gpu"])
        loads.append(GpuLoad(gpu.uuid, gpu.name, gpu.index, gpu.total_mib, used, percent, gpu.unified))
    return loads, [printable(line) for line in table.lost]


def gpu_processes() -> "dict[str, list[GpuProcess]]":
    """What runs on each GPU that something runs on."""
    found: "dict[str, list[GpuProcess]]" = {}
    for row in query_nvidia_smi("gpu_uuid", "pid", "process_name", of=_PROCESSES).rows:
        name = os.path.basename(nvidia_smi.value(row["process_name"]) or "") or _UNNAMED
        process = GpuProcess(name, row["pid"], user_of(row["pid"]))
        found.setdefault(row["gpu_uuid"], []).append(process)
    return found


def describe_process(process: "GpuProcess") -> str:
    """ "python (pid 123, bob)"; "another user's process (pid 123)" where neither is shown."""
    if process.user == _HIDDEN:
        name = "" if process.name == _UNNAMED else process.name + ", "
        return "another user's process (%spid %s)" % (name, process.pid)
    return "%s (pid %s, %s)" % process


def used_by_others(wanted: "Iterable[str]") -> "dict[str, str]":
    """Return the `wanted` GPUs that are in use without a lease, and by whom, in words.

    Asked before the job's own processes exist, so that any process on a GPU is a stranger, one's own included.
    """
    found: "dict[str, str]" = {}
    for row in query_nvidia_smi("uuid", "memory.used").rows:
        used = nvidia_smi.count(row["memory.used"])
        # An unknown use does not keep a GPU from other jobs.
        if used is not None and used > QUIET_MIB:
            found[row["uuid"]] = "%s in use by an unknown process" % format_size(used << 20)
    found.update((uuid, describe_process(there[-1])) for uuid, there in gpu_processes().items())
    return {uuid: found[uuid] for uuid in wanted if uuid in found}


def user_of(pid: str) -> str:
    """Return the name of the user that a process belongs to, or why it is not known.

    On the machine itself, /proc shows the processes in containers too: who is not there has ended, or is hidden.
    """
    which = number(pid)
    # The driver does not say which process it is.
    if which is None:
        return "of an unknown user"
    try:
        return user_name(os.stat("%s/%d" % (PROC, which)).st_uid)
    except OSError:
        pass
    if is_hidden(which):
        return _HIDDEN
    try:
        outside = os.stat(PROC + "/self/ns/pid").st_ino != _MACHINES_PIDS
    except OSError:
        outside = False
    return "outside this container" if outside else "which has just ended"


def query_nvidia_smi(*fields: str, of: str = "gpu") -> "nvidia_smi.Table":
    """What nvidia-smi answers, with at least one row or nothing said of a GPU."""
    for left in reversed(range(_TRIES)):
        text = run_nvidia_smi(nvidia_smi.query(fields, of))
        table = nvidia_smi.read_table(_joined(text) if of == _PROCESSES else text, fields)
        if not table.other and (table.rows or not table.lost):
            return table
        time.sleep(AGAIN_S if left else 0)
    how = "answered what is not a table" if table.other else "sees no GPU that answers"
    raise AttemptEnded(_failed(how, text.encode("utf-8", "replace")))


def _joined(text: str) -> str:
    """A line for each row: the name of a process may hold line ends, and its row continues after them."""
    lines = []  # type: list[str]
    for line in filter(str.strip, nvidia_smi.without_notices(text).split("\n")):
        if lines and not re.match(_ROW, line):
            lines[-1] += " " + line
        else:
            lines.append(line)
    return "\n".join(lines)


def run_nvidia_smi(argv: "list[str]") -> str:
    try:
        # Users choose the names of their processes.
        return printable(nvidia_smi.run(argv, LIMIT_S))
    except nvidia_smi.NoAnswer as failed:
        if failed.errno is None:
            raise AttemptEnded(_failed(str(failed), failed.output)) from None
        message = "the job asks for GPUs, and nvidia-smi on this host %s" % failed
        refusal = Verdict(UNSATISFIABLE, message, stage="lease", hint="choose a host with NVIDIA GPUs")
        raise AttemptEnded(refusal) from None


def _failed(how: str, answer: bytes) -> Verdict:
    said = last_lines(answer)
    message = "nvidia-smi %s%s" % (how, ": " + said[0] if said else "")
    hint = "run nvidia-smi on the host: its driver must answer before a GPU can be given out"
    return Verdict(ENVIRONMENT, message, stage="lease", evidence=said, hint=hint)


# A short job uses its GPU only for moments, after the seconds in which it imports PyTorch.
_EARLY_LOOKS = 5
_EARLY_LOOK_EVERY_S = 1.0
_LOOK_EVERY_S = 5.0
# An answer is far smaller: it has a line for each GPU.
_MOST = 1 << 16
_FIELDS = ("uuid", "name", "memory.used", "utilization.gpu")
_MIB = 2**20

# Once it holds something, nvidia-smi is not asked again, not even for another item of a group.
hung_programs: "list[str]" = []


class GpuSamples:
    """What was seen of one GPU; `load` is what the last sample has seen."""

    def __init__(self, uuid: str) -> None:
        self.load: "dict[str, Any]" = {"uuid": uuid, "memory_bytes": None, "use_percent": None}
        self._name: "Optional[str]" = None
        self._peak: "Optional[int]" = None
        self._uses: "list[int]" = []

    def see(self, name: str, used_mib: "Optional[int]", percent: "Optional[int]") -> None:
        """Add one sample; None for a number that the driver does not know."""
        self._name = name
        used = None if used_mib is None else used_mib * _MIB
        self.load.update(memory_bytes=used, use_percent=percent)
        if used is not None:
            self._peak = max(self._peak or 0, used)
        if percent is not None:
            self._uses.append(percent)

    def as_dict(self) -> "dict[str, Any]":
        """Return it as outcome.json has it."""
        uses = self._uses
        return {
            "uuid": self.load["uuid"],
            "name": self._name,
            "peak_memory_bytes": self._peak,
            "peak_use_percent": max(uses) if uses else None,
            "mean_use_percent": round(sum(uses) / float(len(uses)), 1) if uses else None,
        }


class GpuUsageMonitor:
    """Looks at the GPUs of one attempt every few seconds, and every second at first.

    Args:
        names: UUIDs, or what else `nvidia-smi -i` takes; empty: nothing is ever asked.
        notes: Where it says that it gave up.
    """

    def __init__(self, names: "list[str]", notes: "list[str]") -> None:
        self._names, self._notes = names, notes
        self._samples = {name: GpuSamples(name) for name in names if name.startswith(("GPU-", "MIG-"))}
        self._asking: "Optional[subprocess.Popen[bytes]]" = None
        self._out = -1
        self._answer = b""
        self._next = time.monotonic() + _EARLY_LOOK_EVERY_S
        self._early_looks_left = _EARLY_LOOKS - 1
        self._until = 0.0
        self._given_up = not names or bool(hung_programs)

    def look(self) -> None:
        """Read what has been answered, and ask when it is time. Return at once."""
        if self._asking is not None:
            self._listen(self._asking)
        elif not self._given_up and time.monotonic() >= self._next:
            is_early = self._early_looks_left > 0
            self._early_looks_left -= is_early
            self._next = time.monotonic() + (_EARLY_LOOK_EVERY_S if is_early else _LOOK_EVERY_S)
            self.ask()

    def close(self) -> None:
        """Ask no more; a process that still asks is killed, and not waited for."""
        self._given_up = True
        if self._asking is not None:
            self._leave(self._asking)

    def usage(self) -> "Optional[list[dict[str, Any]]]":
        """Return a dict for each GPU; None if it is not known which they are."""
        if self._asking is not None:
            self._listen(self._asking)
        if self._names and not self._samples:
            return None
        return [gpu.as_dict() for gpu in self._samples.values()]

    def load(self) -> "list[dict[str, Any]]":
        return [dict(gpu.load) for gpu in self._samples.values()]

    def ask(self) -> None:
        # This import is late, because most jobs have no GPUs.
        import subprocess

        argv = nvidia_smi.query(_FIELDS) + ["-i", ",".join(self._names)]
        try:
            asking = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:
            # There is no nvidia-smi, as on many nodes that have GPUs.
            self._given_up = True
            return
        process_tree.apart.add(asking.pid)
        self._asking = asking
        self._answer = b""
        self._until = time.monotonic() + LIMIT_S
        assert asking.stdout is not None
        self._out = asking.stdout.fileno()
        os.set_blocking(self._out, False)

    def _listen(self, asking: "subprocess.Popen[bytes]") -> None:
        more = True
        while more and len(self._answer) < _MOST:
            try:
                data = os.read(self._out, _MOST)
            except BlockingIOError:
                if time.monotonic() >= self._until:
                    hung_programs.append("hung")
                    self._give_up("did not answer within %d s" % LIMIT_S)
                return
            self._answer += data
            more = bool(data)
        self._leave(asking)
        text = self._answer.decode("utf-8", "replace")
        if not self.read_answer(text):
            said = text.strip().split("\n")[0][:200]
            self._give_up("answered what is not a table of GPUs: %s" % (said or "nothing"))

    def _leave(self, asking: "subprocess.Popen[bytes]") -> None:
        """Leave it: it is collected when it is dead, which one that hangs in the driver may never be."""
        self._asking = None
        if asking.stdout is not None:
            asking.stdout.close()
        # With a return code, subprocess neither waits for it nor complains.
        asking.returncode = 0
        if asking.pid in process_tree.apart:
            os.kill(asking.pid, signal.SIGKILL)

    def _give_up(self, why: str) -> None:
        self._notes.append("the use of the GPUs was not measured to the end: nvidia-smi %s" % why)
        self.close()

    def read_answer(self, answer: str) -> bool:
        """Read an answer; return whether it names at least one GPU."""
        rows = nvidia_smi.read_table(answer, _FIELDS).rows
        for row in rows:
            samples = self._samples.setdefault(row["uuid"], GpuSamples(row["uuid"]))
            used, percent = nvidia_smi.count(row["memory.used"]), nvidia_smi.count(row["utilization.gpu"])
            samples.see(row["name"], used, percent)
        return bool(rows)


def monitored_gpus(uuids: "Optional[list[str]]", wanted: int, given: str) -> "list[str]":
    """What to ask nvidia-smi about.

    Args:
        uuids: Those of leased GPUs; None where a scheduler assigns them.
        wanted: How many the job asked for.
        given: Which GPUs a scheduler gave to the job, as a list with commas; "" where none says it.
    """
    if not wanted:
        return []
    if uuids is not None:
        return uuids
    return [name.strip() for name in given.split(",") if name.strip()]
