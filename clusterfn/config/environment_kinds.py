"""The kinds of environments that are on a host already, as in `environment="venv:~/v"`. Each is written once, here.

`@cluster`, clusterfn.yml and `clusterfn check` take the words from here, messages the examples, and
`environment.existing` looks where an environment of the kind has its interpreter.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

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
    """

    example: str
    interpreters: Callable[[str], Sequence[str]]
    if_missing: str = "find it on the host, and correct the path"


def _in_folder(folder: str) -> Sequence[str]:
    return [posixpath.join(folder, "bin", "python")]


def _of_conda(name: str) -> Sequence[str]:
    parts = () if name == "base" else ("envs", name)
    return [*(posixpath.join(place, *parts, "bin", "python") for place in CONDA_PLACES), f"{CONDA_LIST}:{name}"]


ENVIRONMENT_KINDS: Mapping[str, EnvironmentKind] = {
    "python": EnvironmentKind("/path/to/python", lambda path: [path]),
    "venv": EnvironmentKind("~/v", _in_folder, "create it on the host, `python3 -m venv {value}`, or correct the path"),
    "prefix": EnvironmentKind("/path", _in_folder),
    "conda": EnvironmentKind(
        "name", _of_conda, 'run `conda env list` on the host, and name the folder of the environment: "prefix:/path"'
    ),
}
*_others, _last = (f'"{word}:{kind.example}"' for word, kind in ENVIRONMENT_KINDS.items())
NAME_ENVIRONMENT = f"name one on the host: {', '.join(_others)} or {_last}"
