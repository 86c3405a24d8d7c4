"""Become the template of the jobs of an environment: a process of its Python from which the agent has jobs forked.

The agent starts it where there is no scheduler. `worker/forked_job.py` is what it does then.
"""

import os

from .. import layout
from .early_start import SentJob, has_environment
from .environ import DescribedJob, worker_environment


def start_template(folder: str) -> int:
    """Become the template for the environment of a job that was sent to this folder; return only if there is none yet.

    The descriptors 0, 1 and 2 are the socket of its orders, what its interpreter prints, and its report.
    """
    control, report = os.dup(0), os.dup(2)
    os.dup2(1, 2)
    sent = SentJob(folder)
    if sent.spec.get("building") and not has_environment(sent):
        return 1
    spec = sent.spec
    host = {name: value for name, value in os.environ.items() if name != layout.TURN}
    # It outlives this job, and has none of its secrets.
    env = worker_environment(DescribedJob(sent.id, sent.folder, spec), 1, host, [])
    for name in (layout.TAG, layout.CHECKPOINT_VARIABLE):
        del env[name]
    for fd in (control, report):
        os.set_inheritable(fd, True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir("/")
    words = [spec["python"], os.path.join(spec["bridge"], layout.WORKER), layout.TEMPLATE, layout.JOBS]
    return os.execve(words[0], [*words, str(report), str(control)], env)
