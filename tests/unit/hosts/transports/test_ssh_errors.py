"""What several versions of OpenSSH say when they fail, each as one of our errors."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from clusterfn.config.spec import Host
from clusterfn.errors import AuthenticationError, ConfigError, HostError, HostKeyError, Unreachable
from clusterfn.hosts.transports import host_keys
from clusterfn.hosts.transports.ssh_config import Settings, resolve
from clusterfn.hosts.transports.ssh_errors import error_of, lost, without_chatter

HOST = Host("lab8", "me@10.0.0.8", "bare", "clusterfn.yml:3")
REMEMBERED = base64.b64encode(b"remembered").decode()
# (version, what it said, the error, the sentence). 6.6 is Ubuntu 14's, 7.4 RHEL 7's, 8.0 RHEL 8's, 9.2 Debian 12's.
RECORDED = [
    ("mac", "ssh: Could not resolve hostname lab8: nodename nor servname provided, or not known", Unreachable,
     "The name lab8 of host lab8 cannot be resolved"),
    ("9.2", "ssh: connect to host 10.0.0.8 port 22: Connection refused", Unreachable,
     "10.0.0.8:22 refused the connection"),
    ("8.0", "ssh: connect to host 10.0.0.8 port 22: Connection timed out", Unreachable,
     "10.0.0.8:22 did not answer within 15 s"),
    ("9.2", "ssh: connect to host 10.0.0.8 port 22: No route to host", Unreachable, "10.0.0.8:22 cannot be reached"),
    ("9.2", "Connection timed out during banner exchange\nConnection to 10.0.0.8 port 22 timed out", Unreachable,
     "10.0.0.8:22 accepted the connection, but did not answer within 15 s"),
    ("9.2", "ssh_dispatch_run_fatal: Connection to 10.0.0.8 port 22: Operation timed out", Unreachable,
     "10.0.0.8:22 did not answer within 15 s"),
    ("7.4", "ssh_exchange_identification: Connection closed by remote host", Unreachable,
     "10.0.0.8:22 closed the connection at once"),
    ("9.2", "kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.0.0.8 port 22",
     Unreachable, "10.0.0.8:22 closed the connection at once"),
    ("9.2", "kex_exchange_identification: banner line contains invalid characters", Unreachable,
     "10.0.0.8:22 does not answer like an SSH server"),
    ("9.2", "me@10.0.0.8: Permission denied (publickey).", AuthenticationError, "10.0.0.8:22 did not let me in"),
    ("8.0", "me@10.0.0.8: Permission denied (keyboard-interactive).", AuthenticationError,
     "10.0.0.8:22 requires an interactive login of me (keyboard-interactive)"),
    ("9.2", 'Authenticated using "publickey" with partial success.\nme@10.0.0.8: Permission denied (password).',
     AuthenticationError, "10.0.0.8:22 accepts the key of me, but also wants a password (or a code) (password)"),
    ("6.6", "Received disconnect from 10.0.0.8: 2: Too many authentication failures for me", AuthenticationError,
     "10.0.0.8:22 did not let me in"),
    ("6.6", "no matching cipher found: client aes128-ctr server chacha20-poly1305@openssh.com", HostError,
     "10.0.0.8:22 and the ssh of this machine have no algorithm in common"),
    ("7.4", "Unable to negotiate with 10.0.0.8 port 22: no matching key exchange method found. "
     "Their offer: diffie-hellman-group1-sha1", HostError,
     "10.0.0.8:22 and the ssh of this machine have no algorithm in common"),
    ("8.0", "Unable to negotiate with UNKNOWN port 65535: no matching cipher found. Their offer: x", HostError,
     "UNKNOWN:65535 and the ssh of this machine have no algorithm in common"),
    ("9.2", "debug1: Server host key: ssh-ed25519 SHA256:abc\n"
     "No ED25519 host key is known for 10.0.0.8 and you have requested strict checking.\n"
     "Host key verification failed.", HostKeyError, "The host key of lab8 (10.0.0.8:22) is unknown"),
    ("9.2", "@       WARNING: REVOKED HOST KEY DETECTED!               @\n"
     "The ED25519 host key for 10.0.0.8 is marked as revoked.\nHost key verification failed.", HostKeyError,
     "The host key of lab8 is revoked in known_hosts"),
    ("9.2", "channel 0: open failed: administratively prohibited: open failed", Unreachable,
     "10.0.0.8:22 let me in but rejected the next step"),
    ("9.2", "channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed\n"
     "kex_exchange_identification: Connection closed by remote host\nConnection closed by UNKNOWN port 65535",
     Unreachable, "10.0.0.8:22 let me in but rejected the next step"),
    ("9.2", "command-line: line 0: Bad configuration option: futureoption", ConfigError,
     "ssh cannot read its configuration for 10.0.0.8"),
    ("7.4", "Bad owner or permissions on /home/me/.ssh/config", ConfigError,
     "ssh cannot read its configuration for 10.0.0.8"),
    ("9.2", "Connection closed by 10.0.0.8 port 22", Unreachable, "10.0.0.8:22 closed the connection at once"),
    ("new", "something that nobody has seen before", Unreachable,
     "ssh has opened no session on 10.0.0.8:22: it ended with status 255"),
]  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "config").touch()
    found = resolve(HOST._replace(ssh_config=str(tmp_path / "config")))
    files = (tmp_path / "known_hosts",)
    return found._replace(known_hosts=files, user_known_hosts=files)


@pytest.mark.parametrize(("version", "text", "kind", "sentence"), RECORDED)
def test_a_message_becomes_an_error(settings: Settings, version: str, text: str, kind: type, sentence: str) -> None:
    error = error_of(HOST, settings, text.replace("\n", "\r\n"), 255)

    assert (type(error), error.message) == (kind, sentence)
    assert error.hint or "revoked" in sentence
    assert error.evidence


@pytest.mark.parametrize(("methods", "takes_passwords"), [("publickey,password", True), ("publickey", False)])
def test_a_login_and_ssh_copy_id_are_named_only_where_a_password_gets_in(settings, methods, takes_passwords):
    hint = error_of(HOST, settings, f"me@10.0.0.8: Permission denied ({methods}).", 255).hint or ""

    assert "ssh-add" in hint
    assert ("or log in with a password once for all programs: clusterfn login lab8" in hint) is takes_passwords
    assert ("ssh-copy-id" in hint) is takes_passwords
    assert ("sent to the administrator" in hint) is not takes_passwords


def test_the_host_can_print_what_ssh_would_say_without_being_believed(settings: Settings) -> None:
    error = error_of(HOST, settings, "rm: Host key verification failed. Or so.\ncd: x: Permission denied", 1)

    assert error.message.startswith("ssh has opened no session")


def test_a_changed_key_shows_both_fingerprints_and_the_line(settings: Settings) -> None:
    file = settings.known_hosts[0]
    file.write_text(f"# mine\n10.0.0.8 ssh-ed25519 {REMEMBERED}\n")
    text = (
        "debug1: Server host key: ssh-ed25519 SHA256:abc\n"
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
        f"Offending ED25519 key in {file}:2\n"
        "Host key for 10.0.0.8 has changed and you have requested strict checking.\nHost key verification failed.\n"
    )

    error = error_of(HOST, settings, text, 255)

    shown, remembered = error.evidence
    assert shown == "shown now:  ssh-ed25519 SHA256:abc by 10.0.0.8:22"
    assert remembered == f"remembered: ssh-ed25519 {host_keys.fingerprint(b'remembered')} at {file}:2"
    assert "clusterfn trust lab8 --replace (or by ssh-keygen: ssh-keygen -R '10.0.0.8'" in (error.hint or "")


def test_a_login_names_the_keys_that_were_tried(settings: Settings) -> None:
    text = (
        "debug1: Offering public key: /home/me/.ssh/id_ed25519 ED25519 SHA256:abc explicit\n"
        "debug1: Offering RSA public key: /home/me/.ssh/id_rsa\n"
        'Load key "/home/me/.ssh/id_ecdsa": bad permissions\n'
        "me@10.0.0.8: Permission denied (publickey).\n"
    )

    assert error_of(HOST, settings, text, 255).evidence == (
        "tried /home/me/.ssh/id_ed25519 ED25519 SHA256:abc: refused",
        "tried /home/me/.ssh/id_rsa: refused",
        'Load key "/home/me/.ssh/id_ecdsa": bad permissions',
        "the host allows: publickey",
    )


def test_the_key_of_a_jump_host_is_named_as_its_own(settings: Settings) -> None:
    jumped = settings._replace(proxy_jump=("me@10.0.0.7:2222",))
    text = (
        "debug1: Server host key: ssh-ed25519 SHA256:abc\n"
        "No ED25519 host key is known for [10.0.0.7]:2222 and you have requested strict checking.\n"
        "Host key verification failed.\nConnection closed by UNKNOWN port 65535\n"
    )

    error = error_of(HOST._replace(ssh_config=settings.config_file), jumped, text, 255)

    assert error.message == "The host key of lab8 (10.0.0.7:2222) is unknown"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("Timeout, server 10.0.0.8 not responding.", "Timeout, server 10.0.0.8 not responding."),
        ("client_loop: send disconnect: Broken pipe", "client_loop: send disconnect: Broken pipe"),
        ("packet_write_wait: Connection to 10.0.0.8 port 22: Broken pipe", "packet_write_wait: "),
        ("Connection to 10.0.0.8 closed by remote host.", "Connection to 10.0.0.8 closed by remote host."),
        ("Connection reset by 10.0.0.8 port 22", "Connection reset by 10.0.0.8 port 22"),
    ],
)
def test_a_session_that_is_cut_off_has_a_cause(line: str, why: str) -> None:
    assert (lost(f"said before\r\n{line}\r\n") or "").startswith(f"the connection was lost: {why}")


def test_a_command_that_ends_with_255_by_itself_is_not_a_lost_connection() -> None:
    assert lost("the disk is full\n") is None


def test_what_v_adds_is_no_part_of_stderr() -> None:
    text = "it hurts\r\ndebug1: client_input\r\nhalf a linedebug1: more\r\nTransferred: sent 1, received 2 bytes\r\n"

    assert without_chatter(text) == "it hurts\r\nhalf a line\n"
