"""Be a job that was forked from a template: the process in the place of job.sh, its supervisor, and its worker.

The template has loaded what the supervisor and the worker need. So a job has the same processes as one that job.sh
runs, with the same parents, and no interpreter starts. What the supervisor itself starts later runs in the host's
Python.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from .. import layout
from ..queue import admission, launch
from ..supervisor import attempt_loop, main, program
from ..supervisor.early_start import plan_worker
from ..supervisor.environ import may_still_get
from ..supervisor.process_tree import boot_id, environment_of, read_proc
from ..supervisor.text import native
from ..supervisor.worker_process import Pipes, WorkerProcess, prepare_worker, say_not_started
from . import shown_words

_ENDED_WELL = (layout.EXIT_RETURNED, layout.EXIT_PUBLISHED, layout.EXIT_QUEUED)
# The supervisor of a plain job imports these one after another, as it needs them.
LOADED_AHEAD = (admission, attempt_loop, launch, main)
# The interpreter reads files of these folders when it starts.
_SITES = ("site-packages", "dist-packages")


class JobForks:
    """What a template has for the jobs that are forked from it: the modules of the supervisor, and how it started.

    Raises:
        OSError, ImportError, AttributeError: As `shown_words.show`.
    """

    def __init__(self) -> None:
        self._given = environment_of(os.getpid()) or {}
        # An interpreter sets LC_CTYPE for the locale "C". Those that change others have no template.
        self._set_at_start = {name: value for name, value in os.environ.items() if self._given.get(name) != value}
        self._files = _files_read_at_start()
        self._stamp = _stamp(self._files)
        shown_words.show([sys.executable, sys.argv[0], layout.TEMPLATE, layout.JOBS], self._given)

    def is_stale(self) -> bool:
        """Whether an interpreter that starts now may find other modules than this one."""
        return _stamp(self._files) != self._stamp

    def begin(self, order: Mapping[str, Any], fds: list[int], answer: int) -> tuple[list[str], int]:
        """Be the process in the place of job.sh; return in its worker only.

        Args:
            order: The `folder` of the job or element; `cwd` and `env` of job.sh; `script` and `supervise`, the words of
                what the processes stand for.
            fds: The stdin, stdout and stderr of job.sh.
            answer: Takes the pid of this process, once it may be taken for job.sh.

        Returns:
            The words of the worker, and the pid of its supervisor.
        """
        os.setsid()
        order = native(order)
        folder, script, supervise = order["folder"], order["script"], order["supervise"]
        try:
            _begin_script(order, fds)
            os.write(answer, b"%d" % os.getpid())
        except BaseException:  # noqa: BLE001 - without an answer the agent starts the job, which says what is wrong
            os._exit(1)
        os.close(answer)
        try:
            supervisor = os.fork()
        except OSError:
            # It also says what is wrong, if that is no matter of the template.
            os.execve(script[0], script, order["env"])
        if supervisor:
            _await_supervisor(supervisor, order)
        status = 1
        try:
            _restore_signals()
            shown_words.show(supervise, order["env"])
            program.prepare()
            plan = plan_worker(folder)
            early: WorkerProcess | None = None
            if plan is not None and may_still_get(self._given, plan[1]):
                forked = self._fork_worker(*plan)
                if isinstance(forked, list):
                    return forked, os.getppid()
                early = forked
            _leave_environment(supervise)
            status = program.run_job(folder, early)
        except BaseException:  # noqa: BLE001 - after a fork nothing may run on; the job's log gets the traceback
            import traceback

            traceback.print_exc()
        return _end(status)

    def _fork_worker(
        self, argv: list[str], env: dict[str, str], cwd: str, spec: Mapping[str, Any]
    ) -> WorkerProcess | list[str] | None:
        """Fork the worker of this supervisor, or the template of its workers, as `worker_process.launch` starts one.

        Returns:
            The worker, or in that its words; None if no process can be had.
        """
        supervisor = os.getpid()
        try:
            with Pipes() as pipes:
                pid = os.fork()
                if pid:
                    return pipes.worker(argv, env, pid)
                fds = pipes.take_theirs()
        except OSError:
            return None
        out, err, report, control = fds
        try:
            prepare_worker(cwd, spec, supervisor, out, err)
            os.close(out)
            os.close(err)
            # This is what an interpreter does when it starts.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            os.environ.clear()
            os.environ.update({**env, **self._set_at_start})
            shown_words.show(argv, env)
        except BaseException as error:  # noqa: BLE001 - after a fork nothing may run on; the reason goes to the supervisor
            say_not_started(report, argv[0], cwd, error)
            os._exit(127)
        return [*argv[2:], str(report), str(control)]


def _begin_script(order: Mapping[str, Any], fds: list[int]) -> None:
    """Do in this process what job.sh does before it starts the supervisor."""
    env, folder = order["env"], order["folder"]
    os.chdir(order["cwd"])
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    os.environ.clear()
    os.environ.update(env)
    if "PWD" in env:
        # A shell does so.
        os.environ["PWD"] = os.getcwd()
    os.umask(0o077)
    shown_words.show(order["script"], env)
    # An element of a group has none yet.
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, layout.STARTED), "wb") as file:
        file.write(boot_id().encode() + b" " + read_proc("self", "stat"))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, _outlive)


def _outlive(*_: object) -> None:
    """Leave it to the supervisor what a signal means."""


def _restore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave_environment(supervise: list[str]) -> None:
    """Import nothing more of the environment's, and start other programs with the host's Python."""
    sys.argv, sys.executable = supervise[-3:], supervise[0]
    standard = os.path.dirname(os.__file__)
    kept = (standard, os.path.join(standard, "lib-dynload"))
    sys.path[:] = [each for each in sys.path if each in kept or each.endswith(".zip")]
    sys.meta_path[:] = [
        each for each in sys.meta_path if getattr(each, "__module__", "").startswith("_frozen_importlib")
    ]


def _await_supervisor(supervisor: int, order: Mapping[str, Any]) -> NoReturn:
    """Wait for the supervisor; if the job may not have ended with it, become job.sh, which does what is due then."""
    _, status = os.waitpid(supervisor, 0)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    if code not in _ENDED_WELL:
        script = order["script"]
        os.execve(script[0], script, {**order["env"], layout.SUPERVISOR_STATUS: str(code)})
    os._exit(code)


def _end(status: int) -> NoReturn:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _files_read_at_start() -> list[str]:
    """Return the files and folders that decide which modules an interpreter finds when it starts."""
    paths = [sys.executable, os.path.join(sys.prefix, "pyvenv.cfg"), sys.argv[0]]
    for folder in [each for each in sys.path if os.path.basename(each) in _SITES and os.path.isdir(each)]:
        # A new file changes the date of its folder.
        paths += [folder, *(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pth"))]
    paths += [os.path.join(folder, name) for folder in sys.path for name in ("sitecustomize.py", "usercustomize.py")]
    own = (os.path.dirname(os.__file__), os.path.dirname(os.path.abspath(sys.argv[0])))
    for file in [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]:
        if file.startswith("/") and (not file.startswith(own) or any("/%s/" % name in file for name in _SITES)):
            paths.append(file)
    return paths


def _stamp(files: list[str]) -> list[object]:
    stamp: list[object] = []
    for path in files:
        try:
            facts = os.stat(path)
            stamp.append((facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime))
        except OSError:
            stamp.append(None)
    return stamp
