"""Run dask's scheduler, or workers with their nannies, by the environment's Python.

Every port of dask that they open demands the certificate of this one block. The pages that dask would serve without a
password go to a unix socket of this user, or are not served.

    dask_program.py scheduler FOLDER
    dask_program.py worker ADDRESS NAME CORES BYTES
    dask_program.py node

Where one job holds all of dask, the settings name the workers of each node: the scheduler runs those of the first node
beside itself, and `node` runs those of a further one.
"""

import asyncio
import json
import os
import socket
import sys
import time
from importlib import metadata, util

import dask
from distributed import Nanny, Scheduler, Worker
from distributed.http.routing import RoutingApplication
from distributed.security import Security
from distributed.utils import get_ip, get_ip_interface
from tornado.httpserver import HTTPServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

# Names of variables by which the job passes the settings and the certificate.
SETTINGS, TLS = "CLUSTERFN_DASK", "CLUSTERFN_DASK_TLS"
ATTEMPT, NODE, VISIBLE = "CLUSTERFN_JOB", "NODE_RANK", "CUDA_VISIBLE_DEVICES"
# Files of the scheduler in the holder's folder, by which the client connects.
FACTS, DASHBOARD = "dask.json", "dashboard"
# EX_CONFIG of sysexits.h, by which the client distinguishes an unfit environment from a crash.
UNFIT = 78
# A scheduler always listens before its workers are submitted, so a worker need not wait long for the first connection.
FIRST_S = 30.0
# A worker may need minutes to start on a slow file system. If it has found no scheduler after this time, it gives up.
LOST_S = 180
_LOOK_S = 0.2
# The workers of a node have this long to close in order before the job ends them.
_CLOSE_S = 5.0
_ORIGINS = "distributed.scheduler.dashboard.bokeh-application.allow-websocket-origin"
_ROUTES = "distributed.scheduler.http.routes"


class HeldScheduler(Scheduler):  # type: ignore[misc,unused-ignore]
    """A scheduler whose pages are at a unix socket, or nowhere.

    Attributes:
        page_path: The socket; "" for none.
        page_port: The port of the client's machine at which a browser finds them.
    """

    page_path, page_port = "", 0

    def start_http_server(self, routes: "Any", *_: "Any", **__: "Any") -> None:
        if self.page_path:
            # Windows lacks this function. A client there imports the module only for its names.
            from tornado.netutil import bind_unix_socket

            self.http_application = RoutingApplication(routes)
            self.http_server = self.services["dashboard"] = HTTPServer(self.http_application)
            self.http_server.address, self.http_server.port = "127.0.0.1", self.page_port
            self.http_server.add_socket(bind_unix_socket(self.page_path, mode=0o600))


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
    if settings["dashboard"] and util.find_spec("bokeh") is None:
        return "dashboard=True needs bokeh, which the environment %s does not have" % sys.prefix
    return ""


def security() -> "Any":
    """Return what admits this process, and what it demands of others; child processes do not get the variable."""
    return security_of(**json.loads(os.environ.pop(TLS)))


def security_of(cert: str, key: str) -> "Any":
    """Return dask's settings of TLS with a certificate that signs itself and serves every role, and its key."""
    return Security(
        require_encryption=True, tls_ca_file=cert, tls_client_cert=cert, tls_client_key=key,
        tls_scheduler_cert=cert, tls_scheduler_key=key, tls_worker_cert=cert, tls_worker_key=key,
    )  # fmt: skip


