"""Run dask's scheduler, or a worker with its nanny, by the environment's Python.

Every port of dask that they open demands the certificate of this one block. The pages that dask would serve without a
password are not served.

    dask_program.py scheduler FOLDER
    dask_program.py worker ADDRESS NAME CORES BYTES
"""

import asyncio
import json
import os
import socket
import sys
from importlib import metadata

import dask
from distributed import Nanny, Scheduler, Worker
from distributed.security import Security
from distributed.utils import get_ip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

# Names of variables by which the job passes the settings and the certificate.
SETTINGS, TLS = "CLUSTERFN_DASK", "CLUSTERFN_DASK_TLS"
# The file of the scheduler in the holder's folder, by which the client connects.
FACTS = "dask.json"
# EX_CONFIG of sysexits.h, by which the client distinguishes an unfit environment from a crash.
UNFIT = 78
# A scheduler always listens before its workers are submitted, so a worker need not wait long for the first connection.
FIRST_S = 30.0
# A worker may need minutes to start on a slow file system. If it has found no scheduler after this time, it gives up.
LOST_S = 180
_ROUTES = "distributed.scheduler.http.routes"


class HeldScheduler(Scheduler):  # type: ignore[misc,unused-ignore]
    """A scheduler without pages."""

    def start_http_server(self, *_: "Any", **__: "Any") -> None:
        return


class HeldWorker(Worker):  # type: ignore[misc,unused-ignore]
    """A worker without pages."""

    def start_http_server(self, *_: "Any", **__: "Any") -> None:
        return


def unfitness(settings: "Any") -> str:
    """Return in a sentence what the environment lacks, or has in another version than the caller; "" for nothing."""
    for name, expected in sorted(settings["versions"].items()):
        installed = metadata.version(name)
        if installed != expected:
            return "%s is %s in the environment %s, and %s on your machine" % (name, installed, sys.prefix, expected)
    return ""


def security() -> "Any":
    """Return what admits this process, and what it demands of others; child processes do not get the variable."""
    return security_of(**json.loads(os.environ.pop(TLS)))


def security_of(cert: str, key: str) -> "Any":
    """Return dask's settings of TLS with a certificate that signs itself and serves every role, and its key."""
    return Security(
        require_encryption=True,
        tls_ca_file=cert,
        tls_client_cert=cert,
        tls_client_key=key,
        tls_scheduler_cert=cert,
        tls_scheduler_key=key,
        tls_worker_cert=cert,
        tls_worker_key=key,
    )


def own_ip(settings: "Any", other: str = "") -> str:
    """Return the address of this machine at which the other processes of dask reach it.

    Args:
        other: The address of a machine that they reach; "" if it is not known.
    """
    if settings["is_one_machine"]:
        return "127.0.0.1"
    if other:
        return str(get_ip(other))
    # Nodes know each other by their names. dask would take the address that leads to the internet, which may be in
    # another network.
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = "127."
    return str(get_ip()) if named.startswith("127.") else named


def ip_and_port(address: str) -> "Any":
    """Return the parts of an address.

    Example:
        >>> ip_and_port("tls://10.0.0.7:4000")
        ('10.0.0.7', 4000)
    """
    ip, port = address.rpartition("//")[2].rsplit(":", 1)
    return ip.strip("[]"), int(port)


async def run_scheduler(folder: str, settings: "Any") -> None:
    """Run the scheduler until it is asked to close; write into the folder where it listens."""
    dask.config.set({_ROUTES: []})
    scheduler = HeldScheduler(host=own_ip(settings), port=0, protocol="tls", security=security(), dashboard=False)
    async with scheduler:
        ip, port = ip_and_port(scheduler.address)
        part = os.path.join(folder, FACTS + ".part")
        with open(part, "w", encoding="utf-8") as file:
            json.dump({"ip": ip, "port": port}, file)
        # The file must appear whole.
        os.replace(part, os.path.join(folder, FACTS))
        await scheduler.finished()


async def run_worker(address: str, name: str, cores: int, memory_bytes: int, settings: "Any") -> None:
    """Run one worker until it is asked to close.

    A job may have waited in the queue for longer than its scheduler lived: then it ends at once.
    """
    try:
        socket.create_connection(ip_and_port(address), FIRST_S).close()
    except OSError as error:
        sys.stderr.write("the scheduler at %s does not answer (%s): its block has ended\n" % (address, error))
        return
    nanny = Nanny(
        address,
        name=name,
        nthreads=cores,
        memory_limit=memory_bytes or "auto",
        protocol="tls",
        host=own_ip(settings, ip_and_port(address)[0]),
        security=security(),
        death_timeout=LOST_S,
        dashboard=False,
        worker_class=HeldWorker,
    )
    async with nanny:
        await nanny.finished()


def main(argv: "List[str]") -> int:
    """Run what the arguments say; return the exit status."""
    settings = json.loads(os.environ.pop(SETTINGS))
    sys.path[:0] = settings["path"]
    unfit = unfitness(settings)
    if unfit:
        sys.stderr.write("%s\n" % unfit)
        return UNFIT
    if argv[1] == "scheduler":
        asyncio.run(run_scheduler(argv[2], settings))
    else:
        asyncio.run(run_worker(argv[2], argv[3], int(argv[4]), int(argv[5]), settings))
    return 0


if __name__ == "__main__":
    # Python put the folder of this file there, whose modules must not hide those of the user.
    del sys.path[0]
    sys.exit(main(sys.argv))
