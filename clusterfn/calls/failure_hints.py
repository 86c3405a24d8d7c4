"""What to do about the function's own exception: its notes on GPUs, missing modules and files, and on a checkpoint."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from clusterfn.bridge import layout
from clusterfn.config import host_text
from clusterfn.hosts import serialization
from clusterfn.packing.project import explain, modules, roots


def how_to_resume(job_id: str) -> str:
    """Say how to continue from the checkpoint of a job."""
    return f'it left a checkpoint: call again with resume="{job_id[:4]}" to continue from there'


def note_on(error: BaseException, outcome: Mapping[str, Any], host: str) -> str | None:
    """Return what else a reader of the function's own exception should know."""
    if type(error).__name__ == "BdbQuit" or (type(error) is EOFError and "EOF when reading a line" in error.args):
        return "a job has no keyboard: input() and breakpoint() get no answer"
    if outcome.get("hint"):
        return str(outcome["hint"])
    if isinstance(error, NameError) and "'display'" in serialization.part("exceptions").text_of(error):
        return "only notebooks have display(): print the object, or return it and display it here"
    if isinstance(error, ValueError) and _ONE_EACH in serialization.part("exceptions").text_of(error):
        return (
            "clusterfn calls the function once on each node: ask for tasks_per_node=, as many as devices; or "
            "start the processes with torch.distributed.launcher.api.elastic_launch, as examples/frameworks.py does"
        )
    if isinstance(error, RecursionError) and sys.getrecursionlimit() > _USUAL_DEPTH:
        return f"the job has the usual limit: call sys.setrecursionlimit({sys.getrecursionlimit()}) in the function"
    hint = about_unsent_name(error, outcome)
    if hint is None and isinstance(error, Exception) and getattr(error, "filename", None) is None:
        # A program that finds no files in a folder says so with an exception of any class.
        text = serialization.part("exceptions").text_of(error)
        said = explain.in_text(text, host, paths_alone=not isinstance(error, FileNotFoundError))
        hint = said and f"not {said}"
    return hint or about_gpus(outcome, host) or about_missing_module(outcome, host)


def about_unsent_name(error: BaseException, outcome: Mapping[str, Any]) -> str | None:
    """Say why a job lacks an object of the script: a call takes along only those that its code names."""
    shown = str((outcome.get("exception") or {}).get("traceback"))
    for each in filter(None, (error, error.__cause__)):
        text = serialization.part("exceptions").text_of(each)
        for kind, sign, words in _BY_TEXT:
            found = words.match(text) if isinstance(each, kind) and sign in shown else None
            name = found[1] if found else ""
            if name in vars(sys.modules["__main__"]):
                return (
                    "clusterfn sends only those objects of your script that the code of the call names, and "
                    f"{name} is named in a text or a file. Write {name} in the function too, for example in a dict, "
                    "or put it into a module"
                )
    return None


# Errors of `eval`, `globals()[…]`, `getattr(sys.modules[…], …)` and of reading a pickle: the type, what the traceback
# has if it is such an error, and the message.
_BY_TEXT = (
    (NameError, 'File "<string>"', re.compile(r"name '(\w+)' is not defined")),
    (KeyError, "globals()", re.compile(r"'(\w+)'$")),
    (AttributeError, "", re.compile(r"module '__main__' has no attribute '(\w+)'")),
    (AttributeError, "", re.compile(r"Can't get attribute '(\w+)' on <module '__main__'")),
)
_USUAL_DEPTH = 1000


def about_gpus(outcome: Mapping[str, Any], host: str) -> str | None:
    """Return the advice of the table of CUDA's errors; None if it knows none of the exception's words."""
    cuda_error = _known_cuda_error((outcome.get("exception") or {}).get("message") or "")
    if cuda_error is None:
        return None
    if cuda_error.name in _NO_GPU:
        if (outcome.get("usage") or {}).get("gpus"):
            return f"the job had GPUs: `clusterfn check {host} --gpus 1` shows why PyTorch cannot use them"
        return "a job sees no GPU unless it asks for one: @cluster(gpus=1)"
    advice = f"{cuda_error.name}: {cuda_error.advice}"
    if outcome.get("earlier") or cuda_error.retry == "never":
        return advice
    return f"{advice}; this may be transient: @cluster(retries=2) retries such a job in a new process, on another GPU"


