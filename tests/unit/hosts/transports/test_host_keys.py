"""Host keys: known_hosts, read strictly; what is written to it and taken out; hints that lead to an accepted key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterfn import ConfigError, HostKeyError
from tests.unit.hosts.transports.desk import KIND, NEW, OLD, Desk, fits

KEY, OTHER = NEW.blob, b"other"


def line(name: str, blob: bytes, kind: str = KIND, marker: str = "") -> str:
    return f"{marker} {name} {kind} {base64.b64encode(blob).decode()} comment\n".lstrip()


def hashed(name: str) -> str:
    salt = b"0123456789abcdef0123"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture
def user(tmp_path: Path) -> Desk:
    return Desk(tmp_path, "UserKnownHostsFile KNOWN FOLDER/nowhere\nGlobalKnownHostsFile none\nPort 2222")


def remember(user: Desk, *lines: str) -> None:
    damaged = "# a comment\n\nbroken\n* ssh-rsa \u00e4\u00e4\u00e4\u00e4\n* ssh-rsa AAA\n|1|\u00e4|= ssh-rsa AAAA\n"
    user.known.parent.mkdir(exist_ok=True)
    user.known.write_text(damaged + "".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ("[lab8]:2222", True), ("lab8", False), ("other,[lab8]:2222", True), ("[*]:2222", True), ("[lab?]:2222", True),
        ("[*]:2222,![lab8]:2222", False), (hashed("[lab8]:2222"), True), (hashed("lab8"), False), ("|1|broken", False),
    ],
)  # fmt: skip
def test_the_first_field_is_a_name_patterns_or_a_hash(patterns: str, found: bool) -> None:
    assert fits(patterns, "[lab8]:2222") is found


AUTHORITY = line("*", KEY, marker="@cert-authority")
REVOKED = line("*", KEY, marker="@revoked")


@pytest.mark.parametrize(
    "lines",
    [
        [line("elsewhere", OTHER), line("[lab8]:2222", KEY)],
        [line("elsewhere", OTHER), line(hashed("[lab8]:2222"), KEY)],
        [line("*", OTHER, marker="@cert-authority"), line("[lab8]:2222", KEY)],
    ],
    ids=["a name", "a hash", "beside an authority"],
)
def test_the_remembered_key_is_taken(user: Desk, lines: list[str]) -> None:
    remember(user, *lines)

    assert user.is_accepted()


ASK = "run on that machine itself), then: clusterfn trust lab8 (or by ssh: ssh -o StrictHostKeyChecking=ask"


@pytest.mark.parametrize(
    ("lines", "words", "told"),
    [
        ([line("lab8", KEY)], "is unknown", ASK),
        ([line("elsewhere", KEY)], "is unknown", ASK),
        ([line("[lab8]:2222", OTHER)], "has changed", "known_hosts:7"),
        ([line("[lab8]:2222", OTHER, kind="ssh-rsa")], "has changed", "known_hosts:7"),
        ([line("[lab8]:2222", KEY), REVOKED], "is revoked in", ""),
        ([AUTHORITY], "is unknown", ASK),
    ],
    ids=["without its port", "another name", "another key", "another kind", "revoked", "an authority alone"],
)
def test_any_other_key_is_rejected(user: Desk, lines: list[str], words: str, told: str) -> None:
    remember(user, *lines)

    said = str(user.refusal())

    assert words in said and told in said


@pytest.mark.parametrize(
    ("kind", "file"), [("ssh-ed25519", "ed25519"), ("ecdsa-sha2-nistp256", "ecdsa"), ("ssh-rsa", "rsa")]
)
def test_an_unknown_key_names_the_file_whose_fingerprint_it_must_have(user: Desk, kind: str, file: str) -> None:
    error = user.refusal(kind)

    assert f"ssh-keygen -lf /etc/ssh/ssh_host_{file}_key.pub" in (error.hint or "")
    assert "ssh-keyscan" not in str(error)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("*a" * 2000, "a" * 5000 + "b", False), ("*a" * 200, "a" * 500, True), ("*", "", True), ("?", "", False),
        ("a*c*e", "abcde", True), ("a*c*e", "abcd", False), ("**a", "ba", True), ("!a,*", "a", False),
        ("a?", "a", False),
    ],
)  # fmt: skip
def test_no_pattern_takes_long(pattern: str, text: str, found: bool) -> None:
    assert fits(pattern, text) is found


def test_a_key_that_was_replaced_or_revoked_meanwhile_is_rejected(user: Desk) -> None:
    remember(user, line("[lab8]:2222", KEY))
    assert user.is_accepted()
    before = user.known.stat()

    remember(user, line("[lab8]:2222", KEY[::-1]))
    os.utime(user.known, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert user.known.stat().st_size == before.st_size
    assert "has changed" in user.refusal().message
    remember(user, line("[lab8]:2222", KEY), REVOKED)
    assert "is revoked" in user.refusal().message


LINES = "UserKnownHostsFile KNOWN\nGlobalKnownHostsFile FOLDER/global\nPort 2222"
NAME = "[lab8]:2222"
NEW_LINE = f"{NAME} {KIND} {base64.b64encode(NEW.blob).decode()}\n"


@pytest.fixture
def mine(tmp_path: Path) -> Desk:
    return Desk(tmp_path, LINES)


def written(mine: Desk, text: str) -> str:
    """What becomes of a known_hosts file."""
    mine.known.parent.mkdir()
    mine.known.write_text(text)
    mine.trust()
    return mine.known.read_text()


def test_the_file_is_made_for_its_owner_alone(mine: Desk) -> None:
    mine.trust()

    assert mine.known.read_text() == NEW_LINE
    assert (mine.known.stat().st_mode & 0o777, mine.known.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("before", ["", "# mine\n", "other ssh-rsa AAAA"])
def test_what_was_there_stays(mine: Desk, before: str) -> None:
    assert written(mine, before) == (before.rstrip("\n") + "\n" if before else "") + NEW_LINE


def test_a_hashed_name_tells_nothing_and_fits_and_gives_way(mine: Desk) -> None:
    mine.write(f"{LINES}\nHashKnownHosts yes")
    mine.trust()

    assert mine.known.read_text().startswith("|1|")
    assert "lab8" not in mine.known.read_text() and mine.is_accepted()
    mine.write(LINES)
    mine.trust()
    assert mine.known.read_text() == NEW_LINE


@pytest.mark.parametrize(
    ("before", "left"),
    [
        (f"{NAME} {KIND} {OLD}\n", ""),
        (f"a {KIND} {OLD}\n{NAME} ssh-rsa {OLD} c\nb {KIND} {OLD}\n", f"a {KIND} {OLD}\nb {KIND} {OLD}\n"),
    ],
)
def test_what_was_remembered_gives_way(mine: Desk, before: str, left: str) -> None:
    assert written(mine, before) == left + NEW_LINE
    assert mine.known.with_name("known_hosts.old").read_text() == before


def test_the_file_of_all_users_is_not_ours_to_change(mine: Desk, tmp_path: Path) -> None:
    (tmp_path / "global").write_text(f"{NAME} {KIND} {OLD}\n")

    with pytest.raises(HostKeyError, match="global:1 has another key"):
        mine.trust()
    assert not mine.known.exists()


def test_a_link_stays_a_link(mine: Desk, tmp_path: Path) -> None:
    mine.known.parent.mkdir()
    (tmp_path / "real").write_text(f"{NAME} {KIND} {OLD}\n")
    mine.known.symlink_to(tmp_path / "real")

    mine.trust()

    assert mine.known.is_symlink()
    assert (tmp_path / "real").read_text() == NEW_LINE


@pytest.fixture
def desk(tmp_path: Path) -> Callable[[str], Desk]:
    return lambda lines: Desk(tmp_path, lines)


@pytest.mark.parametrize(
    "lines",
    [
        "UserKnownHostsFile KNOWN",
        "UserKnownHostsFile KNOWN\nStrictHostKeyChecking no",
        "UserKnownHostsFile KNOWN /dev/null\nGlobalKnownHostsFile /dev/null",
        "UserKnownHostsFile /dev/null KNOWN\nGlobalKnownHostsFile none",
        "UserKnownHostsFile KNOWN\nHostKeyAlias cluster",
        "UserKnownHostsFile KNOWN\nHashKnownHosts yes",
        "UserKnownHostsFile KNOWN\nKnownHostsCommand /bin/true",
        "UserKnownHostsFile KNOWN\nPort 2222\nCheckHostIP no",
    ],
)
def test_where_a_key_can_be_kept_the_first_hint_is_to_trust_it(desk: Callable[[str], Desk], lines: str):
    user = desk(lines)

    hint = user.refusal().hint or ""

    assert "then: clusterfn trust lab8 (or by ssh: " in hint
    user.trust()
    assert user.is_accepted()


@pytest.mark.parametrize("value", [" /dev/null", " none", ' "/dev/null"', "=/dev/null"])
def test_a_configuration_that_keeps_no_keys_is_named(desk: Callable[[str], Desk], value: str):
    line = f"UserKnownHostsFile{value}"
    user = desk(f"  {line}\nStrictHostKeyChecking no")

    hint = user.refusal().hint or ""

    assert hint.startswith("the UserKnownHostsFile of your ssh configuration keeps no host keys: remove it, or write ")
    assert hint.endswith("; then clusterfn trust lab8 shows the fingerprint to compare")
    with pytest.raises(ConfigError, match="cannot be remembered"):
        user.trust()
    added = re.search("write `(.+?)`", hint)
    user.write(f"{added[1].replace('~/.ssh/known_hosts', 'KNOWN')}\n  {line}")  # above it, as the hint says
    user.trust()
    assert user.is_accepted()


def a_folder(user: Desk) -> None:
    user.known.mkdir(parents=True)


def below_a_file(user: Desk) -> None:
    user.known.parent.write_text("")


@pytest.mark.parametrize(("spoil", "mend"), [(a_folder, Path.rmdir), (below_a_file, lambda path: path.parent.unlink())])
def test_a_file_that_cannot_be_written_is_named(desk, spoil, mend):
    user = desk("UserKnownHostsFile KNOWN")
    spoil(user)

    with pytest.raises(ConfigError, match=f"{user.known} cannot be written"):
        user.trust()
    mend(user.known)
    user.trust()
    assert user.is_accepted()
