"""Runs one contender's script in a folder of its own, and reads its passes. Ends what it started, jobs of SLURM too."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import venvs
from benchmarks.peers.contenders import SLURM, Contender
from benchmarks.place import Place
from tests.lab import Lab

LIMIT_S = 45.0
_SCRIPTS = Path(__file__).parent / "scripts"
_ALL_S = 4 * LIMIT_S  # with what comes before the passes, and one that was broken off
_LEAVING_S = 15.0
_ACCOUNT, _PARTITION = "cfbash", "short"
_BECOME = ("setpriv", f"--reuid={_ACCOUNT}", f"--regid={_ACCOUNT}", "--init-groups")


class NotMeasured(Exception):
    """A contender that does not run here; the message says why."""


@dataclass(frozen=True)
class Pass:
    """So many calls, and what they took together."""

    done: int
    seconds: float

    @property
    def each_s(self) -> float:
        """Seconds for each call."""
        return self.seconds / self.done


def taken(contender: Contender, place: Place, calls: int, at_once: int) -> list[Pass]:
    """The passes of a contender.

    Raises:
        NotMeasured: It cannot be installed here, does not start, or made no call in its time.
    """
    python, env = Path(sys.executable), dict(place.env)
    if contender.peer:
        python = _installed(contender, place)
        env["PATH"] = f"{python.parent}:{env['PATH']}"
    with _folder(contender, place) as folder:
        told = (contender.host, calls, at_once, LIMIT_S, "fresh" if contender.is_fresh else "reused")
        argv = [python, folder / "scripts" / contender.script, *told]
        if contender.in_slurm:
            env |= {"SLURM_CONF": str(place.lab.slurm_conf) if place.lab else "", "PARTITION": _PARTITION}
            argv, env["HOME"] = [*_BECOME, *argv], str(folder)
        lines, said = _lines([str(word) for word in argv], env, folder)
    passes = [Pass(int(line["done"]), line["seconds"]) for line in lines if line["done"]]
    if not passes:
        raise NotMeasured(f"not one call in {LIMIT_S:.0f} s; it said at last: {_last(said)}")
    return passes


def _installed(contender: Contender, place: Place) -> Path:
    try:
        return venvs.python_of(contender.peer, place.new, place.lab)
    except venvs.NotInstalled as refused:
        raise NotMeasured(f"cannot be installed: {refused}") from refused


@contextlib.contextmanager
def _folder(contender: Contender, place: Place) -> Iterator[Path]:
    """Where it works: on SLURM a folder of the account's, which its nodes see."""
    if contender.where == SLURM and not place.lab:
        raise NotMeasured("there is no SLURM here without the lab")
    lab = place.lab if contender.in_slurm else None
    folder = lab.home(_ACCOUNT) / f"peers-{secrets.token_hex(4)}" if lab else Path(tempfile.mkdtemp())
    try:
        shutil.copytree(_SCRIPTS, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        if lab:
            subprocess.run(["chown", "-R", f"{_ACCOUNT}:", str(folder)], check=True)
        yield folder
        if lab:
            _cancel_jobs_of(folder, lab)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cancel_jobs_of(folder: Path, lab: Lab) -> None:
    """What a peer left in the queue when it was ended; each works below this folder."""
    listed = lab.slurm.run("squeue", "-h", f"--user={_ACCOUNT}", "-o", "%A %Z").stdout.splitlines()
    left = {line.split(" ", 1)[0] for line in listed if line.split(" ", 1)[-1].startswith(str(folder))}
    if left:
        lab.slurm.run("scancel", *sorted(left))


def _lines(argv: Sequence[str], env: Mapping[str, str], folder: Path) -> tuple[list[dict[str, float]], str]:
    """What it told of its passes, and all that it said otherwise."""
    with (folder / "said").open("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            argv, env=dict(env), cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True,
            start_new_session=True,
        )  # fmt: skip
        clock = threading.Timer(_ALL_S, _end, [process])
        clock.start()
        try:
            assert process.stdout is not None
            told = process.stdout.read()
            process.wait(_LEAVING_S)
        finally:
            clock.cancel()
            _end(process)
        said.seek(0)
        return [json.loads(line) for line in told.splitlines() if line.startswith('{"done"')], said.read()


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _last(said: str) -> str:
    return (said.strip().splitlines() or ["nothing"])[-1]
