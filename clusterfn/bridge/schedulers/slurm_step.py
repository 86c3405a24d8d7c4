"""What srun starts on the node for a job in an allocation that is held (`slurm_allocation`): become that job."""

import os

from ..layout import CLAIM, HOLD_ENVIRONMENT, STEP
from ..supervisor.publish import publish

_OF_THE_STEP = ("SLURM_", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def step(folder: str, script: str) -> int:
    """Become the job's script, with the variables of a batch job, and what SLURM has set for this step."""
    with open(os.path.join(folder, HOLD_ENVIRONMENT), "rb") as file:
        pairs = [os.fsdecode(each).partition("=") for each in file.read().split(b"\0") if each]
    variables = {name: value for name, _, value in pairs if not name.startswith(_OF_THE_STEP)}
    variables.update({name: value for name, value in os.environ.items() if name.startswith(_OF_THE_STEP)})
    variables[STEP] = "1"
    # Now: who asks what has become of a step that dies before its supervisor runs must not ask for the allocation.
    publish(
        os.path.dirname(script), CLAIM, ("%s.%s" % (variables["SLURM_JOB_ID"], variables["SLURM_STEP_ID"])).encode()
    )
    os.execve("/bin/sh", ["/bin/sh", script], variables)
    return 1  # never
