"""A `with` block of dask: start its scheduler and workers, watch over them, and end all of it.

Each block has a certificate: processes that have its key take part, and all others are rejected. dask's own view of
the block is a `SpecCluster`, so `scale` and `adapt` are dask's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import dask
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from dask.utils import parse_timedelta
from distributed import Client
from distributed.core import Status, rpc
from distributed.deploy.spec import ProcessInterface, SpecCluster
from distributed.security import Security

from clusterfn.bridge.kernel.dask_program import security_of
from clusterfn.display import console
from clusterfn.errors import ClusterfnError
from clusterfn.integrations.dask.jobs import DaskSettings, SchedulerJob, WorkerJob, WorkerJobs, end_job
from clusterfn.integrations.jupyter.kernel_job import reason_of_end, tell_why_it_waits
from clusterfn.public_api import public_api

if TYPE_CHECKING:
    from clusterfn.config.options import Options

_CONNECTING, _SILENCE = "distributed.comm.timeouts.connect", "distributed.comm.timeouts.tcp"
_PATIENCE_S = 60.0
_LOOK_S, _REASON_S = 0.05, 5.0
# The exceptions by which dask reports a lost connection.
_LOST = (OSError, RuntimeError, TimeoutError)
# dask has this long to close in order. It has less where its scheduler is gone, because it might only try to reach it.
_CLOSE_S, _GIVE_UP_S = 30.0, 5.0
_WORKERS_END_S = 15.0


class DaskBlock:
    """A `with` block of `dask_client`; entering it gives the client.

    Args:
        scheduler: The options of the scheduler's job.
        worker: Those of the job of each worker.
        workers: Their smallest and their largest number.
        adapts: Whether dask chooses the number.
        imports: The user's own modules that tasks import.
        idle_s: All ends after so long without a connection to this process.
    """

    def __init__(
        self, scheduler: Options, worker: Options, workers: tuple[int, int], adapts: bool, imports: Sequence[str],
        idle_s: float,
    ) -> None:  # fmt: skip
        self._of_scheduler, self._of_worker = scheduler, worker
        self._least, self._most = workers
        self._adapts = adapts
        self._imports = imports
        self._idle_s = idle_s
        self._scheduler: SchedulerJob | None = None
        self._jobs: WorkerJobs | None = None
        self._cluster: JobsCluster | None = None
        self._client: Any = None
        self._error: ClusterfnError | None = None
        self._failed = threading.Event()
        self._settings = contextlib.ExitStack()
        self._is_ending = False

    @public_api
    def __enter__(self) -> Any:
        """Start dask, and return the client once a worker has connected; without waiting if there may be none.

        Raises:
            ClusterfnError: The scheduler or the workers cannot be started.
        """
        if self._scheduler is not None:
            raise RuntimeError("this block has been used: call dask_client() again")
        try:
            return self._start()
        except BaseException as error:
            # Ctrl-C, too, must leave no job behind.
            try:
                if self._scheduler is not None and isinstance(error, _LOST):
                    # dask loses its connection a moment before the reason arrives.
                    self._failed.wait(_REASON_S)
            finally:
                # A second Ctrl-C may come during the wait, and must not leave jobs behind either.
                self._end(is_interrupted=True)
            if self._error is not None and isinstance(error, Exception):
                # This error is the reason for the one that dask raised.
                raise self._error from None
            raise

    def _start(self) -> Any:
        settings = DaskSettings(self._imports, make_security())
        self._jobs = WorkerJobs(self._of_worker, settings)
        self._scheduler = SchedulerJob(self._of_scheduler, settings, self._idle_s)
        # dask connects to a socket of this machine. It must not give up while the network behind that socket is lost.
        patience = f"{max(self._idle_s, _PATIENCE_S):g}s"
        self._settings.enter_context(dask.config.set({_SILENCE: patience}))
        self._scheduler.on_end(self._fail)
        self._scheduler.await_scheduler()
        address = self._scheduler.address
        self._cluster = JobsCluster(address, settings.security, self._jobs, self._least, self._fail)
        self._client = Client(self._cluster)
        # This is set only now, because dask would otherwise try this long to reach a scheduler that has just ended.
        self._settings.enter_context(dask.config.set({_CONNECTING: patience}))
        if self._adapts:
            self._cluster.adapt(minimum=self._least, maximum=self._most)
        self._await_worker(self._cluster, self._jobs)
        return self._client

    def _await_worker(self, cluster: JobsCluster, jobs: WorkerJobs) -> None:
        """Wait for the first worker, and say why there is none yet."""
        statuses: dict[str, str] = {}
        while len(cluster.scheduler_info["workers"]) < min(1, self._least):
            if self._failed.wait(_LOOK_S):
                break
            for job in list(jobs.sent):
                tell_why_it_waits(job, statuses)
        if self._error is not None:
            raise self._error

    def _fail(self, error: ClusterfnError) -> None:
        """Note why dask cannot go on, and close the client: nothing may wait for a value that will not come."""
        if self._is_ending or self._error is not None:
            return
        self._error = error
        self._failed.set()
        if self._client is not None:
            threading.Thread(target=self._close_client, name="clusterfn-dask-close", daemon=True).start()

    def _is_connected(self) -> bool:
        return self._client is None or self._client.status == "running"

    def _close_client(self, within_s: float = _CLOSE_S) -> None:
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            # The block itself raises the cause.
            self._client.close(within_s)

    @public_api
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End dask and all of its jobs.

        Raises:
            ClusterfnError: Dask has ended before the block did.
        """
        try:
            if isinstance(error, Exception) and not self._is_connected():
                # The connection closes a moment before the reason arrives.
                self._failed.wait(_REASON_S)
        finally:
            # Ctrl-C during the wait must not leave jobs behind.
            self._end(is_interrupted=error is not None and not isinstance(error, Exception))
        if self._error is not None and (error is None or isinstance(error, Exception)):
            raise self._error from error

    def _end(self, is_interrupted: bool) -> None:
        self._is_ending = True
        connected: set[str] = set()
        is_reachable = self._error is None and self._is_connected()
        within_s = _CLOSE_S if is_reachable else _GIVE_UP_S
        try:
            if self._cluster is not None:
                connected = self._cluster.begin_end(is_reachable)
            if self._client is not None:
                self._close_client(within_s)
            if self._cluster is not None:
                with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                    # Jobs that are left are ended below.
                    self._cluster.close(within_s)
        finally:
            if self._scheduler is not None:
                self._scheduler.end()
            if self._jobs is not None:
                # End what has not connected, and what has not ended soon after its scheduler, all at the same time.
                jobs = [job for job in self._jobs.sent if not job.done()]
                waits = [_WORKERS_END_S if job.name in connected and not is_interrupted else 0.0 for job in jobs]
                ending = [threading.Thread(target=end_job, args=each, daemon=True) for each in zip(jobs, waits)]
                deadline = time.monotonic() + 2 * _WORKERS_END_S
                for each in ending:
                    each.start()
                for each in ending:
                    each.join(max(0.0, deadline - time.monotonic()))
            self._settings.close()

    def __repr__(self) -> str:
        return f"<DaskBlock: {self._client or 'not begun'}>"


