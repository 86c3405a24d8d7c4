"""Each hint about a host key, followed to the letter, leads to a key that is accepted: whatever the ssh config says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterfn import ConfigError
from tests.unit.hosts.transports.desk import Desk


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
def test_a_file_that_cannot_be_written_is_named(
    desk: Callable[[str], Desk], spoil: Callable[[Desk], None], mend: Callable[[Path], None]
):
    user = desk("UserKnownHostsFile KNOWN")
    spoil(user)

    with pytest.raises(ConfigError, match=f"{user.known} cannot be written"):
        user.trust()
    mend(user.known)
    user.trust()
    assert user.is_accepted()
