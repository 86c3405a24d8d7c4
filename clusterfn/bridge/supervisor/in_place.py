"""Be a job that the agent has forked: the process in the place of job.sh, and its supervisor.

So a job whose script does nothing before Python starts no shell and no interpreter for its supervisor. If the
supervisor does not end the job, the first process becomes job.sh, which does what is due then.
"""

import os
import signal

from .. import layout
from ..queue import admission, launch  # noqa: F401 - each job needs what is loaded here, before the fork
from . import attempt_loop, keeper, main, program  # noqa: F401 - as above
from .process_tree import boot_id, read_proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Mapping, NoReturn

_ENDED_WELL = (layout.EXIT_RETURNED, layout.EXIT_PUBLISHED, layout.EXIT_QUEUED)


def run_in_place(script: "List[str]", folder: str, fd: int) -> int:
    """Run a job; return in its supervisor alone, with its exit status.

    Args:
        script: The words of job.sh, in whose folder this process is, with its variables and descriptors.
        folder: Of the job or element.
        fd: The supervisor's end of the socket of its keeper; -1 if it has none.
    """
    home = os.getcwd()
    # An element of a group has none yet.
    os.makedirs(folder, exist_ok=True)
    if "PWD" in os.environ:
        # A shell does so.
        os.environ["PWD"] = home
    os.umask(0o077)
    with open(os.path.join(folder, layout.STARTED), "wb") as file:
        file.write(boot_id().encode() + b" " + read_proc("self", "stat"))
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    for number in numbers:
        # The supervisor knows what a signal means.
        signal.signal(number, lambda *_: None)
    try:
        supervisor = os.fork()
    except OSError:
        # The script says what is wrong.
        _become(script, os.environ)
    if supervisor:
        if fd >= 0:
            os.close(fd)
        _await(supervisor, script)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    return program.run_job(folder, keeper=fd)


def _await(supervisor: int, script: "List[str]") -> "NoReturn":
    """Wait for the supervisor; if the job may not have ended with it, become job.sh, which does what is due then."""
    _, status = os.waitpid(supervisor, 0)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    if code not in _ENDED_WELL:
        _become(script, dict(os.environ, **{layout.SUPERVISOR_STATUS: str(code)}))
    os._exit(code)


def _become(script: "List[str]", env: "Mapping[str, str]") -> "NoReturn":
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores them, and a shell would pass that on.
        signal.signal(number, signal.SIG_DFL)
    os.execve(script[0], script, env)