_NAME = "clusterfn-dask"


def make_security() -> Security:
    """Return dask's settings of TLS with a new certificate, which signs itself and serves every role.

    dask makes such a certificate itself (`Security.temporary`). But that one is valid from this second on, by the clock
    of this machine: a host whose clock is behind would reject it.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert = certificate.public_bytes(serialization.Encoding.PEM).decode()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    security: Security = security_of(cert, private)
    return security


# So many jobs of workers may end in a row before any worker has connected; then the block fails.
_FAILURES = 3
_AGAIN_S = 1.0
_LOST_AFTER = "distributed.deploy.lost-worker-timeout"


class ConnectedScheduler(ProcessInterface):  # type: ignore[misc]  # dask has no types
    """The scheduler, which runs already; the block ends it.

    Args:
        address: Its address for this process.
    """

    def __init__(self, address: str, security: Security) -> None:
        super().__init__()
        self.external_address = address
        self._security = security

    async def start(self) -> None:
        """Ask it for its address on the host, to which workers connect."""
        arguments = self._security.get_connection_args("client")
        async with rpc(self.external_address, connection_args=arguments) as scheduler:
            self.address = (await scheduler.identity())["address"]
        await super().start()


class JobsCluster(SpecCluster):  # type: ignore[misc]  # dask has no types
    """A scheduler that runs already, and workers that are jobs.

    Args:
        address: The scheduler's, for this process.
        security: The certificate of the block.
        jobs: What sends the jobs of workers.
        count: How many workers there are at first.
        on_failure: Called in another thread with why there will be no workers.
    """

    def __init__(
        self, address: str, security: Security, jobs: WorkerJobs, count: int,
        on_failure: Callable[[ClusterfnError], None],
    ) -> None:  # fmt: skip
        self._failures = 0
        self._on_failure = on_failure
        options = {"jobs": jobs, "report": self._on_worker_end, "retire": self._retire}
        worker = {"cls": WorkerJob, "options": options}
        workers = {self._new_worker_name(number): worker for number in range(count)}
        # dask's constructor starts the workers, and their callbacks read this attribute.
        self.is_ending = False
        scheduler = {"cls": ConnectedScheduler, "options": {"address": address, "security": security}}
        super().__init__(workers=workers, worker=worker, scheduler=scheduler, security=security, name="clusterfn")

    def begin_end(self, is_reachable: bool) -> set[str]:
        """Prepare `close`: all workers end with their scheduler, and none is asked to hand over what it holds.

        Args:
            is_reachable: Whether the scheduler can be told to end.

        Returns:
            The names of the workers that are connected, and so will end.
        """
        self.is_ending = True
        self.shutdown_scheduler = is_reachable
        if self.scheduler is not None:
            self.scheduler.status = Status.closed
        return {each["name"] for each in self.scheduler_info["workers"].values()}

    def _new_worker_name(self, worker_number: int) -> str:
        return f"dask-worker-{worker_number}"

    async def _retire(self, name: str) -> bool:
        if self.is_ending:
            return False
        await self.scheduler_comm.retire_workers(names=[name], close_workers=True, remove=True)
        return True

    def _on_worker_end(self, worker: WorkerJob) -> None:
        """Replace a worker whose job has ended, unless none of the last ones has got as far as to connect."""
        if self.is_ending or self.status != Status.running:
            return
        error = worker.error
        if error is None and worker.job is not None:
            # A worker ends without an error when dask has closed it, or at its time limit.
            is_usual = not worker.job.cancelled() and worker.job.exception(0) is None
            error = None if is_usual else reason_of_end(worker.job)
        if error is not None:
            self._failures += 1
            if self._failures >= _FAILURES or worker.job is None:
                self._on_failure(error)
                return
            console.warn(f"{worker.name} has ended, and is started again: {error}")
        asyncio.get_running_loop().call_later(_AGAIN_S, self._replace, worker)

    def _replace(self, worker: WorkerJob) -> None:
        if self.workers.get(worker.name) is worker and self.status == Status.running:
            del self.workers[worker.name]
            self._correct_state()

    def _update_worker_status(self, op: str, msg: Any) -> None:
        super()._update_worker_status(op, msg)
        if op == "add":
            self._failures = 0
        elif op == "remove" and not self.is_ending:
            # dask forgets a worker that has not come back by then, and starts none in its place.
            again_s = parse_timedelta(dask.config.get(_LOST_AFTER)) + _AGAIN_S
            asyncio.get_running_loop().call_later(again_s, self._start_lacking)

    def _start_lacking(self) -> None:
        if self.status == Status.running and not self.is_ending:
            self._correct_state()
