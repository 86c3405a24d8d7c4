"""What a function calls inside its job: its checkpoint folder, the warning before its end, and the state of a training.

Imports only the standard library, the errors and the names of files. Outside of a job everything here works too, so the
same function runs on your own machine without clusterfn.

Everything that has `state_dict`, as the models, optimizers and schedulers of PyTorch do, is saved by it. PyTorch and
numpy are not imported here: what the function has not imported has no state.

For the warning (`warn_before=`) the supervisor, or the scheduler, sends SIGTERM to the worker, which calls `deliver` in
the main thread (`bridge/worker/warning.py`). A function with a handler of its own for SIGTERM gets the signal instead.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from clusterfn.bridge import layout
from clusterfn.errors import ClusterfnError

F = TypeVar("F", bound=Callable[[], object])
_NAME = "training.state"
_FORMAT = "clusterfn training 1"
_callbacks: list[Callable[[], object]] = []


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


def save_training(path: str | Path | None = None, **parts: Any) -> Path:
    """Save a training into one file, whole or not at all, with the state of all random number generators.

    The generators are those of `random`, of `numpy.random`, and of PyTorch on the CPU and on every GPU. Of several
    processes only one should save, usually rank 0.

    Args:
        path: The file; by default `training.state` in `clusterfn.checkpoint()`.
        parts: What to save, by name: `model=model, optimizer=optimizer, step=7`. Of an object with `state_dict()` that
            is saved, and of everything else the value itself.

    Returns:
        The path of the file.

    Example:
        >>> clusterfn.save_training(model=model, optimizer=optimizer, step=step)
    """
    # Most functions only ask for the folder, and `tempfile` and `random` take some milliseconds to import.
    import tempfile

    target = _file("save_training", path)
    target.parent.mkdir(parents=True, exist_ok=True)
    states = {name: part.state_dict() for name, part in parts.items() if _has_state(part)}
    values = {name: part for name, part in parts.items() if not _has_state(part)}
    saved = {"format": _FORMAT, "states": states, "values": values, "random": _random_states()}
    handle, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.clusterfn-")
    try:
        with os.fdopen(handle, "wb") as file:
            torch = sys.modules.get("torch")
            if torch is None:
                pickle.dump(saved, file, protocol=pickle.HIGHEST_PROTOCOL)
            else:
                torch.save(saved, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    except BaseException:  # the signal that warns before the end may raise here
        # Half a file must not stay.
        Path(aside).unlink(missing_ok=True)
        raise
    return target


def load_training(path: str | Path | None = None, **parts: Any) -> dict[str, Any]:
    """Load what `save_training` has saved into these objects, and set all random number generators as they were.

    The file is unpickled, so load only files that your own jobs have written.

    Args:
        path: The file; by default `training.state` in `clusterfn.checkpoint()`.
        parts: The objects to load, by the names by which they were saved: `model=model, optimizer=optimizer`.

    Returns:
        What was saved by value, such as {"step": 7}. {} if there is no such file: the training begins.

    Raises:
        ClusterfnError: A part has no state to load, or the file is none of these, or lacks one of the parts.

    Example:
        >>> step = clusterfn.load_training(model=model, optimizer=optimizer).get("step", 0)
    """
    source = _file("load_training", path)
    for name, part in parts.items():
        if not _has_state(part):
            message = f"load_training({name}=…) loads into an object, and this is a value: {type(part).__name__}"
            hint = f'take it from what it returns: load_training(...).get("{name}")'
            raise ClusterfnError(message, stage="function", hint=hint)
    if not source.exists():
        return {}
    saved = _read(source)
    for name, part in parts.items():
        if name not in saved["states"]:
            raise ClusterfnError(
                f"{source} has no state of {name}",
                stage="function",
                evidence=[f"it has {', '.join([*saved['states'], *saved['values']]) or 'nothing'}"],
                hint=f"save it too: save_training(..., {name}={name})",
            )
        part.load_state_dict(saved["states"][name])
    _set_random_states(saved["random"])
    values: dict[str, Any] = saved["values"]
    return values


def _file(name: str, path: object) -> Path:
    if path is None:
        return checkpoint() / _NAME
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{name}() takes each part by a name, as {name}(model=model), and not {type(path).__name__}")
    return Path(path)


def _has_state(part: object) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _read(source: Path) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    try:
        with source.open("rb") as file:
            # PyTorch writes zip files, which begin with these bytes.
            if file.read(2) == b"PK" and torch is not None:
                file.seek(0)
                # States of random number generators must stay on the CPU; the rest goes where its model is.
                saved = torch.load(file, map_location="cpu", weights_only=False)
            else:
                file.seek(0)
                saved = pickle.load(file)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as damaged:
        saved = damaged
    if not isinstance(saved, dict) or saved.get("format") != _FORMAT:
        raise ClusterfnError(
            f"{source} is no file of save_training()",
            stage="function",
            evidence=[f"{saved!r:.200}"],
            hint="import torch before load_training(), as it was when the file was saved, or remove the file",
        )
    return saved


def _random_states() -> dict[str, Any]:
    import random

    states: dict[str, Any] = {"random": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    import random

    random.setstate(states["random"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    if torch is None:
        return
    if "torch" in states:
        torch.set_rng_state(states["torch"])
    for index, state in enumerate(states.get("cuda", ())[: torch.cuda.device_count()] if "cuda" in states else ()):
        torch.cuda.set_rng_state(state, index)


class TimeAlmostUp(BaseException):
    """The job is about to be ended: by its time limit, or by a scheduler that needs its resources.

    With `warn_before=` it is raised in the main thread of the function, once. Save what the next attempt needs, and let
    it pass: the attempt then counts as one that ran out of time, and `requeue=` starts the next one. A function may
    also raise it by itself after the warning. A value that is returned counts, as always.

    Like KeyboardInterrupt it is no `Exception`, so that `except Exception` in a training loop does not hide it.

    Example:
        >>> try:
        ...     train(model)
        ... except clusterfn.TimeAlmostUp:
        ...     save(model)
        ...     raise
    """


def on_warning(callback: F) -> F:
    """Call a function before the end of the job (`warn_before=`), in place of raising `TimeAlmostUp`.

    It is called once, in the main thread, without arguments, between two steps of the function, which then continues.
    It may raise `TimeAlmostUp` itself. Several are called in the order in which they were given.

    Returns:
        The function, so that this can be a decorator.

    Example:
        >>> clusterfn.on_warning(lambda: save(model))
    """
    if not callable(callback):
        raise TypeError(f"on_warning() takes a function without arguments, not {callback!r:.80}")
    _callbacks.append(callback)
    return callback


def deliver() -> None:
    """Warn the function: call what it has given to `on_warning`, or else raise.

    Raises:
        TimeAlmostUp: It has given nothing.
    """
    for callback in list(_callbacks):
        callback()
    if not _callbacks:
        raise TimeAlmostUp("the job is about to be ended; save a checkpoint")
