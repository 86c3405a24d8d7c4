"""The kinds of environments, and other forms that options of calls and keys of clusterfn.yml share: a file, an address,
and who is notified.

Each kind of environment that is on a host already, as in `environment="venv:~/v"`, is written once, here. `@cluster`,
clusterfn.yml and `clusterfn check` take the words from here, messages the examples, and `environment.existing` looks
where an environment of the kind has its interpreter.

`notify=` of a call and `notify:` of a host are the command that a host runs when a job has ended.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from clusterfn.config.units import parse_time
from clusterfn.errors import ConfigError, did_you_mean, nearest_word

# Where conda, mamba and micromamba are installed, with environments in envs/ below; `clusterfn init` looks there too.
CONDA_PLACES = (
    "~/.conda", "~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "~/micromamba", "~/conda",
    "~/.local/share/mamba", "/opt/conda", "/opt/miniconda3", "/opt/miniforge3", "/opt/mambaforge", "/opt/anaconda3",
    "/opt/micromamba",
)  # fmt: skip
# The list that conda keeps of all environments; `~/.conda/environments.txt:NAME` is what has that name in it.
CONDA_LIST = "~/.conda/environments.txt"


class EnvironmentKind(NamedTuple):
    """A kind of environment; the word before the colon names it.

    Attributes:
        example: What may be behind the colon, for messages.
        interpreters: Where its interpreter may be on the host, by what is behind the colon: absolute, below `~/`, or a
            name in PATH. The first that can be executed is used.
        if_missing: What to do where it is not there; `{value}` is what is behind the colon.
        images: For a container's image, whose interpreter is inside: the pattern of what may be behind the colon.
    """

    example: str
    interpreters: Callable[[str], Sequence[str]]
    if_missing: str = "find it on the host, and correct the path"
    images: str = ""


def _in_folder(folder: str) -> Sequence[str]:
    return [posixpath.join(folder, "bin", "python")]


def _of_conda(name: str) -> Sequence[str]:
    parts = () if name == "base" else ("envs", name)
    return [*(posixpath.join(place, *parts, "bin", "python") for place in CONDA_PLACES), f"{CONDA_LIST}:{name}"]


_ANY = r"[^\x00-\x1f\x7f]+"
_ABSOLUTE = rf"(?:/|~/|\$(?:[A-Za-z_]|\{{)){_ANY}|/"
_OR_ADDRESS = rf"{_ABSOLUTE}|[a-z][a-z0-9+.-]*:{_ANY}"


def _image(example: str, images: str) -> EnvironmentKind:
    return EnvironmentKind(example, lambda image: [image], images=images)


ENVIRONMENT_KINDS: Mapping[str, EnvironmentKind] = {
    "python": EnvironmentKind("/path/to/python", lambda path: [path]),
    "venv": EnvironmentKind("~/v", _in_folder, "create it on the host, `python3 -m venv {value}`, or correct the path"),
    "prefix": EnvironmentKind("/path", _in_folder),
    "conda": EnvironmentKind(
        "name", _of_conda, 'run `conda env list` on the host, and name the folder of the environment: "prefix:/path"'
    ),
    # `environment.containers` knows how each runs a program in an image; `container` is the host's own `container:`.
    "apptainer": _image("/image.sif", _OR_ADDRESS),
    "singularity": _image("/image.sif", _OR_ADDRESS),
    "charliecloud": _image("/folder", rf"{_ABSOLUTE}|\w{_ANY}"),
    "bwrap": _image("/folder", _ABSOLUTE),
    "container": _image("image", _ANY),
}
# Other names for them, by which people know them.
_ALSO = {"sif": "apptainer", "ch-run": "charliecloud", "bubblewrap": "bwrap"}
_NOT_BELOW = "another process starts its programs, so clusterfn could neither end nor measure them"
_NAME_IT = 'then name that file: "apptainer:/path/to/x.sif"'
_USE_A_FILE = f"on the host, run `apptainer pull x.sif docker://IMAGE`, {_NAME_IT}"
_SAVE_IT = f"on the host, run `podman save -o x.tar IMAGE; apptainer build x.sif docker-archive:x.tar`, {_NAME_IT}"
# Why runtimes cannot be used for calls, and what to do with their images. podman keeps a process for all containers of
# a user. Once that was ended together with a job, podman 4.3 starts nothing before `podman system migrate`.
UNUSABLE = {
    **dict.fromkeys(("docker", "nerdctl"), (_NOT_BELOW, _USE_A_FILE)),
    "podman": ("ending a job in it can leave podman unable to start any container", _SAVE_IT),
}
# Words that are no kind: why, and what to write.
_NO_KINDS = {
    **UNUSABLE,
    **dict.fromkeys(("pyxis", "enroot"), ("SLURM itself starts a job in such an image",
                    "write `slurm: {container-image: IMAGE}` below the host")),
    **dict.fromkeys(("shifter", "sarus"), ("the host has to say how it is called",
                    'write `container: [shifter, "--image={image}"]` below the host, and "container:IMAGE"')),
}  # fmt: skip
_NAMED = ("python", "venv", "prefix", "conda", "apptainer")
*_others, _last = (f'"{word}:{ENVIRONMENT_KINDS[word].example}"' for word in _NAMED)
NAME_ENVIRONMENT = f"name one on the host: {', '.join(_others)} or {_last}"

# No address may begin with a hyphen, because ssh would take it for an option. The same is true of modules.
ADDRESS = re.compile(r"(?:[\w.+][\w.+-]*@)?(?:[\w.][\w.-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\])(?::([0-9]{1,5}))?")
MODULE = re.compile(r"[\w.+@=/~][\w.+@=/~:,-]*")
# A folder of the host, alone or with its place in a container's image.
BIND = re.compile(r"(?:/|~|\$)[^:\n]*(?::/[^:\n]*)?")
CHOOSE_ENVIRONMENT = (
    f'{NAME_ENVIRONMENT}; or have one built: environment="environment.yml", "requirements.txt", '
    'or packages=["python=3.11", "numpy"]'
)
PYTHON_SOURCES = ("standalone", "host")
_ENVIRONMENT_FILES = (".yml", ".yaml", ".txt", ".toml", ".cfg", ".lock", ".py")
# The header of the script itself (PEP 723).
OF_SCRIPT = "script"
_HEADER = re.compile(r"^# /// script[^\S\n]*\n((?:#(?: .*)?\n)+?)# ///[^\S\n]*$", re.MULTILINE)
_PROJECT_FILES = ("environment.yml", "pyproject.toml", "uv.lock", "pylock.toml", "requirements.txt")
_PARTS = re.compile(r"(?P<file>.+\.(?:ya?ml|txt|toml|cfg|lock|py))\s*\[(?P<parts>[^\[\]]*)\]", re.IGNORECASE)
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_INTERPRETER = re.compile(r"/bin/python[\d.]*$")
_PROGRAM = re.compile(r"(?:/|~/)[^\0\n]*[^\0\n/]|python3(?:\.\d+)?")
_IMAGE_FILE = re.compile(r"(?:(?:apptainer|singularity) .* (?=[/~$]))?([^:\0\n]+\.(?:sif|simg))")
_IN_PATH = re.compile(r"python(?:3(?:\.\d+)?)?")
ASK_FOR_GPUS = "use gpus= to ask for GPUs; CLUSTERFN_ variables are reserved"
NOTIFY_KEYS = ("command", "after")
# An address alone, which other tools take, is no command.
_ADDRESS = re.compile(r"[\w.+][\w.+-]*@[\w][\w.-]*|https?://\S+|\$\w+")
_COMMANDS = 'a line of shell, such as "mail -s done ada@example.edu", or a dict with command and after'


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
    named = file.lower().endswith(_ENVIRONMENT_FILES) and not file.endswith("setup.py")
    return named and file.partition(":")[0] not in ENVIRONMENT_KINDS


def names_an_image(text: str) -> bool:
    """Whether an environment is the image of a container, in which a script runs the interpreter.

    Example:
        >>> names_an_image("apptainer:/image.sif"), names_an_image("conda:ml")
        (True, False)
    """
    kind = ENVIRONMENT_KINDS.get(text.partition(":")[0])
    return kind is not None and bool(kind.images)


def why_no_image(text: str) -> tuple[str, str]:
    """Return why a text cannot name the image of a container, and what to write instead; empty texts if it may.

    Example:
        >>> why_no_image("bwrap:images/ml")
        ('it needs an absolute path', 'write the path on the host: "bwrap:/folder"')
    """
    kind, _, image = text.partition(":")
    pattern = ENVIRONMENT_KINDS[kind].images if kind in ENVIRONMENT_KINDS else ""
    if image and pattern and not re.fullmatch(pattern, image):
        example = f'"{kind}:{ENVIRONMENT_KINDS[kind].example}"'
        return "it needs an absolute path", f"write the path on the host: {example}"
    return _NO_KINDS.get(kind, ("", "")) if image else ("", "")


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


def header_of_script(text: str) -> str:
    """Return the TOML in which a script of Python names its own packages (PEP 723); "" if it has none."""
    header = _HEADER.search(text.replace("\r\n", "\n"))
    return re.sub(r"^# ?", "", header[1], flags=re.MULTILINE) if header else ""


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
        >>> nearly_an_environment("/shared/pytorch.sif"), nearly_an_environment("Apptainer:/x.sif")
        ('apptainer:/shared/pytorch.sif', 'apptainer:/x.sif')
        >>> nearly_an_environment("python3")
        'python:python3'
    """
    if _IN_PATH.fullmatch(text):
        return f"python:{text}"
    if file := _IMAGE_FILE.fullmatch(text):
        return f"apptainer:{file[1]}"
    if text.startswith(("/", "~")):
        path = text.rstrip("/")
        if names_a_file(text) or nearly_a_file(text):
            return ""
        return f"python:{path}" if path.rpartition("/")[2].startswith("python") else f"python:{path}/bin/python"
    kind, _, rest = (part.strip() for part in text.partition(":"))
    kind = _ALSO.get(kind.lower(), kind.lower())
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


