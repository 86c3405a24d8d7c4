"""Which GPUs a job may get: those of the type and the size that it asks for, whether they are free or not.

Pure: the library decides the same before anything is sent, on every platform.
"""

import re
from collections import namedtuple

from .text import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Mapping, Optional, Sequence

# index as nvidia-smi counts, uuid, name such as "NVIDIA RTX A6000", total_mib: all of its memory, None if unknown,
# unified: whether that is the machine's own memory, as on a GB10; in_parts: whether it is divided by MIG; used_mib: as
# nvidia-smi said when it was asked, None if unknown
GpuInfo = namedtuple("GpuInfo", ("index", "uuid", "name", "total_mib", "unified", "in_parts", "used_mib"))
# Python 3.6 takes no defaults otherwise.
GpuInfo.__new__.__defaults__ = (False, False, None)
# The field of nvidia-smi that says so, since driver 450.
MIG = "mig.mode.current"
# A GPU sold as 48 GB shows 45 to 48: its driver keeps up to a fifteenth for error correction and its own use.
_OF_ITS_NAME = 0.93


def gpus_in(rows: "Iterable[dict[str, str]]", machine_mib: "Optional[int]") -> "list[GpuInfo]":
    """The GPUs in a table of nvidia-smi with index, uuid, memory.total and name.

    Args:
        machine_mib: The memory of the machine, which a GPU without its own uses.
    """
    # This import is late, because a job without GPUs does not need it.
    from . import nvidia_smi

    found = []
    for place, row in enumerate(rows):
        index = nvidia_smi.count(row["index"])
        mib, unified = nvidia_smi.total_mib(row["memory.total"], machine_mib)
        in_parts, used = row.get(MIG) == "Enabled", nvidia_smi.count(row.get("memory.used", ""))
        found.append(GpuInfo(place if index is None else index, row["uuid"], row["name"], mib, unified, in_parts, used))
    return found


def cuda_names(gpus: "Sequence[GpuInfo]", uuids: "list[str]") -> "list[str]":
    """What CUDA_VISIBLE_DEVICES calls some GPUs: their numbers, as programs expect them.

    UUIDs where CUDA counts others than nvidia-smi: it counts the parts of a GPU, and leaves out one that is lost.

    Args:
        gpus: All of the machine, in PCI order.
    """
    numbers = {gpu.uuid: str(gpu.index) for gpu in gpus if not gpu.in_parts}
    if list(numbers.values()) != [str(place) for place in range(len(gpus))]:
        return uuids
    return [numbers[uuid] for uuid in uuids]


def allowed_gpus(gpus: "Iterable[GpuInfo]", only: "Sequence[str]") -> "list[GpuInfo]":
    """Those of the GPUs that `gpus: {only: …}` of the host leaves; all if it names none.

    Args:
        gpus: All of the machine.
        only: Numbers as nvidia-smi counts, or UUIDs or their beginnings.
    """
    return [gpu for gpu in gpus if not only or any(is_called(gpu, name) for name in only)]


def is_gpu_id(name: str) -> bool:
    """Whether this is a number as nvidia-smi counts, or a UUID or its beginning."""
    return re.fullmatch("[0-9]{1,3}|(GPU|MIG)-[0-9A-Za-z-]{4,60}", name) is not None


def is_called(gpu: GpuInfo, name: str) -> bool:
    """Whether a GPU has this number, or a UUID that begins so."""
    return name == str(gpu.index) or (not name.isdecimal() and gpu.uuid.startswith(name))


def describe_only(only: "Sequence[str]") -> str:
    """Write the restriction as clusterfn.yml has it."""
    return "gpus: {only: [%s]}" % ", ".join(only)


def only_of(resources: "Mapping[str, Any]") -> "tuple[str, ...]":
    """The restriction that spec.json has; empty for none."""
    return tuple(resources.get("gpus_only") or ())


def eligible_gpus(gpus: "Iterable[GpuInfo]", kind: "Optional[str]", memory_bytes: "Optional[int]") -> "list[GpuInfo]":
    """Those of the GPUs that have this type and at least this size; None asks for nothing."""
    of_kind = [gpu for gpu in gpus if kind is None or is_gpu_type(gpu.name, kind)]
    return [gpu for gpu in of_kind if memory_bytes is None or large_enough((gpu.total_mib or 0) << 20, memory_bytes)]


def is_gpu_type(name: str, kind: str) -> bool:
    """Whether whole words of a GPU's name, one after another, are the type: "a6000" is "NVIDIA RTX A6000".

    Example:
        >>> is_gpu_type("NVIDIA GeForce RTX 4090", "rtx4090"), is_gpu_type("NVIDIA RTX A1000", "a100")
        (True, False)
    """
    words = _words_of(name)
    wanted = squeezed(kind)
    starts = range(len(words))
    return any("".join(words[start:end]) == wanted for start in starts for end in range(start + 1, len(words) + 1))


def squeezed(kind: str) -> str:
    """Return a type as it is compared: "RTX A6000" is "rtxa6000"."""
    return "".join(_words_of(kind))


def large_enough(size_bytes: int, asked_bytes: int) -> bool:
    """Whether a GPU of this size is sold as one of that size, or a larger."""
    return size_bytes >= asked_bytes * _OF_ITS_NAME


def _words_of(text: str) -> "list[str]":
    if not text:
        return []
    return re.findall("[a-z0-9]+", text.lower())


def describe_request(count: int, kind: "Optional[str]", memory_bytes: "Optional[int]") -> str:
    """Describe what is asked for: "2 GPUs of type a100 with 40 GB"."""
    of_type = " of type %s" % kind if kind else ""
    size = " with %s" % format_size(memory_bytes) if memory_bytes else ""
    return "%d GPU%s%s%s" % (count, "" if count == 1 else "s", of_type, size)


def describe_gpus(gpus: "Sequence[GpuInfo]") -> str:
    """Describe GPUs: "8 x NVIDIA RTX A6000 (48 GB)"."""
    sizes = ["unknown memory" if gpu.total_mib is None else format_size(gpu.total_mib << 20) for gpu in gpus]
    shared = [", shared with the CPU" if gpu.unified else "" for gpu in gpus]
    kinds = ["%s (%s%s)" % (gpu.name, size, also) for gpu, size, also in zip(gpus, sizes, shared)]
    return ", ".join("%d x %s" % (kinds.count(kind), kind) for kind in sorted(set(kinds), key=kinds.index)) or "none"


def name_gpus(gpus: "Iterable[GpuInfo]", uuids: "Iterable[str]") -> str:
    """These of the GPUs, as people find them: "GPU 3 (NVIDIA RTX A6000, GPU-7f3a…)"."""
    known = {gpu.uuid: "GPU %d (%s, %s)" % (gpu.index, gpu.name, gpu.uuid) for gpu in gpus}
    return ", ".join(known.get(uuid, uuid) for uuid in uuids)


def suggest_gpus(gpus: "Sequence[GpuInfo]", kind: "Optional[str]") -> str:
    """What to do if too few of the GPUs are such: the type that was perhaps meant."""
    # This import is late, because only a refusal needs it.
    import difflib

    words = {word for gpu in gpus for word in _words_of(gpu.name) if any(sign.isdecimal() for sign in word)}
    near = difflib.get_close_matches(squeezed(kind), sorted(words), n=1, cutoff=0.6) if kind else []
    if near and kind and not any(is_gpu_type(gpu.name, kind) for gpu in gpus):
        return 'did you mean gpu_type="%s"?' % near[0]
    return "ask for fewer or other GPUs, or choose another host"