def own_ip(settings: "Any", other: str = "") -> str:
    """Return the address of this machine at which the other processes of dask reach it.

    Args:
        other: The address of a machine that they reach; "" if it is not known.
    """
    if settings["is_one_machine"]:
        return "127.0.0.1"
    if settings["interface"]:
        return str(get_ip_interface(settings["interface"]))
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
    port = settings["dashboard"]
    if port:
        HeldScheduler.page_path, HeldScheduler.page_port = os.path.join(folder, DASHBOARD), port
        # Otherwise any page in the user's browser could read these pages.
        dask.config.set({_ORIGINS: ["127.0.0.1:%d" % port, "localhost:%d" % port]})
    else:
        dask.config.set({_ROUTES: []})
    guard = security()
    scheduler = HeldScheduler(
        host=own_ip(settings), port=0, protocol="tls", security=guard, dashboard=bool(port),
    )  # fmt: skip
    async with scheduler:
        ip, its_port = ip_and_port(scheduler.address)
        write_facts(folder, {"ip": ip, "port": its_port})
        if not settings["workers"]:
            await scheduler.finished()
            return
        write_facts(shared_folder(settings), {"address": scheduler.address})
        ended = asyncio.ensure_future(scheduler.finished())
        workers = asyncio.ensure_future(run_workers(scheduler.address, 0, settings, guard))
        await asyncio.wait([ended, workers], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            # Awaiting the task raises the error that kept a worker from starting.
            await workers
        await ended
        workers.cancel()
        await asyncio.wait([workers])


def write_facts(folder: str, facts: "Dict[str, Any]") -> None:
    """Write the file FACTS, so that it appears whole."""
    part = os.path.join(folder, FACTS + ".part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    os.replace(part, os.path.join(folder, FACTS))


def shared_folder(settings: "Any") -> str:
    """Return the folder of this attempt, which all nodes of the job see."""
    attempt = os.environ[ATTEMPT].rpartition("/")[2]
    return os.path.join(settings["workers"]["job"], "attempts", attempt)


def await_address(folder: str) -> str:
    """Wait until the scheduler has written its address; the job ends this process if that never happens."""
    # NFS remembers for half a minute that a file was missing; listing the folder asks the server.
    while FACTS not in os.listdir(folder):
        time.sleep(_LOOK_S)
    with open(os.path.join(folder, FACTS), encoding="utf-8") as file:
        return str(json.load(file)["address"])


def gpus_of(number: int, settings: "Any") -> "Dict[str, str]":
    """Return the variable by which a worker of a node sees its own GPUs alone; {} if it asked for none."""
    count, each = settings["workers"]["count"], settings["workers"]["gpus"]
    if not each:
        return {}
    visible = os.environ.get(VISIBLE)
    # A scheduler that shows a job nothing but its own GPUs need not name them.
    names = [str(index) for index in range(count * each)] if visible is None else list(filter(None, visible.split(",")))
    if len(names) < count * each:
        facts = (count, count * each, VISIBLE, visible)
        raise RuntimeError("%d workers need %d GPUs, and the job has fewer: %s=%s" % facts)
    return {VISIBLE: ",".join(names[number * each : (number + 1) * each])}


async def run_workers(address: str, node: int, settings: "Any", guard: "Any") -> None:
    """Run the workers of a node until all of them have been asked to close; one that is killed starts again."""
    share = settings["workers"]
    nannies = [
        make_nanny(
            address, "dask-worker-%d" % (node * share["count"] + number), share["cores"], share["bytes"], settings,
            guard, gpus_of(number, settings),
        )
        for number in range(share["count"])
    ]  # fmt: skip
    try:
        await asyncio.gather(*nannies)
        await asyncio.gather(*[each.finished() for each in nannies])
    finally:
        await asyncio.gather(*[each.close(timeout=_CLOSE_S) for each in nannies], return_exceptions=True)


def make_nanny(
    address: str, name: str, cores: int, memory_bytes: int, settings: "Any", guard: "Any", env: "Dict[str, str]"
) -> "Any":
    """Return what starts a worker, and replaces it if it is killed, once it is awaited."""
    return Nanny(
        address, name=name, nthreads=cores, memory_limit=memory_bytes or "auto", protocol="tls",
        host=own_ip(settings, ip_and_port(address)[0]), security=guard, death_timeout=LOST_S, dashboard=False,
        worker_class=HeldWorker, env=env,
    )  # fmt: skip


async def run_worker(address: str, name: str, cores: int, memory_bytes: int, settings: "Any") -> None:
    """Run one worker until it is asked to close.

    A job may have waited in the queue for longer than its scheduler lived: then it ends at once.
    """
    try:
        socket.create_connection(ip_and_port(address), FIRST_S).close()
    except OSError as error:
        sys.stderr.write("the scheduler at %s does not answer (%s): its block has ended\n" % (address, error))
        return
    async with make_nanny(address, name, cores, memory_bytes, settings, security(), {}) as nanny:
        await nanny.finished()


def main(argv: "List[str]") -> int:
    """Run what the arguments say; return the exit status."""
    settings = json.loads(os.environ.pop(SETTINGS))
    sys.path[:0] = settings["path"]
    # The first node says what is unfit: its scheduler starts before the workers of the others.
    address = await_address(shared_folder(settings)) if argv[1] == "node" else ""
    unfit = unfitness(settings)
    if unfit:
        sys.stderr.write("%s\n" % unfit)
        return UNFIT
    if argv[1] == "scheduler":
        asyncio.run(run_scheduler(argv[2], settings))
    elif argv[1] == "node":
        asyncio.run(run_workers(address, int(os.environ[NODE]), settings, security()))
    else:
        asyncio.run(run_worker(argv[2], argv[3], int(argv[4]), int(argv[5]), settings))
    return 0


if __name__ == "__main__":
    # Python put the folder of this file there, whose modules must not hide those of the user.
    del sys.path[0]
    sys.exit(main(sys.argv))
