"""The interface of a scheduler on the host, and the machine without one.

Its methods read the job's variables and ask the scheduler's commands. The client's side of the same scheduler is
`clusterfn.scheduler.base`.
"""

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, Union

    from ..supervisor.verdict import Verdict


def run_command(
    argv: "list[str]", patience_s: int, env: "dict[str, str]", together: bool = False
) -> "tuple[Optional[int], str, str]":
    """Run a scheduler's command; return its status, what it printed to stdout, and what to stderr.

    The status is None, and the reason is in place of the errors, if it did not run or did not answer in time.

    Args:
        together: Whether stdout has what it printed to stderr too.
    """
    # This import is late, because most jobs end without such a command.
    import subprocess

    try:
        # The scheduler may be ending all processes of the job that asks, and this one must still answer.
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=env,
            timeout=patience_s,
            stderr=subprocess.STDOUT if together else subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, "", str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace"), (done.stderr or b"").decode("utf-8", "replace")


class HostScheduler:
    """What the supervisor asks about the scheduler of a job; the answers here are those of one that does not know.

    Attributes:
        has_nodes: Whether jobs run on compute nodes, whose cores, memory and GPUs it gives out, and which it ends with
            their script. Else they run on this machine, by clusterfn's own queue.
        launcher: The program that starts a job on its other nodes, and what to try when it does not.
    """

    has_nodes = True
    launcher, launcher_hint = "", ""

    # which job this is

    def submission_id(self) -> "Optional[str]":
        """Return the scheduler's number of this job, the same after a requeue; None outside of its jobs."""
        raise NotImplementedError

    def restarts(self) -> int:
        """Return how often it has started this job again."""
        return 0

    def element_log(self, element: int, submission: str) -> "Union[int, str]":
        """Return what the log of an element of a group is named by: its number, or that of its submission."""
        return submission

    def node_name(self) -> str:
        """Return this machine's name, as the scheduler knows it."""
        return os.uname()[1]

    def partition(self) -> str:
        """Return the partition or queue in which this job runs; "" if it does not say."""
        return ""

    def find_gpus(self, count: int, count_gpus: "Callable[[], int]") -> "Optional[list[str]]":
        """Return the GPUs that it gave this job, where CUDA_VISIBLE_DEVICES does not already say it.

        Args:
            count: How many the job asked for.
            count_gpus: Counts those of this machine.

        Raises:
            AttemptEnded: It gave some, and does not say which.
        """
        return None

    # how this job ends

    def end_time(self) -> "Optional[int]":
        """Return when it will end this job, in seconds since 1970; None if it does not say."""
        return None

    def ending(self, log: str) -> "Optional[Verdict]":
        """Return why it ends this job, or has; None if it does not, and no kind if it does not answer.

        If it starts the job again, `requeued` names the cause, as `requeue=` does if it can.

        Args:
            log: The path of the job's scheduler.log.
        """
        return None

    def starts_again_after(self, status: int) -> bool:
        """Return whether it starts a script again that exits with this status."""
        return False

    def requeue(self) -> str:
        """Have this job started again after its end; return why it will not be, "" if it will."""
        return "the scheduler of this host cannot do that"

    def find_oom(self, log: bytes) -> "Optional[str]":
        """Find words about memory in scheduler.log: evidence next to a SIGKILL, never proof alone."""
        return None

    # other jobs

    def cancel_waiting_elements(self) -> None:
        """Cancel those elements of this job's array that wait; one that starts all the same finds nothing to do."""

    def listed_jobs(self, clusters: str) -> "Optional[set[str]]":
        """Return the ids of the user's jobs on `clusters` ("": the usual one); None if it does not answer."""
        return None

    def jobs_in(self, folder: str) -> "Optional[list[str]]":
        """Return the numbers of the user's jobs that wait or run in a folder; None if it does not answer."""
        return []

    # a job on several nodes

    def launch_command(self, nodes: int, tasks: int, cores: int, folder: str) -> "list[str]":
        """Return the words that start what follows them in this folder, as often on each node as it has tasks.

        With one task on each, the first node is left out.
        """
        raise NotImplementedError

    def rank(self, tasks: int) -> int:
        """Return the number of this task in the job; the first one, which starts the others, has 0."""
        raise NotImplementedError

    def rank_variables(self, rank: int, nodes: int, tasks: int) -> "dict[str, str]":
        """Return the scheduler's own variables as a task should see them."""
        return {}

    def node_address(self, name: str) -> str:
        """Return the address of a node whose name is not resolved; "" if it does not say."""
        return ""


class BareOnHost(HostScheduler):
    """A machine without a scheduler: clusterfn's own queue gives out what it has (`bridge.queue`).

    Args:
        node: The machine's name, where a scheduler gave it another than its own.
    """

    has_nodes = False

    def __init__(self, node: str = "") -> None:
        self._node = node

    def submission_id(self) -> "Optional[str]":
        # Without a scheduler, the process of job.sh distinguishes one submission from another.
        return None

    def element_log(self, element: int, submission: str) -> int:
        return element

    def node_name(self) -> str:
        return self._node or os.uname()[1]
