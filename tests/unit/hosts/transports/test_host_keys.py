"""known_hosts, read strictly."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from pathlib import Path

import pytest

from tests.unit.hosts.transports.desk import KIND, NEW, Desk, fits

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
        ("[lab8]:2222", True),
        ("lab8", False),
        ("other,[lab8]:2222", True),
        ("[*]:2222", True),
        ("[lab?]:2222", True),
        ("[*]:2222,![lab8]:2222", False),
        (hashed("[lab8]:2222"), True),
        (hashed("lab8"), False),
        ("|1|broken", False),
    ],
)
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
