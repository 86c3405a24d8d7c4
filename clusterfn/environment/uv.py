"""Find uv, which resolves wheels for another platform than this one's; its settings, what it is given and says."""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterfn.environment.conda_solver import OLDEST_GLIBC, SolveTarget, machine_of
from clusterfn.environment.local_packages import workspace_root
from clusterfn.environment.package_sources import DEFAULT_INDEX, MORE_INDEXES, PYPI, PipConfig
from clusterfn.environment.project import load_toml
from clusterfn.errors import LockError

LINUX = ("linux-64", "linux-aarch64")
# uv knows these minor versions of glibc, and rejects others.
_GLIBC = (17, 28, *range(31, 41))
# They would change what is asked for: this interpreter, its GPU, another output.
_NOT_PASSED = (
    "UV_TORCH_BACKEND", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_FROZEN", "UV_LOCKED", "UV_OFFLINE", "UV_NO_SYNC",
    "UV_REQUIRE_HASHES", "UV_CUSTOM_COMPILE_COMMAND", "UV_PROJECT", "UV_WORKING_DIR", "UV_WORKING_DIRECTORY",
    "UV_NO_BINARY",
)  # fmt: skip
# They narrow what uv may choose, and no file of the project has them: its lock would depend on who makes it. The files
# of a uv.lock have no dates, so that UV_EXCLUDE_NEWER would leave none. `uv export` needs it, as a uv.lock notes it.
OF_CHOICE = (
    "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_EXCLUDE_NEWER", "UV_BUILD_CONSTRAINT", "UV_NO_BUILD",
    "UV_NO_BUILD_PACKAGE", "UV_NO_BINARY_PACKAGE",
)  # fmt: skip
_NONE_OF_PIP = PipConfig(())
# What uv says of a server that does not answer, or not as one should.
_NO_ANSWER = re.compile(
    r"Failed to fetch|error sending request|Request failed after|dns error|[Cc]onnection (?:refused|reset)"
    r"|invalid peer certificate|operation timed out|Could not connect",
)


@dataclass(frozen=True)
class UvResult:
    """How uv ended.

    Attributes:
        status: 0 if it succeeded.
        text: What it wrote to stderr, without passwords.
        found: The pylock.toml that it has made; empty if there is no solution.
    """

    status: int
    text: str
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def unreachable(self) -> bool:
        """Whether an index does not answer, so that it is unknown whether there is a solution."""
        return bool(_NO_ANSWER.search(self.text)) and "is not defined" not in self.text

    @property
    def lines(self) -> list[str]:
        """The lines that are not empty."""
        return [line.rstrip() for line in self.text.splitlines() if line.strip()]


def platform_of(target: SolveTarget) -> str:
    """Return a host's platform as uv names it, "x86_64-manylinux_2_17"; raise LockError if uv knows no such platform.

    uv knows some versions of glibc, and an older one fits, too.
    """
    numbers = [int(part) for part in re.findall(r"\d+", target.glibc or OLDEST_GLIBC)[:2]]
    fitting = [minor for minor in _GLIBC if [2, minor] <= numbers]
    if target.platform not in LINUX or not fitting:
        what = f"glibc {target.glibc}" if target.platform in LINUX else target.platform
        hint = "name conda's packages, in an environment.yml or in packages="
        raise LockError(f"uv resolves nothing for {what}", hint=hint)
    return f"{machine_of(target.platform)}-manylinux_2_{fitting[-1]}"


def find_uv() -> str:
    """Return the path of the uv that was installed with clusterfn, else of the one in PATH, or raise LockError."""
    found = shutil.which("uv", path=sysconfig.get_path("scripts")) or shutil.which("uv")
    if found is None:
        raise LockError("there is no uv, which finds wheels", hint="pip install 'uv>=0.12,<1'")
    return found


def variables_with_indexes(pip: PipConfig, *, has_indexes: bool, has_default: bool) -> dict[str, str]:
    """Return this process's variables, and pip's settings as variables of uv: a command line is seen by others.

    Args:
        has_indexes: uv's own settings name an index: then pip's further ones do not count, as uv asks them first.
        has_default: uv's own settings name an index in PyPI's place: then pip's does not count.
    """
    found = plain_variables(pip)
    if pip.indexes and pip.indexes[0] != PYPI and not has_default:
        found["UV_DEFAULT_INDEX"] = pip.indexes[0]
    if len(pip.indexes) > 1 and not has_indexes:
        found["UV_EXTRA_INDEX_URL"] = " ".join(pip.indexes[1:])
    if pip.find_links:
        found["UV_FIND_LINKS"] = ",".join([*pip.find_links, *filter(None, [found.get("UV_FIND_LINKS")])])
    return found


def plain_variables(pip: PipConfig = _NONE_OF_PIP) -> dict[str, str]:
    """Return this process's variables for uv, with pip's certificate and proxy under the names that uv knows."""
    found = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED}
    found |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    settings = {**dict(pip.variables), **found}
    names = (("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), ("HTTPS_PROXY", "HTTPS_PROXY"), ("HTTP_PROXY", "HTTP_PROXY"))
    return {**{name: settings[other] for other, name in names if settings.get(other)}, **found}


def names_indexes(folder: Path) -> tuple[bool, bool]:
    """Return whether uv's settings for a project name an index for all packages, and whether one replaces PyPI."""
    tables = list(_tables(folder))
    tables += [{**each["pip"]} for each in tables if isinstance(each.get("pip"), Mapping)]
    indexes = [each for table in tables for each in table.get("index") or () if isinstance(each, Mapping)]
    has_default = any(each.get("default") for each in indexes) or any("index-url" in table for table in tables)
    open_to_all = any(not each.get("explicit") and not each.get("default") for each in indexes)
    has_more = open_to_all or any("extra-index-url" in table for table in tables)
    return has_more or any(map(os.environ.get, MORE_INDEXES)), has_default or any(map(os.environ.get, DEFAULT_INDEX))


def _tables(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield uv's settings in the order in which uv looks for them."""
    if os.environ.get("UV_CONFIG_FILE"):
        yield load_toml(Path(os.environ["UV_CONFIG_FILE"]))
        return
    # uv begins at the workspace, and does not read the settings of a member.
    root = workspace_root(folder)
    for place in [root, *root.absolute().parents]:
        if (place / "uv.toml").is_file():
            yield load_toml(place / "uv.toml")
            break
        if (place / "pyproject.toml").is_file():
            table = load_toml(place / "pyproject.toml").get("tool", {}).get("uv")
            if isinstance(table, dict):
                yield table
                break
    # uv reads the settings of this user, then those of this machine.
    own = [os.environ.get("XDG_CONFIG_HOME") or "~/.config", "/etc"]
    if sys.platform == "win32":
        own = [os.environ.get("APPDATA", "~"), os.environ.get("PROGRAMDATA", "C:/ProgramData")]
    paths = (Path(each).expanduser() / "uv" / "uv.toml" for each in own)
    yield from (load_toml(path) for path in paths if path.is_file())
