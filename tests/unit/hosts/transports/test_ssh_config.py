"""Addresses and ssh configurations: what is understood, and what is refused by name."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, Unreachable
from clusterfn.hosts.transports import ssh_config, trust
from clusterfn.hosts.transports.ssh_config import Address, parse_address, refuse_unmet, resolve

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

    assert resolve(host_with(config)).ssh == f"ssh -F {config} lab8"
    assert resolve(host_with(config, "me@lab8:2222")).ssh == f"ssh -F {config} -l me -p 2222 lab8"
    assert resolve(host_with(config, "me@10.9.8.7:2222")).ssh == f"ssh -F {config} -p 2222 me@10.9.8.7"


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
    ],
    ids=["the address comes first", "a port is part of the key's name", "none", "a command that is not permitted"],
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
