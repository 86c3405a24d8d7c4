"""PyTorch itself, as a wheel, in an environment that was locked here and made on the Python 3.6 host."""

from __future__ import annotations

import pwd
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn import cluster
from tests.e2e.conftest import MINOR, Hosts, give_to

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
TORCH = "2.13.0"


@pytest.fixture
def project(lab: Any, hosts: Hosts, channel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an environment.yml, and a root of environments that is empty."""
    found = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path / "wheel"), f"torch=={TORCH}"],
        capture_output=True, check=False,
    )  # fmt: skip
    wheels = list((tmp_path / "wheel").glob("*.whl"))
    if found.returncode or wheels[0].stat().st_size > 400 << 20:
        pytest.skip(f"pip finds no torch {TORCH} without CUDA on this machine")
    root = Path(pwd.getpwnam("cfbash").pw_dir) / f"torch-{secrets.token_hex(4)}"
    root.mkdir(mode=0o700)
    give_to("cfbash", root)
    (tmp_path / "environment.yml").write_text(
        f"channels: [{channel.url}, nodefaults]\ndependencies:\n  - python={MINOR}\n  - pip:\n"
        f"    - --find-links wheel\n    - torch=={TORCH}\n"
    )
    monkeypatch.chdir(tmp_path)
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, f"env_root: {root}", ("tensor01",))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    yield tmp_path
    shutil.rmtree(root, ignore_errors=True)


def report() -> list[float]:
    import torch

    print(f"VERSION:{torch.__version__}, CUDA:{torch.cuda.is_available()}")
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    print(f"RESULT:{(a + b).tolist()}")
    return (a + b).tolist()


report.__module__ = "__main__"


@pytest.mark.long
def test_the_report_comes_from_inside_a_locked_environment(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = cluster(host="tensor01", environment="environment.yml", memory="4GB")(report)()

    said = capsys.readouterr().out
    assert f"VERSION:{TORCH}" in said and "CUDA:False" in said
    assert "RESULT:[4.0, 6.0]" in said
    assert result == [4.0, 6.0]
    assert f"torch-{TORCH}" in (project / "environment.conda-lock.yml").read_text()
