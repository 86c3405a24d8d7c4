"""One lock from one job: `main` reads a job from stdin as one line of JSON, and answers in lines of JSON on stdout.

The job:
    channels, conda        as in environment.yml; the latter as [[text, platform selector or ""], …]
    python                 "3.11" to be added, with the nearest that solves in its place; null: the job names one
    platforms, virtual     which to solve; {platform: {"__glibc": "2.28", …}} for each
    executable             of a conda, mamba or micromamba; "" for the stand-in
    source, custom         what the lock's metadata shall say
    lock                   the file to write; one that is there keeps the platforms that are not solved
    folder                 for temporary files; its file "doing" says what is waited for
    attended               whether the end of stdin means that the caller is gone: then this program ends, too
The answer is {"solved": {platform: python's version}}, or {"failed": the solver's own sentences}, or {"unreachable":
the same} where a channel does not answer; all else goes to stderr.

The workarounds for faults of conda-lock and py-rattler are here and in `stand_in_conda`; docs/upstream.md lists them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import condarc

_MINORS = range(8, 20)

# What conda, mamba, py-rattler and requests say of a server that does not answer, or not as one should.
_NO_ANSWER = re.compile(
    r"error sending request|dns error|(could not|couldn't|failed to) resolve|name resolution|name or service not known"
    r"|connection (refused|reset|aborted|failed|timed out)|network is unreachable|no route to host"
    r"|max retries exceeded|(operation|read|connect) timed out|HTTP 000|CondaHTTPError|CondaSSLError|ProxyError"
    r"|HTTP status (client|server) error|UnavailableInvalidChannel|could not find subdir|download error \(\d+\)"
    r"|invalid peer certificate|CERTIFICATE_VERIFY_FAILED|SSL (connect|certificate)",
    re.IGNORECASE,
)


class NoSolution(Exception):
    """There is no solution; the message is the solver's."""


class ChannelUnreachable(Exception):
    """A channel does not answer, so it is unknown whether there is a solution."""


def main() -> None:
    """Do the job, and end this process whatever its libraries want to do afterwards."""
    job = json.loads(sys.stdin.buffer.readline())
    answers = os.dup(1)
    os.dup2(2, 1)
    if job.get("attended"):
        _watch_caller(job["folder"])
    with tempfile.TemporaryDirectory(prefix="clusterfn-solve-") as folder:
        answer = _done(job, Path(folder))
    os.write(answers, json.dumps(answer).encode() + b"\n")
    sys.stderr.flush()
    os._exit(0)


def _watch_caller(folder: str) -> None:
    """End this process with its caller, even if that was killed: watch the pipe that it holds open."""
    line = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # what is started below must not read it
    os.close(nothing)

    def watch() -> None:
        while os.read(line, 4096):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        if sys.platform == "win32":
            subprocess.run(["taskkill", "/F", "/T", "/PID", str(os.getpid())], capture_output=True)
        else:
            os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, name="clusterfn-caller", daemon=True).start()


