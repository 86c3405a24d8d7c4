"""What the lab consists of: places, ports, hosts, accounts and ssh aliases, as plain data.

Everything else in this package builds what stands here or answers questions about it. No I/O besides hashing our own
source.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/opt/clusterfn-lab")
STATE_FILE = ROOT / "lab.json"
LOGS = ROOT / "log"
HOMES = ROOT / "home"
PYTHONS = ROOT / "python"
HOSTS = ROOT / "hosts"
CLIENT = ROOT / "client"
SSHD = ROOT / "sshd"
TOOLS = ROOT / "tools"
ENVS = ROOT / "envs"
IMAGES = ROOT / "images"
GPUBOX = ROOT / "gpubox"
MUNGE = ROOT / "munge"
SLURM = ROOT / "slurm"
DEVICES = ROOT / "dev"
GRID_ENGINE = ROOT / "grid-engine"
GRID_ENGINE_PROGRAMS = GRID_ENGINE / "packages" / "usr" / "lib" / "gridengine"
GRID_ENGINE_LIBRARIES = Path("/usr/lib/gridengine")  # a link, where its programs look for each other
COMMON_BIN = HOSTS / "common" / "bin"
SSH_CONFIG = CLIENT / "ssh_config"
SPLIT_CONFIG = CLIENT / "ssh_config.split"
SLURM_CONF = SLURM / "slurm.conf"
TOTP_SSHD = SSHD / "clusterfn-lab-totp-sshd"
# By which a client and an sshd exchange keys, by the names of OpenSSH and paramiko. OpenSSH's first choice takes 60 ms
# of a CPU on each side.
QUICK_KEX = "curve25519-sha256,curve25519-sha256@libssh.org"

# "package" to the program it brings: what is there already is not installed again.
PACKAGES = {
    "openssh-server": "/usr/sbin/sshd",
    "openssh-client": "/usr/bin/ssh",
    "slurm-wlm": "/usr/sbin/slurmctld",
    "munge": "/usr/sbin/munged",
    "tcsh": "/usr/bin/tcsh",
    "fish": "/usr/bin/fish",
    "iproute2": "/bin/ip",
    "libpam-google-authenticator": "/usr/bin/google-authenticator",
    "shellcheck": "/usr/bin/shellcheck",
    "btrfs-progs": "/usr/sbin/mkfs.btrfs",
    "zsh": "/usr/bin/zsh",
    "ksh": "/usr/bin/ksh",
    "bindfs": "/usr/bin/bindfs",
    "bubblewrap": "/usr/bin/bwrap",
    "charliecloud-runtime": "/usr/bin/ch-run",
}

MINORS = tuple(range(6, 14))
REFUSED_PORT = 22099
SLURMCTLD_PORT = 22117
NODES = {"n1": 22118, "n2": 22119}
QMASTER_PORT, EXECD_PORT = 22124, 22125  # of addresses in GRID_ENGINE_NETWORK
GRID_ENGINE_NETWORK = "10.98.0"
GRID_ENGINE_HOST = "gridengine"  # its sshd's, and the name by which Grid Engine's master knows itself
EXECUTION_HOSTS = ("ge1", "ge2")
GRID_ENGINE_ENV = {
    "SGE_ROOT": str(GRID_ENGINE / "root"),
    "SGE_CELL": "default",
    "SGE_QMASTER_PORT": str(QMASTER_PORT),
    "SGE_EXECD_PORT": str(EXECD_PORT),
}


@dataclass(frozen=True)
class Host:
    """One sshd with its own port, host key and PATH. `minor` is that of its first python3; None: it has none.

    `settings` are lines of sshd_config that come before the lab's own (the first value counts). `program` is the name
    that its sshd is started by. Alone the hosts behind cables have an address of their own. `identity` is the key that
    the client tries.
    """

    name: str
    port: int
    minor: int | None
    settings: str = ""
    program: Path = Path("/usr/sbin/sshd")
    address: str = "127.0.0.1"
    identity: str = "id_ed25519"
    slurm: bool = False
    grid_engine: bool = False


@dataclass(frozen=True)
class Account:
    """One Unix account, the same on every host. `home_name` may differ from the name; `mount` are tmpfs options."""

    name: str
    shell: str
    home_name: str = ""
    mount: str = ""

    @property
    def home(self) -> Path:
        return HOMES / (self.home_name or self.name)


@dataclass(frozen=True)
class Alias:
    """One `Host` block of the lab's ssh_config. The fields with defaults are for the odd ones."""

    name: str
    host: str
    account: str
    identity: str = "id_ed25519"
    known_hosts: str = "known_hosts"
    address: str = ""
    port: int = 0
    jump: str = ""
    certificate: str = ""


CODE_AFTER_KEY = "AuthenticationMethods publickey,keyboard-interactive\nKbdInteractiveAuthentication yes\nUsePAM yes"
# How the names of accounts begin that a test makes for itself (newcomer.py).
NEWCOMERS = "cfnew"
PASSWORD = f"PasswordAuthentication yes\nAuthorizedKeysFile .ssh/authorized_keys\nAllowUsers {NEWCOMERS}*"
CERTIFICATE_APART = "ticket.pub"
CERTIFICATE = f"TrustedUserCAKeys {SSHD}/user_authority.pub\nAuthorizedKeysFile none"

