"""Has a job's environment there before its worker starts: whole already, or made now by the builder.

The builder is the bridge's own `build.py`. It waits for another's build of the same environment and continues one that
died, so every job may start one.
"""

import contextlib
import json
import os
import subprocess
import sys
import time

from ..builder import leases, permissions, programs, progress
from ..builder.errors import BuildFailed, from_os_error
from ..layout import BUILD, BUILDER_LOG, ENVIRONMENT, PLAN, READY, build_dir, environment_dir
from .environ import add_script_variables
from .text import native
from .verdict import AttemptEnded, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Optional

    from .attempt import RunnableAttempt
    from .job import JobFolder
    from .spec import SpecBuilding
    from .watch import EndWatch

_LOOK_S = 0.1
_TELL_S = 1.0


def ready(job: "JobFolder", attempt: "RunnableAttempt", watch: "EndWatch") -> None:
    """See that the environment is there, and learn what activating it sets.

    Raises:
        AttemptEnded: It cannot be made, or the job was ended while it waited.
    """
    marker = _have(job, attempt.path(BUILDER_LOG), watch.look, attempt)
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
    _have(job, os.path.join(job.folder, BUILDER_LOG), look, None)


def _have(
    job: "JobFolder", said: str, look: "Callable[[], None]", attempt: "Optional[RunnableAttempt]"
) -> str:  # fmt: skip
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
    marker = os.path.join(environment_dir(wanted["root"], wanted["id"]), READY)
    if wanted["purged"] or not os.path.exists(marker):
        plan = os.path.join(build_dir(wanted["root"], wanted["id"]), PLAN)
        if attempt is not None:
            attempt.wait("its environment is being made")
        _build(job.spec["bridge"], plan, said, look, attempt)
        _refuse_others(wanted)
    return marker


def _refuse_others(wanted: "SpecBuilding") -> None:
    with _verdict_of_builder(wanted["root"]):
        permissions.refuse_untrusted(wanted["root"], wanted.get("owners") or (), wanted["id"])


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
    shown, due = "", 0.0
    argv = [sys.executable, "-I", "-S", os.path.join(bridge, BUILD), "build", plan]
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
    return Verdict(
        ENVIRONMENT, "%s: %s" % (what, facts["message"]), stage="environment", evidence=facts.get("evidence") or [],
        hint=facts.get("hint") or "call again; clusterfn env list says what is there",
    )  # fmt: skip
