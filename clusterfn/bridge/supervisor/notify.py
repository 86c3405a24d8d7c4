"""Tell the user that a job has ended: by mail, by a webhook, or by a command of his own. From the host, once.

This runs after the outcome was published, so nothing here changes how a job ended. `notified.json` keeps what went
wrong. A compute node may reach neither the internet nor a mail server: then `supervise.py list` on the login
node tries what failed once more.
"""

import json
import os
import sys
import time

from ..job_states import CANCELLED, DIED, FINAL, RETURNED
from ..layout import NOTIFIED, NOTIFY, SPEC, SUPERVISE
from . import publish
from .attempt import final_attempt
from .file_clock import written
from .job import NUMBER, DamagedFile, JobFolder, parse_record
from .text import format_duration, in_one_line, native, shortened
from .verdict import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

_TIMEOUT_S = 10.0
# The whole answer must come within this time.
ANSWER_S = 30.0
_COMMAND_S = 60.0
_AGAIN_WITHIN_S = 86400.0
_LONGEST = 300
_SAYS = {RETURNED: "has returned", CANCELLED: "was cancelled", DIED: "has died"}
_WANTED = {"webhook?": str, "mail?": str, "command?": str, "after_s?": NUMBER}
_NOTIFIED = {"t?": NUMBER, "told?": [str], "failed?": {"*": str}, "again?": bool}
_FOLDERS = ("/usr/sbin", "/usr/lib", "/sbin")


def tell_end(home: str) -> None:
    """Tell that the job or group in this folder has ended, unless it has not, or that was told before."""
    if not os.path.exists(os.path.join(home, NOTIFY)):
        return
    try:
        job = JobFolder(home)
        attempt = final_attempt(job)
        if attempt is not None and _is_first(home):
            _tell(job, attempt.outcome() or {}, {})
    except (OSError, DamagedFile) as error:
        # The function may have written anything into the folder.
        say("no notification of the end of the job: %s" % error)


def tell_again(home: str) -> int:
    """Try once more what has failed on another machine; the exit code of the process."""
    job = JobFolder(home)
    before, attempt = read_notified(home), final_attempt(job)
    if before is not None and attempt is not None and os.path.exists(job.path(NOTIFY)):
        _tell(job, attempt.outcome() or {}, before)
    return 0


def read_notified(home: str) -> "Optional[dict[str, Any]]":
    """Return who was notified, and what went wrong; None if no notification was sent yet."""
    try:
        return parse_record(publish.read(home, NOTIFIED), _NOTIFIED, NOTIFIED)
    except DamagedFile:
        return None


def failure_in_words(home: str) -> str:
    """Say which notification failed; "" if none has."""
    failed = (read_notified(home) or {}).get("failed") or {}
    return "; ".join("the notification by %s failed: %s" % (way, why) for way, why in sorted(failed.items()))


def try_again_apart(job: JobFolder) -> None:
    """Start a process on this machine that tries again what has failed on a compute node, unless one has."""
    known = read_notified(job.home)
    if not known or not known.get("failed") or known.get("again") or not os.path.exists(job.path(NOTIFY)):
        return
    if time.time() - known.get("t", 0.0) > _AGAIN_WITHIN_S:
        return
    # This import is late, because hardly any list needs it.
    import subprocess

    publish.replace(job.path(NOTIFIED), json.dumps(dict(known, again=True)).encode())
    argv = [sys.executable, "-I", "-S", os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), SUPERVISE)]
    null = subprocess.DEVNULL
    subprocess.Popen([*argv, "notify", job.home], stdin=null, stdout=null, stderr=null, start_new_session=True)