def needs_a_gpu(text: str) -> bool:
    """Whether an error says that there is no GPU where one is needed."""
    cuda_error = _known_cuda_error(text)
    return cuda_error is not None and cuda_error.name in (*_NO_GPU, "cudaErrorInsufficientDriver", "libcuda is missing")


def _known_cuda_error(text: str) -> Any:
    """Return the row of the table of CUDA's errors for a text; None if it knows none of its words."""
    if not re.search(_OF_GPUS, text):
        return None
    # Few errors are about GPUs, and the import takes some milliseconds.
    from clusterfn.bridge.worker import cuda_table

    return cuda_table.find_known_error(text)


_OF_GPUS = r"CUDA|NCCL|NVLink|GPU|NVIDIA|NVML|libcuda|libnvidia|\bcu[A-Z]|CU[A-Z]+_STATUS|kernel image"
# Lightning raises this under SLURM with devices=2 on several nodes.
_ONE_EACH = "the number of tasks per node configured in"
_NO_GPU = ("cudaErrorNoDevice", "no NVIDIA driver", "PyTorch without CUDA")


def about_missing_module(outcome: Mapping[str, Any], host: str) -> str | None:
    """Say what to do about a module that the environment lacks; None if that is not what happened."""
    missing = (outcome.get("exception") or {}).get("missing")
    missing = missing if isinstance(missing, dict) else {}
    name = host_text.module_name(missing.get("module"))
    if not name:
        return None
    python = host_text.shell_word(missing.get("python"))
    top, _, below = name.partition(".")
    if missing.get("metadata"):
        return (
            f"{python} on {host} has no metadata of {name}: install {name} there; if it is your own project, "
            "install it on this machine (pip install -e .), and clusterfn sends its metadata with its source"
        )
    compiled = next((each for each in modules.compiled_in(top) if f"{name}.".startswith(f"{each.name}.")), None)
    if compiled:
        return (
            f"{compiled.name} is your own, and is not sent, because {compiled.extension.name} is compiled for your "
            f"machine: install it there ({python} -m pip install …)"
        )
    here = explain.of_module(name)
    if modules.is_own(top) and here:
        return here
    if below:
        remote_version = host_text.shell_word(missing.get("version") or "another version")
        ours = serialization.part("load_failure").version_of(top) or "another version"
        return f"{top} in {python} on {host} has no {name}: it is {remote_version} there, and {ours} on this machine"
    named = (each for each in roots.installed() if top in each.top_level or each.metadata.name.startswith(f"{top}-"))
    folder = next((each.origin for each in named if each.origin), "")
    if folder:
        return (
            f"{top} is your own project, installed on this machine from {folder}: after `pip install -e {folder}`, "
            "clusterfn sends it with every call"
        )
    if top in getattr(sys, "stdlib_module_names", ()):
        version = "Python {}.{}".format(*sys.version_info[:2])
        return f"{top} is a module of {version}, which {python} lacks: use an environment with {version}"
    package = PACKAGES.get(top, top)
    lacking = f"No module named {name!r} in {python} on {host}"
    if missing.get("user"):
        return (
            f"{lacking}. `pip install --user` has put it beside that Python, where jobs do not look: install {package} "
            "in a virtual environment, and name that"
        )
    if here:
        return f"{lacking}. {here}"
    if image := missing.get("image"):
        return (
            f"No module named {name!r} in the image {host_text.shell_word(image)} on {host}: add {package} to it, or "
            "make a virtual environment with its Python and --system-site-packages in a folder that the image shows"
        )
    if _MADE.search(python):
        return f"{lacking}, which clusterfn built: add {package} to environment.yml or packages=[…], and call again"
    if python.startswith("/usr/bin/"):
        return (
            f"{lacking}, which belongs to the system: have an environment built, packages=[{package!r}], or create "
            f"one ({python} -m venv ~/v; ~/v/bin/pip install {package}) and set environment: venv:~/v"
        )
    return f"{lacking}: install it on the host ({python} -m pip install {package})"


# This is the interpreter of an environment that clusterfn builds. A package that you install there is gone once the
# environment is built again.
_MADE = re.compile(rf"/{layout.ENVIRONMENTS}/[0-9a-f]{{16,64}}/bin/python")

# The packages of these modules have other names.
PACKAGES = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python", "dateutil": "python-dateutil",
    "faiss": "faiss-cpu", "sklearn": "scikit-learn", "skimage": "scikit-image", "yaml": "pyyaml",
}  # fmt: skip
