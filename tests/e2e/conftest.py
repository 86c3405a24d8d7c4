"""What the end-to-end tests share: hosts of the lab with a root of their own, and scripts run as a user runs them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from tests.conftest import FAILED
from tests.programs import main

REPOSITORY = Path(__file__).parents[2]
MINOR = f"3.{sys.version_info[1]}"
NUMPY = "1.26.4" if MINOR == "3.9" else "2.1.3"  # of the lab's channel
_OLD_S = 6 * 3600.0  # all tests together take less
BOTH = pytest.mark.parametrize("host", ["tensor01", "slurm"])
# What does not differ between the two; the other one in test-long.
ON_BARE = pytest.mark.parametrize("host", ["tensor01", pytest.param("slurm", marks=pytest.mark.long)])
ON_SLURM = pytest.mark.parametrize("host", ["slurm", pytest.param("tensor01", marks=pytest.mark.long)])
# A program of torchrun. Each line is one write, so that those of two ranks do not mix; and it does not end as Python
# does, because gloo's threads sometimes abort that (docs/upstream.md).
RANKS = """
import os
import torch
import torch.distributed as distributed

distributed.init_process_group("gloo")
total = torch.ones(1) * (distributed.get_rank() + 1)
distributed.all_reduce(total)
line = f"rank {distributed.get_rank()} of {distributed.get_world_size()} {total.item()}\\n"
os.write(1, line.encode())
distributed.destroy_process_group()
os._exit(0)
"""
ALIASES = ("tensor01", "slurm", "py36", "py38", "py313")


def lab_venv(lab: Any, name: str, *packages: str, minor: str = MINOR) -> Path:
    """Return a virtual environment with these packages that the lab's hosts can use; it stays with the lab."""
    import fcntl  # not on Windows

    from tests.lab.layout import ENVS

    folder: Path = ENVS / f"{name}-{minor}"
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.{os.getpid()}")
            clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
            subprocess.run([lab.python(minor), "-m", "venv", part], check=True, env=clean)
            pip = [part / "bin" / "python", "-m", "pip", "install", "-q", *packages]
            subprocess.run(pip, check=True, timeout=500, env=clean)
            part.rename(folder)
    return folder


# Of those packages whose older versions meet newer ones in calls.
_OLDER = ("pydantic==2.9.2", "attrs==23.1.0", "zipp<3.20")
# The first that has wheels for it; building one takes many minutes.
_OLDEST_NUMPY = {"3.13": "numpy==2.1.0"}


def venv_with_older_versions(lab: Any, minor: str = MINOR) -> Path:
    """Return the lab's virtual environment with numpy 1 and other versions that people still have."""
    return lab_venv(lab, "values", _OLDEST_NUMPY.get(minor, "numpy<2"), *_OLDER, minor=minor)


@dataclass(frozen=True)
class Hosts:
    """The lab's hosts as clusterfn.yml names them.

    Attributes:
        config: clusterfn.yml.
        root: The hosts' root, as it lies on this machine; all hosts share it.
        root_name: The same as clusterfn.yml writes it.
        python: The interpreter of the jobs' environment.
    """

    config: Path
    root: Path
    root_name: str
    python: Path

    def jobs(self) -> set[str]:
        """Ids of the jobs that lie on the hosts."""
        folder = self.root / "jobs"
        return {entry.name for entry in folder.iterdir()} if folder.exists() else set()

    def describe(self, lab: Any, path: Path, python: Path, extra: str = "", names: tuple[str, ...] = ALIASES) -> Path:
        """Write another clusterfn.yml with these hosts, whose jobs run under `python`; the path.

        `extra` are further lines of every host.
        """
        blocks = [_block(lab, name, self.root_name, python, extra) for name in names]
        path.write_text("hosts:\n" + "".join(blocks))
        return path


def _block(lab: Any, name: str, root: str, python: Path, extra: str) -> str:
    alias = name if name in ("tensor01", "slurm") or "-" in name else f"{name}-bash"
    lines = [f"address: {alias}", f"ssh_config: {lab.ssh_config}", f"root: {root}", f'environment: "python:{python}"']
    if lab.host(alias).name == "slurm":
        lines += ["scheduler: slurm", "slurm: {partition: {cpu: short, gpu: gpu}}", 'defaults: {time: "10min"}']
        lines += ['poll_floor: "1s"']
    else:
        lines += ["scheduler: bare", "limits: {cores: 64}"]  # the lab has two, for all tests that run beside this one
    lines += extra.splitlines()
    return f"  {name}:\n" + "".join(f"    {line}\n" for line in lines)