def _is_first(home: str) -> bool:
    """Whether this process makes the file whose maker sends the notifications."""
    try:
        os.close(os.open(os.path.join(home, NOTIFIED + ".begun"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def _tell(job: JobFolder, outcome: "dict[str, Any]", before: "dict[str, Any]") -> None:
    """Tell in each way that was asked for and has not succeeded, and keep what failed."""
    from http.client import HTTPException

    wanted = native(parse_record(publish.read(job.home, NOTIFY), _WANTED, NOTIFY))
    took_s = max(0.0, time.time() - (written(job.root, job.path(SPEC)) or time.time()))
    informed, failed = list(before.get("told", [])), {}  # type: list[str], dict[str, str]
    content = _content_of(job, outcome)
    for way, send in (("webhook", _post), ("mail", _mail), ("command", _run)):
        if not wanted.get(way) or took_s < wanted.get("after_s", 0.0) or way in informed:
            continue
        try:
            send(wanted[way], *content)
            informed.append(way)
        except (OSError, ValueError, HTTPException) as error:
            # The job itself has ended, and a notification changes nothing about that. No error of the network or of
            # HTTP has the address in its text.
            reason = getattr(error, "reason", None)
            why = str(reason if isinstance(reason, OSError) else error) or type(error).__name__
            failed[way] = shortened(in_one_line("%s (on %s)" % (why, job.node)), _LONGEST)
            say("the notification by %s failed: %s" % (way, failed[way]))
    done = {"t": time.time(), "told": informed, "failed": failed, "again": bool(before)}
    if not failed or before or not job.scheduler.has_nodes:
        # The file holds the address of the webhook, which is a secret.
        os.unlink(job.path(NOTIFY))
    publish.replace(job.path(NOTIFIED), json.dumps(done).encode())


def _content_of(job: JobFolder, outcome: "dict[str, Any]") -> "tuple[dict[str, str], str, str]":
    """Return the content of a notification about a job: its facts, a subject, and the text."""
    state = FINAL.get(outcome["kind"], DIED)
    usage = outcome.get("usage") or {}
    ran_s = usage.get("longest_s", usage.get("wall_s"))
    message = shortened(in_one_line(str(outcome.get("message") or "")), _LONGEST)
    name, host = job.spec["name"], job.spec["host"]
    after = "" if ran_s is None or job.spec.get("group") else " after %s" % format_duration(ran_s)
    why = ": %s" % message if message and (state != RETURNED or job.spec.get("group")) else ""
    subject = "%s (%s) on %s %s%s" % (name, job.id[:4], host, _SAYS.get(state, "has failed"), after)
    return {"id": job.id, "name": name, "host": host, "state": state, "message": message}, subject, subject + why


def _post(address: str, facts: "dict[str, str]", _subject: str, text: str) -> None:
    """Post JSON: `text` is what Slack and Mattermost show, `content` what Discord shows."""
    import http.client
    import urllib.request

    if not address.startswith(("https://", "http://")):
        raise ValueError("the address does not begin with https://")
    data = json.dumps(dict(facts, text=text, content=text)).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "clusterfn"}
    request = urllib.request.Request(address, data=data, headers=headers)

    def send() -> None:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            answer.read(1024)

    try:
        _within(ANSWER_S, send)
    except (http.client.InvalidURL, UnicodeError):
        # The texts of these errors quote the address, which is a secret.
        raise ValueError("the address is not that of a webhook") from None


def _within(seconds: float, work: "Callable[[], None]") -> None:
    """Do something that may last for ever, such as hearing an answer that comes in single bytes; raise its error."""
    import threading

    errors = []  # type: list[BaseException]

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the outermost frame of its thread: who waits gets it
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise OSError("it has not answered within %g s" % seconds)
    if errors:
        raise errors[0]


def _mail(address: str, _facts: "dict[str, str]", subject: str, text: str) -> None:
    import shutil
    from email.header import Header

    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS])
    sendmail = shutil.which("sendmail", path=path)
    mail = shutil.which("mail", path=path) or shutil.which("mailx", path=path)
    if sendmail is not None:
        encoded = Header(subject, "utf-8").encode()
        head = "To: %s\nSubject: %s\nContent-Type: text/plain; charset=utf-8\n\n" % (address, encoded)
        _call([sendmail, "-i", "-t"], head + text + "\n", _TIMEOUT_S)
    elif mail is not None:
        _call([mail, "-s", subject, address], text + "\n", _TIMEOUT_S)
    else:
        raise OSError("the machine has neither sendmail nor mail")


def _run(command: str, facts: "dict[str, str]", _subject: str, text: str) -> None:
    """Run the user's line of shell. It gets the content in variables, and on its stdin."""
    env = dict(os.environ, **{"CLUSTERFN_JOB_" + name.upper(): value for name, value in facts.items()})
    _call(["/bin/sh", "-c", command], text + "\n", _COMMAND_S, env)


def _call(argv: "list[str]", text: str, timeout_s: float, env: "Optional[dict[str, str]]" = None) -> None:
    import subprocess

    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, start_new_session=True
    )
    try:
        _, errors = process.communicate(text.encode("utf-8", "replace"), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        raise OSError("%s has not ended within %d s" % (os.path.basename(argv[0]), timeout_s)) from None
    if process.returncode != 0:
        said = errors.decode("utf-8", "replace").strip().splitlines()
        why = ": " + said[-1] if said else ""
        raise OSError("%s ended with status %d%s" % (os.path.basename(argv[0]), process.returncode, why))
