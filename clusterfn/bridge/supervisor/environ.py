"""The worker's environment: the host's own with what would leak into the environment's Python taken out.

In this order, the later wins: the host's variables, caches below the root, the environment's activation, the job's own
variables, its secrets, and what clusterfn itself needs. Pure; called by `run`.
"""

import os

from ...layout import CHECKPOINT, TAG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

    from .job import Job

_LEAKS = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
_LEAKING_PREFIXES = ("CONDA_", "_CE_")
_KEEP = "CLUSTERFN_KEEP"  # names, separated by blanks, that job.sh set on purpose (modules, prolog)
_CACHES = {
    "HF_HOME": "huggingface", "TORCH_HOME": "torch", "PIP_CACHE_DIR": "pip", "TRITON_CACHE_DIR": "triton",
}  # fmt: skip
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def worker_environment(
    job: "Job", attempt: int, host: "Mapping[str, str]", cards: "Optional[list[str]]"
) -> "dict[str, str]":
    """Everything the worker's process finds in os.environ.

    Args:
        job: The job.
        attempt: Its number.
        host: The supervisor's own environment.
        cards: UUIDs of leased GPUs; None where the scheduler hands them out.
    """
    spec = job.spec
    values = _without_leaks(host)
    for name, folder in _CACHES.items():
        values.setdefault(name, os.path.join(job.root, "cache", folder))
    values.update(dict.fromkeys(_THREADS, str(spec["resources"]["cores"])))
    _activate(values, spec["activation"], spec["python"])
    values.update(_gpus(host, cards, spec["resources"]["gpus"], job.slurm))
    values.update(spec["env"])
    values.update(job.secrets())
    values.setdefault("PYTHONIOENCODING", "utf-8")
    values.update({
        TAG: "%s/%d" % (job.id, attempt),
        "CLUSTERFN_CHECKPOINT": job.path(CHECKPOINT),
        "PYTHONNOUSERSITE": "1",
    })
    return values


def _without_leaks(host: "Mapping[str, str]") -> "dict[str, str]":
    keep = host.get(_KEEP, "").split()
    return {name: value for name, value in host.items() if name in keep or not _leaks(name)}


def _leaks(name: str) -> bool:
    return name in _LEAKS or name.startswith(_LEAKING_PREFIXES) or name in (_KEEP, TAG)


def _activate(values: "dict[str, str]", activation: "dict[str, Any]", python: str) -> None:
    for name in activation.get("unset", ()):
        values.pop(name, None)
    values.update(activation.get("set", {}))
    prepend = dict(activation.get("prepend", {}))
    prepend.setdefault("PATH", [os.path.dirname(python)])
    for name, folders in prepend.items():
        before = [folders] if isinstance(folders, str) else list(folders)
        values[name] = os.pathsep.join(before + [values[name]] if values.get(name) else before)


def _gpus(host: "Mapping[str, str]", cards: "Optional[list[str]]", wanted: int, slurm: bool) -> "dict[str, str]":
    if not wanted:
        return {"CUDA_VISIBLE_DEVICES": ""}
    given = host.get("CUDA_VISIBLE_DEVICES") if slurm or cards is None else ",".join(cards)
    visible = {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
    return dict(visible, CUDA_DEVICE_ORDER="PCI_BUS_ID")  # SLURM counts so too; CUDA would put the fastest first
