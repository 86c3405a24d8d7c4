"""`clusterfn trust` against real sshds: what is shown, asked, written; and that ssh and paramiko then agree."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import main

pytestmark = pytest.mark.lab
SHOWN = re.compile(r"ssh-ed25519 (SHA256:\S+)")
Lines = Callable[..., Path]


@pytest.fixture
def hosts(lab: Any, ssh_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lines:
    """Makes clusterfn.yml with py36-bash, py38-bash and jumped, whose known_hosts is an empty one of its own; that."""

    def make(lines: str = "", before: str = "") -> Path:
        known, config = ssh_folder / "known_hosts", ssh_folder / "ssh_config"
        ours = re.sub("UserKnownHostsFile .*", f"UserKnownHostsFile {known}", Path(lab.ssh_config).read_text())
        config.write_text(f"{lines}\nMatch all\n{ours}")
        known.write_text(before)
        blocks = [
            f"  {alias}: {{scheduler: bare, ssh_config: {config}}}\n" for alias in ("py36-bash", "py38-bash", "jumped")
        ]
        (tmp_path / "clusterfn.yml").write_text("hosts:\n" + "".join(blocks))
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
        return known

    return make


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes stdin a terminal at which these lines are typed."""

    def make(typed: str) -> None:
        lines = io.StringIO(typed)
        lines.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdin", lines)

    return make


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))


def fingerprint(lab: Any, port: int) -> str:
    """As ssh-keyscan and ssh-keygen know it."""
    scanned = subprocess.run(["ssh-keyscan", "-T", "60", "-p", str(port), "127.0.0.1"], capture_output=True, check=True)
    listed = subprocess.run(["ssh-keygen", "-lf", "-"], input=scanned.stdout, capture_output=True, check=True)
    return listed.stdout.decode().split()[1]


def ssh_agrees(known: Path, alias: str) -> bool:
    argv = ["ssh", "-F", str(known.with_name("ssh_config")), "-o", "BatchMode=yes", alias, "true"]
    return subprocess.run(argv, capture_output=True, timeout=150, check=False).returncode == 0


def test_yes_at_a_terminal_writes_the_key(hosts: Lines, terminal: Any, lab: Any, capsys: Any) -> None:
    known = hosts()
    terminal("y\n")

    assert main(["trust", "py36-bash"]) == 0

    said = capsys.readouterr()
    assert SHOWN.findall(said.out) == [fingerprint(lab, 22006)]
    assert "[y/N, or paste one]" in said.err
    assert known.read_text().startswith("[127.0.0.1]:22006 ssh-ed25519 ")
    assert ssh_agrees(known, "py36-bash")
    main(["check", "--no-job", "py36-bash"])
    assert "PASS  host key" in capsys.readouterr().out


@pytest.mark.parametrize("answer", ["\n", "n\n", "", "yellow\n"])
def test_anything_else_writes_nothing(hosts: Lines, terminal: Any, capsys: Any, answer: str) -> None:
    known = hosts()
    terminal(answer)

    assert main(["trust", "py36-bash"]) == 1
    assert known.read_text() == ""
    assert "Nothing was written." in capsys.readouterr().err


@pytest.mark.parametrize("right", [True, False])
def test_a_fingerprint_that_is_pasted_is_compared(hosts: Lines, terminal: Any, lab: Any, right: bool) -> None:
    known = hosts()
    terminal(f"what?\n{fingerprint(lab, 22006) if right else 'SHA256:other'}\n")

    assert (main(["trust", "py36-bash"]) == 0) is right
    assert bool(known.read_text()) is right


@pytest.mark.fault("47")
def test_without_a_terminal_it_refuses(hosts: Lines, no_terminal: None, lab: Any, capsys: Any) -> None:
    known = hosts()

    assert main(["trust", "py36-bash"]) == 2
    assert known.read_text() == ""
    assert fingerprint(lab, 22006) in capsys.readouterr().err


def test_a_fingerprint_that_agrees_is_enough(hosts: Lines, no_terminal: None, lab: Any) -> None:
    known = hosts()

    assert main(["trust", "py36-bash", "--fingerprint", fingerprint(lab, 22006)]) == 0
    assert ssh_agrees(known, "py36-bash")


@pytest.mark.fault("47")
def test_another_fingerprint_is_refused(hosts: Lines, no_terminal: None, lab: Any, capsys: Any) -> None:
    known = hosts()

    assert main(["trust", "py36-bash", "--fingerprint", fingerprint(lab, 22007)]) == 1
    assert known.read_text() == ""
    assert "shows no key with that fingerprint" in capsys.readouterr().err


