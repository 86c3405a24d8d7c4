"""Locks of packages that a call names, for the GPUs of its host, and the passwords that stay with the user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterfn import LockError
from clusterfn.config.spec import Host
from clusterfn.environment import environment_files, resolve, torch_build
from clusterfn.environment.package_sources import with_credentials
from clusterfn.environment.packages import from_packages
from clusterfn.environment.solver import lock_for
from clusterfn.environment.torch_build import GpuCapabilities
from tests.lab.channel import Channel
from tests.lock.conftest import HOST, Bench, make_index, make_wheel, names

pytestmark = pytest.mark.lab


def test_packages_are_locked_in_the_users_cache_from_where_condarc_says(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_solver
):
    condarc = tmp_path / "condarc"
    condarc.write_text(f"custom_multichannels:\n  conda-forge: [{channel.url}]\n")
    monkeypatch.setenv("CONDARC", str(condarc))
    said: list[str] = []
    spec = from_packages(["numpy>=2", "python=3.12"])

    lock = lock_for(spec, HOST, said.append)

    assert names(lock)["numpy"] == "2.1.3 py312h0123456_0"
    assert lock.path.is_relative_to(os.environ["XDG_CACHE_HOME"])
    no_solver()
    assert lock_for(spec, HOST, said.append) == lock
    assert any(each.endswith("no GPU): they have not been locked before") for each in said), "no name of a cache"


def test_a_password_of_condarc_stays_here(channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rc, file = tmp_path / "condarc", tmp_path / "environment.yml"
    monkeypatch.setenv("CONDARC", str(rc))
    monkeypatch.setenv("LOGIN", "ada")
    file.write_text("dependencies:\n  - six\n")
    said: list[str] = []
    with channel.served() as served:
        rc.write_text(f"channels: [{served.url.replace('http://', 'http://ada:hidden@')}]\n")
        lock = lock_for(environment_files.read_file(file), HOST, said.append)

    assert "hidden" not in lock.path.read_text() + "".join(said)
    addresses = [each.url for each in lock.packages if each.manager == "conda"]
    assert addresses and all(url.startswith(served.url) for url in addresses)
    assert with_credentials(addresses[0], ()) == addresses[0].replace("http://", "http://ada:hidden@")
    rc.write_text(f"channels: [{served.url.replace('/main', '/t/to-ken/main')}]\n")
    assert with_credentials(addresses[0], ()) == addresses[0].replace("/main/", "/t/to-ken/main/")
    rc.write_text("channels: ['https://a:$LOGIN@x.org/a', https://x.org/t/1/orgA, https://x.org/t/2/orgB]\n")
    of_channels = [with_credentials(f"https://x.org/{path}", ()) for path in ("orgB/y.conda", "orgA/y", "a/y")]
    assert of_channels == [
        f"https://{each}" for each in ("x.org/t/2/orgB/y.conda", "x.org/t/1/orgA/y", "a:ada@x.org/a/y")
    ]
    monkeypatch.setenv("UV_INDEX", "https://b:1@x.org/projects/1/simple https://b:2@x.org/projects/2/simple")
    assert with_credentials("https://x.org/projects/2/files/y", ()) == "https://b:2@x.org/projects/2/files/y"


def test_the_users_index_decides_on_the_build_and_the_reason_names_it(bench: Bench, uv_toml: Path):
    index = make_index(bench.folder / "whl" / "cu118", make_wheel(bench.folder / "wheels", "torch", "2.7.1+cu118"))
    usual = make_index(bench.folder / "simple", make_wheel(bench.folder / "wheels", "torch", "2.14.0"))
    uv_toml.write_text(f'index-url = "{usual}"\n')

    made = locked_for_gpus(bench, f"    - --index-url {index}\n    - torch\n")

    assert names(made.lock, "pip") == {"torch": "2.7.1+cu118"}
    assert made.why.startswith("CUDA 11.8 for PyTorch 2.7.1+cu118: driver 595.45.04")


def test_a_build_that_no_index_has_is_answered_with_the_index_to_name(bench: Bench, uv_toml: Path):
    uv_toml.write_text(f'index-url = "{make_index(bench.folder, make_wheel(bench.folder, "torch", "2.7.1"))}"\n')

    with pytest.raises(LockError) as caught:
        locked_for_gpus(bench, "    - torch==2.7.1+cu118\n")

    assert "--extra-index-url https://download.pytorch.org/whl/cu118" in (caught.value.hint or "")


CARDS = GpuCapabilities("595.45.04", ("8.6",), "nvidia-smi says on tensor01")


def locked_for_gpus(bench: Bench, wheels: str) -> resolve.LockedEnvironment:
    """The environment of a `pip:` section for the GPUs of a new driver."""
    return locked_on(bench, f"  - pip:\n{wheels}", CARDS, CARDS)


def locked_on(
    bench: Bench, dependencies: str, wanted: GpuCapabilities | None, there: GpuCapabilities | None
) -> resolve.LockedEnvironment:
    """The environment of a call that asks for these GPUs, on a host that has those."""
    spec = environment_files.read_file(bench.write(f"dependencies:\n{dependencies}"))
    facts = {"platform": "linux-x86_64", "glibc": "2.28", "root": "/root"}
    host = Host("tensor01", "tensor01", "bare", "clusterfn.yml:2")
    return resolve.resolve_environment(spec, host, facts, wanted, (3, 11), bench.said.append, lambda: there)


@pytest.mark.parametrize(
    ("there", "build", "solves"),
    [
        (CARDS, "cuda128", 1),
        (torch_build.UNKNOWN_GPUS, "cuda128", 1),  # CUDA 12.8 runs on any driver for CUDA 12
        (None, "cpu", 2),  # another host has the GPUs
    ],
)
def test_condas_pytorch_is_one_for_calls_with_gpus_and_without(
    bench: Bench, there: GpuCapabilities | None, build: str, solves: int
):
    first = locked_on(bench, "  - pytorch\n", None, there)
    second = locked_on(bench, "  - pytorch\n", CARDS, CARDS)

    assert names(first.lock)["pytorch"].startswith(f"2.7.1 {build}")
    assert names(second.lock)["pytorch"].startswith("2.7.1 cuda128")
    assert sum("solving" in line for line in bench.said) == solves
    assert locked_on(bench, "  - pytorch\n", None, there).lock == second.lock
