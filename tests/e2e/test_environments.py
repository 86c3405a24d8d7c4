"""Environments made from a file or a list of packages: on a host that has nothing, with and without network, and never
half.

Most tests share one root of environments and one lock; `fresh` ones begin with neither.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterfn import EnvironmentBuildError, cluster
from tests.e2e.conftest import MINOR, NUMPY, Hosts, environment_yml, root_in_home
from tests.programs import main
from tests.waiting import until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(MINOR not in ("3.9", "3.10", "3.11", "3.12", "3.13"), reason="the channel has no such Python"),
]
long = pytest.mark.long


def compute() -> tuple[str, str, float]:
    import sys

    import numpy

    return numpy.__version__, sys.prefix, float(numpy.arange(5).sum())


compute.__module__ = "__main__"


@dataclass
class Place:
    """Hosts of the lab with a root of environments, and a folder with environment.yml and perhaps its lock.

    Attributes:
        root: Where environments lie, on this machine too.
        file: environment.yml.
    """

    lab: Any
    hosts: Hosts
    folder: Path
    root: Path
    file: Path
    said: list[str] = field(default_factory=list)

    def configure(self, extra: str = "", names: tuple[str, ...] = ("tensor01", "slurm"), slurm: str = "") -> None:
        """Write clusterfn.yml, and let it count."""
        lines = f"env_root: {self.root}\n{extra}"
        path = self.hosts.describe(self.lab, self.folder / "clusterfn.yml", self.hosts.python, lines, names)
        path.write_text(path.read_text().replace("gpu: gpu}}", f"gpu: gpu}}{slurm}}}"))
        os.environ["CLUSTERFN_CONFIG"] = str(path)  # monkeypatch put it there

    @property
    def lock(self) -> Path:
        return self.file.with_name("environment.conda-lock.yml")

    @property
    def environments(self) -> list[Path]:
        return sorted(self.root.glob("envs/*/READY"))

    def relock(self, change: Callable[[list[dict[str, Any]]], None]) -> None:
        """Change the packages of the lock, as a merge or a channel that deceives would."""
        tree = yaml.safe_load(self.lock.read_text())
        change(tree["package"])
        self.lock.write_text(yaml.safe_dump(tree))


@pytest.fixture
def place(
    lab: Any, hosts: Hosts, locked: Path, shared_environments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    """The shared root, with a copy of the lock, which nothing has to solve again."""
    for name in ("environment.yml", "environment.conda-lock.yml"):
        shutil.copy(locked / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    made = Place(lab, hosts, tmp_path, shared_environments, tmp_path / "environment.yml")
    made.configure()
    return made


@pytest.fixture
def fresh(place: Place) -> Iterator[Place]:
    """The same with an empty root of environments."""
    for root in root_in_home():
        place.root = root
        place.configure()
        yield place


@pytest.mark.parametrize("host", ["tensor01", pytest.param("slurm", marks=long)])
def test_from_nothing_to_a_value(fresh, host, capsys):
    fresh.lock.unlink()

    version, prefix, total = cluster(host=host, environment="environment.yml")(compute)()

    assert (version, total) == (NUMPY, 10.0)
    assert Path(prefix).parent == fresh.root / "envs"
    said = capsys.readouterr().err
    assert "environment.conda-lock.yml does not exist yet" in said and f"{host} fetches 3" in said
    assert "__glibc" in fresh.lock.read_text()


def test_packages_are_named_in_the_call_and_come_from_where_condarc_says(place, channel, monkeypatch):
    condarc = place.folder / "condarc"
    condarc.write_text(f"custom_multichannels:\n  conda-forge: [{channel.url}]\n")
    monkeypatch.setenv("CONDARC", str(condarc))

    @cluster(host="tensor01", packages=[f"python={MINOR}", f"{channel.url}::greeter", "conda-forge::six"])
    def greeting():
        import subprocess

        import six  # noqa: F401

        return subprocess.run(["greet"], stdout=subprocess.PIPE).stdout.decode().split()[:2]

    assert greeting() == ["hello", "from"]
    assert len(place.environments) >= 1


def served(place: Place, channel: Any, address: str) -> None:
    """Let the lock name the channel over http."""
    place.lock.write_text(place.lock.read_text().replace(channel.url, address))


def test_a_host_without_network_is_sent_what_it_lacks(fresh, channel, lab):
    with lab.cable() as cable, channel.served() as server:
        served(fresh, channel, server.url)
        fresh.configure(names=(cable.alias,))

        version, _, _ = cluster(host=cable.alias, environment="environment.yml")(compute)()

        assert version == NUMPY
        assert len(server.asked) == len(set(server.asked)) == 3
        ready = json.loads(fresh.environments[0].read_text())
        assert ready["fetched"] == 0
        assert not list((fresh.root / "blobs").glob("*"))


@pytest.mark.long
def test_a_host_can_leave_building_to_its_jobs(fresh):
    fresh.configure("build_on: node", ("tensor01",))

    assert cluster(host="tensor01", environment="environment.yml")(compute)()[0] == NUMPY

    assert not list(fresh.root.glob("builds/*/log-*"))


def wrong_hash(packages: list[dict[str, Any]]) -> None:
    next(each for each in packages if each["name"] == "numpy")["hash"]["sha256"] = "0" * 64


def test_a_queued_job_does_not_wait_for_an_environment_that_cannot_be(place, lab, request):
    place.configure(names=("slurm",), slurm=', begin: "now+2hours"')
    place.relock(wrong_hash)

    job = cluster(host="slurm", environment="environment.yml")(compute).submit()
    request.addfinalizer(job.stop)
    error = job.exception(150)

    assert isinstance(error, EnvironmentBuildError) and f"numpy {NUMPY} is damaged" in str(error)
    name = f"compute.{job.id}"
    until(lambda: name not in lab.slurm.run("squeue", "--noheader", "--format=%j").stdout)


LEAKS = {
    "PYTHONPATH": "/tmp/leaked", "LD_LIBRARY_PATH": "/tmp/leaked", "CONDA_PREFIX": "/tmp/leaked",
    "PYTHONSTARTUP": "/tmp/leaked.py", "VIRTUAL_ENV": "/tmp/leaked",
}  # fmt: skip
KEPT = {"https_proxy": "http://proxy:3128", "NO_PROXY": "localhost", "SSL_CERT_FILE": "/etc/ssl/ca.pem"}
BROKEN_INIT = """
__conda_setup="$('/opt/no/conda' 'shell.bash' 'hook' 2> /dev/null)"
eval "$__conda_setup"; conda activate base
export CONDA_DEFAULT_ENV=base PATH=/opt/no/conda/bin:$PATH
"""


@pytest.fixture(scope="module")
def _root_of_second(lab: Any) -> Iterator[Path]:
    yield from root_in_home("cfsecond")


@pytest.mark.parametrize("host", ["slurm-second", pytest.param("tensor01-second", marks=long)])
def test_nothing_of_the_account_is_seen_in_it_but_proxies_and_certificates(place, lab, _root_of_second, host):
    home = lab.home("second")
    bashrc, site = home / ".bashrc", home / ".local" / "lib" / f"python{MINOR}" / "site-packages"
    before = bashrc.read_bytes() if bashrc.exists() else None
    bashrc.write_text("".join(f"export {name}={value}\n" for name, value in {**LEAKS, **KEPT}.items()) + BROKEN_INIT)
    site.mkdir(parents=True, exist_ok=True)
    (site / "numpy.py").write_text("raise RuntimeError('the numpy of the home')\n")
    place.root = _root_of_second
    place.configure(names=(host,))

    @cluster(host=host, environment="environment.yml")
    def seen():
        import os
        import sys

        import numpy

        return dict(os.environ), sys.path, sys.prefix, numpy.__file__

    try:
        variables, path, prefix, numpy = seen()
    finally:
        (site / "numpy.py").unlink()
        bashrc.unlink() if before is None else bashrc.write_bytes(before)
    assert {name: variables[name] for name in variables if "leaked" in variables[name]} == {}
    assert {name: variables.get(name) for name in KEPT} == KEPT
    assert not [folder for folder in path if "leaked" in folder] and numpy.startswith(prefix)
    assert variables["PATH"].split(":")[0] == f"{prefix}/bin"
    assert (variables["CONDA_PREFIX"], variables["CONDA_DEFAULT_ENV"][:12]) == (prefix, "environment-")


def test_the_commands_of_env(fresh, capsys):
    def told(*words: str, code: int = 0) -> tuple[str, str]:
        assert main(["env", *words]) == code
        said = capsys.readouterr()
        return said.out, said.err

    env_id = told("build", "tensor01")[0].strip()
    assert "already exists" in told("build", "environment.yml", "tensor01")[1]
    (one,) = json.loads(told("list", "tensor01", "--json")[0])
    assert (one["id"], one["about"], one["used_by"]) == (env_id, "environment.yml", [])
    assert env_id[:8] in told("list", "tensor01")[0]
    shown = told("show", env_id[:6], "tensor01")[0]
    assert f"{fresh.root}/envs/{env_id}" in shown and "numpy" in shown and "compile" in shown
    victim = next(fresh.root.glob("envs/*/lib/python3*/site-packages/numpy/version.py"))
    victim.unlink()
    assert "1 restored" in (out := told("verify", "environment.yml", "tensor01")[0])
    assert f"numpy {NUMPY}" in out and victim.exists()
    assert "0 environments removed, 1 kept" in told("gc", "tensor01")[0]
    assert "used by job" not in told("remove", "ffff", "tensor01", code=2)[1]
    assert f"removed {env_id}" in told("remove", env_id, "tensor01")[0]
    assert not fresh.environments and not list(fresh.root.glob("pkgs/*/manifest.json"))


def test_a_list_of_hosts_is_locked_for_and_built_on_each_of_them(fresh, capsys):
    path = fresh.folder / "clusterfn.yml"
    path.write_text(path.read_text() + "  both: {any: [tensor01, slurm]}\n")

    assert main(["env", "lock", "environment.yml", "both"]) == 0
    assert [row.split()[1] for row in capsys.readouterr().out.splitlines()[1:]] == ["tensor01", "slurm"]
    assert main(["env", "build", "environment.yml", "both", "--json"]) == 0
    assert [facts["host"] for facts in json.loads(capsys.readouterr().out)] == ["tensor01", "slurm"]


def test_the_build_for_the_gpus_is_chosen_explained_and_tried(place, channel, gpubox_reset, capsys):
    environment_yml(place.folder, channel.url, "pytorch-gpu=2.7.1")

    assert main(["env", "lock", "tensor01", "--gpus", "1"]) == 0
    out, said = capsys.readouterr()
    assert out.splitlines()[1].split()[-1] == "12.8"
    assert "driver 575.57.08" in said and "8.6" in said

    assert main(["env", "build", "tensor01", "--gpus", "1"]) == 0
    assert main(["env", "verify", "environment.yml", "tensor01"]) == 0
    assert "12.8, according to torch.version.cuda" in capsys.readouterr().out
    assert main(["check", "tensor01", "--environment", "environment.yml", "--gpus", "1"]) == 0
    told = capsys.readouterr().out
    assert re.search("PASS  pytorch .*PyTorch 2.7.1 for CUDA 12.8 calculated on .* compute capability 8.6", told), told
