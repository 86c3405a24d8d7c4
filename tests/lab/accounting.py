"""slurmdbd and its database for a SLURM of a test's own: accounts, QOS and their limits, as `sacctmgr` sets them.

Debian's packages are unpacked below the lab, once and in about 3 s; nothing is installed. Tests ask for it with
`lab.own_slurm(accounting=True)`.
"""

from __future__ import annotations

import fcntl
import shlex
import shutil
import subprocess
from pathlib import Path

from .layout import ROOT
from .processes import LabError, run
from .slurm import SOCKET

HOME = ROOT / "accounting"
PACKAGES = (
    "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server-core", "libmariadb3", "liburing2", "libaio1", "libnuma1",
)  # fmt: skip
CLUSTER = "site"
_LIBRARIES = HOME / "usr" / "lib" / "x86_64-linux-gnu"
_PLUGINS = f"/usr/lib/x86_64-linux-gnu/slurm-wlm:{_LIBRARIES / 'slurm-wlm'}"
_ENV = f"LD_LIBRARY_PATH={_LIBRARIES}"
_EMPTY = HOME / "empty"  # a database with its system tables: slurmdbd keeps procedures there
_TABLES = HOME / "usr" / "share" / "mysql"


def provide() -> None:
    """Unpack the packages and make an empty database once; raise LabError if Debian does not answer."""
    with (ROOT / "accounting.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # tests run side by side
        if (HOME / "complete").exists():
            return
        shutil.rmtree(HOME, ignore_errors=True)
        archives = HOME / "archives"
        archives.mkdir(parents=True)
        _download(archives)
        for archive in sorted(archives.glob("*.deb")):
            run(["dpkg", "-x", str(archive), str(HOME)])
        (_EMPTY / "mysql").mkdir(parents=True)
        names = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
        sql = "use mysql;\n" + "".join((_TABLES / name).read_text() for name in names)
        subprocess.run([*_database(_EMPTY), "--bootstrap"], input=sql, text=True, capture_output=True, check=True)
        (HOME / "complete").touch()


def _download(folder: Path) -> None:
    command = ["apt-get", "download", "-q", *PACKAGES]
    for _ in range(2):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)  # the lists may be stale
    raise LabError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")


def _database(data: Path) -> list[str]:
    return [
        "env", _ENV, str(HOME / "usr" / "sbin" / "mariadbd"), "--no-defaults", "--user=root", f"--datadir={data}",
        f"--lc-messages-dir={_TABLES}", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0",
        "--innodb-log-file-size=8M",
    ]  # fmt: skip


def settings(port: int) -> dict[str, object]:
    """Keys of slurm.conf."""
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": port, "AccountingStoragePass": SOCKET,
        "AccountingStorageEnforce": "associations,limits,qos", "AccountingStorageTRES": "gres/gpu",
    }  # fmt: skip


def daemons(folder: Path, port: int, database_port: int, account: str) -> dict[str, list[str]]:
    """Write slurmdbd.conf; return what to start, by name, and in `slurmctld` what must be done before it.

    Args:
        account: The user who gets an association, with an account of the same name and the QOS `normal`.
    """
    data, conf = folder / "database", folder / "slurmdbd.conf"
    shutil.copytree(_EMPTY, data)
    own = {
        "AuthType": "auth/munge", "AuthInfo": f"socket={SOCKET}", "DbdHost": "localhost", "DbdAddr": "127.0.0.1",
        "DbdPort": port, "SlurmUser": "root", "StorageType": "accounting_storage/mysql", "StorageHost": "127.0.0.1",
        "StoragePort": database_port, "StorageUser": "root", "StorageLoc": "slurm", "PluginDir": _PLUGINS,
        "LogFile": folder / "slurmdbd.log", "PidFile": folder / "slurmdbd.pid",
    }  # fmt: skip
    conf.touch(mode=0o600)
    conf.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
    listens = [f"--socket={data / 'socket'}", f"--port={database_port}", "--bind-address=127.0.0.1"]
    dbd = shlex.join(["env", _ENV, str(HOME / "usr" / "sbin" / "slurmdbd"), "-D"])
    add = "sacctmgr --immediate --quiet add"
    ready = [
        f"until {add} cluster {CLUSTER}; do sleep 0.2; done",
        f"{add} account {account} description=lab organization=lab",
        f"{add} user {account} account={account}",
    ]
    return {
        "mariadbd": [*_database(data), *listens, "--skip-grant-tables"],
        "slurmdbd": ["/bin/bash", "-c", f"until : </dev/tcp/127.0.0.1/{database_port}; do sleep 0.1; done; exec {dbd}"],
        "slurmctld": ["/bin/bash", "-c", "; ".join([*ready, 'exec "$@"']), "slurmctld"],
    }
