"""A job finds the environment's own Python and nothing of the account's: not its paths, packages or libraries."""

from __future__ import annotations

import os
import subprocess

import pytest

from clusterfn import cluster
from tests.e2e.conftest import MINOR, ON_BARE, ON_SLURM

pytestmark = pytest.mark.lab


def variables():
    import sys

    return dict(os.environ), list(sys.path), sys.prefix


variables.__module__ = "__main__"


@ON_BARE
def test_python_is_that_interpreter_where_it_has_no_such_name_beside_it(hosts, lab, tmp_path, monkeypatch, host):
    folder = hosts.root / "lonely 'folder"
    folder.mkdir(exist_ok=True, parents=True)
    venv = folder / "venv"
    if not venv.exists():
        subprocess.run([lab.python(MINOR), "-m", "venv", "--without-pip", venv], check=True)
        for name in ("python", "python3"):
            (venv / "bin" / name).unlink()
        (venv / "bin" / f"python{MINOR}").unlink(missing_ok=True)
        (venv / "bin" / "interpreter").symlink_to(lab.python(MINOR))
    hosts.root.chmod(0o755)

    @cluster(host=host, environment=f"python:{venv / 'bin' / 'interpreter'}")
    def child():
        import subprocess
        import sys

        code = "import sys; print(sys.prefix)"
        return subprocess.run(["python", "-c", code], capture_output=True, text=True).stdout.strip(), sys.prefix

    try:
        said, prefix = child()
    finally:
        hosts.root.chmod(0o700)

    assert said == prefix == str(venv)


@ON_SLURM
def test_what_a_conda_environment_sets_when_it_is_activated_is_set(hosts, lab, host):
    prefix = hosts.root / "conda env"
    if not prefix.exists():
        subprocess.run([lab.python(MINOR), "-m", "venv", "--without-pip", prefix], check=True)
        (prefix / "conda-meta").mkdir()
        scripts = prefix / "etc" / "conda" / "activate.d"
        scripts.mkdir(parents=True)
        (scripts / "gdal.sh").write_text('echo noise\nexport GDAL_DATA="$CONDA_PREFIX/share/gdal"\nfalse\n')
    hosts.root.chmod(0o755)
    try:
        found, _, _ = cluster(host=host, environment=f"prefix:{prefix}")(variables)()
    finally:
        hosts.root.chmod(0o700)

    assert found["GDAL_DATA"] == f"{prefix}/share/gdal"
    assert (found["CONDA_PREFIX"], found["CONDA_DEFAULT_ENV"]) == (str(prefix), "conda env")


def test_a_package_of_the_user_alone_is_named_as_such(here, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    packages = tmp_path / ".local" / "lib" / f"python{MINOR}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "usermod.py").write_text("")

    @cluster
    def use():
        import usermod

        return usermod

    with pytest.raises(ModuleNotFoundError, match="usermod") as caught:
        use()
    assert "`pip install --user` has put it beside that Python" in "".join(caught.value.__notes__)
