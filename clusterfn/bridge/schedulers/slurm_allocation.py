"""A SLURM allocation that is held for the calls of many programs: hold it, and start a job in it.

`hold` runs in the job that holds it, and keeps a folder with its record below the root, as long as it takes jobs.
`enter` runs where jobs are submitted: it starts a job by srun if it fits, or leaves it to sbatch and says why.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

from ..layout import CLAIM, HOLD_ENVIRONMENT, HOLD_RECORD, HOLD_RELEASE, SCHEDULER_LOG, SCRIPT, STEP, TAG
from ..supervisor import process_tree
from ..supervisor.limits import clock
from ..supervisor.publish import is_there, names_in, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

# A line that begins with this is for the user.
NOTE = "clusterfn: "
_LOOK_S = 1.0
_SHOW_S = 5
_START_S, _START_LOOK_S = 20.0, 0.005
# A step that srun has just been asked to start may not run yet.
_CALM_S = 5.0
# No job is started in an allocation that ends sooner than this.
_LEFT_S = 30.0
# "unable to confirm allocation" is not among them, because srun also says it of a controller that does not answer.
_GONE = re.compile("invalid job id|has expired|revoked|completing or completed", re.IGNORECASE)
# Appended to the name of the claim, with the number of the step.
_OTHER_NAME = ".step"
_ENV, _ID, _STEP_ID = "environ", "SLURM_JOB_ID", "SLURM_STEP_ID"
_OF_THE_STEP = (
    "SLURM_", "SRUN_", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
)  # fmt: skip
# What srun starts on the node: it claims the job for the step, and becomes the job's script. The claim comes first: a
# client that asks about a step which died before its supervisor ran must not ask for the allocation. The other name of
# the claim is left to `enter`, because each program that is started here delays the call. If `enter` is gone by then,
# the removal of the job removes it.
_BECOME = """umask 077
set -- "$1" "$2" "$0.$SLURM_STEP_ID"
{ printf %s.%s "$SLURM_JOB_ID" "$SLURM_STEP_ID" >"$3" && [ -s "$3" ] && ln "$3" "$1"; } || rm -f "$3"
exec /bin/sh "$2"
"""


def hold(folder: str, facts: str) -> int:
    """Keep the record of this allocation until it is released, or idle for too long; then let its jobs end.

    Args:
        folder: Of the record; it appears as a whole.
        facts: What it has, and after how many seconds without a job it ends (0: never), as JSON.
    """
    # This import is late: calls wait for `enter`, which hardly ever needs it.
    import shutil

    from .slurm import SlurmOnHost, show

    # Another job may have begun to hold an allocation since the client looked.
    held = read_record(folder)
    if held is not None and show("job", str(held["id"]), _SHOW_S).get("JobState") == "RUNNING":
        sys.stderr.write("the allocation %s is held already, by job %s\n" % (held["id"], held["job"]))
        return 1
    request = json.loads(facts)
    number, idle_s = os.environ[_ID], request.pop("idle_s")
    by_time = time.time() + request["time_s"] if request["time_s"] else None
    node, job = SlurmOnHost().node_name(), os.environ[TAG].partition("/")[0]
    record = dict(request, id=number, ends=SlurmOnHost().end_time() or by_time, node=node, job=job)
    part = "%s.%s" % (folder, number)
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part, mode=0o700)
    replace(os.path.join(part, HOLD_ENVIRONMENT), _environment_of_batch())
    replace(os.path.join(part, HOLD_RECORD), json.dumps(record).encode())
    # The record may have been left by an allocation that is gone.
    _forget(folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        os.rename(part, folder)
        _wait_for_release(folder, number, idle_s, record["ends"])
    finally:
        _forget(folder, number)
    calm = time.monotonic()
    while time.monotonic() - calm < _CALM_S:
        calm = time.monotonic() if _jobs_in(number) else calm
        time.sleep(_LOOK_S)
    return 0


def _wait_for_release(folder: str, number: str, idle_s: float, ends: "Optional[float]") -> None:
    """Wait until it is released, has been idle for too long, or is so near its end that no job fits any more."""
    busy, release = clock.now(), os.path.join(folder, HOLD_RELEASE)
    while os.path.isdir(folder) and not os.path.exists(release):
        clock.sleep(min(_LOOK_S, idle_s / 4) if idle_s else _LOOK_S)
        if ends is not None and time.time() >= ends + clock.stopped_s - _LEFT_S:
            return
        if idle_s and _jobs_in(number):
            busy = clock.now()
        if idle_s and clock.now() - busy >= idle_s:
            return


def _jobs_in(number: str) -> bool:
    """Whether a process of a step runs on this node: one of another step of the allocation than this process."""
    variable, own = "%s=%s" % (_ID, number), os.environ.get(_STEP_ID, "")
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        variables = os.fsdecode(process_tree.read_proc(pid, _ENV)).split("\0")
        step = next((each.partition("=")[2] for each in variables if each.startswith(_STEP_ID + "=")), "")
        if variable in variables and step.isdecimal() and step != own:
            return True
    return False


def _environment_of_batch() -> bytes:
    """Return the variables that SLURM gave to the batch script, which is the oldest process of this user above."""
    pid, oldest = os.getpid(), b""
    while pid > 1:
        variables = process_tree.read_proc(pid, _ENV)
        if os.fsencode("%s=%s" % (_ID, os.environ[_ID])) not in variables.split(b"\0"):
            # This process starts the batch jobs of the node, so it has no such variable, or cannot be read.
            break
        pid, oldest = process_tree.parent_of(pid), variables
    return oldest


def read_record(folder: str) -> "Optional[dict[str, Any]]":
    """Return what is held; None if nothing is."""
    try:
        with open(os.path.join(folder, HOLD_RECORD), encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def enter(folder: str, needs: str, *sbatch: str) -> int:
    """Start a job in the allocation that is held; become `sbatch` if there is none, or the job does not fit.

    Prints the number of the allocation, as sbatch prints that of a job.

    Args:
        folder: Of the record.
        needs: What the job needs, its folder, and the words of its srun, as JSON.
    """
    record, variables, request = read_record(folder), _read_variables(folder), json.loads(needs)
    if record is not None and variables is not None:
        why = misfit(record, request, time.time()) or _start(variables, record, request)
        if not why:
            sys.stdout.write("%s\n" % record["id"])
            return 0
        # The holder could not remove its record, as when its node has died.
        if _GONE.search(why):
            _forget(folder, record["id"])
        sys.stderr.write("%s%s is not in the held allocation %s: %s\n" % (NOTE, request["name"], record["id"], why))
        sys.stderr.flush()
    os.execvp(sbatch[0], sbatch)
    # This line is never reached: sbatch takes the place of this process.
    return 1


def misfit(record: "dict[str, Any]", request: "dict[str, Any]", now: float) -> str:
    """Return why the job does not fit into the allocation at all; "" if it does."""
    for name, unit in ("cores", "cores"), ("memory_mb", "MB of memory"), ("gpus", "GPUs"):
        if record[name] is not None and (request[name] or 0) > record[name]:
            return "it needs %s %s, and that has %s" % (request[name], unit, record[name])
    if request["gpus"] and request["gpu_type"] and request["gpu_type"] != record["gpu_type"]:
        return "it needs GPUs of type %s" % request["gpu_type"]
    left_s = record["ends"] - now if record["ends"] else None
    if left_s is not None and left_s < max(_LEFT_S, request["time_s"] or 0):
        duration = " and it may take %d s" % request["time_s"] if request["time_s"] else ""
        return "%d s are left of that%s" % (max(0, left_s), duration)
    return ""


def _start(variables: "dict[str, str]", record: "dict[str, Any]", request: "dict[str, Any]") -> str:
    """Start srun, which outlives this process, and wait until the job begins; return why it does not."""
    claim = os.path.join(request["folder"], CLAIM)
    become = ["/bin/sh", "-c", _BECOME, claim + _OTHER_NAME, claim, os.path.join(request["folder"], SCRIPT)]
    # The program is looked up before its variables are those of the node.
    paths = (os.path.join(folder, request["srun"][0]) for folder in os.get_exec_path())
    program = next((path for path in paths if os.access(path, os.X_OK)), request["srun"][0])
    with open(os.path.join(request["folder"], SCHEDULER_LOG), "a+b") as log:
        try:
            srun = subprocess.Popen(
                [program, *request["srun"][1:], "--jobid=%s" % record["id"], *become], env=variables,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=request["folder"], start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return str(error)
        until = time.monotonic() + _START_S
        while time.monotonic() < until and srun.poll() is None and not is_there(request["folder"], CLAIM):
            time.sleep(_START_LOOK_S)
        if is_there(request["folder"], CLAIM):
            _remove_other_names(request["folder"])
            return ""
        # The node does not answer. If the job begins there after all, only one of the two submissions claims it.
        if srun.poll() is None:
            return "srun has not started it within %d s" % _START_S
        log.seek(0)
        output = log.read().decode("utf-8", "replace").strip()
    # This import is late, because only a failed start needs it.
    from .slurm import complaints

    return (complaints(output) + output.splitlines()[-1:] + ["srun did not start it"])[0]


def _remove_other_names(folder: str) -> None:
    """Remove the names under which a step has written its claim before it was linked."""
    for name in names_in(folder):
        if name.startswith(CLAIM + _OTHER_NAME):
            with contextlib.suppress(OSError):
                # The step has removed its name itself, or the job has been removed.
                os.unlink(os.path.join(folder, name))


def _read_variables(folder: str) -> "Optional[dict[str, str]]":
    """Return those of a batch job on the node, for a step; None if they are gone with their allocation.

    srun adds what SLURM sets for the step, and needs its own ones.
    """
    try:
        with open(os.path.join(folder, HOLD_ENVIRONMENT), "rb") as file:
            pairs = [os.fsdecode(each).partition("=") for each in file.read().split(b"\0") if each]
    except OSError:
        return None
    variables = {name: value for name, _, value in pairs if not name.startswith(_OF_THE_STEP)}
    variables.update({name: value for name, value in os.environ.items() if name.startswith("SLURM_")})
    return dict(variables, **{STEP: "1"})


def _forget(folder: str, number: str = "") -> None:
    """Remove the record, whole or not at all.

    Args:
        number: Of the allocation whose record may be removed; "" for any.
    """
    if number and (read_record(folder) or {}).get("id") != number:
        return
    # This import is late: `removal` imports shutil, which `enter` hardly ever needs.
    from ..removal import move_aside, remove

    with contextlib.suppress(OSError):
        # Another process has removed the record.
        remove(move_aside(folder))
