"""Make a host's own commands, such as those of a scheduler, available to all programs that this agent starts."""

import os

from .handler import RequestHandler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

PATH = "PATH"
_BEFORE = os.environ.get(PATH, os.defpath)  # as the login gave it


def use_commands(asked: "Dict[str, Any]") -> "List[str]":
    """Put the folders `path` before PATH, and set the variables `env`; return which of the `programs` PATH lacks."""
    expanded = [os.path.expanduser(folder) for folder in asked["path"]]
    os.environ.update(asked["env"])
    os.environ[PATH] = os.pathsep.join([*expanded, _BEFORE])
    folders = os.get_exec_path()
    return [
        name for name in asked["programs"] if not any(os.access(os.path.join(each, name), os.X_OK) for each in folders)
    ]


class CommandsHandler(RequestHandler):
    """Use other folders and variables than the hello said, which a login shell has shown since."""

    def start(self) -> None:
        self.end(lacking=use_commands(self.header))
