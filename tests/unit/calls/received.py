"""What a caller gets of a value or an exception of a job on tensor01, through the files that the host writes of it."""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from clusterfn import errors
from clusterfn.calls import outcome, outcome_errors
from clusterfn.config import units
from clusterfn.config.spec import ResultPolicy
from clusterfn.hosts import serialization

container, exceptions = serialization.part("container"), serialization.part("exceptions")
PLACE = outcome.JobLocation("tensor01", "7f3a", "/root/jobs/7f3a", ResultPolicy())


def written(value: object) -> tuple[dict, bytearray]:
    file = io.BytesIO()
    return container.dump(value, file), bytearray(file.getvalue())


def returned(value: object, **facts):
    about, data = written(value)
    return outcome.value_of({"kind": "returned", "value": about, **facts}, data, PLACE)


def raised(error: BaseException, **published: Any) -> BaseException:
    """What a caller gets of an exception of which this is published, too."""
    about, data = written(exceptions.to_records(error))
    facts = {"kind": "raised", "value": about, "exception": exceptions.summary(error), "stage": "function"}
    return outcome_errors.exception_of({**facts, **published}, data, PLACE)


UNTRUSTED = outcome.JobLocation("box", "7f3a", "/root/jobs/7f3a", ResultPolicy(data_only=True))


def from_file(file: bytes, place: outcome.JobLocation = UNTRUSTED) -> Any:
    """What `result()` gives of a value file; by default it is of a host that may return plain data alone."""
    return outcome.value_of({"kind": "returned", "value": {"size": len(file)}}, bytearray(file), place)


def limit_memory(patch: pytest.MonkeyPatch, free: Callable[[], int]) -> None:
    """Let this machine have only so many bytes of free memory."""
    patch.setattr(units, "free_memory", lambda swap=False: free())


def untrusted_exception(error: BaseException, **published: Any) -> BaseException:
    """What a caller gets of an exception of that host."""
    about, data = written(exceptions.to_records(error))
    return outcome_errors.exception_of({"value": about, **published}, data, UNTRUSTED)


def thrown(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class Refuses:
    """Raises when it is loaded."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return _refuse, (self.error,)


def _refuse(error):
    raise error


def broken_by(error):
    with pytest.raises(errors.ResultError) as caught:
        returned(Refuses(error))
    return caught.value


def missing(
    module: str,
    error: BaseException | None = None,
    kind: str = "raised",
    python: str = "/opt/ml/bin/python",
    version: str = "",
) -> BaseException:
    """What the caller gets when a module is missing in the environment."""
    error = thrown(error or ModuleNotFoundError(f"No module named {module!r}", name=module))
    about, data = written(exceptions.to_records(error))
    facts = {**exceptions.summary(error), "missing": {"module": module, "python": python, "version": version}}
    return outcome_errors.exception_of({"kind": kind, "value": about, "exception": facts, "message": "m"}, data, PLACE)


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, None))
