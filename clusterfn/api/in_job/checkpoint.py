"""The folder that survives the attempts of a job."""

from __future__ import annotations

import os
from pathlib import Path

from clusterfn.bridge import layout
from clusterfn.errors import ClusterfnError


def checkpoint() -> Path:
    """Return the folder in which a function keeps what its next attempt needs.

    All attempts of a job share it: those of `retries=` and `requeue=`, and of a scheduler that restarts the job. In a
    map, each item has a folder of its own in it, named by the item's index. Outside of a job it is the folder
    `checkpoint` in the working folder.

    Returns:
        The folder, which exists.

    Raises:
        ClusterfnError: This is a call of a `Session`, which has no checkpoint.

    Example:
        >>> saved = clusterfn.checkpoint() / "last.pt"
    """
    place = os.environ.get(layout.CHECKPOINT_VARIABLE)
    if place is None and layout.TAG in os.environ:
        job, problem = os.environ[layout.TAG].partition("/")[0], "a call of a Session has no checkpoint folder"
        hint = "call the decorated function itself, or write to a folder of your own on the host, such as ~/runs"
        raise ClusterfnError(problem, job=job, stage="function", hint=hint)
    folder = Path(layout.CHECKPOINT if place is None else place, os.environ.get(layout.INDEX_VARIABLE, "")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
