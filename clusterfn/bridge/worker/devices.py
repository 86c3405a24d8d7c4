"""Compare the function's use of GPUs with what its job asked for.

gpus=1 must not compute on the CPU unnoticed, and a user who forgot gpus=1 should get a note. Nothing is imported for
this: watch the user's own `import torch`, and read its build from its version.py before it is loaded.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

from ..attributes import attribute
from ..supervisor.text import counted
from .descriptors import open_files

_NVIDIA = "/dev/nvidia"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MACHINE = "/proc/driver/nvidia/gpus"
_LINE = r"^%s\s*(?::[^=\n]*)?=\s*(.+?)\s*$"
_WORDS = re.compile(r"\bcuda\b|nvidia-smi")
_FORGOTTEN = (
    "this job has no GPU: it asked for none (gpus=0), so those of the machine are hidden; ask with @cluster(gpus=1)"
)
_UNUSED = "this job asked for %s and no process opened one: leave gpus= out, or see why the function used the CPU"


class OnTheCpu(Exception):
    """PyTorch would run on the CPU in a job that asked for GPUs; not an ImportError, which many catch."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class InstalledTorch:
    """An installed PyTorch.

    Attributes:
        text: For messages: "PyTorch 2.13.0+cpu in /opt/v/lib/python3.11/site-packages".
        is_for_cpu: Whether it is known to be a build without CUDA.
    """

    def __init__(self, init: str | None) -> None:
        folder = os.path.dirname(init or "")
        names = _version_names(os.path.join(folder, "version.py"))
        self.text = "PyTorch %s in %s" % (names.get("__version__", ""), os.path.dirname(folder))
        self.is_for_cpu = "cuda" in names and not any(names.get(name) for name in ("cuda", "hip", "xpu"))
        self.has_cuda = bool(names.get("cuda"))


def _version_names(path: str) -> dict[str, Any]:
    """Return the names that version.py sets; empty if it cannot be parsed."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return {}
    # This import is late, because few jobs import PyTorch.
    import ast

    found = {}
    for name in ("__version__", "cuda", "hip", "xpu"):
        match = re.search(_LINE % name, text, re.MULTILINE)
        try:
            found[name] = ast.literal_eval(match[1]) if match else None
        except (ValueError, SyntaxError):
            return {}
    return found if isinstance(found["__version__"], str) else {}


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
        self._asks_for_cuda = False
        self._error: OnTheCpu | None = None
        self._faults_before = 0

    def begin(self) -> None:
        """Watch imports from now on; check at once a PyTorch that a session imported before this call."""
        if self._gpus:
            self._faults_before = _faults_of_children()
        torch = sys.modules.get("torch")
        if torch is None:
            sys.meta_path.insert(0, self)
        else:
            self.check_build(InstalledTorch(getattr(torch, "__file__", None)))

    def end(self) -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def scan_code(self, function: Any) -> None:
        """Remember whether the function mentions CUDA, itself or in a program that it starts."""
        code = attribute(function, "__code__")
        if not self._gpus and code is not None:
            self._asks_for_cuda |= any(_WORDS.search(text) for text in _texts(code, attribute(function, "__doc__")))

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """Return PyTorch's own spec, with a loader that checks the build first: finding it is not using it."""
        if name != "torch":
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            spec: Any = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _CheckingLoader(spec.loader, self, InstalledTorch(spec.origin))
                return spec
        return None

    def check_build(self, build: InstalledTorch) -> None:
        """Check the build before PyTorch is loaded.

        Raises:
            OnTheCpu: The job has GPUs, and this build cannot use them.
        """
        if not self._gpus:
            self._asks_for_cuda |= build.has_cuda
        elif build.is_for_cpu:
            self._reject("%s is a build without CUDA" % build.text, "install a build of PyTorch with CUDA")

    def check_gpus(self, torch: Any, build: InstalledTorch) -> None:
        """Check the GPUs that the loaded PyTorch sees.

        Raises:
            OnTheCpu: It sees fewer GPUs than the job has.
        """
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
            self._reject("%s sees %d of them" % (build.text, seen), "run nvidia-smi in a job on that host")

    def _reject(self, why: str, hint: str) -> None:
        message = "this job asked for %s, and %s" % (counted(self._gpus, "GPU"), why)
        if self._allow_cpu:
            self._note(message)
            return
        self._error = OnTheCpu(message, hint + "; to run on the CPU all the same: @cluster(allow_cpu=True)")
        raise self._error

    def finish(self, raised: BaseException | None) -> None:
        """Note at the function's end what it should have asked for, or did not need.

        Raises:
            OnTheCpu: It failed because of that.
        """
        if self._error is not None:
            if any(error is self._error for error in _chain(raised)):
                raise self._error
            # The function has caught the error.
            self._note(str(self._error))
        elif raised is None and not self._gpus and self._asks_for_cuda and _has_gpus():
            self._note(_FORGOTTEN)
        elif raised is None and self._gpus and not self._allow_cpu and _opened_none(self._faults_before):
            self._note(_UNUSED % counted(self._gpus, "GPU"))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


class _CheckingLoader:
    """Wraps PyTorch's own loader: checks the build before loading, and the GPUs after it."""

    def __init__(self, loader: Any, watch: TorchWatch, build: InstalledTorch) -> None:
        self._loader = loader
        self._watch = watch
        self._build = build

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load it, and leave no trace of this wrapper in the module."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._watch.check_build(self._build)
        self._watch.end()
        self._loader.exec_module(module)
        self._watch.check_gpus(module, self._build)


def _texts(code: CodeType, doc: str | None) -> Iterator[str]:
    """Yield the names and strings of a function's code and of nested code, but not its docstring."""
    yield from code.co_names
    yield from _constants(each for each in code.co_consts if each != doc)


def _constants(values: Iterable[Any]) -> Iterator[str]:
    for each in values:
        if isinstance(each, CodeType):
            yield from _texts(each, None)
        elif isinstance(each, (tuple, frozenset)):
            # Compilers keep lists and sets of texts in this form.
            yield from _constants(each)
        elif isinstance(each, str):
            yield each


def _has_gpus() -> bool:
    """Whether a job on this host could have asked for a GPU."""
    import shutil

    # This import is late, because the worker of a function without PyTorch never asks.
    from ..schedulers.registry import scheduler_of_job

    # The GPUs of the scheduler may be on other nodes.
    if scheduler_of_job(os.environ) is not None:
        return True
    return bool(os.path.isdir(_MACHINE) and os.listdir(_MACHINE)) or shutil.which("nvidia-smi") is not None


def _faults_of_children() -> int:
    """Return the page faults of all children that have ended: each child adds some."""
    import resource

    # The shell that this interpreter replaced may have had children of its own.
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def _opened_none(faults_before: int) -> bool:
    """Whether neither this process nor a child of it can have used a GPU; False where that is uncertain."""
    from ..supervisor import process_tree

    if not os.path.exists(_NVIDIA + "ctl"):
        return False
    if _faults_of_children() != faults_before or process_tree.descendants(os.getpid()):
        return False
    try:
        return not any(path.startswith(_NVIDIA) for path in open_files().values())
    except OSError:
        return False
