"""Has a job's environment there before its worker starts, and sees that its PyTorch runs on the job's GPUs.

It is whole already, or made now by the builder, which is the bridge's own `build.py`. That waits for another's build of
the same environment and continues one that died, so every job may start one.

PyTorch is asked for one kernel, once for each environment, node and driver. What the GPUs are is written down, so that
the next environment for this partition is chosen for them.
"""

import contextlib
import json
import os
import subprocess
import sys
import time

from .. import layout
from ..builder import leases, programs, progress
from ..builder.progress import BuildFailed, from_os_error
from . import publish
from .environ import add_script_variables
from .text import last_lines, native
from .verdict import AttemptEnded, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Mapping, Optional

    from .attempt import RunnableAttempt
    from .job import JobFolder
    from .spec import SpecBuilding
    from .watch import EndWatch

_LOOK_S = 0.1
_TELL_S = 1.0
# A cold import of torch from a shared file system takes minutes.
_PATIENCE_S = 300.0
_DRIVER = "/proc/driver/nvidia/version"
_PREFIX = "clusterfn gpus "
# No other build would see more.
_NO_GPU = ("Found no NVIDIA driver", "no CUDA-capable device is detected", "No CUDA GPUs are available")
_HIDDEN = "no GPU or driver is visible to a job there: look at nvidia-smi and /dev/nvidia* on %s, within a job"
_UNFIT = (
    "call again: the environment is then chosen for these GPUs. If it is the same one, pin cuda-version=…, or take "
    "torch from PyPI (pip:)"
)
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


def ready(job: "JobFolder", attempt: "RunnableAttempt", watch: "EndWatch") -> None:
    """See that the environment is there, and learn what activating it sets; raise AttemptEnded if it cannot be had."""
    marker = _have(job, attempt.path(layout.BUILDER_LOG), watch.look, attempt)
    with open(marker, encoding="utf-8") as file:
        ready_facts = dict(json.load(file))
    base = ready_facts.get("base")
    # It may be built on an interpreter of the host that is gone here, or is another one.
    if base:
        with _verdict_of_builder(base["path"], "the environment cannot be used"):
            programs.refuse_changed(native(base))
    add_script_variables(job.spec["activation"], ready_facts)


def prepare(job: "JobFolder", look: "Callable[[], None]") -> None:
    """Make the environment of a job that waits in the queue of a machine, and has no attempt yet.

    Args:
        look: Called again and again; may raise what ends this.

    Raises:
        AttemptEnded: It cannot be made.
    """
    os.makedirs(job.folder, mode=0o700, exist_ok=True)
    _have(job, os.path.join(job.folder, layout.BUILDER_LOG), look, None)


def _have(job: "JobFolder", said: str, look: "Callable[[], None]", attempt: "Optional[RunnableAttempt]") -> str:
    """Return the path of READY of the environment that the job will use, once it exists.

    Args:
        said: Where the lines of the builder go.
        look: Called again and again; may raise what ends the job.
        attempt: Gets why the job waits when the builder begins, and how far it is.

    Raises:
        AttemptEnded: It cannot be made.
    """
    wanted = job.spec["building"]
    # This is called only if the builder makes the environment.
    assert wanted is not None
    _refuse_others(wanted)
    # The lease comes before the look, because an environment with a lease is not removed.
    leases.add_lease(wanted["root"], wanted["id"], job.home)
    marker = os.path.join(layout.environment_dir(wanted["root"], wanted["id"]), layout.READY)
    if wanted["purged"] or not os.path.exists(marker):
        plan = os.path.join(layout.build_dir(wanted["root"], wanted["id"]), layout.PLAN)
        if attempt is not None:
            attempt.wait("its environment is being made")
        _build(job.spec["bridge"], plan, said, look, attempt)
        _refuse_others(wanted)
    return marker


def _refuse_others(wanted: "SpecBuilding") -> None:
    with _verdict_of_builder(wanted["root"]):
        leases.refuse_untrusted(wanted["root"], wanted.get("owners") or (), wanted["id"])


@contextlib.contextmanager
def _verdict_of_builder(root: str, what: str = "the environment could not be made") -> "Iterator[None]":
    """Raise what the builder's code raises as the verdict of the job."""
    try:
        yield
    except BuildFailed as failed:
        raise AttemptEnded(_failed(failed.document(), what)) from failed
    except OSError as error:
        raise AttemptEnded(_failed(from_os_error(error, root).document(), what)) from error


