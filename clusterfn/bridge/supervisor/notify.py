"""Tell the user that a job has ended, by a command of his own on the host, once.

This runs after the outcome was published, so nothing here changes how a job ended. `notified.json` keeps what went
wrong, as on a compute node that reaches neither the internet nor a mail server.
"""

import json
import os
import time

from ..job_states import CANCELLED, DIED, FINAL, RETURNED
from ..layout import NOTIFIED, NOTIFY, SPEC
from ..removal import date_of
from . import publish
from .attempt import final_attempt
from .job import NUMBER, DamagedFile, JobFolder, parse_record
from .text import format_duration, in_one_line, native, shortened
from .verdict import log_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_COMMAND_S = 60.0
_LONGEST = 300
_SAYS = {RETURNED: "has returned", CANCELLED: "was cancelled", DIED: "has died"}
_WANTED = {"command": str, "after_s?": NUMBER}
_NOTIFIED = {"t?": NUMBER, "told?": bool, "failed?": str}


def tell_end(home: str) -> None:
    """Tell that the job or group in this folder has ended, unless it has not, or that was told before."""
    if not os.path.exists(os.path.join(home, NOTIFY)):
        return
    try:
        job = JobFolder(home)
        attempt = final_attempt(job)
        if attempt is not None and _is_first(home):
            _tell(job, attempt.outcome() or {})
    except (OSError, DamagedFile) as error:
        # The function may have written anything into the folder.
        log_line("no notification of the end of the job: %s" % error)


def failure_in_words(home: str) -> str:
    """Say that the notification failed, and why; "" if it has not."""
    try:
        failed = parse_record(publish.read(home, NOTIFIED), _NOTIFIED, NOTIFIED).get("failed")
    except DamagedFile:
        return ""
    return "the notification failed: %s" % failed if failed else ""


def _is_first(home: str) -> bool:
    """Whether this process makes the file whose maker sends the notifications."""
    try:
        os.close(os.open(os.path.join(home, NOTIFIED + ".begun"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def _tell(job: JobFolder, outcome: "dict[str, Any]") -> None:
    """Run the command, unless the job took too little time for it, and keep what failed."""
    wanted = native(parse_record(publish.read(job.home, NOTIFY), _WANTED, NOTIFY))
    took_s = max(0.0, time.time() - (date_of(job.path(SPEC)) or time.time()))
    is_due = took_s >= wanted.get("after_s", 0.0)
    failed = ""
    if is_due:
        try:
            _run(wanted["command"], *_content_of(job, outcome))
        except OSError as error:
            # The job itself has ended, and a notification changes nothing about that.
            failed = shortened(in_one_line("%s (on %s)" % (error, job.node)), _LONGEST)
            log_line("the notification failed: %s" % failed)
    done = {"t": time.time(), "told": is_due and not failed, "failed": failed}
    # The command may hold the address of a webhook, which is a secret.
    os.unlink(job.path(NOTIFY))
    publish.replace(job.path(NOTIFIED), json.dumps(done).encode())


def _content_of(job: JobFolder, outcome: "dict[str, Any]") -> "tuple[dict[str, str], str]":
    """Return the content of a notification about a job: its facts, and a sentence."""
    state = FINAL.get(outcome["kind"], DIED)
    usage = outcome.get("usage") or {}
    ran_s = usage.get("longest_s", usage.get("wall_s"))
    message = shortened(in_one_line(str(outcome.get("message") or "")), _LONGEST)
    name, host = job.spec["name"], job.spec["host"]
    after = "" if ran_s is None or job.spec.get("group") else " after %s" % format_duration(ran_s)
    why = ": %s" % message if message and (state != RETURNED or job.spec.get("group")) else ""
    subject = "%s (%s) on %s %s%s" % (name, job.id[:4], host, _SAYS.get(state, "has failed"), after)
    return {"id": job.id, "name": name, "host": host, "state": state, "message": message}, subject + why


def _run(command: str, facts: "dict[str, str]", text: str) -> None:
    """Run the user's line of shell. It gets the facts in variables, and the sentence on its stdin."""
    # This import is late, because hardly any job notifies its user.
    import subprocess

    env = dict(os.environ, **{"CLUSTERFN_JOB_" + name.upper(): value for name, value in facts.items()})
    argv = ["/bin/sh", "-c", command]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, start_new_session=True
    )
    try:
        _, errors = process.communicate((text + "\n").encode("utf-8", "replace"), timeout=_COMMAND_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        raise OSError("the command has not ended within %d s" % _COMMAND_S) from None
    if process.returncode != 0:
        said = errors.decode("utf-8", "replace").strip().splitlines()
        why = ": " + said[-1] if said else ""
        raise OSError("the command ended with status %d%s" % (process.returncode, why))
