"""How a host is told to uv, which wheel is best, what an environment is made of, and downloads that end together."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.builder.progress import BuildFailed
from clusterfn.config.spec import Host
from clusterfn.environment import conda_solver, download, package_sources, resolve, uv
from clusterfn.environment.lock import EnvironmentLock, LockedPackage
from clusterfn.environment.uv import file_rank, wheel_tags
from clusterfn.errors import EnvironmentBuildError, LockError
from tests.unit.environment.shelf import HOST, Shelf
from tests.unit.environment.test_found_wheels import ARM
from tests.waiting import WAIT_S


@pytest.mark.parametrize(
    ("glibc", "expected"),
    [("", 17), ("2.17", 17), ("2.27", 17), ("2.28", 28), ("2.30", 28), ("2.31", 31), ("2.39", 39), ("2.43", 40)],
)
def test_a_glibc_that_uv_does_not_know_becomes_an_older_one(glibc: str, expected: int):
    assert uv.platform_of(replace(HOST, glibc=glibc)) == f"x86_64-manylinux_2_{expected}"
    assert uv.platform_of(replace(ARM, glibc=glibc)) == f"aarch64-manylinux_2_{expected}"


@pytest.mark.parametrize("target", [replace(HOST, glibc="2.12"), replace(HOST, platform="linux-ppc64le")])
def test_a_host_that_uv_knows_nothing_of_is_refused_with_another_way(target):
    with pytest.raises(LockError, match="uv resolves nothing for") as caught:
        uv.platform_of(target)
    assert "environment.yml" in (caught.value.hint or "")


def test_the_rank_of_a_wheel():
    best_last = [
        "x-1.tar.gz", "x-1-py3-none-any.whl", "x-1-py3-none-manylinux1_x86_64.whl",
        "x-1-py3-none-manylinux2014_x86_64.whl", "x-1-cp38-abi3-manylinux_2_28_x86_64.whl",
        "x-1-cp39-abi3-manylinux_2_17_x86_64.whl", "x-1-cp311-cp311-linux_x86_64.whl",
        "x-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "x-1-2-cp311-cp311-manylinux_2_17_x86_64.whl",
    ]  # fmt: skip
    tags = wheel_tags("3.11", "x86_64-manylinux_2_28")
    assert sorted(best_last, key=lambda file: file_rank(file, tags)) == best_last
    assert file_rank("x-1-cp311-cp311-manylinux_2_34_x86_64.whl", tags) < file_rank("x-1.tar.gz", tags)


def test_without_uv_it_is_said_what_to_install(shelf: Shelf, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(shelf.folder))

    with pytest.raises(LockError, match="there is no uv") as caught:
        uv.find_uv()

    assert caught.value.hint == "pip install 'uv>=0.12,<1'"


@pytest.fixture(autouse=True)
def condarc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's .condarc, which is not there yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CONDARC", str(tmp_path / "condarc"))
    return tmp_path / "condarc"


def channels(*packages: str) -> tuple[str, ...]:
    return resolve.read_specification(None, packages).channels


def test_those_of_condarc_in_its_place(condarc: Path):
    condarc.write_text("channels: [https://mirror.example/main, nodefaults]\n")

    assert channels("numpy") == ("https://mirror.example/main",)
    assert channels("numpy", "bioconda::samtools") == ("https://mirror.example/main", "bioconda")


def test_no_channel_that_no_package_names():
    assert channels("file:///c::python=3.11", "file:///c::numpy", "pip:rich") == ("file:///c",)
    assert channels("file:///c::numpy", "six") == ("conda-forge", "file:///c")
    assert channels("pip:rich") == ("conda-forge",)


@pytest.mark.parametrize(("file", "is_shared"), [("gift-2.5-py3-none-any.whl", True), ("gift-2.5.tar.gz", False)])
def test_hosts_that_share_a_root_share_no_environment_for_which_one_has_built_a_wheel(file: str, is_shared: bool):
    gift = LockedPackage("gift", "2.5", "pip", f"https://e.example/{file}", "a" * 64, "linux-64")
    lock, host = EnvironmentLock(Path("x.lock"), (gift,), ("linux-64",)), Host("a", "a", "bare", "clusterfn.yml:2")

    old, new = (
        resolve.LockedEnvironment("x", lock, "linux-64", "/root", host, glibc=each) for each in ("2.28", "2.36")
    )

    assert (old.id == new.id) is is_shared


def test_a_download_that_runs_ends_when_another_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begun, ended = threading.Event(), []

    def fetch(package: Any, target: str, moved: Any) -> None:
        if package.name == "gone":
            begun.wait(WAIT_S)
            raise BuildFailed("gone cannot be fetched: HTTP 404", stage="fetch")
        due = time.monotonic() + WAIT_S
        try:
            while time.monotonic() < due:
                begun.set()
                moved(1)
                time.sleep(0.01)
        except CancelledError:
            ended.append(package.name)
            raise

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(download.builders, "fetch_archive", fetch)
    packages = [LockedPackage(name, "1", "pip", f"https://x.example/{name}.whl", name * 8, "linux-64")
                for name in ("gone", "large")]  # fmt: skip

    with pytest.raises(EnvironmentBuildError, match="HTTP 404"):
        list(download.download_packages(packages, lambda *_: None))
    assert ended == ["large"]


def test_two_hosts_that_need_a_package_at_the_same_moment_share_its_download(tmp_path, monkeypatch):
    begun, both = list[str](), threading.Barrier(2)

    def fetch(package, beside, moved):
        begun.append(beside)
        time.sleep(0.2)
        Path(beside).touch()

    def get(_):
        both.wait(WAIT_S)
        return list(download.download_packages([package], lambda *_: None))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(download.builders, "fetch_archive", fetch)
    package = LockedPackage("large", "1", "pip", "https://x.example/large.whl", "ab" * 32, "linux-64")
    with ThreadPoolExecutor(2) as hosts:
        one, other = hosts.map(get, range(2))
    assert one == other and len(begun) == 1


RC = {
    "channel_alias": "https://mirror.example/",
    "custom_channels": {"secret": "https://inside.example/channels"},
    "custom_multichannels": {"ours": ["secret", "https://x.example/y"]},
    "default_channels": ["https://d.example/main"],
}


@pytest.mark.parametrize(
    ("name", "urls"),
    [
        ("conda-forge", ["https://mirror.example/conda-forge"]),
        ("secret/label/dev", ["https://inside.example/channels/secret/label/dev"]),
        ("ours", ["https://inside.example/channels/secret", "https://x.example/y"]),
        ("defaults", ["https://d.example/main"]),
        ("https://z.example/c", ["https://z.example/c"]),
        ("/srv/channel", ["file:///srv/channel"]),
    ],
)
def test_where_a_channel_is(name: str, urls: list[str]):
    assert package_sources.channel_urls(name, RC) == urls


def test_without_condarc_channels_are_where_everybody_has_them():
    assert package_sources.channel_urls("conda-forge", {}) == ["https://conda.anaconda.org/conda-forge"]
    assert package_sources.channel_urls("defaults", {}) == [
        "https://repo.anaconda.com/pkgs/main",
        "https://repo.anaconda.com/pkgs/r",
    ]


def test_later_files_count_and_unreadable_ones_do_not(tmp_path: Path):
    first, broken, last = (tmp_path / name for name in ("first", "broken", "last"))
    first.write_text("channels: [a]\nchannel_alias: https://a.example\n")
    broken.write_text("channels: [")
    last.write_text("channels: [b, nodefaults]\nproxy_servers: {https: 'http://p.example:3128'}\n")

    found = package_sources.read_condarc([first, broken, tmp_path / "missing", last])

    assert package_sources.channels(found) == ("b",)
    assert found["channel_alias"] == "https://a.example"
    assert package_sources.conda_proxies(found) == {"HTTPS_PROXY": "http://p.example:3128"}


@pytest.mark.parametrize(
    ("given", "public"),
    [
        ("https://ada:secret@x.org/t/tk-1/c/linux-64/y-1-0.conda", "https://x.org/c/linux-64/y-1-0.conda"),
        ("https://x.org/t/tk-1/t/linux-64/y-1-0.conda", "https://x.org/t/linux-64/y-1-0.conda"),  # a channel "t"
        ("https://x.org/of/t/linux-64/y-1-0.conda", "https://x.org/of/t/linux-64/y-1-0.conda"),
        ("file:///srv/t/linux-64/y-1-0.conda", "file:///srv/t/linux-64/y-1-0.conda"),
        ("conda-forge", "conda-forge"),
    ],
)
def test_an_address_in_a_lock_has_neither_password_nor_token(given: str, public: str):
    assert conda_solver.public(given) == public


def test_of_credentials_for_one_server_the_nearest_count_and_of_these_the_first():
    known = [("", f"https://{user}@e.example/{path}") for user, path in (("a", "x"), ("b", "x/y"), ("c", "x/y"))]

    assert package_sources.with_credentials("https://e.example/x/y/z.whl", known) == "https://b@e.example/x/y/z.whl"
    assert package_sources.with_credentials("http://e.example/x/y/z.whl", known) == "", "never without TLS"
