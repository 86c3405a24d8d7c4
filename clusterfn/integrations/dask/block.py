"""A `with` block of dask: start its scheduler and workers, watch over them, and end all of it.

Each block has a certificate: processes that have its key take part, and all others are rejected.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import dask
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from distributed import Client
from distributed.security import Security

from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.kernel.dask_program import security_of
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import loop
from clusterfn.integrations.dask.jobs import DaskSettings, SchedulerJob, WorkerJobs
from clusterfn.public_api import public_api

if TYPE_CHECKING:
    from clusterfn.config.options import Options

_CONNECTING, _SILENCE = "distributed.comm.timeouts.connect", "distributed.comm.timeouts.tcp"
_PATIENCE_S = 60.0
_LOOK_S = 0.05
_REASON_S = 5.0
# The exceptions by which dask reports a lost connection.
_LOST = (OSError, RuntimeError, TimeoutError)
# dask has this long to close in order. It has less where its scheduler is gone, because it might only try to reach it.
_CLOSE_S = 30.0
_GIVE_UP_S = 5.0
_WORKERS_END_S = 15.0


class DaskBlock:
    """A `with` block of `dask_client`; entering it gives the client.

    Args:
        scheduler: The options of the scheduler's job.
        worker: Those of the job of each worker.
        count: The number of workers.
        imports: The user's own modules that tasks import.
        idle_s: All ends after so long without a connection to this process.
    """

    def __init__(self, scheduler: Options, worker: Options, count: int, imports: Sequence[str], idle_s: float) -> None:
        self._of_scheduler, self._of_worker = scheduler, worker
        self._count = count
        self._imports = imports
        self._idle_s = idle_s
        self._scheduler: SchedulerJob | None = None
        self._jobs: WorkerJobs | None = None
        self._client: Any = None
        self._error: ClusterfnError | None = None
        self._failed = threading.Event()
        self._settings = contextlib.ExitStack()
        self._is_ending = False

    @public_api
    def __enter__(self) -> Any:
        """Start dask, and return the client once a worker has connected; raise ClusterfnError if dask cannot start."""
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
        self._jobs = WorkerJobs(self._of_worker, settings, self._fail)
        self._scheduler = SchedulerJob(self._of_scheduler, settings, self._idle_s)
        # dask connects to a socket of this machine. It must not give up while the network behind that socket is lost.
        patience = f"{max(self._idle_s, _PATIENCE_S):g}s"
        self._settings.enter_context(dask.config.set({_SILENCE: patience}))
        self._scheduler.on_end(self._fail)
        self._scheduler.await_scheduler()
        self._client = Client(self._scheduler.address, security=settings.security)
        # This is set only now, because dask would otherwise try this long to reach a scheduler that has just ended.
        self._settings.enter_context(dask.config.set({_CONNECTING: patience}))
        self._jobs.begin(self._client.scheduler_info()["address"], self._count)
        self._await_worker(self._jobs)
        return self._client

    def _await_worker(self, jobs: WorkerJobs) -> None:
        """Wait for the first worker, and say why there is none yet."""

        def describe() -> str:
            workers = [f"{job.id[:SHORT]} is {job.status_since}" for job in jobs.waiting()]
            return f"waiting for a worker: {', '.join(workers)}"

        with loop.speaking(describe):
            while not self._failed.is_set() and not self._client.nthreads():
                self._failed.wait(_LOOK_S)
        if self._error is not None:
            raise self._error

    def _fail(self, error: ClusterfnError) -> None:
        """Note why dask cannot go on, and close the client: nothing may wait for a value that will not come."""
        if self._is_ending or self._error is not None:
            return
        self._error = error
        self._failed.set()
        if self._client is not None:
            loop.begin(loop.in_thread(self._close_client, "clusterfn-dask-close"))

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
        """End dask and all of its jobs; raise ClusterfnError if dask has ended before the block did."""
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
        is_reachable = self._error is None and self._client is not None and self._is_connected()
        try:
            if is_reachable:
                # The scheduler closes all workers, and then itself.
                concurrent.futures.wait([loop.start(loop.in_thread(self._shut_down, "clusterfn-dask-end"))], _CLOSE_S)
            if self._client is not None:
                self._close_client(_GIVE_UP_S)
        finally:
            if self._scheduler is not None:
                self._scheduler.end()
            if self._jobs is not None:
                self._jobs.end(_WORKERS_END_S if is_reachable and not is_interrupted else 0.0)
            self._settings.close()

    def _shut_down(self) -> None:
        with contextlib.suppress(*_LOST):
            # Jobs that are left are ended then.
            self._client.shutdown()

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
    uses = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    )
    unused = dict.fromkeys(uses, False)
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **unused)
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
