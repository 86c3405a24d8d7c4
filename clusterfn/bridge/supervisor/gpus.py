"""The GPUs of this machine, as nvidia-smi lists them, and those among which a job's may be chosen.

Reads only. Which of them are free is decided by the queue.
"""

import os
import re
import time
from collections import namedtuple

from ..layout import ENVIRONMENT, UNSATISFIABLE
from .eligible_gpus import GpuInfo, describe_gpus, describe_request, eligible_gpus, suggest_gpus
from .text import last_lines, number, printable
from .tree import PROC
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping, Sequence

GpuLoad = namedtuple("GpuLoad", ("uuid", "name", "index", "total_mib", "used_mib", "use_percent"))
GpuProcess = namedtuple("GpuProcess", ("name", "pid", "user"))
_LIMIT_S = 10.0
_TRIES, _AGAIN_S = 3, 0.5  # what is no table may be one a moment later
_PROCESSES = "--query-compute-apps="
_UUIDS = ("GPU-", "MIG-")
_ROW = re.compile(r"(GPU|MIG)-[\w-]+,[^,]+,")
QUIET_MIB = 300  # a driver's own use; more without a visible process is somebody in a container


def candidates(there: "Sequence[GpuInfo]", resources: "Mapping[str, Any]") -> "list[str]":
    """The UUIDs of all cards that are as asked for, whether they are free or not, in the order of `there`.

    Args:
        there: All cards of the machine.
        resources: Of spec.json.

    Raises:
        Verdict: They are fewer than are wanted.
    """
    wanted, kind, memory = resources["gpus"], resources.get("gpu_type"), resources.get("gpu_memory_bytes")
    fitting = eligible_gpus(there, kind, memory)
    if len(fitting) >= wanted:
        return [card.uuid for card in fitting]
    if kind is None and memory is None:
        has = "none" if not there else "only %d" % len(there)
        raise _too_few("%d GPUs" % wanted, has, "ask for fewer, or choose another host")
    raise _too_few(describe_request(wanted, kind, memory), describe_gpus(there), suggest_gpus(there, kind))


def _too_few(wanted: str, has: str, advice: str) -> Verdict:
    message = "the job asks for %s, and the host has %s" % (wanted, has)
    return Verdict(UNSATISFIABLE, message, stage="lease", hint=advice)


def list_gpus() -> "list[GpuInfo]":
    """All cards with what they are, in PCI order.

    Raises:
        Verdict: nvidia-smi is missing, hangs, or answers something else.
    """
    rows = query_nvidia_smi("--query-gpu=pci.bus_id,index,uuid,memory.total,name", 5)
    return [GpuInfo(number(index) or 0, uuid, name, number(mib) or 0) for _, index, uuid, mib, name in sorted(rows)]


def gpu_loads() -> "list[GpuLoad]":
    """All cards with what is in use of them, in PCI order; None for a number that the driver does not know.

    Raises:
        Verdict: As `cards`.
    """
    rows = query_nvidia_smi("--query-gpu=pci.bus_id,index,memory.total,memory.used,utilization.gpu,uuid,name", 7)
    return [GpuLoad(uuid, name, *map(number, numbers)) for _, *numbers, uuid, name in sorted(rows)]


def gpu_processes() -> "dict[str, list[GpuProcess]]":
    """What runs on each card that something runs on.

    Raises:
        Verdict: As `cards`.
    """
    found: "dict[str, list[GpuProcess]]" = {}
    for uuid, pid, name in query_nvidia_smi(_PROCESSES + "gpu_uuid,pid,process_name", 3):
        found.setdefault(uuid, []).append(GpuProcess(os.path.basename(name), pid, user_of(pid)))
    return found


def describe_process(process: "GpuProcess") -> str:
    """"python (pid 123, bob)"."""
    return "%s (pid %s, %s)" % process


def used_by_others(wanted: "Iterable[str]") -> "dict[str, str]":
    """Those of the `wanted` cards that somebody uses who holds no lease, and who it is, in words.

    Asked before the job's own processes exist, so that any process on a card is a stranger, one's own included.

    Raises:
        Verdict: As `cards`.
    """
    found: "dict[str, str]" = {}
    for uuid, used in query_nvidia_smi("--query-gpu=uuid,memory.used", 2):
        if (number(used) or 0) > QUIET_MIB:
            found[uuid] = "%s MiB in use by nobody visible" % used
    found.update((uuid, describe_process(there[-1])) for uuid, there in gpu_processes().items())
    return {uuid: found[uuid] for uuid in wanted if uuid in found}


def user_of(pid: str) -> str:
    """The name of the user that a process belongs to."""
    try:
        return user_name(os.stat("%s/%d" % (PROC, int(pid))).st_uid)
    except (OSError, ValueError):
        return "in a container"


def user_name(uid: int) -> str:
    """The name of a user, or the number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def query_nvidia_smi(question: str, columns: int) -> "list[list[str]]":
    """The rows of nvidia-smi's answer; what stands in the last column may have commas.

    Raises:
        Verdict: As `cards`.
    """
    argv = ["nvidia-smi", question, "--format=csv,noheader,nounits"]
    for left in reversed(range(_TRIES)):
        text = _ask(argv)
        rows = [[cell.strip() for cell in line.split(",")] for line in _lines(question, text)]
        if all(len(row) >= columns and all(row[: columns - 1]) for row in rows) and not _unlike(question, rows):
            return [row[: columns - 1] + [", ".join(row[columns - 1 :])] for row in rows]
        time.sleep(_AGAIN_S if left else 0)
    raise _failed("answered what is not a table", text.encode("utf-8", "replace"))


def _lines(question: str, text: str) -> "list[str]":
    """One for each row: the name of a process may hold line ends, and its row continues after them."""
    lines = []  # type: list[str]
    for line in filter(str.strip, text.split("\n")):
        if lines and question.startswith(_PROCESSES) and not _ROW.match(line):
            lines[-1] += " " + line
        else:
            lines.append(line)
    return lines


def _unlike(question: str, rows: "list[list[str]]") -> bool:
    """Whether rows name no card, where they should."""
    fields = question.partition("=")[2].split(",")
    columns = [column for column, field in enumerate(fields) if field in ("uuid", "gpu_uuid")]
    return any(not row[column].startswith(_UUIDS) for row in rows for column in columns)


def _ask(argv: "list[str]") -> str:
    import subprocess  # a job without cards need not wait for it

    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        message = "the job asks for GPUs, and nvidia-smi cannot be started on this host: %s" % error.strerror
        raise Verdict(UNSATISFIABLE, message, stage="lease", hint="choose a host with NVIDIA cards") from None
    try:
        answer, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: one that hangs in the driver cannot be killed
        raise _failed("did not answer within %d seconds" % _LIMIT_S, b"") from None
    if process.returncode == 6 or b"No devices were found" in answer:
        return ""
    if process.returncode != 0:
        raise _failed("failed with exit code %d" % process.returncode, answer)
    return printable(answer.decode("utf-8", "replace"))  # any user chooses the names of his processes


def _failed(how: str, answer: bytes) -> Verdict:
    said = last_lines(answer)
    message = "nvidia-smi %s%s" % (how, ": " + said[0] if said else "")
    return Verdict(
        ENVIRONMENT, message, stage="lease", evidence=said,
        hint="run nvidia-smi on the host: its driver must answer before a GPU can be given out",
    )  # fmt: skip
