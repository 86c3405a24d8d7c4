"""`environment="conda:name"`: where it is searched for, and what is said where it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from clusterfn.config import environment_kinds
from clusterfn.config.environment_kinds import CONDA_LIST, CONDA_PLACES
from clusterfn.config.spec import Host
from clusterfn.environment import existing
from clusterfn.environment.existing import parse_existing
from clusterfn.errors import ConfigError, EnvironmentBuildError
from clusterfn.hosts.environment_choice import EnvironmentRequest, EnvironmentResolver

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="hosts have a POSIX shell")
BARE = Host("tensor01", "", "bare", "clusterfn.yml:1")
HOMES = [place[2:] for place in CONDA_PLACES if place.startswith("~/")]


def put(home: Path, folder: str) -> Path:
    """Make an environment whose Python leaves its own path in the home directory."""
    python = home / folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$0" >"$HOME/ran"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def ran(home: Path, text: str | None, user: int | None = None) -> Path:
    """Search for an environment in this home directory, and return the Python that has described itself."""
    wanted = parse_existing(text, BARE)
    told = subprocess.run(
        wanted.probe(), capture_output=True, check=False, env={"HOME": str(home), "PATH": ""}, user=user, cwd="/"
    )
    wanted.read(told.returncode, told.stdout, told.stderr, "/root")
    return Path((home / "ran").read_text().strip())


@pytest.mark.parametrize("place", HOMES)
def test_a_name_is_searched_for_below_every_place_of_conda(tmp_path, place):
    python = put(tmp_path, f"{place}/envs/ml")

    assert ran(tmp_path, "conda:ml") == python


@pytest.mark.parametrize(("folder", "is_run"), [("wrappers", True), (".pyenv/shims", False)])
def test_a_script_that_was_named_is_what_jobs_run_and_is_in_no_path(tmp_path, folder, is_run):
    """It may enter a container; but what a shim of pyenv chooses depends on the folder."""
    python = put(tmp_path, folder)
    wanted = parse_existing(f"python:{python}", BARE)
    told = subprocess.run(wanted.probe(), capture_output=True, check=False, env={"HOME": str(tmp_path), "PATH": ""})

    found, made = wanted.read(told.returncode, told.stdout, told.stderr, "/root")

    assert (found.path == str(python)) is is_run
    in_path = found.activation["prepend"]["PATH"]
    assert in_path == [] and not made if is_run else str(Path(found.path).parent) in in_path


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("squashfuse_ll exited: fuse: failed to open /dev/fuse: Permission denied", "apptainer build --sandbox FOLDER"),
        ("could not open image /etc/passwd: image format not recognized", "the runtime that the image is for"),
        ("error: unknown image type: /x.sif (ch_core.c:278)", "the runtime that the image is for"),
        ("Unable to handle docker://x uri: pinging container registry", "pull it where you can"),
        ("bwrap: No permissions to create new namespace, likely because…", "may not create user namespaces"),
        ("FATAL: the image's architecture (arm64) could not run on the host's (amd64)", "for another processor"),
        ("/usr/bin/env: 'python3': No such file or directory", "it needs a python3 in its PATH"),
    ],
)
def test_why_an_image_does_not_start_decides_what_to_do(said, hint):
    with pytest.raises(EnvironmentBuildError) as caught:
        parse_existing("bwrap:/image", BARE).read(1, b"", said.encode(), "/root")

    assert hint in caught.value.hint


def test_an_image_shows_the_folders_of_its_host_and_of_the_call_each_once():
    host = BARE._replace(binds=("/data", "/scratch:/mnt"), container=("shifter", "{image}"))

    image = parse_existing("bwrap:/image", host, ["~/x", "/data/", "/scratch/:/mnt", "/data:/more"])

    assert image.binds == ("/data", "/scratch:/mnt", "~/x", "/data:/more")
    with pytest.raises(ConfigError, match="cannot show both /scratch and /home as /mnt"):
        parse_existing("bwrap:/image", host, ["/home:/mnt/"])
    with pytest.raises(ConfigError, match="the words of `container:` of tensor01") as caught:
        parse_existing("container:/image", host)
    assert "option for /data to these words" in str(caught.value.hint)


@pytest.mark.parametrize(
    "wanted", [EnvironmentRequest("conda:ml"), EnvironmentRequest(packages=("rich",)), EnvironmentRequest()]
)
def test_folders_for_what_is_no_image_are_rejected_before_the_host_is_asked(wanted):
    with pytest.raises(ConfigError, match="binds= shows folders in a container's image") as caught:
        EnvironmentResolver(SimpleNamespace(settings=BARE)).find(wanted._replace(binds=("/data",)))
    assert "leave out binds=" in str(caught.value.hint)


def test_an_environment_that_has_changed_is_looked_at_again_for_the_next_call(monkeypatch):
    monkeypatch.setattr(existing.ExistingEnvironment, "read", lambda *_: (Mock(version=(3, 11)), {}))
    there, wanted = Mock(settings=BARE), EnvironmentRequest("venv:/v")
    known = EnvironmentResolver(there)
    assert known.find(wanted).python == known.expected_python(wanted) == (3, 11)
    assert there.connection.run.call_count == 1

    known.forget()
    known.expected_python(wanted)
    assert there.connection.run.call_count == 2


def test_an_environment_with_pytorch_says_which_and_for_which_cuda(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    (packages,) = tmp_path.glob("v/lib/python*/site-packages")
    (packages / "torch").mkdir()
    # What a wheel has there.
    text = "__version__ = '2.7.1+cu126'\ndebug = False\ncuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n"
    (packages / "torch" / "version.py").write_text(text)
    wanted = parse_existing(f"venv:{tmp_path}/v", BARE)
    told = subprocess.run(wanted.probe(), capture_output=True, check=False)

    found, _ = wanted.read(told.returncode, told.stdout, told.stderr, "/root")

    assert found.torch == ("2.7.1+cu126", "12.6")


@pytest.mark.parametrize("place", HOMES)
def test_base_is_the_installation_itself(tmp_path, place):
    put(tmp_path, f"{place}/envs/ml")
    python = put(tmp_path, place)

    assert ran(tmp_path, "conda:base") == python


def test_the_list_of_conda_names_environments_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(environment_kinds, "CONDA_PLACES", ("~/miniconda3",))  # this machine may have a /opt/conda
    python, installed = put(tmp_path, "far away/envs/ml"), put(tmp_path, "far away/conda")
    (tmp_path / "far away" / "conda" / "condabin").mkdir()
    (tmp_path / ".conda").mkdir()
    listed = [tmp_path / "gone" / "ml", python.parents[1], installed.parents[1]]
    (tmp_path / ".conda" / "environments.txt").write_text("".join(f"{each}\n" for each in listed))

    assert ran(tmp_path, "conda:ml") == python
    assert ran(tmp_path, "conda:base") == installed


def refused(home: Path, text: str | None) -> EnvironmentBuildError:
    with pytest.raises(EnvironmentBuildError) as caught:
        ran(home, text)
    return caught.value


@pytest.fixture
def alone(monkeypatch):
    """No conda of this machine, as there may be an /opt/conda."""
    monkeypatch.setattr(
        environment_kinds, "CONDA_PLACES", tuple(each for each in CONDA_PLACES if each.startswith("~/"))
    )


def test_what_is_nowhere_is_reported_with_all_places(tmp_path, alone):
    error = refused(tmp_path, "conda:no-such-one")

    assert error.message == "the host has no environment 'conda:no-such-one'"
    assert all(place in error.evidence[0] for place in (*environment_kinds.CONDA_PLACES, CONDA_LIST))
    assert "prefix:/path" in str(error.hint)


@pytest.mark.parametrize(
    "text", ["conda:mll", "venv:~/venvs/nope", "prefix:~/venvs", "python:~/venvs/x/bin/python", "venv:~/miniconda3/en"]
)
def test_a_wrong_name_is_reported_with_those_that_exist(tmp_path, alone, text):
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"{put(tmp_path, 'far/ml').parents[1]}\n{tmp_path}/gone\n")
    beside = put(tmp_path, "miniconda3/envs/ml" if text.startswith("conda") else "venvs/near")
    put(tmp_path, "miniconda3")

    error = refused(tmp_path, text)

    assert error.message == f"the host has no environment '{text}'"
    there = str(error.evidence[-1])
    assert f"python:{tmp_path}/far/ml/bin/python" in there
    assert f"python:{beside}" in there or "miniconda3" in text


def test_what_is_at_a_place_that_cannot_run_is_shown(tmp_path, alone):
    (tmp_path / "v" / "bin").mkdir(parents=True)
    python = tmp_path / "v" / "bin" / "python"
    for make, why in [
        (lambda: python.symlink_to("/opt/gone/bin/python3"), "python -> /opt/gone/bin/python3"),
        (lambda: python.write_text("x"), "-rw"),
        (python.mkdir, "drwx"),
    ]:
        make()
        assert why in refused(tmp_path, "venv:~/v").evidence[0]
        python.rmdir() if python.is_dir() else python.unlink()
    assert "o such file" in refused(tmp_path, "python:~/w").evidence[0]
    assert refused(tmp_path, "venv:~/w").hint == "create it on the host, `python3 -m venv ~/w`, or correct the path"


def test_where_nothing_is_named_the_error_lists_the_pythons_outside_path(tmp_path, alone, monkeypatch):
    monkeypatch.setattr(existing, "MOST_LISTED", 500)  # this machine may have many in /usr/bin
    python = put(tmp_path, "miniconda3")

    error = refused(tmp_path, None)

    assert error.message == existing.NO_PYTHON
    assert f"python:{tmp_path}/miniconda3/bin/python" in error.evidence[0]
    assert "clusterfn why" not in str(error)
    (tmp_path / f"python{sys.version_info[0]}.{sys.version_info[1]}").symlink_to(python)
    assert f'/python{sys.version_info[0]}.{sys.version_info[1]}"' in str(refused(tmp_path, None).hint)


def test_an_interpreter_that_fails_is_reported_with_what_it_printed(tmp_path, alone):
    python = put(tmp_path, "v")
    python.write_text("#!/bin/sh\necho libpython3.11.so is missing >&2\nexit 127\n")

    error = refused(tmp_path, "venv:~/v")

    assert "has no interpreter that runs (exit 127)" in error.message
    assert error.evidence == ("libpython3.11.so is missing",)


def test_the_page_about_environments_names_every_place():
    page = (Path(__file__).parents[3] / "docs/how-to/environments.md").read_text(encoding="utf-8")

    assert [place for place in (*CONDA_PLACES, CONDA_LIST) if f"`{place}`" not in page] == []
