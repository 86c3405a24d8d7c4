"""Addresses and ssh configurations: what is understood, refused by name, and answered by OpenSSH or without an ssh."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from clusterfn import ConfigError
from clusterfn.config.spec import Host
from clusterfn.errors import Unreachable
from clusterfn.hosts.transports import ssh_config, trust
from clusterfn.hosts.transports.ssh_config import Address, parse_address, refuse_unmet, resolve
from tests.unit.hosts.transports.desk import aliases, live_in, refusal_of_login, settings_of

HOST = Host("lab8", "lab8", "bare", "clusterfn.yml:3")


def host_with(config: Path, address: str = "lab8") -> Host:
    return Host("lab8", address, "bare", "clusterfn.yml:3", ssh_config=str(config))


@pytest.fixture(params=["ssh -G", "paramiko"])
def config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file to be written; read by ssh, or by paramiko where there is no ssh."""
    if request.param == "paramiko":
        monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "ssh_config"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("lab8", Address("lab8")),
        ("me@lab8:2222", Address("lab8", "me", 2222)),
        ("me@[::1]:22", Address("::1", "me", 22)),
        ("me@realm@lab8", Address("lab8", "me@realm")),
        ("10.0.0.1:22", Address("10.0.0.1", None, 22)),
    ],
)
def test_an_address_has_three_parts(text: str, address: Address):
    assert parse_address(text, HOST) == address


@pytest.mark.parametrize(
    "text",
    ["-oProxyCommand=x", "me@-oProxyCommand=x", "-l@lab8", "a b", "lab8\n", "lab8:", "lab8:ssh", "", "a\x00b", "a@"],
)
def test_what_could_be_an_option_or_is_no_address_is_refused(text: str):
    with pytest.raises(ConfigError, match="is not the address of a host"):
        parse_address(text, HOST)


def test_the_command_to_try_connects_as_the_address_says(config: Path):
    config.write_text("Host lab8\n HostName 10.1.2.3\n User other\n Port 2200\n")
    ssh = f"ssh -F {shlex.quote(str(config))}"

    assert resolve(host_with(config)).ssh == f"{ssh} lab8"
    assert resolve(host_with(config, "me@lab8:2222")).ssh == f"{ssh} -l me -p 2222 lab8"
    assert resolve(host_with(config, "me@10.9.8.7:2222")).ssh == f"{ssh} -p 2222 me@10.9.8.7"


def test_each_stop_on_the_way_is_reached_through_those_before_it(config: Path):
    config.write_text("Host lab8\n ProxyJump a,b\n")

    stops = trust.hosts_on_the_way(host_with(config))

    assert [(each.alias, each.proxy_jump) for each in stops] == [("a", ()), ("b", ("a",)), ("lab8", ("a", "b"))]


def test_a_host_that_is_compressed_is_not_compressed_on_each_part_of_the_way(config: Path):
    config.write_text("Host lab8\n ProxyJump a,b\nHost b\n Compression yes\n")

    for compress in (True, False):
        stops = trust.hosts_on_the_way(host_with(config)._replace(compress=compress))
        assert [(each.alias, each.compress) for each in stops] == [("a", False), ("b", True), ("lab8", compress)]


def test_the_configuration_is_resolved(config: Path):
    config.write_text(
        "Host lab8\n HostName 10.1.2.3\n Port 2222\n User me\n IdentityFile ~/.ssh/%h\n IdentitiesOnly yes\n"
        " UserKnownHostsFile /k/h\n ConnectTimeout 7\n ProxyJump a,b@c:3\n HostKeyAlias cluster\n"
    )

    found = resolve(host_with(config))

    assert (found.hostname, found.port, found.user, found.timeout_s) == ("10.1.2.3", 2222, "me", 7.0)
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)  # ssh's, whatever $HOME is
    assert (found.identity_files, found.identities_only) == ((home / ".ssh/10.1.2.3",), True)
    assert (found.proxy_jump, found.key_name, found.known_hosts[0]) == (("a", "b@c:3"), "cluster", Path("/k/h"))


