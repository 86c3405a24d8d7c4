"""What is written to known_hosts, and what is taken out of it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from clusterfn import HostKeyError
from tests.unit.hosts.transports.desk import KIND, NEW, OLD, Desk

LINES = "UserKnownHostsFile KNOWN\nGlobalKnownHostsFile FOLDER/global\nPort 2222"
NAME = "[lab8]:2222"
NEW_LINE = f"{NAME} {KIND} {base64.b64encode(NEW.blob).decode()}\n"


@pytest.fixture
def user(tmp_path: Path) -> Desk:
    return Desk(tmp_path, LINES)


def written(user: Desk, text: str) -> str:
    """What becomes of a known_hosts file."""
    user.known.parent.mkdir()
    user.known.write_text(text)
    user.trust()
    return user.known.read_text()


def test_the_file_is_made_for_its_owner_alone(user: Desk) -> None:
    user.trust()

    assert user.known.read_text() == NEW_LINE
    assert (user.known.stat().st_mode & 0o777, user.known.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("before", ["", "# mine\n", "other ssh-rsa AAAA"])
def test_what_was_there_stays(user: Desk, before: str) -> None:
    assert written(user, before) == (before.rstrip("\n") + "\n" if before else "") + NEW_LINE


def test_a_hashed_name_tells_nothing_and_fits_and_gives_way(user: Desk) -> None:
    user.write(f"{LINES}\nHashKnownHosts yes")
    user.trust()

    assert user.known.read_text().startswith("|1|")
    assert "lab8" not in user.known.read_text() and user.is_accepted()
    user.write(LINES)
    user.trust()
    assert user.known.read_text() == NEW_LINE


@pytest.mark.parametrize(
    ("before", "left"),
    [
        (f"{NAME} {KIND} {OLD}\n", ""),
        (f"a {KIND} {OLD}\n{NAME} ssh-rsa {OLD} c\nb {KIND} {OLD}\n", f"a {KIND} {OLD}\nb {KIND} {OLD}\n"),
    ],
)
def test_what_was_remembered_gives_way(user: Desk, before: str, left: str) -> None:
    assert written(user, before) == left + NEW_LINE
    assert user.known.with_name("known_hosts.old").read_text() == before


def test_the_file_of_all_users_is_not_ours_to_change(user: Desk, tmp_path: Path) -> None:
    (tmp_path / "global").write_text(f"{NAME} {KIND} {OLD}\n")

    with pytest.raises(HostKeyError, match="global:1 has another key"):
        user.trust()
    assert not user.known.exists()


def test_a_link_stays_a_link(user: Desk, tmp_path: Path) -> None:
    user.known.parent.mkdir()
    (tmp_path / "real").write_text(f"{NAME} {KIND} {OLD}\n")
    user.known.symlink_to(tmp_path / "real")

    user.trust()

    assert user.known.is_symlink()
    assert (tmp_path / "real").read_text() == NEW_LINE
