"""Answer the client's first request: check that the root is safe to use, and describe this host."""

import contextlib
import os
import sys
import time

from .files import record_use
from .handler import Failure, RequestHandler, expand, unsafe
from .starts import usable_cores
from .trusted import Trusted, first_line, machine_name, user_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from .frames import Header
    from .handler import AgentServices

# Below the root, as `layout` names them. Only what is in `cache` belongs to the user's libraries.
_FOLDERS = (
    "bridge",
    "blobs",
    "sources",
    "files",
    "shims",
    "jobs",
    "machines",
    "cards",
    "pkgs",
    "envs",
    "builds",
    "uses",
)
PATH = "PATH"
# PATH as the login set it. `use_commands` starts from it each time, or a second hello would add its folders twice.
_BEFORE = os.environ.get(PATH, os.defpath)


class HelloHandler(RequestHandler):
    """Create the root, refuse one in which other users could plant code, and answer with the facts."""

    def start(self) -> None:
        root = os.path.expanduser(os.path.expandvars(self.header["root"]))
        if "$" in root or not os.path.isabs(root):
            raise Failure("bad", "the root is not an absolute path on this host: is a variable unset?", root)
        self.agent.root = os.path.normpath(root)
        trusted = Trusted(self.header.get("owners") or ())
        require_trusted(trusted, self.agent.root, self.agent.root)
        os.makedirs(self.agent.root, mode=0o700, exist_ok=True)
        # Another user may have created the folder between the first check and `makedirs`.
        require_trusted(trusted, self.agent.root, self.agent.root)
        owner = os.stat(self.agent.root).st_uid
        if owner != os.geteuid():
            raise unsafe((self.agent.root, "it belongs to %s" % user_name(owner)), self.agent.root)
        for name in _FOLDERS:
            require_trusted(trusted, os.path.join(self.agent.root, name), self.agent.root)
        self.agent.trusted = trusted
        self.agent.machine = machine_name()
        # These paths are below the root and may contain variables, as the configuration has them.
        paths = [expand(os.path.expandvars(path)) for path in self.header["have"]]
        for path in paths:
            require_trusted(trusted, path, self.agent.root)
            record_use(path, self.agent.root)
        lacking = use_commands(self.header["commands"]) if "commands" in self.header else []
        self.end(**dict(describe_host(self.agent), have=[os.path.exists(path) for path in paths], lacking=lacking))


def use_commands(commands: "Dict[str, Any]") -> "List[str]":
    """Put the folders `path` before PATH, and set the variables `env`; return which of the `programs` PATH lacks."""
    expanded = [os.path.expanduser(folder) for folder in commands["path"]]
    os.environ.update(commands["env"])
    os.environ[PATH] = os.pathsep.join([*expanded, _BEFORE])
    folders = os.get_exec_path()
    return [
        name
        for name in commands["programs"]
        if not any(os.access(os.path.join(folder, name), os.X_OK) for folder in folders)
    ]


def require_trusted(trusted: Trusted, path: str, root: str) -> None:
    """Raise if another user could replace the folder, which is the root or below it."""
    objection = trusted.objection(path)
    if objection is not None:
        inside = "" if objection[0] == path else ", and %s is inside it" % path
        raise unsafe(objection, root, inside)


def describe_host(agent: "AgentServices") -> "Header":
    """Collect what the client needs to know about this host."""
    name = os.uname()
    user = login_name()
    net_ns = ""
    with contextlib.suppress(OSError):
        net_ns = os.readlink("/proc/self/ns/net")
    return {
        "root": agent.root,
        "python": sys.executable,
        "version": list(sys.version_info[:3]),
        "platform": sys.platform + "-" + name.machine,
        "machine": agent.machine,
        "boot_id": first_line("/proc/sys/kernel/random/boot_id"),
        "hostname": name.nodename,
        "user": user,
        "home": os.path.expanduser("~"),
        "umask": agent.umask,
        "pid": os.getpid(),
        "now": time.time(),
        "cpus": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "net_ns": net_ns,
        "glibc": glibc_version(),
    }


def glibc_version() -> str:
    """Return the version of glibc, such as "2.17"; empty for another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return ""
    return version if name == "glibc" else ""


def login_name() -> str:
    import pwd

    try:
        return str(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        return str(os.geteuid())
