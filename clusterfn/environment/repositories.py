"""Pack a commit of a git repository as a source distribution, with its submodules: the same bytes on every machine.

uv chooses the commit. Only this machine reads the repository, as it has the user's keys; a host is sent the archive.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from clusterfn.bridge.builder.plan import masked
from clusterfn.bridge.supervisor import publish
from clusterfn.config import places
from clusterfn.environment.package_sources import with_credentials
from clusterfn.environment.project import GIT
from clusterfn.environment.wheel_files import SUBDIRECTORY
from clusterfn.errors import LockError

# All files get one time: a checkout has the time at which it was made.
_TIME = 1_000_000_000
_TIMEOUT_S = 900.0
# A requirement or a lock may come from another person: no option of git, and no helper that starts programs (ext::).
_ADDRESS = re.compile(r"(?:https?|ssh|git|file)://[^-]\S*")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# They name the repository in which a hook of git runs this program: git would write into that one.
_OF_ANOTHER = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_PREFIX", "GIT_SHALLOW_FILE",
)  # fmt: skip
# The line endings must not depend on the settings of this user's git.
_SAME_BYTES = ("-c", "core.autocrlf=false", "-c", "core.eol=lf")

HINT = "check that `git clone` of it works here without a question; or name a released version"

# By the addresses of commits, as one lock may ask twice.
_packed: dict[str, Path] = {}


def pack(where: str, name: str, indexes: Sequence[tuple[str, str]] = ()) -> str:
    """Put the archive of a commit into this user's cache; return its SHA-256.

    Raise LockError if git cannot read it, or the address is no commit of a repository.

    Args:
        where: Its address as pip writes it: git+https://…@COMMIT#subdirectory=…
        indexes: As for `with_credentials`.
    """
    if where in _packed and _packed[where].exists():
        return _packed[where].name
    bare, _, inside = where[len(GIT) :].partition(SUBDIRECTORY)
    url, _, commit = bare.rpartition("@")
    if not (_ADDRESS.fullmatch(url) and _COMMIT.fullmatch(commit)):
        raise LockError(f"{masked(where)} is no commit of a git repository", hint="do you trust who wrote it?")
    with tempfile.TemporaryDirectory(prefix="clusterfn-git-") as folder:
        top = Path(folder) / "top"
        top.mkdir()
        _git(top, where, {}, "init", "--quiet")
        known = with_credentials(url, indexes) if url.startswith("http") else ""
        tries: list[dict[str, str]] = [{}]
        if known:
            # From 2.31 on, git uses credentials for a server by such variables, which no command line shows.
            server, same = (urlunsplit(urlsplit(each)._replace(path="/")) for each in (url, known))
            # The user may have set some in this way, too.
            count = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
            named = {f"GIT_CONFIG_KEY_{count}": f"url.{same}.insteadOf", f"GIT_CONFIG_VALUE_{count}": server}
            # The credentials of an index on that server may be no good for git, which has its own.
            tries.insert(0, {"GIT_CONFIG_COUNT": f"{count + 1}", **named})
        for more in tries:
            try:
                _check_out(top, where, url, commit, more)
                break
            except LockError:
                if more is tries[-1]:
                    raise
        chosen = (top / inside).resolve()
        if not (chosen.is_dir() and chosen.is_relative_to(top.resolve())):
            raise _unreadable(where, [f"{inside} is no folder of it"])
        data = _archive(chosen, f"{name}-{commit[:12]}")
    digest = hashlib.sha256(data).hexdigest()
    _packed[where] = places.cache_folder() / "pkgs" / digest
    _packed[where].parent.mkdir(parents=True, exist_ok=True)
    publish.replace(str(_packed[where]), data, mode=0o666)
    return digest


def _check_out(top: Path, where: str, url: str, commit: str, more: Mapping[str, str]) -> None:
    try:
        # One commit is enough, however long the history is.
        _git(top, where, more, "fetch", "--quiet", "--depth", "1", url, commit)
    except LockError:
        # Some servers give no commit by its hash alone.
        _git(top, where, more, "fetch", "--quiet", url, "+refs/*:refs/remotes/all/*")
    _git(top, where, more, "checkout", "--quiet", commit)
    _git(top, where, more, "submodule", "update", "--quiet", "--init", "--recursive", "--depth", "1")


def _git(folder: Path, where: str, more: Mapping[str, str], *words: str) -> None:
    own = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER}
    try:
        done = subprocess.run(
            ["git", *_SAME_BYTES, *words], cwd=folder, env={**own, **more, "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unreadable(where, [str(error)]) from error
    if done.returncode:
        raise _unreadable(where, masked(done.stderr).splitlines()[-5:])


def _unreadable(where: str, evidence: list[str]) -> LockError:
    return LockError(f"git cannot read {masked(where)}", evidence=evidence, hint=HINT)


def _archive(folder: Path, top: str) -> bytes:
    """Return a tar of all files, in the order of their names, without what differs from checkout to checkout."""

    def same(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mode = 0o755 if member.isreg() and member.mode & 0o100 else 0o644
        member.mtime, member.uid, member.gid, member.uname, member.gname = _TIME, 0, 0, "", ""
        return member

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if ".git" not in inside.parts and (path.is_symlink() or not path.is_dir()):
                archive.add(path, f"{top}/{inside.as_posix()}", recursive=False, filter=same)
    return out.getvalue()