def _build(bridge: str, plan: str, said: str, look: "Callable[[], None]", attempt: "Optional[RunnableAttempt]") -> None:
    """Run the builder to its end."""
    shown = ""
    due = 0.0
    argv = [sys.executable, "-I", "-S", os.path.join(bridge, layout.BUILD), "build", plan]
    with open(said, "ab") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log)
    try:
        while process.poll() is None:
            look()
            if time.monotonic() >= due:
                due = time.monotonic() + _TELL_S
                now = progress.in_words(progress.last_line(said))
                if attempt is not None and now and now != shown:
                    shown = now
                    attempt.event("pending", reason="environment: " + now)
            time.sleep(_LOOK_S)
    finally:
        # The job ends, and other jobs that wait for this environment continue the build.
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode:
        silent = {"message": "its builder ended with exit status %d" % process.returncode}
        raise AttemptEnded(_failed(dict(silent, **progress.last_line(said)), "the environment could not be made"))


def _failed(facts: "dict[str, Any]", what: str) -> Verdict:
    message = "%s: %s" % (what, facts["message"])
    hint = facts.get("hint") or "call again; clusterfn env list says what is there"
    return Verdict(layout.ENVIRONMENT, message, stage="environment", evidence=facts.get("evidence") or [], hint=hint)


def check_torch(job: "JobFolder", environ: "Mapping[str, str]") -> None:
    """See that the environment's PyTorch runs a kernel on the job's GPUs.

    Args:
        environ: The worker's environment, with the GPUs it was given.

    Raises:
        AttemptEnded: It does not, with the numbers that decide.
    """
    wanted = job.spec["building"]
    assert wanted is not None
    marker = os.path.join(layout.build_dir(wanted["root"], wanted["id"]), "runs-on-%s" % job.node)
    hardware = None if os.path.exists(_DRIVER) else _query_driver()
    # Those are the kernel's own words about the driver, which stay the same until another one is loaded.
    driver = hardware["driver"] if hardware else _read(_DRIVER).partition("\n")[0] or _UNKNOWN
    if driver != _UNKNOWN and _read(marker) == driver:
        return
    found = _ask(job, environ)
    hardware = _query_driver()
    partition = job.scheduler.partition() or layout.DEFAULT
    # The next choice of an environment for this partition reads these files.
    for name in [partition, layout.DEFAULT] if hardware else []:
        path = os.path.join(wanted["root"], layout.OBSERVED_GPUS, name + ".json")
        _write(wanted["root"], path, json.dumps(dict(hardware or {}, node=job.node)))
    if found["problem"]:
        raise AttemptEnded(_does_not_run(job, wanted["cuda"], found, hardware))
    _write(wanted["root"], marker, driver)


def _query_driver() -> "Optional[dict[str, Any]]":
    """Ask nvidia-smi for the driver and the GPUs; None if it does not answer."""
    # This import is late, because few jobs ask, and it takes milliseconds.
    from . import gpus, nvidia_smi

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
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            timeout=_PATIENCE_S,
        )
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
        message = "PyTorch cannot be imported on %s: %s" % (job.node, found["problem"])
        hint = "a library that the message names must be among the packages of the environment"
        lines = found.get("lines", [])
        return Verdict(layout.ENVIRONMENT, message, stage="environment", evidence=lines, hint=hint)
    build = "PyTorch %s for CUDA %s" % (found["torch"], found["cuda"] or wanted)
    evidence = [found["problem"]]
    if hardware:
        evidence.append("driver %s, compute capability %s" % (hardware["driver"], ", ".join(hardware["capabilities"])))
    if found.get("codes"):
        evidence.append("it has code for %s" % ", ".join(found["codes"]))
    evidence += found.get("lines", [])
    message = "%s does not run on the GPUs of %s" % (build, job.node)
    if any(words in found["problem"] for words in _NO_GPU):
        return Verdict(layout.ENVIRONMENT, message, stage="environment", evidence=evidence, hint=_HIDDEN % job.node)
    return Verdict(layout.ENVIRONMENT, message, stage=layout.GPU_STAGE, evidence=evidence, hint=_UNFIT)


def _read(path: str) -> str:
    return publish.last_bytes(path).decode("utf-8", "replace").strip()


def _write(root: str, path: str, text: str) -> None:
    """Write a file completely or not at all, which does no harm."""
    try:
        with leases.writing_below(root):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            publish.replace(path, text.encode(), sync=False, mode=0o666)
    except OSError:
        return
