"""Where a host keeps Pythons of the caller's version, when none is in its PATH: what is told runs, and is of it."""

from __future__ import annotations

import io
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterfn.cli.init import pythons
from clusterfn.cli.init.choices import Answers
from clusterfn.config.environment_kinds import CONDA_PLACES
from clusterfn.config.spec import Interpreter
from clusterfn.errors import ConfigError, EnvironmentBuildError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="hosts have a POSIX shell")
MINOR = f"3.{sys.version_info[1]}"


class Here:
    """A connection to this machine, with a home of its own, whose bin is all of PATH."""

    def __init__(self, home: Path, path: str = "") -> None:
        self.home, self.path = home, path

    def run(self, argv, timeout_s):
        env = {"HOME": str(self.home), "PATH": f"{self.home}/bin:{self.path}"}
        ran = subprocess.run(argv, capture_output=True, check=False, env=env)
        reply: Future = Future()
        reply.set_result(SimpleNamespace(rc=ran.returncode, out=ran.stdout, err=ran.stderr))
        return reply


def put(path: Path, text: str = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n') -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


HOMES = [place[2:] for place in CONDA_PLACES if place.startswith("~/")]


@pytest.mark.parametrize("folder", [HOMES[0], f"{HOMES[-1]}/envs/ml", f".pyenv/versions/{MINOR}.4", ".local", "venv-x"])
def test_it_is_found_where_people_put_it(tmp_path, folder):
    put(tmp_path / folder / "bin" / f"python{MINOR}")

    assert sys.executable in pythons.find_pythons(Here(tmp_path))


def test_what_does_not_run_or_is_of_another_version_is_not_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(pythons, "PYTHON", "python9.9")
    put(tmp_path / ".local" / "bin" / "python9.9")
    put(tmp_path / "miniconda3" / "bin" / "python9.9", "#!/bin/sh\nexit 1\n")

    assert pythons.find_pythons(Here(tmp_path)) == {}


def host_with(home: Path) -> SimpleNamespace:
    """One that may be asked for a named environment; asking for the host's own would have one made."""

    def environment(wanted):
        if wanted.text != "conda:ml":
            raise EnvironmentBuildError("none")
        return SimpleNamespace(interpreter=Interpreter("/x/bin/python", (3, 11)))

    host = SimpleNamespace(scheduler="bare")
    return SimpleNamespace(environments=SimpleNamespace(find=environment), connection=Here(home), settings=host)


def test_nothing_is_written_where_the_hosts_own_will_do(tmp_path, capsys):
    put(tmp_path / "bin" / f"python{MINOR}")

    assert pythons.environment(host_with(tmp_path), None, Answers(yes=True)) is None
    assert f"Functions run with {tmp_path}/bin/python{MINOR}" in capsys.readouterr().out


def test_a_given_one_is_looked_for_at_once(tmp_path):
    assert pythons.environment(host_with(tmp_path), "conda:ml", Answers(yes=True)) == "conda:ml"
    with pytest.raises(EnvironmentBuildError):
        pythons.environment(host_with(tmp_path), "conda:gone", Answers(yes=True))


def test_the_first_that_is_found_is_proposed_and_where_there_is_none_that_is_said(tmp_path, monkeypatch, capsys):
    remembered = put(tmp_path / "far away" / "bin" / "python").parents[1]
    put(tmp_path / ".conda" / "environments.txt", f"{remembered}\n{tmp_path}/gone\n")

    first = next(iter(pythons.find_pythons(Here(tmp_path))))
    assert pythons.environment(host_with(tmp_path), None, Answers(yes=True)) == f"python:{first}"
    assert pythons.environment(host_with(tmp_path), "none", Answers(yes=True)) is None
    monkeypatch.setattr(pythons, "PYTHON", "python9.9")
    assert pythons.environment(host_with(tmp_path / "empty"), None, Answers(yes=True)) is None
    assert "The host has no python9.9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("2", "python:/e/python"), ("/f/python", "python:/f/python"), ("~/f/python", "python:~/f/python"),
     ("conda:ml", "conda:ml"), ("none", "none"), ("/f/environment.yml", "/f/environment.yml"), ("3", "3")],
)  # fmt: skip
def test_a_number_and_a_path_are_answers(typed, meant):
    assert pythons.parse_answer(typed, ["/d/python", "/e/python"]) == meant


def test_what_is_no_environment_there_is_asked_for_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "miniconda3" / "bin" / f"python{MINOR}")
    stdin = io.StringIO("yes\n7\nenvironment.yml\nconda:gone\n/gone/python\n")
    stdin.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)

    with pytest.raises(ConfigError, match="no usable answer"):
        pythons.environment(host_with(tmp_path), None, Answers(yes=False))
    assert capsys.readouterr().err.count("does not name an environment") == 3

    stdin = io.StringIO("yes\nconda:ml\n")
    stdin.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)
    assert pythons.environment(host_with(tmp_path), None, Answers(yes=False)) == "conda:ml"


def test_one_with_pytorch_is_proposed_first_and_the_systems_own_last(monkeypatch):
    said = b"/usr/bin/python3.9\n/opt/x y/bin/python3.9\nnonsense\n/usr/bin/python3.9\n/opt/z/bin/python3.9\ttorch\n"
    reply = SimpleNamespace(result=lambda timeout: SimpleNamespace(out=said))

    found = pythons.find_pythons(SimpleNamespace(run=lambda argv, timeout_s: reply))

    folders = {"/opt/z/bin": True, "/opt/x y/bin": False, "/usr/bin": False}
    assert [*found.items()] == [(f"{folder}/python3.9", has_torch) for folder, has_torch in folders.items()]


def test_one_with_pytorch_is_marked(tmp_path, capsys):
    made = tmp_path / "venv-x"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    (made / "lib" / f"python{MINOR}" / "site-packages" / "torch.py").touch()

    pythons.environment(host_with(tmp_path), None, Answers(yes=True))

    assert f"1  python:{made}/bin/python{MINOR}  (has PyTorch)" in capsys.readouterr().out


def test_a_root_is_made_before_it_is_written_down(tmp_path):
    from clusterfn.cli import init

    here = Here(tmp_path, "/bin:/usr/bin")
    here.host = SimpleNamespace(root="~/.clusterfn")
    (tmp_path / "file").write_text("")

    init.make_root(here, "~/a/b")
    init.make_root(here, "$SCRATCH/c")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    with pytest.raises(ConfigError, match="cannot be used: .*Not a directory"):
        init.make_root(here, f"{tmp_path}/file/b")
