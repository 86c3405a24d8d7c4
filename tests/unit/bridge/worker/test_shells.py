"""Shells of commands: a script keeps its mode, and a warning reaches the programs once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from clusterfn.bridge.worker.command_line import interpreter_of, to_warn
from tests.waiting import until

PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("program", flush=True), sys.exit(0)))
open("ready", "w").close()
for _ in range(600):
    time.sleep(0.1)  # a signal just before a long sleep would be seen after it
print("was not warned", flush=True)
"""


def test_a_script_without_the_right_to_execute_is_run_as_the_kernel_would_and_keeps_its_mode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py3").write_text("#!/usr/bin/env -S python3 -u\nprint(1)\n")
    (tmp_path / "job.py3").chmod(0o644)

    assert interpreter_of("./job.py3") == ["/usr/bin/env", "-S python3 -u"]
    assert (tmp_path / "job.py3").stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at processes in /proc")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("sh -c '{python} program.py | cat; true'; true", "program"),
        ("trap 'echo trap' TERM; {python} program.py; true", "program trap"),
        ("trap 'echo trap; kill -TERM $!; wait; exit' TERM; {python} program.py & wait", "trap program"),
        ("exec {python} program.py", "program"),
    ],
)  # fmt: skip
def test_a_warning_reaches_the_programs_of_a_shell_once(tmp_path, script, said):
    assert warned(tmp_path, script, signal.SIG_DFL) == said.split()


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at processes in /proc")
def test_a_warning_reaches_the_program_of_a_shell_with_a_trap_below_nohup(tmp_path):
    script = "trap 'echo trap' TERM; {python} program.py; true"

    assert warned(tmp_path, script, signal.SIG_IGN) == ["program", "trap"]


def warned(tmp_path, script, on_quit):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "python").symlink_to(sys.executable)  # whose own path may have a blank
    line = script.format(python="./python")
    before = signal.signal(signal.SIGQUIT, on_quit)  # which programs inherit
    try:
        with subprocess.Popen(["bash", "-c", line], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            until((tmp_path / "ready").exists)
            for pid in to_warn(process.pid, signal.SIGTERM):
                os.kill(pid, signal.SIGTERM)
            return process.communicate()[0].split()
    finally:
        signal.signal(signal.SIGQUIT, before)


def test_a_shell_that_runs_no_program_is_warned_itself():
    with subprocess.Popen(["sh", "-c", "read x"], stdin=subprocess.PIPE) as process:
        assert to_warn(process.pid, signal.SIGTERM) == [process.pid]
        process.kill()
