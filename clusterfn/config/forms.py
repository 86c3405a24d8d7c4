"""Forms that options of calls and keys of clusterfn.yml share: an address, a module, a variable, an environment."""

from __future__ import annotations

import re

from clusterfn.config.environment_kinds import ENVIRONMENT_KINDS, NAME_ENVIRONMENT
from clusterfn.errors import nearest_word

# No address may begin with a hyphen, because ssh would take it for an option. The same is true of modules.
ADDRESS = re.compile(r"(?:[\w.+][\w.+-]*@)?(?:[\w.][\w.-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\])(?::([0-9]{1,5}))?")
MODULE = re.compile(r"[\w.+@=/~][\w.+@=/~:,-]*")
CHOOSE_ENVIRONMENT = (
    f'{NAME_ENVIRONMENT}; or have one built: environment="environment.yml", "requirements.txt", '
    'or packages=["python=3.11", "numpy"]'
)
PYTHON_SOURCES = ("standalone", "host")
_ENVIRONMENT_FILES = (".yml", ".yaml", ".txt", ".toml", ".cfg", ".lock")
_PROJECT_FILES = ("environment.yml", "pyproject.toml", "uv.lock", "pylock.toml", "requirements.txt")
_PARTS = re.compile(r"(?P<file>.+\.(?:ya?ml|txt|toml|cfg|lock))\s*\[(?P<parts>[^\[\]]*)\]", re.IGNORECASE)
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_INTERPRETER = re.compile(r"/bin/python[\d.]*$")
_PROGRAM = re.compile(r"(?:/|~/)[^\0\n]*[^\0\n/]|python3(?:\.\d+)?")
_IN_PATH = re.compile(r"python(?:3(?:\.\d+)?)?")
ASK_FOR_GPUS = "use gpus= to ask for GPUs; CLUSTERFN_ variables are reserved"


def nearly_a_file(text: str) -> str:
    """Return what was meant by a misspelled file, or by one with a bracket too few; "" if nothing is near.

    Example:
        >>> nearly_a_file("pyproject.tml"), nearly_a_file("pyproject.toml[gpu")
        ('pyproject.toml', 'pyproject.toml[gpu]')
    """
    file, bracket, parts = text.partition("[")
    near = nearest_word(file.strip(), _PROJECT_FILES, alike=0.9)
    return f"{near}[{parts.strip().rstrip(']')}]" if near and bracket else near or ""


def names_a_file(text: str) -> bool:
    """Whether an environment is named by a file that says what is in it, and is no kind with a colon."""
    file = split_file(text)[0]
    return file.lower().endswith(_ENVIRONMENT_FILES) and file.partition(":")[0] not in ENVIRONMENT_KINDS


def split_file(text: str) -> tuple[str, tuple[str, ...]]:
    """Split the name of a file from the extras and groups in brackets behind it.

    Example:
        >>> split_file("pyproject.toml[gpu, group:dev]")
        ('pyproject.toml', ('gpu', 'group:dev'))
    """
    match = _PARTS.fullmatch(text)
    if match is None:
        return text, ()
    return match["file"], tuple(part.strip() for part in match["parts"].split(",") if part.strip())


def is_python_source(text: str) -> bool:
    """Whether a text says where the Python of a project's environment comes from.

    Example:
        >>> [is_python_source(each) for each in ("host", "/usr/bin/python3.11", "python3.11", "3.11")]
        [True, True, True, False]
    """
    return text in PYTHON_SOURCES or bool(_PROGRAM.fullmatch(text))


def nearly_an_environment(text: str) -> str:
    """Return what was meant by a text with a space too many, a folder, or an interpreter or a path alone; or "".

    Example:
        >>> nearly_an_environment("conda: ml"), nearly_an_environment("prefix:/opt/ml/bin/python")
        ('conda:ml', 'python:/opt/ml/bin/python')
        >>> nearly_an_environment("~/.venv"), nearly_an_environment("/opt/ml/bin/python")
        ('python:~/.venv/bin/python', 'python:/opt/ml/bin/python')
        >>> nearly_an_environment("python3")
        'python:python3'
    """
    if _IN_PATH.fullmatch(text):
        return f"python:{text}"
    if text.startswith(("/", "~")):
        path = text.rstrip("/")
        if names_a_file(text) or nearly_a_file(text):
            return ""
        return f"python:{path}" if path.rpartition("/")[2].startswith("python") else f"python:{path}/bin/python"
    kind, _, rest = (part.strip() for part in text.partition(":"))
    if kind not in ENVIRONMENT_KINDS or not rest:
        return ""
    if kind in ("venv", "prefix") and _INTERPRETER.search(rest):
        kind = "python"
    return "" if f"{kind}:{rest}" == text else f"{kind}:{rest}"


def python_version(environment: str) -> str:
    """Return the version in "python:3.11", which was meant to be a path; "" for any other environment.

    Example:
        >>> python_version("python:3.11"), python_version("python:/opt/bin/python3.11")
        ('3.11', '')
    """
    kind, _, rest = (part.strip() for part in environment.partition(":"))
    return rest if kind == "python" and _VERSION.fullmatch(rest) else ""


def is_set_by_clusterfn(variable: str) -> bool:
    """Whether a job's variable of this name is not the user's to set."""
    return variable == "CUDA_VISIBLE_DEVICES" or variable.startswith("CLUSTERFN_")
