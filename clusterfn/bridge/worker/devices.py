"""Compare the function's use of GPUs with what its job asked for.

gpus=1 must not compute on the CPU unnoticed, and a user who forgot gpus=1 should get a note. Nothing is imported for
this: watch the user's own `import torch`, and look at what it has loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from ..supervisor.text import counted

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MACHINE = "/proc/driver/nvidia/gpus"
_BUILDS = ("cuda", "hip", "xpu")
_FORGOTTEN = (
    "this job has no GPU: it asked for none (gpus=0), so those of the machine are hidden; ask with @cluster(gpus=1)"
)


class OnTheCpu(Exception):
    """PyTorch would run on the CPU in a job that asked for GPUs; not an ImportError, which many catch."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class TorchWatch:
    """Watches the function import PyTorch, and checks the build and the GPUs that it sees.

    Args:
        asked: What the job asked for: `gpus`, and whether PyTorch may run on the CPU all the same, `allow_cpu`.
    """

    def __init__(self, asked: Mapping[str, Any], note: Callable[[str], None]) -> None:
        self._gpus: int = asked["gpus"]
        self._allow_cpu: bool = asked.get("allow_cpu", False)
        self._note = note
        self._visible = os.environ.get(_VISIBLE, "")
        self._has_cuda = False
        self._error: OnTheCpu | None = None

    def begin(self) -> None:
        """Watch imports from now on; check at once a PyTorch that a session imported before this call."""
        torch = sys.modules.get("torch")
        if torch is None:
            sys.meta_path.insert(0, self)
        else:
            self.check_build(torch)

    def end(self) -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """Return PyTorch's own spec, with a loader that checks what it has loaded: finding it is not using it."""
        if name != "torch":
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            spec: Any = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _CheckingLoader(spec.loader, self)
                return spec
        return None

    def check_build(self, torch: Any) -> None:
        """Check for what PyTorch was built; raise OnTheCpu if the job has GPUs, and this build cannot use them."""
        version = getattr(torch, "version", None)
        self._has_cuda |= bool(getattr(version, "cuda", None))
        if self._gpus and hasattr(version, "cuda") and not any(getattr(version, name, None) for name in _BUILDS):
            self._reject(torch, "is a build without CUDA", "install a build of PyTorch with CUDA")

    def check_gpus(self, torch: Any) -> None:
        """Check the GPUs that PyTorch sees; raise OnTheCpu if it sees fewer GPUs than the job has."""
        count = getattr(getattr(torch, "cuda", None), "_device_count_nvml", None)
        # the function may hide GPUs from itself on purpose: a parent whose children use them, or one rank of several
        if not self._gpus or count is None or "MIG" in self._visible or os.environ.get(_VISIBLE, "") != self._visible:
            return
        try:
            # This asks NVML, because asking CUDA itself would forbid every fork. It returns -1 where NVML cannot say.
            seen = count()
        except Exception:  # noqa: BLE001 - PyTorch's own code, which no release promises
            return
        if 0 <= seen < self._gpus:
            self._reject(torch, "sees %d of them" % seen, "run nvidia-smi in a job on that host")

    def _reject(self, torch: Any, why: str, hint: str) -> None:
        which = getattr(torch, "__version__", ""), os.path.dirname(os.path.dirname(getattr(torch, "__file__", "")))
        message = "this job asked for %s, and PyTorch %s in %s %s" % (counted(self._gpus, "GPU"), *which, why)
        if self._allow_cpu:
            self._note(message)
            return
        self._error = OnTheCpu(message, hint + "; to run on the CPU all the same: @cluster(allow_cpu=True)")
        raise self._error

    def finish(self, raised: BaseException | None) -> None:
        """Note at the function's end what it should have asked for; raise OnTheCpu if it failed because of that."""
        if self._error is not None:
            if any(error is self._error for error in _chain(raised)):
                raise self._error
            # The function has caught the error.
            self._note(str(self._error))
        elif raised is None and not self._gpus and self._has_cuda and _has_gpus():
            self._note(_FORGOTTEN)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


class _CheckingLoader:
    """Wraps PyTorch's own loader, and checks what that has loaded."""

    def __init__(self, loader: Any, watch: TorchWatch) -> None:
        self._loader = loader
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load it, and leave no trace of this wrapper in the module."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._watch.end()
        self._loader.exec_module(module)
        self._watch.check_build(module)
        self._watch.check_gpus(module)


def _has_gpus() -> bool:
    """Whether a job on this host could have asked for a GPU."""
    import shutil

    # This import is late, because the worker of a function without PyTorch never asks.
    from ..schedulers.registry import scheduler_of_job

    # The GPUs of the scheduler may be on other nodes.
    if scheduler_of_job(os.environ) is not None:
        return True
    return bool(os.path.isdir(_MACHINE) and os.listdir(_MACHINE)) or shutil.which("nvidia-smi") is not None
