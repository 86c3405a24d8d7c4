"""What a job keeps for the attempts after it: whether there is any, and a copy of another job's for `resume=`.

A copy and no links: the job keeps writing there, and the same job can be resumed again.
"""

import errno
import os
import shutil

from ...layout import CHECKPOINT, JOBS, UNSATISFIABLE
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .job import Job
    from .watch import Watch

_PIECE = 16 << 20


def holds_something(job: "Job") -> bool:
    """Whether the job has left a checkpoint."""
    try:
        return bool(os.listdir(job.path(CHECKPOINT)))
    except OSError:  # the job has not begun, or the function has removed the folder
        return False


def resume(job: "Job", watch: "Watch") -> None:
    """Let the job begin with the checkpoint of the one that it resumes, unless an attempt of it has begun before.

    Raises:
        Verdict: There is none any more, or the job must end meanwhile.
    """
    resumed, own = job.spec.get("resume"), job.path(CHECKPOINT)
    if not resumed or holds_something(job):
        return
    theirs, aside = os.path.join(job.root, JOBS, resumed, CHECKPOINT), "%s-%s" % (own, os.urandom(8).hex())
    try:
        _copy(theirs, aside, watch)
        os.rename(aside, own)  # an empty folder gives way; one that another element has brought meanwhile stays
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return
        if error.errno != errno.ENOENT or os.path.isdir(theirs):
            raise
        message = "the checkpoint of job %s, which resume= names, is not there any more" % resumed
        raise Verdict(UNSATISFIABLE, message, stage="start", hint="call again without resume=") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _copy(source: str, target: str, watch: "Watch") -> None:
    """As `cp -r`, with an eye on what may end the job."""
    os.mkdir(target, 0o700)
    for name in os.listdir(source):
        path, copy = os.path.join(source, name), os.path.join(target, name)
        if os.path.islink(path):
            os.symlink(os.readlink(path), copy)
        elif os.path.isdir(path):
            _copy(path, copy, watch)
        else:
            _copy_file(path, copy, watch)


def _copy_file(path: str, copy: str, watch: "Watch") -> None:
    with open(path, "rb") as source, open(copy, "wb") as target:
        piece = source.read(_PIECE)
        while piece:
            watch.look()
            target.write(piece)
            piece = source.read(_PIECE)
    shutil.copystat(path, copy)
