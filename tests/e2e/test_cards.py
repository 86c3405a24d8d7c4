"""Which build of PyTorch a call gets: by what is known of the cards, with one submission where nobody knew.

The toy PyTorch of the lab's channel asks nvidia-smi and fails as the real one does. On SLURM each test has an
nvidia-smi of its own; on the bare host it is the lab's.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clusterfn import EnvironmentBuildError, cluster
from tests.e2e.conftest import MINOR, Hosts, give_to
from tests.lab import gpubox
from tests.programs import main

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(MINOR not in ("3.9", "3.10", "3.11", "3.12", "3.13"), reason="the channel has no such Python"),
]
OLD, NEW, TOO_OLD = "470.82.01", "575.57.08", "418.87.01"


def trained() -> tuple[str, float]:
    import torch

    one = torch.ones(2, device="cuda")
    return torch.version.cuda, (one + one).sum()


trained.__module__ = "__main__"


@dataclass
class Site:
    """A host with a root of its own; the environments are those of all tests here, but what is known of cards is not.

    Attributes:
        root: Of jobs.
        environments: Their root.
        cards: What nvidia-smi says.
    """

    lab: Any
    hosts: Hosts
    folder: Path
    root: Path
    environments: Path
    host: str
    cards: gpubox.GpuBox
    seen: set[str] = field(default_factory=set)

    def configure(self, *lines: str) -> None:
        """Write clusterfn.yml, and let it count."""
        extra = "\n".join([f"setup: ['export PATH={self.folder}/bin:$PATH']", *lines])
        path = self.hosts.describe(self.lab, self.folder / "clusterfn.yml", self.hosts.python, extra, (self.host,))
        own = f"root: {self.root}\n    env_root: {self.environments}\n"  # so that jobs can be counted
        path.write_text(path.read_text().replace(f"root: {self.hosts.root_name}\n", own))
        os.environ["CLUSTERFN_CONFIG"] = str(path)  # monkeypatch put it there

    def have(self, driver: str, capability: str = "8.6") -> None:
        """Put other cards in, and another driver."""
        state = self.cards.read()
        cards = [{**card, "compute_cap": capability} for card in state["cards"]]
        self.cards.write({**state, "driver_version": driver, "cards": cards})

    def chosen(self, gpus: int, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
        """The CUDA of the environment that a call would get, and why."""
        capsys.readouterr()
        assert main(["env", "lock", self.host, "--gpus", str(gpus)]) == 0
        out, why = capsys.readouterr()
        return out.splitlines()[1].split()[-1], why

    def submissions(self) -> int:
        """Batch jobs of this site, also those that slurmctld knew before: it forgets in five minutes."""
        told = self.lab.slurm.run("scontrol", "-o", "show", "job").stdout.splitlines()
        self.seen |= {line.split()[0] for line in told if str(self.root) in line}
        return len(self.seen)


@pytest.fixture(scope="module")
def _environments(lab) -> Iterator[Path]:
    """Two builds of PyTorch, which most of these tests need, are made there once."""
    folder = lab.home("bash") / f"cards-{secrets.token_hex(4)}"
    folder.mkdir()
    yield give_to("cfbash", folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def _cache(tmp_path_factory) -> Path:
    """Each of the two is solved once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def environments(_environments, _cache, monkeypatch) -> Path:
    """Their root, where nothing is known of cards yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(_cache))
    for known in [*_environments.glob("cards/*"), *_environments.glob("builds/*/runs-on-*")]:
        known.unlink()
    return _environments


@pytest.fixture
def folder(channel, tmp_path, monkeypatch) -> Path:
    """The working directory, with an environment.yml."""
    (tmp_path / "environment.yml").write_text(
        f"channels: [{channel.url}, nodefaults]\ndependencies: [python={MINOR}, pytorch=2.7.1]\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def slurm(lab, hosts, folder, environments, lab_root) -> Site:
    """SLURM's nodes with cards, and an nvidia-smi of this test's own."""
    site = Site(lab, hosts, lab_root, lab_root, environments, "slurm", gpubox.GpuBox(lab_root / "cards.json"))
    site.cards.reset()
    (site.root / "bin").mkdir()
    program = Path(shutil.which("nvidia-smi", path=str(lab.root / "hosts" / "tensor01" / "bin")) or "")
    copy = site.root / "bin" / "nvidia-smi"
    copy.write_text(program.read_text().replace(str(gpubox.STATE_FILE), str(site.cards.path)))
    copy.chmod(0o755)
    site.configure()
    return site


@pytest.fixture
def bare(lab, hosts, folder, environments, lab_root) -> Iterator[Site]:
    """tensor01."""
    site = Site(lab, hosts, lab_root, lab_root, environments, "tensor01", gpubox.GpuBox(gpubox.STATE_FILE))
    site.configure()
    with site.cards.kept():
        yield site


def call(host: str, **more: Any) -> Any:
    return cluster(host=host, gpus=1, environment="environment.yml", **more)(trained)


def test_nobody_knows_the_gpus_and_one_submission_tells(slurm, capsys):
    assert call("slurm")() == ("12.8", 4.0)

    assert slurm.submissions() == 1
    said = capsys.readouterr().err
    assert "driver 525.60.13" in said and "while they are unknown; the first job on a GPU checks it" in said
    told = json.loads((slurm.environments / "cards" / "gpu.json").read_text())
    assert (told["driver"], told["capabilities"], told["node"] in ("n1", "n2")) == (NEW, ["8.6"], True)
    cuda, why = slurm.chosen(1, capsys)
    assert cuda == "12.8" and f"the last job saw on {told['node']}" in why
    assert call("slurm")() == ("12.8", 4.0)
    assert slurm.submissions() == 2


@pytest.mark.long
def test_a_submitted_job_says_it_and_the_next_one_is_right(slurm):
    slurm.have(OLD)

    error = call("slurm").submit().exception(150)

    assert isinstance(error, EnvironmentBuildError) and error.stage == "cards"
    told = str(error)
    assert "does not run on the GPUs of n" in told and OLD in told and "8.6" in told and "call again" in told
    assert call("slurm").submit().result(150) == ("11.8", 4.0)
    assert slurm.submissions() == 2

    slurm.have(TOO_OLD)  # what has run on a node before is asked again under another driver
    assert call("slurm").submit().exception(150).stage == "cards"


def test_gpus_without_code_are_named_with_what_the_build_has(slurm):
    slurm.have(NEW, "7.0")

    with pytest.raises(EnvironmentBuildError) as caught:
        call("slurm")()

    told = str(caught.value)
    assert "no kernel image" in told and "compute capability 7.0" in told and "sm_75" in told
    assert "pin cuda-version" in told
    assert slurm.submissions() == 1


@pytest.mark.parametrize("driver, gpus, cuda", [(NEW, 1, "12.8"), (OLD, 1, "11.8"), (NEW, 0, "12.8")])
def test_on_a_bare_host_the_driver_is_read_beforehand(bare, driver, gpus, cuda, capsys):
    bare.have(driver)

    chosen, why = bare.chosen(gpus, capsys)

    assert chosen == cuda and (f"tensor01: CUDA {cuda}" in why) == (gpus > 0)  # a lock for GPUs fits calls without, too
