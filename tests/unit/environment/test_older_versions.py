"""A package that is only there as source: no other one goes years back, or before its release, because of it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lock.conftest import make_wheel
from tests.unit.environment.shelf import Shelf, shelf_in


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """As hydra-core is: its releases want a package that is only there as source."""
    with shelf_in(tmp_path, monkeypatch) as made:
        made.wheel("core", "0.11")
        made.wheel("core", "1.3", requires="parser==4.9")
        made.wheel("core", "1.4rc1", requires="parser==4.11")
        made.wheel("parser", "4.11")
        made.wheel("through", requires="core")
        made.wheel("limited", requires="core<1")
        with tarfile.open(made.folder / "parser-4.9.tar.gz", "w:gz") as archive:
            text = b"Metadata-Version: 2.2\nName: parser\nVersion: 4.9\n"
            member = tarfile.TarInfo("parser-4.9/PKG-INFO")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
        yield made


@pytest.mark.parametrize(
    "line, instead",
    [
        ("core", "core 0.11 instead of 1.3"),
        ("through", "core 0.11 instead of 1.3"),
        ("core>=1.3", "core 1.4rc1, which is no release"),
    ],
)
def test_the_lock_stops_and_names_what_has_no_wheel(shelf: Shelf, line: str, instead: str):
    shelf.write(f"{line}\n", "requirements.txt")

    error = shelf.refusal("requirements.txt")

    assert f"uv would take {instead}" in error.message
    assert "parser" in " ".join(error.evidence)
    assert "`pip wheel --no-deps 'parser==4." in (error.hint or "") and "--find-links wheels" in (error.hint or "")


def test_a_wheel_that_the_user_has_built_lets_the_newest_in(shelf: Shelf):
    make_wheel(shelf.project / "wheels", "parser", "4.9")
    shelf.write("--find-links wheels\ncore\n", "requirements.txt")

    assert shelf.found("requirements.txt") == {"core": "1.3", "parser": "4.9"}


@pytest.mark.parametrize(
    "line, version",
    [
        ("core==0.11", "0.11"), ("core<1", "0.11"), ("limited", "0.11"), ("core==1.4rc1", "1.4rc1"),
        ("--pre\ncore", "1.4rc1"),
    ],
)  # fmt: skip
def test_an_old_version_that_is_wanted_is_taken(shelf: Shelf, line: str, version: str):
    shelf.write(f"{line}\n", "requirements.txt")

    assert shelf.found("requirements.txt")["core"] == version
