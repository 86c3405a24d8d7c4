"""The client's side of the lab: keys, certificates and their authorities, known_hosts files, and the ssh_config."""

from __future__ import annotations

from pathlib import Path

from . import layout
from .layout import CLIENT, SSHD, Alias, Host
from .processes import run

YEARS = "20200101:20990101"
PAST = "20200101:20200102"
# A configuration as people have it: lines in several files, and conditions. `inner` lies behind `outer`.
SPLIT_CONFIG = f"""\
Include {CLIENT}/split/*.conf
Match originalhost inner
    User cfnologin
Host *
    IdentityFile {CLIENT}/id_ed25519
    IdentitiesOnly yes
    UserKnownHostsFile {CLIENT}/known_hosts
    StrictHostKeyChecking yes
"""
SPLIT = {
    "10-hosts.conf": f"""\
Host inner
    HostName 127.0.0.1
    ProxyJump outer  # the only way in
Host outer
    HostName 127.0.0.1
    Port {layout.HOST_BY_NAME["py37"].port}
    User cfdash
""",
    "20-matches.conf": f"""\
Match originalhost inner !user nobody host 127.0.0.1
    Port {layout.HOST_BY_NAME["py38"].port}
Match originalhost inner,unused
    User cfsecond
""",
}


def make_key(path: Path, comment: str, kind: str = "ed25519") -> None:
    """A key pair without passphrase."""
    if not path.exists():
        run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", comment, "-f", str(path)])


def sign(authority: Path, key: Path, valid: str, *options: str) -> None:
    """The certificate of a key for every account or, with `-h` among the options, of a host."""
    certificate = key.with_name(f"{key.name}-cert.pub")
    if not certificate.exists():
        who = ["-I", key.name, "-V", valid, *options]
        run(["ssh-keygen", "-q", "-s", str(authority), *who, str(key.with_name(f"{key.name}.pub"))])


def make_identities() -> None:
    """Each key with which the client tries, and certificates: one is over, one lies apart from its key."""
    for name in ("ed25519", "wrong", "signed", "expired", "apart"):
        make_key(CLIENT / f"id_{name}", f"clusterfn lab, {name}")
    make_key(CLIENT / "id_ecdsa", "clusterfn lab, ecdsa", "ecdsa")
    make_key(CLIENT / "user_authority", "clusterfn lab, signs people")
    make_key(CLIENT / "host_authority", "clusterfn lab, signs hosts")
    everybody = ["-n", ",".join(account.name for account in layout.ACCOUNT_LIST)]
    sign(CLIENT / "user_authority", CLIENT / "id_signed", YEARS, *everybody)
    sign(CLIENT / "user_authority", CLIENT / "id_expired", PAST, *everybody)
    apart = CLIENT / layout.CERTIFICATE_APART
    if not apart.exists():
        sign(CLIENT / "user_authority", CLIENT / "id_apart", YEARS, *everybody)
        (CLIENT / "id_apart-cert.pub").rename(apart)


def make_host_keys(hosts: list[Host]) -> None:
    """A key for each host, and what the authorities say of them and of the accounts."""
    for host in hosts:
        make_key(SSHD / f"{host.name}.key", host.name)
    sign(CLIENT / "host_authority", SSHD / "hostcert.key", YEARS, "-h", "-n", "127.0.0.1")
    replace_text(SSHD / "user_authority.pub", public(CLIENT / "user_authority"))
    replace_text(SSHD / "authorized_keys", public(CLIENT / "id_ed25519") + public(CLIENT / "id_ecdsa"))


def public(key: Path) -> str:
    return key.with_name(f"{key.name}.pub").read_text()


def replace_text(path: Path, text: str) -> None:
    """Write beside, then rename: tests that run meanwhile never see half a file."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text)
    beside.chmod(0o644)
    beside.replace(path)


def known_hosts_line(host: Host, key: Path) -> str:
    kind, blob, *_ = public(key).split()
    return f"[{host.address}]:{host.port} {kind} {blob}\n"


def write_known_hosts(hosts: list[Host]) -> None:
    """Four files: right, empty, changed, and one that knows the authority alone."""
    right = [known_hosts_line(host, SSHD / f"{host.name}.key") for host in hosts]
    changed = [known_hosts_line(host, CLIENT / "id_wrong") for host in hosts]
    authority = [f"@cert-authority {known_hosts_line(host, CLIENT / 'host_authority')}" for host in hosts]
    replace_text(CLIENT / "known_hosts", "".join(right))
    replace_text(CLIENT / "known_hosts.empty", "")
    replace_text(CLIENT / "known_hosts.changed", "".join(changed))
    replace_text(CLIENT / "known_hosts.authority", "".join(authority))


def ssh_config_block(alias: Alias) -> str:
    """One `Host` block; what an alias leaves empty is left to the defaults of ssh."""
    host = layout.HOST_BY_NAME[alias.host]
    options = {
        "HostName": alias.address or host.address,
        "Port": alias.port or host.port,
        "User": alias.account,
        "IdentityFile": alias.identity and CLIENT / alias.identity,
        "CertificateFile": alias.certificate and CLIENT / alias.certificate,
        "IdentitiesOnly": alias.identity and "yes",
        "UserKnownHostsFile": CLIENT / alias.known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "ProxyJump": alias.jump,
    }
    lines = [f"    {name} {value}\n" for name, value in options.items() if value]
    return f"Host {alias.name}\n{''.join(lines)}\n"


def write_ssh_config(hosts: list[Host]) -> None:
    """The ssh_config with every alias, and the one that is spread over several files."""
    names = {host.name for host in hosts}
    blocks = [ssh_config_block(alias) for alias in layout.aliases() if alias.host in names]
    replace_text(layout.SSH_CONFIG, "".join(blocks))
    (CLIENT / "split").mkdir(exist_ok=True)
    for name, text in SPLIT.items():
        replace_text(CLIENT / "split" / name, text)
    replace_text(layout.SPLIT_CONFIG, SPLIT_CONFIG)


def build(hosts: list[Host]) -> None:
    """All of it; keys that are there stay."""
    CLIENT.mkdir(mode=0o700, exist_ok=True)
    make_identities()
    make_host_keys(hosts)
    write_known_hosts(hosts)
    write_ssh_config(hosts)