@pytest.mark.parametrize(
    ("text", "address", "facts"),
    [
        ("Host lab8\n Port 2222\n User me\n", "you@lab8:22", {"user": "you", "port": 22, "key_name": "lab8"}),
        ("Host lab8\n HostName Lab8.Example\n Port 2222\n", "lab8", {"key_name": "[lab8.example]:2222"}),
        ("Host lab8\n ProxyJump none\nHost *\n ProxyJump a\n", "lab8", {"proxy_jump": ()}),
        ("Host lab8\n LocalCommand beep\n", "lab8", {"unmet": ()}),
        ('Host lab8\n UserKnownHostsFile "/a b/k" /b\n', "lab8", {"user_known_hosts": (Path("/a b/k"), Path("/b"))}),
    ],
    ids=["the address comes first", "a port is part of the key's name", "none", "not permitted", "blanks in a path"],
)
def test_what_one_line_means(config: Path, text: str, address: str, facts: dict[str, object]):
    config.write_text(text)
    found = resolve(host_with(config, address))

    assert {name: getattr(found, name) for name in facts} == facts


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("RemoteCommand tmux", "asks for remotecommand, which paramiko does not support"),
        ("BindAddress 10.0.0.1", "asks for bindaddress, which paramiko does not support"),
        ("PKCS11Provider /x.so", "asks for pkcs11provider, which paramiko does not support"),
        ("ProxyCommand nc %q %h", "asks for %q"),
    ],
)
def test_what_paramiko_does_not_do_is_refused_by_name(config: Path, line: str, words: str):
    config.write_text(f"Host lab8\n {line}\n")
    host = host_with(config)

    with pytest.raises(ConfigError, match=words):
        refuse_unmet(host, resolve(host))


def test_a_broken_line_is_named(config: Path):
    config.write_text("Host lab8\n HostName\n")

    with pytest.raises(ConfigError) as caught:
        resolve(host_with(config))

    assert str(config) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Host lab8\n  Port 22\n  hostname = lab8.wrong.example\n", "`HostName lab8.wrong.example` of lab8 in {}"),
        ("", "address: of host lab8 (clusterfn.yml:3)"),
    ],
)
def test_a_name_is_reported_with_its_file(config: Path, text: str, named: str):
    config.write_text(text)
    host = host_with(config)

    assert resolve(host).named_in(host) == named.format(config)


def test_an_ssh_that_does_not_resolve_its_configuration_is_named_and_may_be_retried(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(ssh_config, "SSH_G_TIMEOUT_S", 0.05)

    with pytest.raises(Unreachable, match="did not resolve its configuration for lab8 within 0.05 s") as caught:
        resolve(HOST)
    assert caught.value.evidence == ("still running: ssh -G -- lab8",)
    assert (caught.value.host, caught.value.retryable) == ("lab8", True)


needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="asks OpenSSH for the right answer")
# Name -> (the address, the configuration).
CONFIGURATIONS = {
    "plain": ("lab8", "Host lab8\n HostName 10.1.2.3\n Port 2222\n User me\n"),
    "the first value counts": ("lab8", "Host lab8\n User first\nHost *\n User second\n Port 2200\n"),
    "address before file": ("you@lab8:2223", "Host lab8\n User me\n Port 22\n"),
    "patterns": ("lab8.example", "Host lab? *.example\n User me\n"),
    "a pattern that is negated": ("lab8", "Host * !lab8\n User me\nHost *\n User you\n"),
    "equals signs": ("lab8", "Host=lab8\nUser = me\nPort=2222\n"),
    "comment lines": ("lab8", "# one\n\nHost lab8\n   # two\n User me\n"),
    "hostname with a token": ("lab8", "Host lab8\n HostName %h.Cluster.example\n"),
    "identities only": ("lab8", "Host lab8\n IdentitiesOnly yes\n IdentityFile /k/%u\n CertificateFile /k/c\n"),
    "tokens": ("lab8", "Host lab8\n HostName x\n Port 23\n IdentityFile /k/%%-%d-%h-%n-%p-%r-%u\n"),
    "a variable": ("lab8", "Host lab8\n IdentityFile ${SOME_FOLDER}/key\n"),
    "a jump": ("lab8", "Host lab8\n ProxyJump me@gate:2222,inner\n"),
    "no jump": ("lab8", "Host lab8\n ProxyJump none\nHost *\n ProxyJump gate\n"),
    "a jump before a command": ("lab8", "Host lab8\n ProxyJump gate\nHost *\n ProxyCommand nc %h %p\n"),
    "a command before a jump": ("lab8", 'Host lab8\n ProxyCommand nc "a b" %h %p # all\nHost *\n ProxyJump gate\n'),
    "known hosts": ("lab8", 'Host lab8\n UserKnownHostsFile "/a b/k" /b\n GlobalKnownHostsFile /c\n'),
    "no known hosts": ("lab8", "Host lab8\n UserKnownHostsFile /dev/null\n GlobalKnownHostsFile none\n"),
    "match all": ("lab8", "Match all\n User me\n HashKnownHosts yes\n"),
    "a quoted value": ("lab8", 'Host "lab8"\n User "me"\n IdentityFile "/a b/key"\n'),
}  # fmt: skip
# What only ssh itself understands, in the second line.
REJECTED = [
    "Match final host lab8", "Match !exec true", "Match host lab8", "match\tlocalnetwork 10.0.0.0/8",
    " Include {dir}/oth*", " CanonicalizeHostname yes",
]  # fmt: skip


