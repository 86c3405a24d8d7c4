"""How sites provide SLURM's commands: for each way `init` finds them or asks, and a function runs as a SLURM job.

The ways are those of public reports, which docs/decisions/0056-scheduler-commands.md lists.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import MINOR
from tests.e2e.terminal import Terminal
from tests.e2e.test_first_hour import RETURNS, Laptop

pytestmark = pytest.mark.lab

FUNCTION = """
import os
from clusterfn import cluster

@cluster(time="2min", memory="200MB")
def number():
    return os.environ.get("SLURM_JOB_ID")

print("job", number())
"""
GUARD = "case $- in *i*) ;; *) return;; esac"
# What a module system shows to a shell; the real ones are scripts of the same names.
MODULES = """
export MODULEPATH={folder}
module() {{
    case $1:$2 in
        load:*) [ -r "$MODULEPATH/$2" ] && . "$MODULEPATH/$2" ;;
        -t:avail) ls "$MODULEPATH" >&2 ;;
    esac
}}
"""


@pytest.fixture
def site(lab: Any) -> Iterator[Any]:
    from tests.lab.site import site as made_for

    with lab.newcomer() as account, made_for(account) as made:
        yield made


@dataclass
class Machine:
    """The laptop of somebody who has an account at the site."""

    laptop: Laptop
    lab: Any

    def run(self, *argv: str) -> str:
        """Run a command without a terminal; what it prints."""
        ran = subprocess.run(
            self.laptop.inside(*argv), cwd=self.laptop.project, env=self.laptop.env, timeout=200, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        return ran.stdout

    def init_words(self, *options: str) -> list[str]:
        environment = f"python:{self.lab.python(MINOR)}"
        return ["clusterfn", "init", "site", "--yes", "--environment", environment, "--root", "~/jobs", *options]

    def written(self) -> dict[str, Any]:
        return yaml.safe_load((self.laptop.project / "clusterfn.yml").read_text())["hosts"]["site"]

    def configure(self, lines: str) -> None:
        keys = ["address: site", f"environment: python:{self.lab.python(MINOR)}", "root: ~/jobs", *lines.split("\n")]
        text = "hosts:\n  site:\n" + "".join(f"    {key}\n" for key in keys)
        (self.laptop.project / "clusterfn.yml").write_text(text)

    def call(self) -> str:
        (self.laptop.project / "function.py").write_text(FUNCTION)
        return self.run("python", "function.py")


@pytest.fixture
def machine(tmp_path: Path, site: Any, lab: Any) -> Machine:
    laptop = Laptop(tmp_path, Path(sys.executable).parent)
    (laptop.home / ".ssh").mkdir(mode=0o700)
    shutil.copy(site.ssh_config, laptop.home / ".ssh" / "config")
    return Machine(laptop, lab)


def slurm_conf() -> str:
    from tests.lab.layout import SLURM_CONF

    return str(SLURM_CONF)


def variables(made: Any) -> str:
    return f"export PATH=$PATH:{made.commands} SLURM_CONF={slurm_conf()}"


def by_profile(made: Any) -> None:
    made.profile(variables(made))


def by_bash_profile(made: Any) -> None:
    made.write(".bash_profile", variables(made))


def by_guarded_bashrc(made: Any) -> None:
    made.write(".bash_profile", ". ~/.bashrc")
    made.write(".bashrc", f"{GUARD}\n{variables(made)}")


def by_module(made: Any) -> None:
    folder = made.folder / "modules"
    folder.mkdir()
    (folder / "slurm").write_text(variables(made))
    made.profile(MODULES.format(folder=folder), "modules.sh")


def by_usual_folder(made: Any) -> None:
    made.environ["SLURM_CONF"] = slurm_conf()
    made.mounts = f"mkdir -p /usr/local/slurm && cp -r {made.commands} /usr/local/slurm/bin"


def by_wrapper(made: Any) -> None:
    """The commands are in PATH, but the site wants its users to go through a wrapper in another folder."""
    made.environ.update(PATH=f"{made.environ['PATH']}:{made.commands}", SLURM_CONF=slurm_conf())
    real = made.commands / "sbatch"
    made.write("bin/sbatch", f'#!/bin/sh\necho "$@" >>{made.account.home}/wrapped\nexec {real} "$@"', 0o755)
    made.write(".bash_profile", "PATH=~/bin:$PATH")


def by_variable_of_logins(made: Any) -> None:
    """The commands are in PATH, but where SLURM is, only login shells know."""
    made.environ["PATH"] += f":{made.commands}"
    made.profile(f"PATH=$PATH:{made.commands}; export SLURM_CONF={slurm_conf()}")


def by_forced_command(made: Any) -> None:
    """A wrapper around each command takes all variables away."""
    wrapper = made.folder / "wrapper"
    path = made.environ["PATH"]
    wrapper.write_text(
        f'#!/bin/sh\nexec env -i HOME="$HOME" USER="$USER" SHELL="$SHELL" PATH={path} sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    wrapper.chmod(0o755)
    made.settings = f"ForceCommand {wrapper}"
    by_profile(made)


WAYS = {
    by_module: "by `module load slurm`", by_wrapper: "by a login shell",
    by_guarded_bashrc: "by an interactive login shell", by_usual_folder: "in a usual folder",
    by_variable_of_logins: "by a login shell", by_forced_command: "by a login shell",
}  # fmt: skip
QUICK = (by_module,)
Way = Callable[[Any], None]
ALL = [pytest.param(way, id=way.__name__, marks=() if way in QUICK else (pytest.mark.long,)) for way in WAYS]


@pytest.mark.parametrize("way", ALL)
def test_init_finds_the_commands_and_writes_them_down_and_a_function_runs_in_slurm(
    way: Way, site: Any, machine: Machine
) -> None:
    way(site)
    site.start()

    shown = machine.run(*machine.init_words())

    assert "site is ready." in shown, shown
    assert f"its commands were found {WAYS[way]}" in shown
    host = machine.written()
    assert host["scheduler"] == "slurm"
    others = {by_wrapper: f"{site.account.home}/bin", by_usual_folder: "/usr/local/slurm/bin"}
    folder = others.get(way, str(site.commands))
    assert host.get("scheduler_path", []) == ([] if way is by_variable_of_logins else [folder])
    given = "SLURM_CONF" in site.environ
    assert host.get("scheduler_env", {}) == ({} if given else {"SLURM_CONF": slurm_conf()})
    called = machine.call()
    assert re.search(r"^job [0-9]+$", called, re.MULTILINE), called
    assert way is not by_wrapper or (site.account.home / "wrapped").read_text().count("--parsable") == 2
    assert not (site.account.home / ".bash_history").exists()


def test_a_scheduler_written_by_hand_whose_commands_only_a_login_shell_has_is_an_error_and_check_says_where(
    site: Any, machine: Machine
) -> None:
    by_bash_profile(site)
    site.start()
    machine.configure("scheduler: slurm")

    called = machine.call()

    assert "sbatch is not in PATH of a command over ssh on site" in called
    assert "scheduler_path: [FOLDER]" in called and "clusterfn check site" in called
    checked = machine.run("clusterfn", "check", "site", "--no-job")
    assert "clusterfn.yml does not say where" in checked and f"add scheduler_path: [{site.commands}]" in checked


def test_a_machine_with_signs_of_a_login_node_is_not_called_bare_without_a_question(
    site: Any, machine: Machine
) -> None:
    (site.etc / "motd").write_text("Welcome to the cluster.\nThis is a login node: do not compute here.\n")
    site.write(".bashrc", f"{GUARD}\nalias sbatch='ssh submit1 sbatch'")
    site.write(".bash_profile", ". ~/.bashrc")
    site.environ["APPTAINER_CONTAINER"] = "/opt/login.sif"
    site.start()

    refused = machine.run(*machine.init_words())

    assert "site may be the login node of a cluster" in refused
    for sign in ("This is a login node", "set up submit1 instead", "in the container /opt/login.sif"):
        assert sign in refused
    assert "--scheduler-path FOLDER" in refused and "--scheduler bare" in refused
    assert not (machine.laptop.project / "clusterfn.yml").exists()

    terminal = Terminal(
        machine.laptop.inside("bash", "--norc", "--noprofile", "-i"), machine.laptop.project, machine.laptop.env
    )
    try:
        words = shlex.join(machine.init_words())
        answers = {r"on this machine itself: $": str(site.commands), **RETURNS}
        shown = terminal.command(words, answers)
    finally:
        terminal.close()
    assert "no SLURM or Grid Engine answers to the commands in" in shown  # without SLURM_CONF


@pytest.mark.long
def test_check_warns_of_a_bare_host_that_may_be_a_login_node(site: Any, machine: Machine) -> None:
    (site.etc / "motd").write_text("This is a login node.\n")
    site.start()
    assert "is ready" in machine.run(*machine.init_words("--scheduler", "bare"))

    checked = machine.run("clusterfn", "check", "site", "--no-job")

    assert re.search("WARN +scheduler +this may be the login node of a cluster: its greeting says", checked), checked


@pytest.mark.long
def test_a_server_without_signs_is_bare_without_a_question(site: Any, machine: Machine) -> None:
    site.start()

    assert "site is ready." in machine.run(*machine.init_words())
    assert machine.written()["scheduler"] == "bare"


EVERYTHING = """
import os, time
from clusterfn import Session, cluster

@cluster(time="5min", memory="200MB")
def number(seconds=0):
    time.sleep(seconds)
    return os.environ["SLURM_JOB_ID"]

print("map", len(list(number.map([0, 0, 0]))))  # one job may run several of them
job = number.submit(300)
until = time.monotonic() + 100
while job.state != "RUNNING" and time.monotonic() < until:
    time.sleep(0.2)
job.stop()
print("stopped", type(job.exception(100)).__name__)
with Session("site", time="5min", memory="200MB") as session:
    print("session", session.submit(max, 1, 2).result(100))
"""


@pytest.mark.long
def test_every_command_of_clusterfn_finds_the_schedulers(site: Any, machine: Machine) -> None:
    by_bash_profile(site)
    site.start()
    assert "site is ready." in machine.run(*machine.init_words())
    (machine.laptop.project / "everything.py").write_text(EVERYTHING)

    shown = machine.run("python", "everything.py")

    for line in ("map 3", "stopped Cancelled", "session 2"):
        assert re.search(f"^{line}$", shown, re.MULTILINE), shown
    assert "n1" in machine.run("clusterfn", "gpus", "site")
