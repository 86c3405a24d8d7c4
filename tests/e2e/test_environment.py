"""A job finds the environment's own Python and nothing of the account's: not its paths, packages or libraries."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess

import pytest

from clusterfn import cluster
from tests.e2e.conftest import MINOR, ON_BARE, ON_SLURM, give_to
from tests.waiting import until

pytestmark = pytest.mark.lab
LEAKS = {
    "PYTHONPATH": "/tmp/leaked",
    "LD_LIBRARY_PATH": "/tmp/leaked",
    "PYTHONSTARTUP": "/tmp/leaked.py",
    "CONDA_PREFIX": "/tmp/leaked",
    "CONDA_DEFAULT_ENV": "leaked",
    "VIRTUAL_ENV": "/tmp/leaked",
}
KEPT = {"https_proxy": "http://proxy:3128", "NO_PROXY": "localhost", "SSL_CERT_FILE": "/etc/ssl/ca.pem"}


def variables():
    import os
    import sys

    return dict(os.environ), list(sys.path), sys.prefix


variables.__module__ = "__main__"


@pytest.fixture(params=["tensor01-second", "slurm-second"])
def polluted(request, hosts, lab, tmp_path, monkeypatch):
    """A host on which the account's .bashrc exports all of these."""
    bashrc = lab.home("second") / ".bashrc"
    before = bashrc.read_bytes() if bashrc.exists() else None
    bashrc.write_text("".join(f"export {name}={value}\n" for name, value in {**LEAKS, **KEPT}.items()))
    give_to("cfsecond", bashrc)
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, "", (request.param,))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    yield request.param
    shutil.rmtree(lab.home("second") / hosts.root.name, ignore_errors=True)
    if before is None:
        bashrc.unlink()
    else:
        bashrc.write_bytes(before)


def test_paths_and_libraries_of_the_account_do_not_leak_in(polluted, lab):
    found, path, prefix = cluster(host=polluted)(variables)()

    assert {name: found[name] for name in LEAKS if "leaked" in found.get(name, "")} == {}
    assert not [folder for folder in path if "leaked" in folder]
    assert prefix == str(lab.python(MINOR).parents[1])


def test_proxies_and_certificates_of_the_account_do_come_in(polluted):
    found, _, _ = cluster(host=polluted)(variables)()

    assert {name: found.get(name) for name in KEPT} == KEPT


@ON_BARE
def test_packages_of_the_home_are_not_found(hosts, lab, host):
    site = lab.home("bash") / ".local" / "lib" / f"python{MINOR}" / "site-packages"
    site.mkdir(parents=True, exist_ok=True)
    module = site / "leaked_from_home.py"
    module.write_text("value = 1\n")
    try:
        function = cluster(host=host)(lambda: __import__("importlib.util").util.find_spec("leaked_from_home") is None)
        assert function() is True
    finally:
        module.unlink()


def test_what_the_user_asks_for_is_given(hosts):
    wanted = {"PYTHONPATH": "/tmp/wanted", "LD_LIBRARY_PATH": "/opt/wanted", "HF_HOME": "/data/hf"}

    found, path, _ = cluster(host="tensor01", env=wanted)(variables)()

    assert {name: found[name] for name in wanted} == wanted
    assert "/tmp/wanted" in path


@ON_SLURM
def test_the_hosts_own_caches_and_logins_are_found(hosts, host):
    found, _, _ = cluster(host=host)(variables)()

    assert not {"HF_HOME", "HF_TOKEN_PATH", "TORCH_HOME", "PIP_CACHE_DIR", "TRITON_CACHE_DIR"} & set(found)


@ON_BARE
def test_python_is_the_environments_in_child_processes_too(hosts, lab, host):
    @cluster(host=host)
    def children():
        import shutil
        import subprocess
        import sys

        code = "import sys; print(sys.prefix, '%d.%d' % sys.version_info[:2])"
        said = [subprocess.run([name, "-c", code], capture_output=True, text=True) for name in ("python", "python3")]
        return [done.stdout.strip() for done in said], shutil.which("python"), sys.prefix

    said, which, prefix = children()

    assert said == [f"{prefix} {MINOR}"] * 2
    assert os.path.realpath(which) == os.path.realpath(lab.python(MINOR))


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


def test_two_calls_do_not_see_each_others_globals(hosts):
    @cluster(host="tensor01")
    def count():
        import builtins

        builtins.seen = getattr(builtins, "seen", 0) + 1
        return builtins.seen

    assert [count(), count()] == [1, 1]


def test_secrets_arrive_and_stay_nowhere(hosts, monkeypatch):
    secret = secrets.token_hex(16)
    monkeypatch.setenv("HF_TOKEN", secret)

    job = cluster(host="tensor01", secrets=["HF_TOKEN"])(lambda: os.environ["HF_TOKEN"][::-1]).submit()

    assert job.result(150) == secret[::-1]
    folder = hosts.root / "jobs" / job.id
    until(lambda: not [path for path in folder.rglob("*") if path.is_file() and secret in path.read_text("latin1")])


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
