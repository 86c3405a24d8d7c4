"""A machine whose /proc shows only one's own processes (hidepid=2), and processes of containers: what can be said.

A program becomes another user in a mount namespace with such a /proc.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.supervisor import gpus, process_tree

ROOT = Path(__file__).parents[2]
_NOBODY = 65534
_PR_SET_DUMPABLE = 4
_BECOME = f"""
import ctypes, json, os, pwd, subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
from clusterfn.bridge.builder import locks
from clusterfn.bridge.supervisor import gpus, process_tree
given = json.loads(sys.argv[1])
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"], check=True)
os.setgroups([]), os.setgid({_NOBODY}), os.setuid({_NOBODY})
ctypes.CDLL(None).prctl({_PR_SET_DUMPABLE}, 1)  # as a program of that user from its start
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a /proc and a user of its own")


def ask(question: str, given: dict[str, Any], path: str = "") -> Any:
    """What a program of another user prints where /proc shows its own processes alone."""
    argv = ["unshare", "--mount", sys.executable, "-I", "-c", f"{_BECOME}\nprint(json.dumps({question}))"]
    environ = {**os.environ, "PATH": f"{path}:/usr/sbin:/usr/bin:/sbin:/bin"}
    said = subprocess.run([*argv, json.dumps(given)], env=environ, stdout=subprocess.PIPE, check=True, timeout=150)
    return json.loads(said.stdout)


@pytest.fixture
def theirs() -> Iterator[int]:
    """A process of another user."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def gone() -> int:
    """The pid of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user may enter, unlike those of pytest."""
    import shutil
    import tempfile

    os.umask(0o022)
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@needs_root
def test_a_process_is_of_another_user_or_gone_or_ones_own(theirs: int, gone: int):
    question = "[[process_tree.is_hidden(pid), gpus.user_of(str(pid))] for pid in [*given['pids'], os.getpid()]]"

    hidden, ended, own = ask(question, {"pids": [theirs, gone]})

    assert hidden == [True, "another user"]
    assert ended[0] is False and ended[1] in ("which has just ended", "outside this container")
    assert own[0] is False and own[1] in ("nobody", str(_NOBODY))


@needs_root
def test_who_uses_a_gpu_is_said_as_far_as_it_can_be_known(theirs: int, folder: Path):
    """The driver, which reads /proc as the user does, cannot say the names of hidden processes either."""
    apps = [f"GPU-0, {theirs}, [Not Found]", f"GPU-1, {theirs}, /usr/bin/python3", "GPU-2, [N/A], [N/A]"]
    program = folder / "nvidia-smi"
    lines = "".join(f"echo '{line}'\n" for line in apps)
    program.write_text(f"#!/bin/sh\ncase $1 in *compute-apps*)\n{lines};; *) echo 'GPU-9, 0';; esac\n")
    program.chmod(0o755)

    used = ask('gpus.used_by_others(["GPU-0", "GPU-1", "GPU-2"])', {}, str(folder))

    assert used == {
        "GPU-0": f"another user's process (pid {theirs})",
        "GPU-1": f"another user's process (python3, pid {theirs})",
        "GPU-2": "a process (pid [N/A], of an unknown user)",
    }


@needs_root
def test_another_users_builder_that_is_hidden_is_not_taken_for_dead(theirs: int, gone: int, folder: Path):
    """Its heartbeat decides: a process that /proc does not show may live."""
    beats = folder / "builds" / ".beats"
    beats.mkdir(parents=True)
    identity = ask("locks.identify_process()", {})
    for name, pid in (("theirs", theirs), ("gone", gone)):
        (beats / name).write_text(f"{0:012d}\n{json.dumps({**identity, 'pid': pid, 'start': '1'})}\n")

    question = "[locks.OtherHolder(name, locks.LockHolder(given['root'])).is_dead() for name in ('theirs', 'gone')]"
    dead = ask(question, {"root": str(folder)})

    assert dead == [False, True]


def test_a_visible_process_is_shown_with_its_user():
    assert not process_tree.is_hidden(os.getpid())
    assert gpus.user_of(str(os.getpid())) == gpus.user_name(os.getuid())
