"""Whether the environment's PyTorch runs on the GPUs that the job was given, before the function does: one kernel.

Asked once for each environment, node and driver. What the GPUs are is written down, so that the next environment for
this partition is chosen for them.
"""

import json
import os
import subprocess

from ..builder import permissions
from ..layout import DEFAULT, ENVIRONMENT, GPU_STAGE, OBSERVED_GPUS, build_dir
from . import gpus, nvidia_smi, publish
from .text import last_lines
from .verdict import AttemptEnded, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

    from .job import JobFolder

# A cold import of torch from a shared file system takes minutes.
_PATIENCE_S = 300.0
_DRIVER = "/proc/driver/nvidia/version"
_PREFIX = "clusterfn cards "
# No other build would see more.
_NO_GPU = ("Found no NVIDIA driver", "no CUDA-capable device is detected", "No CUDA GPUs are available")
_HIDDEN = "no GPU or driver is visible to a job there: look at nvidia-smi and /dev/nvidia* on %s, within a job"
_UNKNOWN = "unknown"
_PROGRAM = """
import json
found = {"problem": ""}
try:
    import torch
    found.update(torch=torch.__version__, cuda=torch.version.cuda, capability="", codes=[])
    if torch.version.cuda is None:
        raise RuntimeError("it is a build without CUDA")
    found["capability"] = "%d.%d" % torch.cuda.get_device_capability(0)
    found["codes"] = torch.cuda.get_arch_list()
    one = torch.ones(2, device="cuda")
    if float((one + one).sum()) != 4.0:
        raise RuntimeError("1 + 1 is not 2 there")
except Exception as error:  # CUDA and its libraries raise what they like
    found["problem"] = "%s: %s" % (type(error).__name__, error)
print("\\n" + MARK + json.dumps(found), flush=True)
""".replace("MARK", repr(_PREFIX))


def check(job: "JobFolder", environ: "Mapping[str, str]") -> None:
    """See that a kernel runs.

    Args:
        job: It asks for GPUs, and has an environment that was made for it.
        environ: The worker's environment, with the GPUs it was given.

    Raises:
        AttemptEnded: It does not, with the numbers that decide.
    """
    wanted = job.spec["building"]
    assert wanted is not None
    marker = os.path.join(build_dir(wanted["root"], wanted["id"]), "runs-on-%s" % job.node)
    hardware = None if os.path.exists(_DRIVER) else _query_driver()
    # Those are the kernel's own words about the driver, which stay the same until another one is loaded.
    driver = hardware["driver"] if hardware else _read(_DRIVER).partition("\n")[0] or _UNKNOWN
    if driver != _UNKNOWN and _read(marker) == driver:
        return
    found = _ask(job, environ)
    hardware = _query_driver()
    partition = job.scheduler.partition() or DEFAULT
    # The next choice of an environment for this partition reads these files.
    for name in [partition, DEFAULT] if hardware else []:
        path = os.path.join(wanted["root"], OBSERVED_GPUS, name + ".json")
        _write(wanted["root"], path, json.dumps(dict(hardware or {}, node=job.node)))
    if found["problem"]:
        raise AttemptEnded(_does_not_run(job, wanted["cuda"], found, hardware))
    _write(wanted["root"], marker, driver)


def _query_driver() -> "Optional[dict[str, Any]]":
    """Ask nvidia-smi for the driver and the GPUs; None if it does not answer."""
    try:
        rows = gpus.query_nvidia_smi("driver_version", "compute_cap").rows
    except AttemptEnded:
        return None
    capabilities = {row["compute_cap"] for row in rows if nvidia_smi.value(row["compute_cap"])}
    return {"driver": rows[0]["driver_version"], "capabilities": sorted(capabilities)} if capabilities else None


def _ask(job: "JobFolder", environ: "Mapping[str, str]") -> "dict[str, Any]":
    argv = [job.spec["python"], "-I", "-c", _PROGRAM]
    try:
        ran = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(environ),
            timeout=_PATIENCE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"problem": "it did not answer within %d s" % _PATIENCE_S}
    lines = ran.stdout.decode("utf-8", "replace").splitlines()
    answers = [line[len(_PREFIX) :] for line in lines if line.startswith(_PREFIX)]
    if answers:
        return dict(json.loads(answers[-1]))
    return {"problem": "it ended with exit status %d" % ran.returncode, "lines": last_lines(ran.stdout)}


def _does_not_run(
    job: "JobFolder", wanted: str, found: "dict[str, Any]", hardware: "Optional[dict[str, Any]]"
) -> Verdict:
    if "torch" not in found:
        return Verdict(
            ENVIRONMENT, "PyTorch cannot be imported on %s: %s" % (job.node, found["problem"]), stage="environment",
            evidence=found.get("lines", []),
            hint="a library that the message names must be among the packages of the environment",
        )  # fmt: skip
    build = "PyTorch %s for CUDA %s" % (found["torch"], found["cuda"] or wanted)
    evidence = [found["problem"]]
    if hardware:
        evidence.append("driver %s, compute capability %s" % (hardware["driver"], ", ".join(hardware["capabilities"])))
    if found.get("codes"):
        evidence.append("it has code for %s" % ", ".join(found["codes"]))
    hidden = any(words in found["problem"] for words in _NO_GPU)
    return Verdict(
        ENVIRONMENT, "%s does not run on the GPUs of %s" % (build, job.node),
        stage="environment" if hidden else GPU_STAGE, evidence=evidence + found.get("lines", []),
        hint=_HIDDEN % job.node if hidden
        else "call again: what the GPUs are is known now, and the environment is chosen for them",
    )  # fmt: skip


def _read(path: str) -> str:
    return publish.last_bytes(path).decode("utf-8", "replace").strip()


def _write(root: str, path: str, text: str) -> None:
    """Write a file completely or not at all, which does no harm."""
    try:
        with permissions.writing_below(root):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            publish.replace(path, text.encode(), sync=False, mode=0o666)
    except OSError:
        return
