"""Environments from a project's files, on the host with Python 3.6: wheels by uv, Python from each of its sources."""

from __future__ import annotations

import functools
import hashlib
import json
import pwd
import secrets
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from clusterfn import cluster
from tests.builder import toys
from tests.e2e.conftest import MINOR, Hosts, give_to

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(MINOR not in ("3.9", "3.10", "3.11", "3.12", "3.13"), reason="the lab has no such Python"),
]
SIX = "six==1.17.0 --hash=sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274\n"
PYPROJECT = """\
[project]
name = "app"
version = "0.1"
requires-python = ">=3.9"
dependencies = ["helper", "attrs>=23", "colorama; sys_platform == 'win32'"]

[project.optional-dependencies]
names = ["idna==3.10"]

[tool.uv.sources]
helper = {path = "helper", editable = true}
"""
HELPER = '[project]\nname = "helper"\nversion = "0.1"\ndependencies = ["six==1.17.0"]\n'
SOURCE = 'import six\n\n\ndef shout(text):\n    return six.ensure_str(text).upper() + " " + six.__version__\n'


def report() -> tuple[str, str, bool, tuple[int, int]]:
    import importlib.util
    import sys

    import attr  # noqa: F401
    import helper
    import idna

    return helper.shout("six"), idna.__version__, importlib.util.find_spec("colorama") is None, sys.version_info[:2]


def only_six() -> str:
    import six

    return str(six.__version__)


def about_python() -> tuple[str, str, str, list[str]]:
    import importlib.util
    import sys
    import sysconfig

    import six  # noqa: F401

    foreign = [name for name in ("pip", "setuptools") if importlib.util.find_spec(name)]
    version = ".".join(map(str, sys.version_info[:3]))
    return version, sys.base_prefix, sysconfig.get_config_var("prefix"), foreign


def only_sources() -> tuple[str, str, str, bool]:
    import importlib.util

    import antlr4
    import gift
    import hydra
    from omegaconf import OmegaConf

    config = OmegaConf.create({"a": 2, "b": "${a}"})  # antlr4 parses this
    is_own = "site-packages" in antlr4.__file__ and importlib.util.find_spec("pip") is None
    return str(hydra.__version__), str(config.b), str(gift.NAME), is_own


for each in (report, only_six, about_python, only_sources):
    each.__module__ = "__main__"
REPORTED = ("SIX 1.17.0", "3.10", True, tuple(map(int, MINOR.split("."))))


@pytest.fixture
def project(lab: Any, hosts: Hosts, mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a pyproject.toml and a local package, and a root of environments that is empty."""
    root = Path(pwd.getpwnam("cfbash").pw_dir) / f"e2e-{secrets.token_hex(4)}"
    root.mkdir(mode=0o700)
    give_to("cfbash", root)
    folder = tmp_path / "project"
    (folder / "helper" / "helper").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "helper" / "pyproject.toml").write_text(HELPER)
    (folder / "helper" / "helper" / "__init__.py").write_text(SOURCE)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder / "helper"))
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, f"env_root: {root}", ("tensor01", "slurm"))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    yield folder
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("host", ["tensor01", pytest.param("slurm", marks=pytest.mark.long)])
def test_a_pyproject_with_an_extra_a_marker_and_a_local_package_cold_and_warm(project, host, capsys):
    function = cluster(host=host, environment="pyproject.toml[names]")(report)

    assert function() == REPORTED

    cold = capsys.readouterr().err
    assert "pyproject-names.conda-lock.yml does not exist yet" in cold
    assert "helper: clusterfn sends local packages as source" in cold
    locked = (project / "pyproject-names.conda-lock.yml").read_text()
    assert "idna-3.10" in locked and "colorama" not in locked and "helper" not in locked
    assert function() == REPORTED
    assert "solving" not in capsys.readouterr().err


@pytest.mark.long
def test_what_has_no_wheel_is_built_on_the_host_and_imported(project, tmp_path, capsys):
    """hydra-core wants antlr4-python3-runtime 4.9, which has no wheel; a repository has none either."""
    repository = tmp_path / "gift"
    repository.mkdir()
    for name, text in toys.with_backend("gift").items():
        (repository / name).write_text(text)
    own = ["git", "-c", "user.name=ada", "-c", "user.email=ada@e.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*own, *words], cwd=repository, check=True)
    (project / "requirements.txt").write_text(f"hydra-core\ngift @ git+{repository.as_uri()}\n")
    function = cluster(host="tensor01", environment="requirements.txt")(only_sources)

    version, value, name, is_own = function()

    assert version >= "1.3" and (value, name) == ("2", "gift") and is_own
    said = capsys.readouterr().err
    assert "antlr4-python3-runtime 4.9.3 has no wheel, so the host builds it once" in said
    locked = (project / "requirements.conda-lock.yml").read_text()
    assert "antlr4-python3-runtime-4.9.3.tar.gz" in locked and "build-antlr4-python3-runtime" in locked


def version_of(python: Path) -> str:
    argv = [str(python), "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("host", ["tensor01", pytest.param("slurm", marks=pytest.mark.long)])
def test_the_hosts_own_python_is_the_base_of_an_isolated_environment(lab, project, host, capsys):
    python = lab.python(MINOR)
    (project / "requirements.txt").write_text(SIX)
    function = cluster(host=host, environment=f"requirements.txt[python:{python}]")(about_python)

    version, base, _, foreign = function()

    assert version == version_of(python)
    assert base == str(python.resolve().parents[1])
    assert foreign == []  # that Python itself has both
    told = capsys.readouterr().err
    assert f"Python {version} is the host's own: {python.resolve()}" in told
    assert f"on {host}'s own Python {version}" in told
    assert (project / f"requirements-host-python-{version}.conda-lock.yml").exists()
    assert function()[0] == version
    assert "solving" not in capsys.readouterr().err


@pytest.fixture(scope="module")
def pythons(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a mirror of python-build-standalone: an archive of the lab's Python, as uv expects it."""
    argv = [find_uv_bin(), "python", "list", f"cpython-{MINOR}-linux-x86_64-gnu", "--only-downloads", "--offline"]
    known = json.loads(subprocess.run([*argv, "--output-format", "json"], capture_output=True, check=True).stdout)
    release, name = known[0]["url"].replace("%2B", "+").split("/")[-2:]
    top = tmp_path_factory.mktemp("mirror")
    folder = top / release
    folder.mkdir()
    with tarfile.open(folder / name, "w:gz", compresslevel=1) as tar:
        tar.add(_standalone(lab.python(MINOR).resolve(), tmp_path_factory.mktemp("python") / "install_only"), "python")
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  {name}\n")
    return top


@pytest.fixture
def mirror(pythons: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of that mirror."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(pythons))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", address)
        yield address
        server.shutdown()


def _standalone(python: Path, folder: Path) -> Path:
    """A folder as an install_only archive has it: relocatable, with /install where the prefix belongs."""
    library = f"python{MINOR}"
    skipped = shutil.ignore_patterns("__pycache__", "ensurepip", "lib2to3", "test", "idlelib")
    shutil.copytree(python.parents[1] / "lib" / library, folder / "lib" / library, ignore=skipped)
    for path in (python.parents[1] / "lib").glob("libpython*"):
        shutil.copy(path, folder / "lib", follow_symlinks=False)
    for path in (folder / "lib" / library).glob("_sysconfigdata*.py"):
        prefix = subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_config_var('prefix'))"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        path.write_text(path.read_text().replace(prefix, "/install"))
    (folder / "bin").mkdir()
    shutil.copy(python, folder / "bin" / f"python{MINOR}")
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(f"python{MINOR}")
    return folder
