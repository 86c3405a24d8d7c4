"""The job of dask's scheduler, and the job of each worker.

All jobs of a block have dask's settings and the certificate as variables that its programs read (`DaskSettings`).

This process waits until it reaches the scheduler in its job. A thread carries dask's connections between the two, by
the stream of a Jupyter kernel: what was on its way when the network failed arrives once the network is back, and dask
notices nothing but the delay.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import json
import posixpath
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from distributed.security import Security

from clusterfn.bridge.kernel import dask_program
from clusterfn.bridge.kernel.dask_program import UNFIT
from clusterfn.bridge.kernel.stream import ONLY
from clusterfn.calls import leaving
from clusterfn.calls.call import host_of, prepare, prepare_held, send_call
from clusterfn.calls.job import Job, run_of
from clusterfn.config.job_spec import KernelSpec
from clusterfn.display import console
from clusterfn.display.at_once import at_once
from clusterfn.errors import ClusterfnError, ConfigError, EnvironmentBuildError
from clusterfn.hosts import loop
from clusterfn.hosts.host_state import CALLER
from clusterfn.integrations.jupyter.jupyter_files import listen_on
from clusterfn.integrations.jupyter.kernel_job import await_holder, reason_of_end, send_held
from clusterfn.integrations.jupyter.near_end import NearEnd
from clusterfn.packing import payload as payloads

if TYPE_CHECKING:
    from clusterfn.calls.call import Prepared
    from clusterfn.config.options import Options

_PROGRAM = "_clusterfn/bridge/kernel/dask_program.py"
_PACKAGES = ("dask", "distributed")


def run_program(*words: str) -> None:
    """Run a worker in the job until it is asked to close."""
    # The function is sent by value, so it imports everything itself.
    import json
    import os
    import platform
    import signal
    import subprocess
    import sys

    status = subprocess.call([sys.executable, json.loads(os.environ["CLUSTERFN_DASK"])["program"], *words])
    if status:
        how = f"exit status {status}" if status > 0 else signal.Signals(-status).name
        node = os.environ.get("SLURMD_NODENAME") or platform.node()
        raise RuntimeError(f"what starts dask's worker on {node} ended with {how}")


# The function is sent by value, so the job need not import modules that only the client uses.
run_program.__module__ = "__main__"


@dataclass(frozen=True)
class DaskSettings:
    """What the scheduler and all workers of one block have in common.

    Attributes:
        imports: The user's own modules that tasks import.
        security: The certificate of this block alone, and its key.
    """

    imports: Sequence[str]
    security: Security

    def of_job(self, prepared: Prepared) -> Prepared:
        """Return a job that has these settings as variables, and the key as a secret.

        Raises:
            ConfigError: Its environment has another minor version of Python, where dask could not load the tasks.
        """
        version = prepared.environment.python
        if version != CALLER:
            there, here = (".".join(map(str, python)) for python in (version, CALLER))
            problem = f"dask needs the same Python on both sides: the environment has {there}, this is {here}"
            hint = f"use an environment with Python {here}"
            raise ConfigError(problem, host=prepared.host.settings.name, hint=hint)
        job, tls_config = prepared.job, self.security.get_tls_config_for_role("client")
        settings = {
            "program": posixpath.join(job.bridge, _PROGRAM),
            "path": list(job.sys_path),
            "versions": {name: metadata.version(name) for name in _PACKAGES},
            "is_one_machine": not prepared.host.scheduler.has_nodes,
        }
        tls = json.dumps({"cert": tls_config["cert"], "key": tls_config["key"]})
        env = {**job.env, dask_program.SETTINGS: json.dumps(settings)}
        return prepared._replace(job=job._replace(env=env, secrets={**job.secrets, dask_program.TLS: tls}))


IP = "127.0.0.1"
_UNFIT = f"exit status {UNFIT}"
_END_S, _JOIN_S, _LEAVE_S = 10.0, 10.0, 15.0
_TRIES, _REASON_S, _ANSWER_S = 3, 5.0, 60.0


# The process that watches a worker takes this part of the worker's memory.
_NANNY_BYTES = 200 * 2**20


def memory_limit(asked_bytes: int | None) -> int:
    """Return at how many bytes a worker ends that has this memory together with its nanny; 0 for no limit."""
    job_bytes = asked_bytes or 0
    return max(job_bytes - _NANNY_BYTES, job_bytes * 3 // 4)


class SchedulerJob:
    """The job, from its start to its end. A thread carries the connections to it until the scheduler has ended.

    Attributes:
        address: Of the scheduler, for this process.
        job: It.
    """

    def __init__(self, options: Options, settings: DaskSettings, idle_s: float) -> None:
        # The scheduler loads the tasks too, and so needs their modules.
        prepared = settings.of_job(prepare_held(host_of(options, "dask"), settings.imports))
        self._security = settings.security
        self._why = self._last_sentence = ""
        self._is_ending = False
        self._on_end: Callable[[ClusterfnError], None] = lambda _: None
        self._proxy: NearEnd | None = None
        self.job = send_held(prepared, KernelSpec("distributed", idle_s, idle_s, CALLER))
        self._listener = listen_on(IP, 0)
        self.address = "tls://{}:{}".format(*self._listener.getsockname()[:2])
        try:
            found = await_holder(self.job, prepared.host)
        except BaseException:
            # Ctrl-C may come while the job waits in the queue.
            self._listener.close()
            self.end()
            raise
        key = secrets.token_urlsafe(32), ""
        proxy = NearEnd("dask's scheduler", {ONLY: self._listener}, lambda: found, self._say, key)
        # Signals belong to the user's program.
        proxy.on_sigint = ""
        self._thread = threading.Thread(target=self._carry, args=[proxy], name="clusterfn-dask", daemon=True)
        self._thread.start()
        self._proxy = proxy

    def await_scheduler(self) -> None:
        """Wait until the scheduler has answered with its certificate; raise ClusterfnError if it has ended before."""
        ip, _, port = self.address.rpartition("/")[2].partition(":")
        context = self._security.get_connection_args("client")["ssl_context"]
        for _ in range(_TRIES):
            try:
                with socket.create_connection((ip, int(port)), _ANSWER_S) as plain, context.wrap_socket(plain):
                    return
            except OSError:
                # The connection closes a moment before the reason arrives.
                self._thread.join(_REASON_S)
                if self._why:
                    break
        raise self.error()

    def on_end(self, report: Callable[[ClusterfnError], None]) -> None:
        """Call `report` from another thread if the scheduler ends before `end`."""
        self._on_end = report
        if self._why:
            report(self.error())

    def error(self) -> ClusterfnError:
        """Return the error that says why it has ended."""
        host, job = self.job.host, self.job.id
        if _UNFIT in self._why:
            hint = "install the same versions on both sides: pip install dask==… distributed==…"
            return EnvironmentBuildError(self._why.splitlines()[-1].strip(), host=host, job=job, hint=hint)
        return ClusterfnError(self._why or "dask's scheduler does not answer", host=host, job=job)

    def _carry(self, proxy: NearEnd) -> None:
        if proxy.run() and not self._is_ending:
            self._why = self._last_sentence
            self._on_end(self.error())
        proxy.flush()
        proxy.close()
        self._listener.close()

    def _say(self, sentence: str) -> None:
        self._last_sentence = sentence
        if "is lost, and its job keeps running" in sentence or sentence.endswith("is back"):
            console.tell(sentence)

    def end(self) -> None:
        """End the scheduler and its job."""
        if self._proxy is not None:
            self._is_ending = True
            self._proxy.events.post("terminate")
            self._thread.join(_JOIN_S)
        end_job(self.job, _END_S if self._proxy is not None and not self._why else 0.0)


def end_job(job: Job[Any], patience_s: float) -> None:
    """Give a job so long to end by itself, then withdraw or stop it; it is no error if the host cannot be asked."""
    if job.running():
        concurrent.futures.wait([job], patience_s)
    try:
        job.cancel()
    except ClusterfnError as error:
        console.warn(f"{job.id} {job.name} on {job.host} could not be stopped, and ends by itself: {error.message}")


# So many jobs of workers may end by an error one soon after another; then the block fails.
_FAILURES = 3
_SOON_S, _AGAIN_S = 60.0, 1.0
_AT_ONCE = 8


class WorkerJobs:
    """The jobs of workers, which differ in their names alone. One that ends is sent again until `end`.

    Args:
        report: Called in another thread with why there will be no workers.

    Raises:
        ClusterfnError: They cannot be sent; nothing was.
    """

    def __init__(self, options: Options, settings: DaskSettings, report: Callable[[ClusterfnError], None]) -> None:
        self._running: dict[str, Job[Any]] = {}
        self._imports = settings.imports
        self._report = report
        self._is_ending = False
        self._failures = 0
        self._address = ""
        self._prepared = settings.of_job(prepare(run_program, (), {}, options, settings.imports))

    def begin(self, address: str, count: int) -> None:
        """Send the jobs of so many workers of the scheduler at this address; may raise ClusterfnError."""
        self._address = address
        for answer in at_once([f"dask-worker-{number}" for number in range(count)], self._send, "sending", _AT_ONCE):
            answer.result()

    def waiting(self) -> list[Job[Any]]:
        """Return the jobs that were sent and have not ended."""
        return list(self._running.values())

    def end(self, patience_s: float) -> None:
        """End all jobs at the same time, and send no more; give those that run so long to end by themselves."""
        self._is_ending = True
        endings = [functools.partial(end_job, job, patience_s) for job in self.waiting()]
        ending = [loop.start(loop.in_thread(end, "clusterfn-dask-end")) for end in endings]
        concurrent.futures.wait(ending, 2 * _LEAVE_S)

    def _send(self, name: str) -> None:
        prepared = self._prepared
        resources = prepared.job.resources
        limit = str(memory_limit(resources.memory_bytes))
        words = ("worker", self._address, name, str(resources.cores), limit)
        payload = payloads.pack(run_program, words, {}, imports=self._imports)
        # All workers run the same source code, although the files may change between two jobs.
        payload = payload._replace(sources=prepared.payload.sources)
        job = prepared.job._replace(id=secrets.token_hex(8), name=name)
        sent = send_call(prepared._replace(payload=payload, job=job))
        leaving.forget_going(run_of(sent))
        began = time.monotonic()
        self._running[name] = sent
        sent.add_done_callback(lambda _: self._on_end(name, sent, began))
        # The block may have ended while the job was being sent.
        if self._is_ending:
            end_job(sent, 0.0)

    def _on_end(self, name: str, job: Job[Any], began: float) -> None:
        """Send a worker again whose job has ended, unless such jobs fail one soon after another."""
        self._running.pop(name, None)
        if self._is_ending:
            return
        # A worker ends without an error when dask has closed it, or at its time limit.
        if job.cancelled() or job.exception(0) is not None:
            error = reason_of_end(job)
            self._failures = self._failures + 1 if time.monotonic() - began < _SOON_S else 1
            if self._failures >= _FAILURES:
                self._report(error)
                return
            console.warn(f"{name} has ended, and is started again: {error}")
        loop.begin(self._send_again(name))

    async def _send_again(self, name: str) -> None:
        await asyncio.sleep(_AGAIN_S)
        if not self._is_ending:
            try:
                await loop.in_thread(functools.partial(self._send, name), "clusterfn-dask-worker")
            except ClusterfnError as error:
                self._report(error)
