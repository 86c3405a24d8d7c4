"""Download packages of a lock into this user's cache, for hosts that cannot download them, and check their SHA-256.

Uses the same code as the builder on a host. Sends nothing.

A commit of a git repository is packed as a source distribution, with its submodules: the same bytes on every machine.
uv chooses the commit. Only this machine reads the repository, as it has the user's keys; a host is sent the archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from clusterfn.bridge.builder import fetch as builders
from clusterfn.bridge.builder.plan import PlannedPackage, masked
from clusterfn.bridge.builder.progress import BuildFailed
from clusterfn.bridge.supervisor import publish
from clusterfn.config import places
from clusterfn.environment.lock import LockedPackage
from clusterfn.environment.package_sources import with_credentials, without_password
from clusterfn.environment.project import GIT
from clusterfn.errors import EnvironmentBuildError, LockError

AT_ONCE = 4
# Some servers answer 404 for what one may not see.
_DENIED = re.compile(r"HTTP (401|403|404)\b")

Progress = Callable[[int, int, int], None]
"""Called with how many packages are complete, of how many, and the bytes downloaded so far."""
_Count = Callable[..., None]  # called with the bytes of a block, and True if a package is complete


def download_packages(
    packages: Sequence[LockedPackage], progress: Progress, indexes: Sequence[tuple[str, str]] = ()
) -> Iterator[tuple[str, Path]]:
    """Yield each package's SHA-256 and file, in order, as soon as it is in the cache.

    Raise EnvironmentBuildError if one cannot be downloaded, or has another hash than the lock. The `indexes` are
    (name, address) of what the user's file names, for the credentials in it.
    """
    lock = threading.Lock()
    done = 0
    moved = 0
    is_over = False

    def count(size: int, is_complete: bool = False) -> None:
        nonlocal done, moved
        # The downloads of gigabytes that still run must end with a failure of another, or with Ctrl-C.
        if is_over:
            raise CancelledError
        with lock:
            done, moved = done + is_complete, moved + size
            progress(done, len(packages), moved)

    with ThreadPoolExecutor(AT_ONCE, "clusterfn-fetch") as pool:
        paths = pool.map(lambda package: _have(package, count, indexes), packages)
        try:
            yield from ((package.sha256, path) for package, path in zip(packages, paths))
        finally:
            is_over = True
            pool.shutdown(wait=False, cancel_futures=True)


def download_sizes(packages: Sequence[LockedPackage]) -> dict[str, int]:
    """Return the sizes of packages by SHA-256, as far as the cache has them or their servers tell them."""
    folder = places.cache_folder() / "pkgs"
    known = {package.sha256: path.stat().st_size for package in packages if (path := folder / package.sha256).exists()}
    unknown = [_planned(package) for package in packages if package.sha256 not in known]
    return {**known, **(builders.ask_sizes(unknown)[1] if unknown else {})}


def _have(package: LockedPackage, count: _Count, indexes: Sequence[tuple[str, str]]) -> Path:
    # Two hosts may need it at the same moment. One download is for both, as they would share the partial file.
    downloading = _downloads.setdefault(package.sha256, threading.Lock())
    while not downloading.acquire(timeout=_LOOK_S):
        # It raises if this download is no longer wanted.
        count(0)
    try:
        return _download(package, count, indexes)
    finally:
        downloading.release()


_LOOK_S = 1.0
_downloads: dict[str, threading.Lock] = {}
if hasattr(os, "register_at_fork"):
    # No thread of a forked child releases the locks of its parent.
    os.register_at_fork(after_in_child=_downloads.clear)


def _download(package: LockedPackage, count: _Count, indexes: Sequence[tuple[str, str]]) -> Path:
    path = places.cache_folder() / "pkgs" / package.sha256
    is_commit = package.url.startswith(GIT) and not path.exists()
    if is_commit and pack_commit(package.url, package.name, indexes) != package.sha256:
        message = f"{package.name} {package.version} has other files than when it was locked"
        hint = "delete the lock, so that it is locked again"
        raise EnvironmentBuildError(message, stage="environment", evidence=[package.url], hint=hint)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}-{os.getpid()}")
        # A process that died leaves a partial download, which is continued here.
        for left in path.parent.glob(f"{path.name}-*.part"):
            if _is_gone(left.stem.rpartition("-")[2]):
                # Another process may be faster.
                with contextlib.suppress(FileNotFoundError):
                    os.replace(left, f"{beside}.part")
                    break
        try:
            try:
                builders.fetch_archive(_planned(package), str(beside), count)
            except BuildFailed as failed:
                url = with_credentials(package.url, indexes) if _DENIED.search(str(failed)) else ""
                if not url:
                    raise
                builders.fetch_archive(_planned(package)._replace(url=url), str(beside), count)
        except BuildFailed as failed:
            hint = "check your network, and whether the lock is too old: its packages may have been withdrawn"
            raise EnvironmentBuildError(
                f"{failed}", stage="environment", evidence=failed.evidence, hint=hint
            ) from failed
        os.replace(beside, path)
    count(0, True)
    return path


def _is_gone(pid: str) -> bool:
    # On Windows, os.kill(pid, 0) would end the process.
    if sys.platform == "win32" or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _planned(package: LockedPackage) -> PlannedPackage:
    return PlannedPackage(
        package.name, package.version, package.build, package.manager, package.file, package.url, package.sha256, 0
    )


# All files get one time: a checkout has the time at which it was made.
_TIME = 1_000_000_000
_GIT_TIMEOUT_S = 900.0
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

_SUBDIRECTORY = "#subdirectory="
GIT_HINT = "check that `git clone` of it works here without a question; or name a released version"

# By the addresses of commits, as one lock may ask twice.
_packed: dict[str, Path] = {}


def commit_of(vcs: Mapping[str, Any], title: str) -> str:
    """Return the address of the commit that a pylock.toml names, as pip writes it, without a password.

    Raise LockError if it is of another kind than git.
    """
    url = str(vcs.get("url", "unknown"))
    if vcs.get("type") != "git" or "commit-id" not in vcs:
        what = f"{title}: {masked(url)} is no commit of a git repository"
        raise LockError(what, hint="name a released version instead")
    user = urlsplit(url).username if urlsplit(url).scheme == "ssh" else ""
    bare = without_password(url).replace("://", f"://{user}@", 1) if user else without_password(url)
    inside = f"{_SUBDIRECTORY}{vcs['subdirectory']}" if vcs.get("subdirectory") else ""
    return f"{GIT}{bare}@{vcs['commit-id']}{inside}"


def pack_commit(where: str, name: str, indexes: Sequence[tuple[str, str]] = ()) -> str:
    """Put the archive of a commit into this user's cache; return its SHA-256.

    Raise LockError if git cannot read it, or the address is no commit of a repository.

    Args:
        where: Its address as pip writes it: git+https://…@COMMIT#subdirectory=…
        indexes: As for `with_credentials`.
    """
    if where in _packed and _packed[where].exists():
        return _packed[where].name
    bare, _, inside = where[len(GIT) :].partition(_SUBDIRECTORY)
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
            server, same = (urlunsplit(urlsplit(address)._replace(path="/")) for address in (url, known))
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
        variables = {**own, **more, "GIT_TERMINAL_PROMPT": "0"}
        done = subprocess.run(
            ["git", *_SAME_BYTES, *words],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unreadable(where, [str(error)]) from error
    if done.returncode:
        raise _unreadable(where, masked(done.stderr).splitlines()[-5:])


def _unreadable(where: str, evidence: list[str]) -> LockError:
    return LockError(f"git cannot read {masked(where)}", evidence=evidence, hint=GIT_HINT)


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
