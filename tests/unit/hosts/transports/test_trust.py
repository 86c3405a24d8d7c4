"""What is written to known_hosts, and what is taken out of it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, HostKeyError
from clusterfn.hosts.transports import host_keys, trust
from clusterfn.hosts.transports.ssh_config import Settings, resolve
from clusterfn.hosts.transports.trust import HostKeys, ShownKey

HOST = Host("lab8", "lab8:2222", "bare", "clusterfn.yml:3")
NAME, KIND = "[lab8]:2222", "ssh-ed25519"
NEW, OLD = ShownKey(KIND, b"new"), base64.b64encode(b"old").decode()
NEW_LINE = f"{NAME} {KIND} {base64.b64encode(b'new').decode()}\n"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "config").touch()
    found = resolve(HOST._replace(ssh_config=str(tmp_path / "config")))
    mine, everybody = tmp_path / "ssh/known_hosts", tmp_path / "global"
    return found._replace(user_known_hosts=(mine,), known_hosts=(mine, everybody), hash_known_hosts=False)


def remember(settings: Settings) -> Path:
    entries = host_keys.known_keys(settings.key_name, settings.known_hosts)
    return trust.write_known_hosts(HOST, HostKeys(settings, (NEW,), tuple(entries)), [NEW])


def written(settings: Settings, text: str) -> str:
    """What becomes of a known_hosts file."""
    file = settings.user_known_hosts[0]
    file.parent.mkdir()
    file.write_text(text)
    remember(settings)
    return file.read_text()


def test_the_file_is_made_for_its_owner_alone(settings: Settings) -> None:
    file = remember(settings)

    assert file.read_text() == NEW_LINE
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("before", ["", "# mine\n", "other ssh-rsa AAAA"])
def test_what_was_there_stays(settings: Settings, before: str) -> None:
    assert written(settings, before) == (before.rstrip("\n") + "\n" if before else "") + NEW_LINE


def test_a_hashed_name_tells_nothing_and_fits(settings: Settings) -> None:
    file = remember(settings._replace(hash_known_hosts=True))

    assert file.read_text().startswith("|1|")
    assert "lab8" not in file.read_text()
    host_keys.check(settings, "lab8", KIND, b"new")


@pytest.mark.parametrize(
    ("before", "left"),
    [
        (f"{NAME} {KIND} {OLD}\n", ""),
        (f"a {KIND} {OLD}\n{NAME} ssh-rsa {OLD} c\nb {KIND} {OLD}\n", f"a {KIND} {OLD}\nb {KIND} {OLD}\n"),
        (f"a,{NAME},b {KIND} {OLD} c\n", f"a,b {KIND} {OLD} c\n"),
    ],
)
def test_what_was_remembered_gives_way(settings: Settings, before: str, left: str) -> None:
    assert written(settings, before) == left + NEW_LINE
    assert settings.user_known_hosts[0].with_name("known_hosts.old").read_text() == before


def test_a_hashed_line_gives_way(settings: Settings) -> None:
    file = remember(settings._replace(hash_known_hosts=True))
    assert file.read_text().startswith("|1|")

    remember(settings)
    assert file.read_text() == NEW_LINE


@pytest.mark.parametrize("names", ["[*]:2222", f"[l*]:2222,{NAME}"])
def test_a_pattern_is_not_ours_to_change(settings: Settings, names: str) -> None:
    before = f"{names} {KIND} {OLD}\n"

    with pytest.raises(HostKeyError, match="known_hosts:1 has another key for lab8:2222"):
        written(settings, before)
    assert settings.user_known_hosts[0].read_text() == before


def test_the_file_of_all_users_is_not_ours_to_change(settings: Settings) -> None:
    settings.known_hosts[1].write_text(f"{NAME} {KIND} {OLD}\n")

    with pytest.raises(HostKeyError, match="global:1 has another key"):
        remember(settings)
    assert not settings.user_known_hosts[0].exists()


def test_without_a_file_of_ones_own_nothing_can_be_remembered(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="keeps no host keys"):
        remember(settings._replace(user_known_hosts=()))


def test_a_link_stays_a_link(settings: Settings, tmp_path: Path) -> None:
    file = settings.user_known_hosts[0]
    file.parent.mkdir()
    (tmp_path / "real").write_text(f"{NAME} {KIND} {OLD}\n")
    file.symlink_to(tmp_path / "real")

    remember(settings)

    assert file.is_symlink()
    assert (tmp_path / "real").read_text() == NEW_LINE
