"""Copy the checkpoint of the job that `resume=` names.

A copy, as the same job can be resumed again. A link in it stays as it is, as by `cp -a`.
"""

import errno
import os
import shutil
import stat

from ..layout import CHECKPOINT, UNSATISFIABLE, job_dir
from .verdict import AttemptEnded, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .job import JobFolder

_PIECE = 16 << 20


def resume(job: "JobFolder", look: "Callable[[], None]") -> "list[str]":
    """Copy the checkpoint of the job that this one resumes, unless an attempt of this one has begun before.

    Args:
        look: Called again and again while files are copied; may raise what ends the job.

    Returns:
        Notes about what was not copied.

    Raises:
        AttemptEnded: The checkpoint is gone, or the job must end meanwhile.
    """
    resumed = job.spec.get("resume")
    own = job.path(CHECKPOINT)
    if not resumed or job.has_checkpoint():
        return []
    theirs = os.path.join(job_dir(job.root, resumed), CHECKPOINT)
    aside = "%s-%s" % (own, os.urandom(8).hex())
    copying = _Copying(theirs, look)
    try:
        copying.folder(theirs, aside)
        # An empty folder is replaced; a folder that another element has filled meanwhile stays.
        os.rename(aside, own)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return []
        if error.errno != errno.ENOENT or os.path.isdir(theirs):
            raise
        message = "the checkpoint of job %s, which resume= names, is not there any more" % resumed
        gone = Verdict(UNSATISFIABLE, message, stage="start", hint="call again without resume=")
        raise AttemptEnded(gone) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return [
        "not copied from the checkpoint of job %s, because it is not a file: %s" % (resumed, path)
        for path in copying.skipped
    ]


class _Copying:
    """As `cp -r`, with an eye on what may end the job.

    Attributes:
        skipped: Paths below the checkpoint of what cannot be copied, such as a FIFO or a socket.
    """

    def __init__(self, top: str, look: "Callable[[], None]") -> None:
        self.skipped: "list[str]" = []
        self._top, self._look = top, look

    def folder(self, source: str, target: str) -> None:
        os.mkdir(target, 0o700)
        for name in os.listdir(source):
            path, copy = os.path.join(source, name), os.path.join(target, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                os.symlink(os.readlink(path), copy)
            elif stat.S_ISDIR(mode):
                self.folder(path, copy)
            elif stat.S_ISREG(mode):
                self._file(path, copy)
            else:
                self.skipped.append(os.path.relpath(path, self._top))

    def _file(self, path: str, copy: str) -> None:
        with open(path, "rb") as source, open(copy, "wb") as target:
            piece = source.read(_PIECE)
            while piece:
                self._look()
                target.write(piece)
                piece = source.read(_PIECE)
        shutil.copystat(path, copy)
