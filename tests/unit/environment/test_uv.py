"""How a host is told to uv, and which of the wheels that it names is the best."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterfn.environment import uv
from clusterfn.environment.uv import file_rank, wheel_tags
from clusterfn.errors import LockError
from tests.unit.environment.shelf import HOST, Shelf
from tests.unit.environment.test_found_wheels import ARM


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