def write(folder: Path, text: str) -> Path:
    (folder / "other").write_text("Host lab8\n User included\n")
    (folder / "config").write_text(text.replace("{dir}", str(folder)), newline="")
    return folder / "config"


def asked(config: Path, address: str, explicit: bool) -> Any:
    found = settings_of(address, config)._replace(strict="")  # for an ssh alone
    return found if explicit else found._replace(identity_files=())  # else the default ones, which differ by version


@needs_ssh
def test_the_answer_is_that_of_openssh(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_FOLDER", "/somewhere")

    def answers() -> dict[str, Any]:
        return {
            name: asked(write(tmp_path, text), address, "IdentityFile" in text)
            for name, (address, text) in CONFIGURATIONS.items()
        }

    right = answers()
    monkeypatch.setenv("PATH", str(tmp_path))

    assert answers() == right


@needs_ssh
def test_the_home_is_the_one_that_openssh_takes(tmp_path, monkeypatch):
    text = "Host lab8\n IdentityFile ~/.ssh/mine\n IdentityFile %d/other\n UserKnownHostsFile ~/known\n"
    config = write(tmp_path, text)
    monkeypatch.setenv("HOME", str(tmp_path))
    right = asked(config, "lab8", True)

    monkeypatch.setenv("PATH", str(tmp_path))

    assert asked(config, "lab8", True) == right and not right.identity_files[0].is_relative_to(tmp_path)


def test_a_user_that_is_nowhere_is_named(home: Path):
    (home / ".ssh/config").write_text("Host lab8\n IdentityFile ~nobody-at-all\0/key\n")

    with pytest.raises(ConfigError, match="~nobody-at-all.*/key: this machine has no user nobody-at-all"):
        settings_of("lab8")


@pytest.mark.parametrize("line", REJECTED)
def test_what_paramiko_would_misread_is_rejected_by_line(line: str, tmp_path, monkeypatch):
    config = write(tmp_path, f"Host lab9\n{line}\n")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match=re.escape(f"{config}:2 ") + "can only be understood by ssh itself") as caught:
        asked(config, "lab8", False)
    assert "install OpenSSH's client" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "line", ["Port 0", "Port 65536", "Port ssh", "ConnectTimeout 1m30", "NumberOfPasswordPrompts -1"]
)
def test_a_number_that_does_not_fit_is_rejected(tmp_path, monkeypatch, line: str):
    config = write(tmp_path, f"Host lab8\n {line}\n")
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match=f"host lab8 has {line.lower()}, which is not a valid number"):
        asked(config, "lab8", False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and no ssh."""
    monkeypatch.setenv("PATH", str(tmp_path))
    live_in(monkeypatch, tmp_path)
    (tmp_path / ".ssh/config.d").mkdir(parents=True)
    return tmp_path


def test_a_relative_include_begins_in_the_folder_of_ssh(home: Path):
    (home / ".ssh/config").write_text("Include config.d/*.conf\n")
    (home / ".ssh/config.d/a.conf").write_text("Host lab8\n User me\n")

    with pytest.raises(ConfigError, match="config:1 can only be understood by ssh itself"):
        settings_of("lab8")
    assert aliases() == ["lab8"]


def test_the_file_of_all_users_is_read_last(home: Path, monkeypatch):
    live_in(monkeypatch, home, home / "etc")
    (home / ".ssh/config").write_text("Host lab8\n User me\n")
    (home / "etc").write_text("Host lab8\n User you\n Port 2222\n")

    found = settings_of("lab8")

    assert (found.user, found.port) == ("me", 2222)


def test_a_file_that_is_not_there_is_named(home: Path):
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        settings_of("lab8", home / "nowhere")


@pytest.mark.parametrize(
    ("partly", "was_asked", "says"),
    [
        (False, False, "lab8:22 requires an interactive login of me (password)"),
        (False, True, "lab8:22 did not let me in"),
        (True, False, "lab8:22 accepts the key of me, but also wants a password (or a code) (password)"),
        (True, True, "lab8:22 accepts the key of me, but rejected the rest of the login"),
    ],
)
def test_a_refusal_says_what_a_person_can_do(tmp_path, partly: bool, was_asked: bool, says: str):
    there = asked(write(tmp_path, "Host lab8\n User me\n"), "lab8", True)

    error = refusal_of_login(there, [], ["password"], partly=partly, asked=was_asked)

    assert error.message == says
    assert (error.hint or "").startswith("try again, or" if was_asked else "try again in a terminal, or")