HOST_LIST = (
    *(Host(f"py3{minor}", 22000 + minor, minor) for minor in MINORS),
    Host("tensor01", 22020, 6),
    Host("slurm", 22021, 6, slurm=True),
    Host("nopython", 22022, None),
    # Wants a second factor after the key; nobody has one.
    Host("twofactor", 22023, 6, "AuthenticationMethods publickey,password\nPasswordAuthentication yes"),
    Host("forced", 22024, 6, "ForceCommand echo This service allows sftp connections only.; exit 1"),
    Host("onesession", 22025, 6, "MaxSessions 1"),
    # The one modern cipher that paramiko does not know.
    Host("chacha", 22026, 6, "Ciphers chacha20-poly1305@openssh.com"),
    Host("totp", 22027, 6, CODE_AFTER_KEY, TOTP_SSHD),
    Host("password", 22028, 6, PASSWORD),
    Host("campus", 22029, 6, PASSWORD, slurm=True),
    Host("certificate", 22030, 6, CERTIFICATE, identity="id_signed"),
    Host("ed25519only", 22031, 6, "PubkeyAcceptedAlgorithms ssh-ed25519\nHostKeyAlgorithms ssh-ed25519"),
    Host("hostcert", 22032, 6, f"HostCertificate {SSHD}/hostcert.key-cert.pub"),
    Host("nosession", 22033, 6, "MaxSessions 0"),
    Host("onestartup", 22034, 6, "MaxStartups 1"),
    Host(GRID_ENGINE_HOST, 22035, 6, grid_engine=True),
)
# Not started by `up` but by the tests that want to pull a cable (cable.py); of the addresses that are nobody's.
CABLE_LIST = tuple(
    Host(f"cable{number}", 22040 + number, 6, address=f"192.0.2.{4 * number + 2}") for number in range(1, 5)
)
HOST_BY_NAME = {host.name: host for host in (*HOST_LIST, *CABLE_LIST)}

ACCOUNT_LIST = (
    Account("cfbash", "/bin/bash"),
    Account("cfdash", "/bin/sh"),
    Account("cftcsh", "/usr/bin/tcsh"),
    Account("cffish", "/usr/bin/fish"),
    Account("cfnoisy", "/bin/bash"),
    Account("cfexit", "/bin/bash"),
    Account("cfspace", "/bin/bash", home_name="a b %j 'q' ü"),
    Account("cfnologin", "/usr/sbin/nologin"),
    Account("cfsecond", "/bin/bash"),
    Account("cftiny", "/bin/bash", mount="size=8m,mode=755"),
    Account("cfro", "/bin/bash", mount="ro,size=1m,mode=755"),
)
ACCOUNT_BY_NAME = {account.name: account for account in ACCOUNT_LIST}


def aliases() -> tuple[Alias, ...]:
    """`<host>-<account without cf>` for every pair, short names, those behind a jump, and some that must fail."""
    pairs = [
        Alias(f"{host.name}-{account.name[2:]}", host.name, account.name, host.identity)
        for host in HOST_BY_NAME.values()
        for account in ACCOUNT_LIST
    ]
    jumped = [
        Alias("jumped", "py36", "cfbash", jump="tensor01-second"),
        Alias("jumped-twice", "py38", "cfbash", jump="jumped"),
    ]
    short = [Alias("tensor01", "tensor01", "cfbash"), Alias("slurm", "slurm", "cfbash")]
    # Without account and key: whoever comes says who he is.
    short += [Alias(name, name, "", identity="") for name in ("password", "campus")]
    vouched = [
        Alias("authority", "hostcert", "cfbash", known_hosts="known_hosts.authority"),
        Alias("certificate-apart", "certificate", "cfbash", "id_apart", certificate=CERTIFICATE_APART),
    ]
    faulty = [
        Alias("unknown-key", "py36", "cfbash", known_hosts="known_hosts.empty"),
        Alias("changed-key", "py36", "cfbash", known_hosts="known_hosts.changed"),
        Alias("unknown-authority", "py36", "cfbash", known_hosts="known_hosts.authority"),
        Alias("wrong-user-key", "py36", "cfbash", identity="id_wrong"),
        Alias("unsigned", "certificate", "cfbash"),
        Alias("expired-certificate", "certificate", "cfbash", identity="id_expired"),
        Alias("ecdsa-key", "ed25519only", "cfbash", identity="id_ecdsa"),
        Alias("refused", "py36", "cfbash", port=REFUSED_PORT),
        Alias("no-such-name", "py36", "cfbash", address="no-such-name.invalid"),
    ]
    return (*pairs, *short, *jumped, *vouched, *faulty)


# The files whose change makes a running lab an old one. The handle, the tests and the proxy are not among them.
BUILDERS = (
    "accounts", "client", "gpubox", "grid_engine", "hosts", "layout", "nvidia_smi", "packages", "pythons", "slurm",
    "totp",
)  # fmt: skip


def version() -> str:
    """A hash of the sources that build the lab."""
    digest = hashlib.sha256()
    for name in BUILDERS:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]
