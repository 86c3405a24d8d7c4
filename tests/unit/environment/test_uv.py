"""How a host and pip's settings are told to uv, and which of the wheels that it names is the best."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterfn.environment import uv
from clusterfn.environment.package_sources import PipConfig
from clusterfn.environment.uv import file_rank, names_indexes, wheel_tags
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


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((False, False), {"UV_DEFAULT_INDEX": "https://m/simple", "UV_EXTRA_INDEX_URL": "https://b https://c"}),
        ((True, False), {"UV_DEFAULT_INDEX": "https://m/simple"}),
        ((False, True), {"UV_EXTRA_INDEX_URL": "https://b https://c"}),
        ((True, True), {}),
    ],
)
def test_pips_settings_count_where_uv_has_none(shelf: Shelf, own: tuple[bool, bool], expected: dict[str, str]):
    pip = PipConfig(("https://m/simple", "https://b", "https://c"), ("/wheels",), (("REQUESTS_CA_BUNDLE", "/ca.pem"),))

    found = uv.variables_with_indexes(pip, has_indexes=own[0], has_default=own[1])

    assert {name: value for name, value in found.items() if "INDEX" in name} == expected
    assert found["UV_FIND_LINKS"] == "/wheels"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("pyproject.toml", "[tool.uv]\n", (False, False)),
        ("pyproject.toml", '[[tool.uv.index]]\nurl = "https://a"\n', (True, False)),
        ("pyproject.toml", '[[tool.uv.index]]\nurl = "https://a"\ndefault = true\n', (False, True)),
        ("pyproject.toml", '[[tool.uv.index]]\nurl = "https://a"\nexplicit = true\n', (False, False)),
        ("pyproject.toml", '[tool.uv.pip]\nindex-url = "https://a"\n', (False, True)),
        ("uv.toml", 'extra-index-url = ["https://a"]\n', (True, False)),
        ("../uv.toml", '[[index]]\nurl = "https://a"\n', (True, False)),
    ],
)
def test_uvs_own_settings_are_known(shelf: Shelf, file: str, text: str, expected: tuple[bool, bool]):
    shelf.write(text, file)
    assert names_indexes(shelf.project) == expected
