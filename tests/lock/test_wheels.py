"""The pip section: indexes and folders that uv is configured for, tags of wheels, and what conda brings already."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn import LockError
from tests.lock.conftest import HOST, Bench, make_index, make_wheel, names, sha256

pytestmark = pytest.mark.lab


def test_a_wheel_of_an_index_in_a_folder_is_locked_by_its_hash_and_own_address(bench: Bench, uv_toml: Path):
    wheel = make_wheel(bench.folder / "wheels", "toywheel")
    uv_toml.write_text(f'index-url = "{make_index(bench.folder / "simple", wheel)}"\n')

    lock = bench.lock("  - python\n  - pip:\n    - toywheel\n", HOST)

    assert names(lock, "pip") == {"toywheel": "1.0"}
    locked = next(each for each in lock.packages if each.manager == "pip")
    assert (locked.sha256, locked.url) == (sha256(wheel), wheel.as_uri())
    assert "pip" in names(lock)


def test_a_wheel_that_was_made_again_is_not_remembered_as_it_was(bench: Bench, uv_toml: Path):
    uv_toml.write_text(f'no-index = true\nfind-links = ["{bench.folder / "wheels"}"]\n')
    for requires in ("", "othertoy"):
        wheel = make_wheel(bench.folder / "wheels", "toywheel", requires=requires)
        make_wheel(bench.folder / "wheels", "othertoy")
        lock = bench.lock("  - pip:\n    - toywheel\n")
        lock.path.unlink()

    assert {each.name: each.sha256 for each in lock.packages}["toywheel"] == sha256(wheel)
    assert "othertoy" in names(lock, "pip")


def test_what_conda_brings_under_another_name_is_not_fetched_as_a_wheel_too(bench: Bench, uv_toml: Path):
    make_wheel(bench.folder / "wheels", "toywheel", requires="torch >=2")
    make_wheel(bench.folder / "wheels", "torch", "2.7.1")
    uv_toml.write_text(f'no-index = true\nfind-links = ["{bench.folder / "wheels"}"]\n')

    lock = bench.lock("  - pytorch\n  - pip:\n    - toywheel\n")

    assert names(lock, "pip") == {"toywheel": "1.0"}


def test_a_wheel_that_uvs_own_settings_lack_is_looked_for_nowhere_else(bench: Bench, uv_toml: Path):
    uv_toml.write_text("no-index = true\n")

    with pytest.raises(LockError) as caught:
        bench.lock("  - pip:\n    - six ==1.17.0\n")

    assert "you require six==1.17.0" in " ".join(caught.value.evidence)


def test_what_builds_a_project_without_a_wheel_must_have_wheels_in_the_same_places(bench: Bench, uv_toml: Path):
    folder = bench.folder / "sources"
    folder.mkdir()
    make_source(folder)
    uv_toml.write_text(f'no-index = true\nfind-links = ["{folder}"]\n')

    with pytest.raises(LockError) as caught:
        bench.lock("  - pip:\n    - toysource\n")
    assert "there is no solution for what builds toysource 1.0" in caught.value.message

    for tool in ("pip", "setuptools", "wheel"):
        make_wheel(folder, tool)
    lock = bench.lock("  - pip:\n    - toysource\n")
    toy = next(each for each in lock.packages if each.name == "toysource")
    # conda's Python brings the others: what builds has them, too
    assert toy.is_source and {each.name for each in toy.builds_with} <= {"pip", "setuptools", "wheel"}


def make_source(folder: Path) -> None:
    import io
    import tarfile

    texts = {
        "PKG-INFO": "Metadata-Version: 2.2\nName: toysource\nVersion: 1.0\n",
        "setup.py": "from setuptools import setup\nsetup(name='toysource', version='1.0')\n",
    }
    with tarfile.open(folder / "toysource-1.0.tar.gz", "w:gz") as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"toysource-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