@pytest.fixture(scope="session")
def _shared(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    name = f"e2e-{secrets.token_hex(4)}"
    root = lab.home("bash") / name
    for old in lab.home("bash").glob("e2e-*"):  # what an agent wrote after its session had been cleared away
        with contextlib.suppress(FileNotFoundError):  # another process clears away, too
            if time.time() - old.stat().st_mtime > _OLD_S:
                shutil.rmtree(old, ignore_errors=True)
    root.mkdir(mode=0o700)  # whichever test comes first may put a file there as root
    give_to("cfbash", root)
    python = lab.python(MINOR)
    hosts = Hosts(tmp_path_factory.mktemp("e2e") / "clusterfn.yml", root, f"~/{name}", python)
    hosts.describe(lab, hosts.config, python)
    yield hosts
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def hosts(_shared: Hosts, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """tensor01, slurm and others of the lab, for the length of a test the hosts of $CLUSTERFN_CONFIG."""
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(_shared.config))
    return _shared


@pytest.fixture(autouse=True)
def nothing_goes_on(request: pytest.FixtureRequest, clean_environment: None) -> Iterator[None]:
    """After a test that failed, cancel the jobs that it and its programs have sent: the next one needs their GPUs."""
    ledger = Path(os.environ["XDG_STATE_HOME"], "clusterfn", "jobs.jsonl")
    yield
    if request.node.stash.get(FAILED, False) and ledger.exists():
        main(["cancel", *(json.loads(line)["id"] for line in ledger.read_text().splitlines())])


@pytest.fixture(scope="module")
def own_box(lab):
    """A server of eight GPUs that no other module uses."""
    with lab.own_gpubox() as box:
        yield box


@pytest.fixture
def gate(hosts: Hosts, tmp_path: Path) -> Path:
    """A folder that jobs of the lab's user can write to; many a job ends when it finds the file `go` in it."""
    hosts.root.mkdir(mode=0o700, exist_ok=True)
    folder = give_to("cfbash", hosts.root) / f"gate-{tmp_path.name}"
    folder.mkdir()
    return give_to("cfbash", folder)


@pytest.fixture
def torch(lab: Any) -> str:
    """The environment with PyTorch, as `environment=` names it."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the lab's PyTorch is for Python 3.11")
    return f"python:{lab.torch_python}"


def local_host(root: Path, name: str = "here") -> str:
    """Return a clusterfn.yml whose only host is this machine, with cores for the tests that run beside this one too."""
    return f"hosts:\n  {name}:\n    scheduler: local\n    root: {root}\n    limits: {{cores: 64}}\n"


@pytest.fixture(scope="session")
def _lab_bridge(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`bridge` of a root on the lab's hosts below which a call has run, as `_bridge` is for this machine."""
    folder, root = tmp_path_factory.mktemp("lab-bridge"), lab.home("bash") / f"e2e-{secrets.token_hex(4)}"
    made = Hosts(folder / "clusterfn.yml", root, f"~/{root.name}", lab.python(MINOR))
    made.describe(lab, made.config, made.python, names=("py36",))
    env = {**os.environ, "CLUSTERFN_CONFIG": str(made.config), "XDG_STATE_HOME": str(folder)}
    subprocess.run([sys.executable, "-c", "import clusterfn\nclusterfn.cluster(abs)(-1)"], env=env, check=True)
    yield root / "bridge"
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def lab_root(_lab_bridge: Path) -> Iterator[Path]:
    """A root of the test's own in the home of the lab's hosts, as a call before has left it; see `warm_root`."""
    parts = shutil.ignore_patterns("*.pyc.*")  # of a module that is being compiled there: gone a moment later
    for root in root_in_home():
        shutil.copytree(_lab_bridge, root / "bridge", copy_function=os.link, ignore=parts)
        subprocess.run(["chown", "-R", "cfbash:", root], check=True)
        yield root


@pytest.fixture
def here(tmp_path: Path, warm_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration whose only host is this machine, with a root of its own; the root."""
    config = tmp_path / "clusterfn.yml"
    config.write_text(local_host(warm_root))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    return warm_root


@pytest.fixture
def ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command in the process of the test: it starts no interpreter, and keeps its connection.

    Each command imports the user's modules again.
    """
    monkeypatch.setattr(sys, "path", [*sys.path])

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        status = main(list(words))
        for name, module in [*sys.modules.items()]:
            if str(tmp_path) in str(getattr(module, "__file__", "")):
                del sys.modules[name]
        return subprocess.CompletedProcess(words, status, *capfd.readouterr())

    return command


@pytest.fixture
def small(here: Path) -> Iterator[Path]:
    """The root of this machine, on a disk that can be filled; calls wait a second or two for room."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a small file system")
    from tests.bridge.layout import be_impatient  # not on Windows

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", str(here)], check=True)
    config = Path(os.environ["CLUSTERFN_CONFIG"])
    config.write_text(f"{config.read_text()}    spare: off\n")  # forks would know the limits of before
    clusterfn.cluster(abs)(-1)
    be_impatient(here)
    yield here
    subprocess.run(["umount", "-l", str(here)], check=True)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for another interpreter's PYTHONPATH: clusterfn as an installation would lay it out."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(REPOSITORY / "clusterfn", folder / "clusterfn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "templates", folder / "clusterfn" / "templates")
    return folder


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., Any]:
    """Run a text as a user's script; what its last line of stdout says, as JSON."""

    def run(text: str, *argv: str, python: Path | None = None, timeout_s: float = 150.0) -> Any:
        path = tmp_path / f"script_{secrets.token_hex(4)}.py"
        path.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [str(python or sys.executable), str(path), *argv],
            capture_output=True, text=True, encoding="utf-8", timeout=timeout_s, cwd=tmp_path, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def environment_yml(folder: Path, channel: str, *more: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "environment.yml"
    packages = [f"python={MINOR}", f"numpy={NUMPY}", *more]
    path.write_text(f"channels: [{channel}, nodefaults]\ndependencies: {json.dumps(packages)}\n")
    return path


@pytest.fixture(scope="session")
def locked(channel: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with environment.yml and its lock for the lab's hosts."""
    folder = tmp_path_factory.mktemp("locked")
    environment_yml(folder, channel.url)
    (folder / "clusterfn.yml").write_text(f"hosts: {{local: {{scheduler: local, root: {folder}/root}}}}\n")
    env = {**os.environ, "CLUSTERFN_CONFIG": str(folder / "clusterfn.yml")}
    argv = [sys.executable, "-m", "clusterfn", "env", "lock", str(folder / "environment.yml"), "local"]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def shared_environments(lab: Any) -> Iterator[Path]:
    """A root of environments that tests share."""
    yield from root_in_home()


def root_in_home(account: str = "cfbash") -> Iterator[Path]:
    """Yield a new folder in the home of an account of the lab's hosts."""
    import pwd  # of Unix, as the lab is

    root = Path(pwd.getpwnam(account).pw_dir) / f"e2e-{secrets.token_hex(4)}"
    root.mkdir(mode=0o700)
    give_to(account, root)
    yield root
    shutil.rmtree(root, ignore_errors=True)


def give_to(account: str, path: Path) -> Path:
    """Make a file or folder an account's own; the path."""
    import pwd  # of Unix, as the lab is

    entry = pwd.getpwnam(account)
    os.chown(path, entry.pw_uid, entry.pw_gid)
    return path


# What clusterfn needs of a caller's interpreter.
NEEDED = ("cloudpickle>=3.1", "paramiko>=3.4", "pyyaml>=6.0")


@pytest.fixture
def caller(lab, installed, monkeypatch):
    """The interpreter of a caller of that minor version, with what clusterfn needs beside it."""

    def make(minor):
        monkeypatch.setenv("PYTHONPATH", str(installed))
        monkeypatch.setenv("PYTHONWARNINGS", "error::ResourceWarning")
        return lab_venv(lab, "caller", *NEEDED, minor=minor) / "bin" / "python"

    return make
