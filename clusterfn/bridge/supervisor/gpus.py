"""The GPUs of this machine: which of them a job may get, and what nvidia-smi says about them.

Which GPUs are of the type and the size that a job asks for is also decided by the library, before anything is sent:
that part is pure. Which of them are free is decided by the queue.
"""

import os
import re
import time
from collections import namedtuple

from ..layout import ENVIRONMENT, UNSATISFIABLE
from .text import last_lines, number, printable
from .tree import PROC
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping, Optional, Sequence


# index as nvidia-smi counts, uuid, name such as "NVIDIA RTX A6000", total_mib: all of its memory
GpuInfo = namedtuple("GpuInfo", ("index", "uuid", "name", "total_mib"))

# A card sold as 48 GB shows 45 to 48: its driver keeps up to a fifteenth for error correction, and a little besides.
_OF_ITS_NAME = 0.93


def eligible_gpus(cards: "Iterable[GpuInfo]", kind: "Optional[str]", memory_bytes: "Optional[int]") -> "list[GpuInfo]":
    """Those of the cards that have this type and at least this size; None asks for nothing."""
    of_kind = [card for card in cards if kind is None or is_gpu_type(card.name, kind)]
    return [card for card in of_kind if memory_bytes is None or large_enough(card.total_mib << 20, memory_bytes)]


def is_gpu_type(name: str, kind: str) -> bool:
    """Whether whole words of a card's name, one after another, are the type: "a6000" is "NVIDIA RTX A6000".

    Example:
        >>> is_of("NVIDIA GeForce RTX 4090", "rtx4090"), is_of("NVIDIA RTX A1000", "a100")
        (True, False)
    """
    words, wanted = _words_of(name), squeezed(kind)
    starts = range(len(words))
    return any("".join(words[start:end]) == wanted for start in starts for end in range(start + 1, len(words) + 1))


def squeezed(kind: str) -> str:
    """A type as it is compared: "RTX A6000" is "rtxa6000"."""
    return "".join(_words_of(kind))


def large_enough(size_bytes: int, asked_bytes: int) -> bool:
    """Whether a card of this size is sold as one of that size, or a larger."""
    return size_bytes >= asked_bytes * _OF_ITS_NAME


def _words_of(text: str) -> "list[str]":
    return re.findall("[a-z0-9]+", text.lower())


def describe_request(count: int, kind: "Optional[str]", memory_bytes: "Optional[int]") -> str:
    """What is asked for, in words: "2 GPUs of type a100 with 40 GB"."""
    of_type = " of type %s" % kind if kind else ""
    size = " with %s" % _gigabytes(memory_bytes / 2.0**30) if memory_bytes else ""
    return "%d GPU%s%s%s" % (count, "" if count == 1 else "s", of_type, size)


def describe_gpus(cards: "Sequence[GpuInfo]") -> str:
    """Which cards there are: "8 x NVIDIA RTX A6000 (48 GB)"."""
    kinds = ["%s (%s)" % (card.name, _gigabytes(card.total_mib / 1024.0)) for card in cards]
    return ", ".join("%d x %s" % (kinds.count(kind), kind) for kind in sorted(set(kinds), key=kinds.index)) or "none"


def name_gpus(cards: "Iterable[GpuInfo]", uuids: "Iterable[str]") -> str:
    """These of the cards, as people find them: "GPU 3 (NVIDIA RTX A6000, GPU-7f3a…)"."""
    known = {card.uuid: "GPU %d (%s, %s)" % (card.index, card.name, card.uuid) for card in cards}
    return ", ".join(known.get(uuid, uuid) for uuid in uuids)


def _gigabytes(size: float) -> str:
    return "%.0f GB" % size if size >= 1 else "%.1f GB" % size


def suggest_gpus(cards: "Sequence[GpuInfo]", kind: "Optional[str]") -> str:
    """What to do if too few of the cards are such: the type that was perhaps meant."""
    import difflib  # only a refusal needs it

    words = {word for card in cards for word in _words_of(card.name) if any(sign.isdecimal() for sign in word)}
    near = difflib.get_close_matches(squeezed(kind), sorted(words), n=1, cutoff=0.6) if kind else []
    if near and kind and not any(is_gpu_type(card.name, kind) for card in cards):
        return 'did you mean gpu_type="%s"?' % near[0]
    return "ask for fewer or other cards, or choose another host"


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


GpuLoad = namedtuple("GpuLoad", ("uuid", "name", "index", "total_mib", "used_mib", "use_percent"))
GpuProcess = namedtuple("GpuProcess", ("name", "pid", "user"))

_LIMIT_S = 10.0
_TRIES, _AGAIN_S = 3, 0.5  # what is no table may be one a moment later
_PROCESSES = "--query-compute-apps="
_UUIDS = ("GPU-", "MIG-")
_ROW = re.compile(r"(GPU|MIG)-[\w-]+,[^,]+,")
QUIET_MIB = 300  # a driver's own use; more without a visible process is somebody in a container


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