def test_what_is_known_is_not_asked_about(hosts: Lines, no_terminal: None, lab: Any, capsys: Any) -> None:
    hosts(before=(lab.client / "known_hosts").read_text())

    assert main(["trust", "py36-bash"]) == 0
    assert "127.0.0.1:22006 is known: ssh-ed25519" in capsys.readouterr().out


@pytest.mark.fault("47")
def test_a_changed_key_needs_replace(hosts: Lines, terminal: Any, lab: Any, capsys: Any) -> None:
    changed = (lab.client / "known_hosts.changed").read_text()
    known = hosts(before=changed)
    terminal("y\n")

    assert main(["trust", "py36-bash"]) == 1

    told = capsys.readouterr().err
    assert f"shown now:  ssh-ed25519 {fingerprint(lab, 22006)} by 127.0.0.1:22006" in told
    assert re.search(rf"remembered: ssh-ed25519 SHA256:\S+ at {known}:1", told)
    assert "clusterfn trust py36-bash --replace" in told
    assert known.read_text() == changed


def test_replace_shows_both_and_puts_the_new_one_in_place(hosts: Lines, terminal: Any, lab: Any, capsys: Any) -> None:
    changed = (lab.client / "known_hosts.changed").read_text()
    known = hosts(before=changed)
    terminal("y\n")

    assert main(["trust", "py36-bash", "--replace"]) == 0

    shown = capsys.readouterr().out
    assert len(SHOWN.findall(shown)) == 2
    assert f"at {known}:1" in shown
    assert ssh_agrees(known, "py36-bash")
    assert known.with_name("known_hosts.old").read_text() == changed


def test_a_revoked_key_is_not_taken_whatever_is_said(hosts: Lines, terminal: Any, lab: Any, capsys: Any) -> None:
    terminal("y\n")
    known = hosts()
    assert main(["trust", "py36-bash"]) == 0
    revoked = "".join(f"@revoked {line}\n" for line in known.read_text().splitlines())
    known.write_text(revoked)

    for words in ([], ["--replace"], ["--fingerprint", fingerprint(lab, 22006)]):
        terminal("y\n")
        assert main(["trust", "py36-bash", *words]) == 1
        assert "is revoked in" in capsys.readouterr().err
    assert known.read_text() == revoked


def test_each_jump_host_is_asked_about_first(hosts: Lines, terminal: Any, lab: Any, capsys: Any) -> None:
    known = hosts("Host py38-bash\nProxyJump py36-dash,py37-bash\n")
    terminal("y\ny\ny\n")

    assert main(["trust", "py38-bash"]) == 0

    assert SHOWN.findall(capsys.readouterr().out) == [fingerprint(lab, port) for port in (22006, 22007, 22008)]
    assert ssh_agrees(known, "py38-bash")


def test_hashed_names_and_an_alias(hosts: Lines, terminal: Any, lab: Any) -> None:
    known = hosts("Host py36-bash\nHashKnownHosts yes\nHostKeyAlias Cluster\n")
    terminal("y\n")

    assert main(["trust", "py36-bash"]) == 0
    assert known.read_text().startswith("|1|")
    found = subprocess.run(["ssh-keygen", "-F", "cluster", "-f", str(known)], capture_output=True, check=False)
    assert found.returncode == 0
    assert ssh_agrees(known, "py36-bash")


def test_strict_host_keys_stay_strict_for_the_connection(hosts: Lines, no_terminal: None, capsys: Any) -> None:
    known = hosts("Host py36-bash\nStrictHostKeyChecking no\n")

    assert main(["check", "--no-job", "py36-bash"]) == 1
    assert "clusterfn trust py36-bash" in capsys.readouterr().out
    assert known.read_text() == ""


def test_without_ssh_paramiko_fetches_the_key(
    hosts: Lines, terminal: Any, lab: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    wanted = [fingerprint(lab, port) for port in (22020, 22006)]
    hosts()
    terminal("y\ny\n")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert main(["trust", "jumped"]) == 0
    assert SHOWN.findall(capsys.readouterr().out) == wanted


def test_a_host_that_cannot_be_reached_is_reported(hosts: Lines, terminal: Any, capsys: Any) -> None:
    hosts("Host py36-bash\nPort 22099\n")
    terminal("y\n")

    assert main(["trust", "py36-bash"]) == 1
    assert "127.0.0.1:22099 refused the connection" in capsys.readouterr().err


def test_this_machine_has_no_key(hosts: Lines, capsys: Any) -> None:
    hosts()

    assert main(["trust", "local"]) == 2
    assert "is not reached by ssh" in capsys.readouterr().err
