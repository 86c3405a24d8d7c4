"""Read the tables of nvidia-smi: the one reader of hosts, of the client and of `clusterfn.gpu`.

What a driver does not say ("[N/A]", "[GPU is lost]", "ERR!") is None, never 0. A GPU without memory of its own, such
as the GB10 of a DGX Spark, uses the machine's: nvidia-smi has no number for it. A lost GPU is not among the rows.
"""

import contextlib
import re
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional, Sequence

# rows: a dict for each GPU, by field; lost: what is said of GPUs that do not answer; other: lines that are no table
Table = namedtuple("Table", ("rows", "lost", "other"))
UUIDS = ("GPU-", "MIG-")
FORMAT = "--format=csv,noheader,nounits"
# nvidia-smi exits with this code if it finds no GPU.
_NO_DEVICES = 6
_MEMINFO = "/proc/meminfo"
_UNKNOWN = re.compile(
    r"\[.*\]|-|n/?a|err!?|unknown( error)?|not (supported|available|found)|insufficient permissions|gpu is lost"
    r"|gpu requires reset|no permission",
    re.IGNORECASE,
)
_NO_MEMORY = re.compile(r"\[?(n/?a|not supported)\]?|0", re.IGNORECASE)
_LOST = re.compile(
    r"gpu is lost|\[unknown error\]|unable to determine the device handle|fallen off the bus", re.IGNORECASE
)
# Of a GPU that works all the same: "WARNING: infoROM is corrupted at gpu 0000:B3:00.0". The exit code is 14 then.
_NOTICE = re.compile(r"^[^\S\n]*warning:.*", re.IGNORECASE | re.MULTILINE)
_INFOROM = re.compile(r"inforom is corrupted", re.IGNORECASE)
# "49140", "49,140", "49.140" and "49 140" of locales, "49140 MiB" of a driver that ignores nounits, "37.5"
_COUNT = re.compile(
    r"(?P<digits>[0-9]{1,18}|[0-9]{1,3}(?:[,.'\u2019\u00a0\u202f ][0-9]{3}){1,5})(?:[.,][0-9]{1,2})?(?: ?(?:%|MiB))?",
    re.IGNORECASE,
)


def query(fields: "Iterable[str]", of: str = "gpu") -> "list[str]":
    """Return the command that prints these fields of every GPU, or of every process with `of="compute-apps"`."""
    return ["nvidia-smi", "--query-%s=%s" % (of, ",".join(fields)), FORMAT]


class NoAnswer(Exception):
    """nvidia-smi gave no usable answer: how, as what follows its name in a sentence.

    Attributes:
        errno: Why it could not be started; None if it was.
        has_hung: Whether it did not end in time.
        output: What it printed.
    """

    def __init__(self, how: str, errno: "Optional[int]" = None, has_hung: bool = False, output: bytes = b"") -> None:
        Exception.__init__(self, how)
        self.errno, self.has_hung, self.output = errno, has_hung, output


def run(argv: "list[str]", limit_s: float) -> str:
    """Return what a command of `query` prints, "" if it finds no GPU; raise NoAnswer if it hangs or fails."""
    # This import is late, because a job without GPUs does not need it.
    import subprocess

    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        raise NoAnswer("cannot be started: %s" % error.strerror, errno=error.errno) from None
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        # A process that hangs in the driver cannot be ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        raise NoAnswer("did not answer within %g s" % limit_s, has_hung=True) from None
    text = output.decode("utf-8", "replace")
    # The exit code is about the faulty GPU; the others are in the table.
    if _names_faulty_gpu(text):
        return text
    if process.returncode == _NO_DEVICES or "No devices were found" in text:
        return ""
    if process.returncode != 0:
        raise NoAnswer("failed with exit code %d" % process.returncode, output=output)
    return text


def read_table(text: str, fields: "Sequence[str]") -> Table:
    """Read what `query` answers; the last field may hold commas. `value` and `count` read its cells."""
    key = next((field for field in fields if field in ("uuid", "gpu_uuid")), None)
    table = Table([], [], [])
    for line in filter(None, map(str.strip, without_notices(text).split("\n"))):
        # a blank follows the comma between cells, and none follows that of a number
        cells = [cell.strip() for cell in re.split(", +|,$" if ", " in line else ",", line, maxsplit=len(fields) - 1)]
        row = dict(zip(fields, cells))
        if len(cells) < len(fields) or not all(cells[:-1]):
            (table.lost if _LOST.search(line) else table.other).append(line)
        elif value(row[key or "name"] if key or "name" in row else "x") is None:
            table.lost.append(line)
        else:
            (table.rows if key is None or row[key].startswith(UUIDS) else table.other).append(row)
    return table


def without_notices(text: str) -> str:
    """Return an answer without lines that warn of a GPU, and are none of the table."""
    return _NOTICE.sub("", text)


def has_failed(status: "Optional[int]", text: str) -> bool:
    """Whether an exit code is one of the whole answer, and not of one GPU, such as a lost one, that it complains of."""
    return status != 0 and not _names_faulty_gpu(text)


def _names_faulty_gpu(text: str) -> bool:
    return bool(_LOST.search(text) or _INFOROM.search(text))


def value(cell: str) -> "Optional[str]":
    """Return a cell; None if the driver does not know it."""
    return None if _UNKNOWN.fullmatch(cell) else cell


def count(cell: str) -> "Optional[int]":
    """Return the number in a cell; None if there is none.

    Example:
        >>> count("49140"), count("49,140 MiB"), count("[N/A]")
        (49140, 49140, None)
    """
    match = _COUNT.fullmatch(cell)
    return int(re.sub("[^0-9]", "", match.group("digits"))) if match else None


def total_mib(cell: str, machine_mib: "Optional[int]") -> "tuple[Optional[int], bool]":
    """Return a GPU's memory by its `memory.total`, and whether it is the machine's.

    Args:
        machine_mib: The memory of the machine; None if that is unknown.
    """
    if _NO_MEMORY.fullmatch(cell):
        return machine_mib, True
    return count(cell), False


def machine_memory() -> "tuple[Optional[int], Optional[int]]":
    """Return the size of this machine's memory in MiB, and how much of it could be taken now; None if unknown."""
    try:
        with open(_MEMINFO, encoding="ascii", errors="replace") as file:
            found = dict(re.findall(r"^(MemTotal|MemAvailable): +([0-9]+) kB", file.read(), re.MULTILINE))
    except OSError:
        return None, None
    total, available = (int(found[name]) >> 10 if name in found else None for name in ("MemTotal", "MemAvailable"))
    return total, available
