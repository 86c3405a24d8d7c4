"""What arguments and decorated functions become inside a job.

A payload refers to these by name, so nothing of the library itself is needed to load it. Called by unpickling alone.
"""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
from collections.abc import Callable
from typing import Any


def by_name(module: str, qualname: str) -> Any:
    """The object of that name in a module that travelled as source."""
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def plain_by_name(module: str, qualname: str) -> Any:
    """The function behind a decorated name in a module that travelled as source."""
    found = by_name(module, qualname)
    return getattr(found, "__wrapped__", found)


class Inside:
    """A decorated function inside a job: the plain function, in this process. Sending from there is refused."""

    function: Callable[..., Any]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        functools.update_wrapper(self, self.function, assigned=("__module__",), updated=())

    def __getattr__(self, name: str) -> Any:
        """Its name and what was hung on it are the function's, which may get them only after this was made."""
        if name == "function":  # not yet: it is being loaded
            raise AttributeError(name)
        return getattr(self.function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def local(self, *args: Any, **kwargs: Any) -> Any:
        """The same as a call."""
        return self.function(*args, **kwargs)

    def on(self, host: str) -> Inside:
        """This function itself: inside a job everything runs in the job's own process."""
        return self

    def with_options(self, **options: Any) -> Inside:
        """This function itself: inside a job the resources are those of the job."""
        return self

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: a job cannot send jobs."""
        raise RuntimeError(
            f"{getattr(self.function, '__name__', 'function')}.submit() inside a job: a job cannot send further jobs; "
            "call the function directly, it runs in this process"
        )

    map = script = submit


def path_of(digest: str, name: str) -> pathlib.Path:
    """The path, inside a job, of a File or Directory that the caller passed."""
    return pathlib.Path(os.environ["CLUSTERFN_FILES"], digest, name)
