"""The script that enters an image: what each runtime is called with, as their manuals have it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterfn.environment.containers import KINDS, make_script

PROGRAMS = {"apptainer": "apptainer", "singularity": "singularity", "charliecloud": "ch-run", "bwrap": "bwrap",
            "container": "shifter"}  # fmt: skip
_RECORD = """#!/bin/sh
[ "$1" != --help ] || { echo "$HELP"; exit; }
printf "%s\\n" "$@" >"$RECORD"
echo "$CLUSTERFN_IMAGE from $CLUSTERFN_PYTHON" >"$RECORD.variables"
exit ${STATUS:-0}
"""


def called(
    kind: str,
    tmp_path: Path,
    binds: Sequence[str] = (),
    image: str = "",
    words: Sequence[str] = ("--image={image}",),
    **more: str,
) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """What the runtime got for `python3 -c pass`, in an own home, and how the script ended."""
    programs, home, image_file = tmp_path / "bin", tmp_path / "home", tmp_path / "image.sif"
    for folder in (programs, home, tmp_path / "root"):
        folder.mkdir(exist_ok=True)
    image_file.touch()
    program = programs / PROGRAMS[kind]
    program.write_text(_RECORD)
    program.chmod(0o755)
    script = make_script(kind, image or str(image_file), ("shifter", *words), binds, str(tmp_path / "root"))
    script = script.replace("/dev/nvidiactl", str(tmp_path / "card"))
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home), "RECORD": str(tmp_path / "said"), **more}
    ran = subprocess.run(
        ["/bin/sh", "-c", script, "sh", "-c", "pass"], env=env, cwd=home, text=True, capture_output=True, check=False
    )
    said = tmp_path / "said"
    return said.read_text().splitlines() if said.exists() else [], ran


@pytest.mark.parametrize("kind", ["apptainer", "singularity"])
def test_apptainer_gets_the_folder_the_root_and_the_image(tmp_path, kind: str):
    (tmp_path / "card").touch()
    said, _ = called(kind, tmp_path)
    root, home = tmp_path / "root", tmp_path / "home"

    gpus = ["--rocm", "--nv"] if Path("/dev/kfd").exists() else ["--nv"]
    assert (tmp_path / "said.variables").read_text() == f"{tmp_path / 'image.sif'} from sh\n"
    assert said == ["--quiet", "exec", "--pwd", str(home), *gpus, "--bind", f"{root}:{root}",
                    str(tmp_path / "image.sif"), "python3", "-c", "pass"]  # fmt: skip


def test_charliecloud_shows_the_home_too_and_makes_folders_where_it_can(tmp_path):
    (tmp_path / "scratch").mkdir()
    said, _ = called("charliecloud", tmp_path, TMPDIR=str(tmp_path / "scratch"))
    assert said[0] == f"--cd={tmp_path / 'home'}" and "--write" in said
    assert {f"--bind={tmp_path / name}:{tmp_path / name}" for name in ("root", "home", "scratch")} <= set(said)
    assert said[-5] == "/usr/bin/env" and said[-4].startswith("PATH=/") and said[-3:] == ["python3", "-c", "pass"]

    newer, _ = called("charliecloud", tmp_path, HELP="  -W, --write-fake[=SIZE]")
    assert "--write-fake" in newer and "--write" not in newer


def test_a_link_in_a_folder_s_path_is_shown_by_both_names(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "root").symlink_to("far")

    said, _ = called("apptainer", tmp_path)

    far, near = tmp_path / "far", tmp_path / "root"
    assert {f"{far}:{near}", f"{far}:{far}"} <= set(said)


def test_what_a_user_binds_comes_after_what_clusterfn_binds(tmp_path):
    (tmp_path / "home" / "my data").mkdir(parents=True)

    said, _ = called("apptainer", tmp_path, ["~/my data:/mnt", "$HOME"])

    home = tmp_path / "home"
    pairs = [said[place + 1] for place, word in enumerate(said) if word == "--bind"]
    assert pairs[-2:] == [f"{home}/my data:/mnt", f"{home}:{home}"]


@pytest.mark.parametrize("name", ["it's.sif", "$(touch gone).sif", "a b;c.sif", '"x".sif'])
def test_no_name_of_an_image_is_evaluated(tmp_path, name: str):
    image = tmp_path / name
    image.touch()

    said, _ = called("apptainer", tmp_path, image=str(image))

    assert str(image) in said and not (tmp_path / "home" / "gone").exists()


def test_no_word_of_a_host_s_own_runtime_is_evaluated(tmp_path):
    words = ["$(touch gone)", "a b", "it's {image}"]
    said, _ = called("container", tmp_path, image="docker://x", words=words)
    assert said == ["$(touch gone)", "a b", "it's docker://x", "python3", "-c", "pass"]
    assert not (tmp_path / "home" / "gone").exists()

    script = make_script("container", "/", ("$(touch gone)`touch gone`", "{image}"), (), "")

    ran = subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, text=True, capture_output=True, check=False)

    assert ran.returncode == 127 and "is not in PATH of the host" in ran.stderr
    assert not (tmp_path / "gone").exists()


def test_bubblewrap_shows_what_is_in_a_folder_with_a_slash_behind_it_or_without(tmp_path):
    image = tmp_path / "rootfs"
    for folder in ("usr/bin", "dev", "home/ada"):
        (image / folder).mkdir(parents=True)
    (image / "bin").symlink_to("usr/bin")

    said, slashed = (called("bwrap", tmp_path, image=f"{image}{end}")[0] for end in ("", "//"))

    assert said == slashed
    assert said[:11] == ["--dev-bind", "/dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys",
                         "--bind", "/tmp", "/tmp"]  # fmt: skip
    shown = {tuple(said[place : place + 3]) for place, word in enumerate(said) if word in ("--ro-bind", "--symlink")}
    assert shown == {("--ro-bind", "/sys", "/sys"), ("--ro-bind", f"{image}/usr", "/usr"),
                     ("--ro-bind", f"{image}/home/ada", "/home/ada"), ("--symlink", "usr/bin", "/bin")}  # fmt: skip
    at = said.index("--chdir")
    assert said[at + 1 : at + 3] == [str(tmp_path / "home"), "/usr/bin/env"] and said[at + 3].startswith("PATH=/")


def test_a_signal_inside_of_bubblewrap_is_one_outside(tmp_path):
    (tmp_path / "rootfs").mkdir()
    ends = [called("bwrap", tmp_path, image=f"{tmp_path}/rootfs", STATUS=status)[1] for status in ("0", "3", "139")]

    assert [ran.returncode for ran in ends] == [0, 3, -11]


@pytest.mark.parametrize(
    ("kind", "binds", "image", "message"),
    [
        ("apptainer", ["/no/data"], "", "binds: names /no/data"),
        ("apptainer", [], "/no/image.sif", "/no/image.sif does not exist"),
        ("apptainer", ["$NOWHERE/data"], "", "$NOWHERE is not set on the host"),
        ("apptainer", [], "${NOWHERE}/image.sif", "${NOWHERE} is not set on the host"),
        ("apptainer", ["$COLON"], "", "has a colon or a comma in its name"),
        ("charliecloud", ["$COLON"], "", "has a colon or a comma in its name"),
        ("bwrap", [], "", "image.sif is a file, and bwrap enters a folder"),
    ],
)
def test_what_cannot_be_ends_the_script_with_one_line(tmp_path, kind: str, binds: list[str], image: str, message: str):
    odd = tmp_path / "a:b"
    odd.mkdir()
    said, ran = called(kind, tmp_path, binds, image, COLON=str(odd))

    assert said == [] and ran.returncode == 127
    assert len(ran.stderr.splitlines()) == 1 and message in ran.stderr


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "container"])
def test_a_script_is_one_for_every_shell(kind: str):
    script = make_script(kind, "~/image", (), ["/data:/mnt"], "/root")

    for shell in ("/bin/sh", "/bin/bash"):
        if os.path.exists(shell):
            subprocess.run([shell, "-n"], input=script, text=True, check=True)
