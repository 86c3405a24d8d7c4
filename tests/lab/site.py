"""An sshd of a test's own, on a machine that provides SLURM's commands as some site does.

It runs in a mount namespace: SLURM's commands are where the test puts them, not in /usr/bin, and /etc is a copy that
the test can change. Its jobs run in the lab's own SLURM, whose nodes know nothing of that.

    with site(newcomer) as made:
        made.profile("PATH=$PATH:%s" % made.commands)      # /etc/profile.d
        made.start()
        subprocess.run(["ssh", "-F", made.ssh_config, made.name, "true"])
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import layout
from .hosts import HIDE_SIGNS, SLURM_PROGRAMS, listens
from .newcomer import Newcomer
from .processes import LabError

PYTHON = layout.PYTHONS / "3.6" / "bin" / "python"
RESTRICTED = "/usr/bin:/bin"
# Of this machine's /etc, what is not copied.
_LEFT_OUT = shutil.ignore_patterns("*shadow*", "slurm*", "condor", "motd*", "profile.d", "pbs.conf", "lsf.conf")
_HIDE = f"""{HIDE_SIGNS}for program in %s; do mount --bind %s/none /usr/bin/$program || exit; done
mount --bind %s/etc /etc || exit
mount -t tmpfs -o mode=755 tmpfs /usr/local || exit
%s
exec "$@"
"""


@dataclass
class Site:
    """One machine of a site.

    Attributes:
        folder: Its own, which its account can read.
        account: Who logs in there.
        port: On 127.0.0.1.
        environ: Variables that its sshd gives to every command (`SetEnv`); PATH lacks SLURM's commands.
        settings: Further lines of sshd_config.
        mounts: Further commands before the sshd starts, such as copy the commands to a folder of the machine.
    """

    folder: Path
    account: Newcomer
    port: int
    environ: dict[str, str] = field(default_factory=lambda: {"PATH": RESTRICTED})
    settings: str = ""
    mounts: str = ""
    _sshd: subprocess.Popen[bytes] | None = None
    name: str = "site"

    @property
    def commands(self) -> Path:
        """The folder with SLURM's commands."""
        return self.folder / "slurm" / "bin"

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "client" / "config"

    def profile(self, lines: str, name: str = "slurm.sh") -> None:
        """Give every login shell these lines, by /etc/profile.d."""
        (self.etc / "profile.d").mkdir(exist_ok=True)
        (self.etc / "profile.d" / name).write_text(lines + "\n")

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """Write a file of the account, below its home."""
        path = self.account.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        path.chmod(mode)
        subprocess.run(["chown", "-R", self.account.name, str(self.account.home)], check=True)
        return path

    def start(self) -> None:
        """Start the sshd, and wait until it listens."""
        variables = " ".join(f'"{name}={value}"' for name, value in self.environ.items())
        config = self.folder / "sshd_config"
        config.write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {self.folder}/host.key\nPidFile none\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nUsePAM no\nPrintMotd no\nMaxStartups 100\n"
            f"StrictModes no\nMaxSessions 50\nSubsystem sftp internal-sftp\n{self.settings}\nSetEnv {variables}\n"
        )
        hidden = [path.name for path in Path("/usr/bin").iterdir() if SLURM_PROGRAMS.fullmatch(path.name)]
        script = _HIDE % (" ".join(hidden), self.folder, self.folder, self.mounts)
        argv = ["unshare", "--mount", "sh", "-c", script, "sh", "/usr/sbin/sshd", "-D", "-f", str(config)]
        log = (self.folder / "sshd.log").open("wb")
        self._sshd = subprocess.Popen([*argv, "-e"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        for _ in range(400):
            if listens(self.port):
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._sshd.wait(0.05)
                break
        raise LabError(f"sshd of the site does not listen: {(self.folder / 'sshd.log').read_text()[-2000:]}")

    def stop(self) -> None:
        if self._sshd is not None:
            self._sshd.terminate()
            self._sshd.wait()

    def prepare(self) -> None:
        """Make its folder: SLURM's commands, a copy of /etc, a host key, and what a client needs."""
        self.folder.chmod(0o755)
        self.commands.mkdir(parents=True)
        (self.folder / "none").touch(0o644)
        for program in Path("/usr/bin").iterdir():
            if SLURM_PROGRAMS.fullmatch(program.name):
                shutil.copy2(program.resolve(), self.commands / program.name)
        shutil.copytree("/etc", self.etc, symlinks=True, ignore=_LEFT_OUT)
        (self.etc / "motd").write_text("Welcome.\n")
        key = self.folder / "host.key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        client = self.ssh_config.parent
        client.mkdir(mode=0o700)
        shutil.copy(layout.CLIENT / "id_ed25519", client / "id_ed25519")
        (client / "id_ed25519").chmod(0o600)
        shutil.copy(layout.CLIENT / "id_ed25519.pub", self.folder / "authorized_keys")
        public = (self.folder / "host.key.pub").read_text()
        (client / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}")
        self.ssh_config.write_text(
            f"Host {self.name}\n  HostName 127.0.0.1\n  Port {self.port}\n  User {self.account.name}\n"
            f"  IdentityFile {client}/id_ed25519\n  IdentitiesOnly yes\n  UserKnownHostsFile {client}/known_hosts\n"
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def site(account: Newcomer) -> Iterator[Site]:
    """A machine for the length of a with block; `start` it when it is as it should be."""
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-site-", dir=layout.ROOT))
    made = Site(folder, account, _free_port())
    made.environ["PATH"] = f"{_python(folder)}:{RESTRICTED}"
    try:
        made.prepare()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _python(folder: Path) -> Path:
    """A folder with the old python3 of such a machine alone."""
    own = folder / "python"
    own.mkdir()
    os.symlink(PYTHON, own / "python3")
    return own
