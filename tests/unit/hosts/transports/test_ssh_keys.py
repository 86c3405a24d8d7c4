"""A key of one's own: made once, readable for its owner, and appended on a host by any login shell, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import paramiko
import pytest

from clusterfn.errors import ConfigError
from clusterfn.hosts.transports import ssh_config_file, ssh_keys

SHELLS = [shell for shell in ("sh", "bash", "dash", "tcsh", "fish", "zsh") if shutil.which(shell)]
LINE = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKeyOne ada@laptop"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes and shells of Unix")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(ssh_config_file, "home", lambda: tmp_path)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path / ".ssh"


def settings(*files: Path, agent: bool = False) -> SimpleNamespace:
    return SimpleNamespace(identity_files=files, use_agent=agent, identities_only=False)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_key_is_for_its_owner_alone_and_ssh_can_use_it(folder):
    os.umask(os.umask(0o022))
    made = ssh_keys.make(folder / "id_ed25519")

    assert (mode(folder), mode(made.path)) == (0o700, 0o600)
    assert made.path.with_suffix(".pub").read_text() == f"{made.line}\n"
    key = paramiko.PKey.from_path(made.path)
    assert made.line.split()[1] == key.get_base64()
    assert ssh_keys.usable(settings(made.path)) == made


def test_nothing_is_overwritten(folder):
    made = ssh_keys.make(folder / "id_ed25519")

    with pytest.raises(ConfigError, match="no key could be written"):
        ssh_keys.make(made.path)
    assert ssh_keys.usable(settings(made.path)) == made


def test_half_a_pair_is_not_left(folder):
    folder.mkdir()
    (folder / "id_ed25519").write_text("of somebody")

    with pytest.raises(ConfigError):
        ssh_keys.make(folder / "id_ed25519")
    assert [path.name for path in folder.iterdir()] == ["id_ed25519"]


def locked(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(path)], check=True)
    return path


def test_a_key_with_a_passphrase_is_not_used_and_not_replaced(folder):
    path = locked(folder)

    assert ssh_keys.usable(settings(path)) is None
    with pytest.raises(ConfigError, match="exists, but cannot be used without you") as caught:
        ssh_keys.new_path(settings(path))
    assert f"ssh-add {path}" in (caught.value.hint or "")


@pytest.mark.parametrize("identities_only", [False, True])
def test_a_key_of_an_agent_is_used_unless_only_files_may_be(folder, monkeypatch, identities_only):
    key = SimpleNamespace(asbytes=lambda: b"key", get_name=lambda: "ssh-ed25519")
    agent = SimpleNamespace(get_keys=lambda: [key], close=lambda: None)
    monkeypatch.setattr(paramiko, "Agent", lambda: agent)
    asked = settings(folder / "id_ed25519", agent=True)
    asked.identities_only = identities_only

    found = ssh_keys.usable(asked)

    assert (found and found.line) == (None if identities_only else "ssh-ed25519 a2V5")

    other = folder / "id_cluster"

    assert ssh_keys.new_path(settings(folder / "id_rsa", folder / "id_ed25519")) == folder / "id_ed25519"
    assert ssh_keys.new_path(settings(other)) == other


def append(shell: str, home: Path, line: str = LINE) -> list[str]:
    """What the host prints; an rc file has read a line of the eight that come first."""
    ran = subprocess.run(
        [shell, "-c", f"exec /bin/sh -c '{ssh_keys.APPEND_SCRIPT}'"],
        input="\n" * (ssh_keys.RC_LINES - 1) + line + "\n", text=True, capture_output=True, check=False,
        env={"HOME": str(home), "PATH": os.environ["PATH"]}, timeout=150,
    )  # fmt: skip
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@pytest.mark.parametrize("shell", SHELLS)
def test_any_login_shell_appends_it_once(tmp_path, shell):
    file = tmp_path / ".ssh" / "authorized_keys"

    assert ssh_keys.ADDED in append(shell, tmp_path)
    assert (file.read_text(), mode(file), mode(file.parent)) == (f"{LINE}\n", 0o600, 0o700)
    assert ssh_keys.PRESENT in append(shell, tmp_path, LINE.replace("ada@laptop", "another comment"))
    assert file.read_text() == f"{LINE}\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_key_that_was_commented_out_is_not_there(tmp_path, shell):
    file = tmp_path / ".ssh" / "authorized_keys"
    file.parent.mkdir()
    file.write_text(f"  #{LINE}\n")

    assert ssh_keys.ADDED in append(shell, tmp_path)
    assert file.read_text() == f"  #{LINE}\n{LINE}\n"


def test_the_lines_of_the_file_stay_and_others_lose_their_right_to_write(tmp_path):
    file = tmp_path / ".ssh" / "authorized_keys"
    file.parent.mkdir()
    file.write_text('# mine\ncommand="x y" ssh-rsa AAAA * no end')
    file.parent.chmod(0o775)
    file.chmod(0o664)

    append("sh", tmp_path)

    assert file.read_text() == f'# mine\ncommand="x y" ssh-rsa AAAA * no end\n{LINE}\n'
    assert (mode(file), mode(file.parent)) == (0o644, 0o755)


@pytest.mark.parametrize(("bits", "told"), [(0o775, True), (0o757, True), (0o755, False)])
def test_a_home_that_others_may_write_to_is_reported(tmp_path, bits, told):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(bits)

    assert (ssh_keys.OPEN in append("sh", home)) is told


def test_a_home_without_room_is_no_success(tmp_path):
    (tmp_path / ".ssh").write_text("a file")
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    words = ["sh", "-c", ssh_keys.APPEND_SCRIPT]
    ran = subprocess.run(words, input=f"{LINE}\n", text=True, capture_output=True, check=False, env=env)

    assert ssh_keys.ADDED not in ran.stdout and ssh_keys.PRESENT not in ran.stdout