class Notify(NamedTuple):
    """What a host runs when a job has ended.

    Attributes:
        command: A line of shell for the host; "" for none.
        after_s: Only if the job ended at least so long after it was sent.
    """

    command: str = ""
    after_s: float = 0.0


def parse_notify(value: Any, name: str) -> Notify:
    """Return what `notify=` says; with an empty dict, the host runs nothing.

    Raises:
        ConfigError: It says something else.

    Example:
        >>> parse_notify({"command": "mail -s done ada@example.edu", "after": "10min"}, "notify").after_s
        600.0
    """
    if isinstance(value, Notify):
        return value
    if isinstance(value, str):
        value = {"command": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}={value!r:.60} is no command", hint=f"write {_COMMANDS}")
    for key in value:
        if key not in NOTIFY_KEYS:
            near = did_you_mean(key, NOTIFY_KEYS) if isinstance(key, str) else ""
            raise ConfigError(f"{name}= has no key {key!r}{near}", hint=f"write {_COMMANDS}")
    command = value.get("command", "")
    if value and (not isinstance(command, str) or not command.strip() or "\0" in command):
        raise ConfigError(f"{name}['command'] is not a text", hint=f"write {_COMMANDS}")
    if _ADDRESS.fullmatch(command.strip()):
        # The address of a webhook is a secret, so the message does not show it.
        raise ConfigError(f"{name}= is a command of the host, and this is an address", hint=f"write {_COMMANDS}")
    return Notify(command, parse_time(value["after"], f"{name} after") if "after" in value else 0.0)