def _done(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    _name_channels(job)
    try:
        return {"solved": solve(job, folder)}
    except NoSolution as failure:
        return {"failed": str(failure)}
    except ChannelUnreachable as failure:
        return {"unreachable": str(failure)}


def solve(job: dict[str, Any], folder: Path) -> dict[str, str]:
    """Solve for the wanted Python, or else for the nearest; return platform -> version of Python.

    Raises:
        NoSolution: Nothing solves, with any Python.
        ChannelUnreachable: A channel does not answer.
    """
    wanted = job["python"]
    try:
        return _attempt(job, folder, f"python {wanted}.*" if wanted else None)
    except NoSolution as failure:
        if wanted is None:
            raise
        try:
            found = _attempt(job, folder, "python")
        except NoSolution:
            raise failure from None
    near = int(wanted.split(".")[1])  # then a Python nearer than the one found, if that solves too
    distance = min((abs(int(version.split(".")[1]) - near) for version in found.values()), default=0)
    for minor in sorted(_MINORS, key=lambda each: (abs(each - near), -each)):
        if 0 < abs(minor - near) <= distance:
            try:
                return _attempt(job, folder, f"python 3.{minor}.*")
            except NoSolution:
                continue
    return found


def _attempt(job: dict[str, Any], folder: Path, python: str | None) -> dict[str, str]:
    """Run conda-lock once."""
    from conda_lock.conda_lock import run_lock

    subdirs = {platform: {"packages": packages} for platform, packages in job["virtual"].items()}
    environment = folder / "environment.yml"
    environment.write_text(environment_yml(job, python), encoding="utf-8")
    _report_progress(job, "conda's packages")
    with _failures():
        run_lock(
            [environment],
            conda_exe=job["executable"] or _stand_in(folder),
            platforms=job["platforms"],
            kinds=["lock"],
            lockfile_path=Path(job["lock"]),
            virtual_package_spec=_written(folder / "virtual.yml", {"subdirs": subdirs}),
            strip_auth=True,
            mapping_url=str(_written(folder / "names.json", {})),  # else it would fetch one
        )
    return _complete_lock(job)


def _report_progress(job: dict[str, Any], what: str) -> None:
    """Write what is waited for, for a caller that shows it after a while."""
    if job.get("folder"):
        Path(job["folder"], "doing").write_text(what, encoding="utf-8")


def environment_yml(job: dict[str, Any], python: str | None) -> str:
    """Write the job as a file for conda-lock. JSON's strings are YAML's."""
    conda = [*([[python, ""]] if python else []), *job["conda"]]
    return "\n".join([
        f"channels: {json.dumps(job['channels'])}",
        f"platforms: {json.dumps(job['platforms'])}",
        "dependencies:", *map(_item, conda), "",
    ])  # fmt: skip


def _item(line: list[str]) -> str:
    text, selector = line
    return f"  - {json.dumps(text)}" + (f"  # [{selector}]" if selector else "")


def _written(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _stand_in(folder: Path) -> str:
    """Write an executable that runs our stand-in for conda."""
    code = Path(__file__).with_name("stand_in_conda.py")
    if os.name == "nt":
        path = folder / "conda.bat"
        path.write_text(f'@"{sys.executable}" "{code}" %*\n', encoding="utf-8")
    else:
        path = folder / "conda"
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{code}" "$@"\n', encoding="utf-8")
        path.chmod(0o700)
    return str(path)


@contextmanager
def _failures() -> Iterator[None]:
    """Turn every way in which a solver reports no solution into `NoSolution`, or `ChannelUnreachable`."""
    import requests

    try:
        yield
    except subprocess.CalledProcessError as error:
        raise _failure(_message(error)) from error
    except requests.RequestException as error:
        raise ChannelUnreachable(str(error)) from error
    except RuntimeError as error:
        raise _failure(str(error)) from error


def _failure(message: str) -> NoSolution | ChannelUnreachable:
    return (ChannelUnreachable if _NO_ANSWER.search(message) else NoSolution)(message)


def _message(error: subprocess.CalledProcessError) -> str:
    """Extract the message of conda, mamba or the stand-in."""
    output = error.output or ""
    try:
        reply = json.loads(output[output.index("{") : output.rindex("}") + 1])
    except ValueError:
        return (error.stderr or output).strip() or str(error)
    problems = reply.get("solver_problems") or []
    return str(reply.get("message") or "\n".join(map(str, problems)) or reply.get("error") or output).strip()


def _complete_lock(job: dict[str, Any]) -> dict[str, str]:
    """Write our metadata and the files' own addresses into the lock."""
    from conda_lock.lockfile import parse_conda_lock_file, write_conda_lock_file

    path = Path(job["lock"])
    lock = parse_conda_lock_file(path)
    lock.metadata.sources = [job["source"]]
    lock.metadata.custom_metadata = job["custom"]
    found = condarc.settings()  # whose passwords are this user's, and the lock is for everybody
    lock.metadata.channels = [
        each.model_copy(update={"url": condarc.without_secrets(each.url, found)}) for each in lock.metadata.channels
    ]
    for package in lock.package:
        package.url = condarc.without_secrets(package.url, found)
    write_conda_lock_file(lock, path, metadata_choices=set())
    return {package.platform: package.version for package in lock.package if package.name == "python"}


def _name_channels(job: dict[str, Any]) -> None:
    """Tell the stand-in for conda where channels are, and what the user's proxies are."""
    if not job["executable"]:
        found = condarc.settings()
        os.environ["CLUSTERFN_CHANNELS"] = json.dumps({name: condarc.urls(name, found) for name in job["channels"]})
        for name, value in condarc.proxies(found).items():
            os.environ.setdefault(name, value)
