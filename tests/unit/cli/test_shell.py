"""How a shell is reached: by the system's ssh with a terminal, or at once on this machine."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from clusterfn.cli import shell
from clusterfn.config.spec import Host


def host_at(address: str) -> SimpleNamespace:
    return SimpleNamespace(settings=Host(name="tensor01", address=address, scheduler="bare", source="f:1"))


def test_on_this_machine_the_words_are_run_as_they_are():
    assert shell.terminal_command(host_at(""), ["python", "a b"]) == ["python", "a b"]


@pytest.mark.skipif(not shutil.which("ssh"), reason="there is no ssh")
def test_on_a_host_ssh_gets_a_terminal_and_the_words_are_quoted():
    command = shell.terminal_command(host_at("ada@127.0.0.1:2222"), ["python", "a b", ""])

    assert command[:2] == ["ssh", "-t"] and command[-1] == "python 'a b' ''"
    assert "2222" in " ".join(command)
