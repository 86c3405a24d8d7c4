"""The program that finds a scheduler's commands, asked by real shells in homes as sites fill them."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge.login_shell import PROGRAMS, Place

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="hosts run Unix")

GUARD = "case $- in *i*) ;; *) return;; esac"


@pytest.fixture
def place() -> Iterator[Place]:
    """In a folder without blanks: the shell files below name it as sites name theirs."""
    with tempfile.TemporaryDirectory(prefix="clusterfn-shell-", dir="/tmp") as folder:
        yield Place(Path(folder))


def test_a_login_shell_shows_folder_and_variable(place: Place) -> None:
    (place.home / ".bash_profile").write_text(place.variables)

    found = place.look().schedulers["slurm"]

    assert found.how == "by a login shell" and found.path == (str(place.slurm),)
    assert found.env == {"SLURM_CONF": "/etc/a.conf"}
    assert found.in_words() == f"scheduler_path: [{place.slurm}], scheduler_env: {{SLURM_CONF: /etc/a.conf}}"


def test_a_server_of_the_configuration_is_shown_as_its_file_is(place: Place) -> None:
    (place.home / ".bash_profile").write_text(f"{place.variables}\nexport SLURM_CONF_SERVER=ctl:6817\n")

    assert place.look().schedulers["slurm"].env == {"SLURM_CONF": "/etc/a.conf", "SLURM_CONF_SERVER": "ctl:6817"}


def test_folders_of_scheduler_path_that_have_no_command_are_reported(place: Place) -> None:
    there, gone = str(place.slurm), str(place.home / "gone")

    told = place.look(PATH=f"{gone}:{there}:{place.bin}:/usr/bin:/bin", folders=(gone, there, "~", str(place.bin)))

    assert told.empty == (gone, "~", str(place.bin))


def test_what_path_has_already_needs_no_line(place: Place) -> None:
    found = place.look(PATH=f"{place.slurm}:/usr/bin:/bin", SLURM_CONF="/etc/a.conf").schedulers["slurm"]

    assert found.keys() == {}


def test_a_link_to_the_same_program_is_no_other_one(place: Place) -> None:
    for name in PROGRAMS:
        (place.bin / name).symlink_to(place.slurm / name)
    (place.home / ".bash_profile").write_text(place.variables)

    assert place.look(SLURM_CONF="/etc/a.conf").schedulers["slurm"].path == ()


def test_a_guard_for_interactive_shells_is_passed_and_no_history_is_written(place: Place) -> None:
    (place.home / ".bash_profile").write_text(". ~/.bashrc\n")
    (place.home / ".bashrc").write_text(f"{GUARD}\nHISTFILE=~/.bash_history\n{place.variables}")

    assert place.look().schedulers["slurm"].how == "by an interactive login shell"
    assert not (place.home / ".bash_history").exists()


@pytest.mark.parametrize(
    ("shell", "name", "text"),
    [
        ("tcsh", ".cshrc", "if ($?prompt == 0) exit\nsetenv PATH {0}:$PATH\nsetenv SLURM_CONF /etc/a.conf\n"),
        ("tcsh", ".login", "setenv PATH {0}:$PATH\nsetenv SLURM_CONF /etc/a.conf\n"),
        ("fish", ".config/fish/config.fish", "set -gx PATH {0} $PATH\nset -gx SLURM_CONF /etc/a.conf\n"),
        ("zsh", ".zprofile", "export PATH={0}:$PATH SLURM_CONF=/etc/a.conf\n"),
        ("dash", ".profile", "export PATH={0}:$PATH SLURM_CONF=/etc/a.conf\n"),
        ("ksh", ".profile", "export PATH={0}:$PATH SLURM_CONF=/etc/a.conf\n"),
    ],
)
def test_each_shell_is_asked_in_its_own_way(place: Place, shell: str, name: str, text: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell} on this machine")
    (place.home / name).parent.mkdir(parents=True, exist_ok=True)
    (place.home / name).write_text(text.format(place.slurm))

    assert place.look(path).schedulers["slurm"].path == (str(place.slurm),)


def test_a_module_is_loaded(place: Place) -> None:
    (place.home / "slurm").write_text(place.variables)
    text = f"export MODULEPATH={place.home}\nmodule() {{ [ $1 = load ] && . $MODULEPATH/$2; }}\n"
    (place.home / ".bash_profile").write_text(text)

    found = place.look().schedulers["slurm"]

    assert (found.how, found.path) == ("by `module load slurm`", (str(place.slurm),))


@pytest.mark.parametrize(
    "text", ["alias site-sbatch='{0}/site-sbatch -v'", 'site-sbatch() {{ {0}/site-sbatch "$@"; }}']
)
def test_an_alias_or_a_function_names_the_folder(place: Place, text: str) -> None:
    (place.home / ".bash_profile").write_text(". ~/.bashrc\n")
    (place.home / ".bashrc").write_text(f"{GUARD}\n{text.format(place.slurm)}\n")

    assert place.look(SLURM_CONF="/etc/a.conf").schedulers["slurm"].path == (str(place.slurm),)


def test_an_alias_to_a_submit_host_is_a_sign_that_names_it(place: Place) -> None:
    (place.home / ".bash_profile").write_text("shopt -s expand_aliases\nalias site-sbatch='ssh -q submit1 sbatch'\n")

    shown = place.look()

    assert shown.schedulers == {}
    assert "set up submit1 instead" in shown.signs.sentences[0]


def test_a_usual_folder_is_looked_into(place: Place) -> None:
    usual = (f"{place.slurm.parent}/slu*",)

    assert place.look(usual=usual, SLURM_CONF="/etc/a.conf").schedulers["slurm"].path == (str(place.slurm),)


def test_commands_without_a_configuration_are_no_scheduler_and_no_sign(place: Place) -> None:
    (place.home / ".bash_profile").write_text(f"PATH={place.slurm}:$PATH\n")

    shown = place.look()

    assert shown.schedulers == {} and shown.signs.sentences == ()


def test_libraries_are_named_only_if_a_command_needs_them(place: Place) -> None:
    (place.home / ".bash_profile").write_text(f"{place.variables}export LD_LIBRARY_PATH=/site/lib\n")
    assert set(place.look().schedulers["slurm"].env) == {"SLURM_CONF"}
    lacks = "echo 'sinfo: error while loading shared libraries: libslurm.so' >&2; exit 127"
    place.program(place.slurm / PROGRAMS[1], f'#!/bin/sh\n[ -n "$LD_LIBRARY_PATH" ] || {{ {lacks}; }}\necho main\n')

    assert place.look().schedulers["slurm"].env == {"SLURM_CONF": "/etc/a.conf", "LD_LIBRARY_PATH": "/site/lib"}


def test_a_wrapper_comes_before_the_command_that_path_has(place: Place) -> None:
    wrappers = place.home / "wrappers"
    wrappers.mkdir()
    place.program(wrappers / PROGRAMS[0], f'#!/bin/sh\nexec {place.slurm}/site-sbatch "$@"\n')
    (place.home / ".bash_profile").write_text(f"PATH={wrappers}:$PATH\n")

    found = place.look(PATH=f"{place.slurm}:/usr/bin:/bin", SLURM_CONF="/etc/a.conf").schedulers["slurm"]

    assert found.path == (str(wrappers),)


@pytest.mark.parametrize("text", ["sleep 100\n", "exec cat\n", "exit 7\n", "while :; do echo noise; done\n"])
def test_shell_files_that_hang_end_or_flood_cost_only_their_time(place: Place, text: str) -> None:
    (place.home / ".bash_profile").write_text(text)

    began = time.monotonic()
    found = place.look(usual=(str(place.slurm),), patience_s=1.0, SLURM_CONF="/etc/a.conf").schedulers

    assert found["slurm"].how == "in a usual folder"
    assert time.monotonic() - began < 80  # the shell would sleep for 100


def test_a_shell_file_that_prints_and_reads_hides_nothing(place: Place) -> None:
    (place.home / ".bash_profile").write_text(f"echo; echo '{{noise'; read -r answer; {place.variables}")

    assert place.look().schedulers["slurm"].path == (str(place.slurm),)


def test_a_variable_with_lines_and_bytes_that_are_no_text_hides_nothing(place: Place) -> None:
    text = b"export ODD=$'a\nPATH=/x\n\xff'\n" + place.variables.encode()
    (place.home / ".bash_profile").write_bytes(text)

    assert place.look().schedulers["slurm"].path == (str(place.slurm),)
