"""What all jobs of a block have in common: dask's settings and the certificate, as variables that its programs read."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from distributed.security import Security

from clusterfn.bridge import layout
from clusterfn.bridge.kernel import dask_program
from clusterfn.errors import ConfigError
from clusterfn.hosts.host_state import CALLER
from clusterfn.integrations.dask.plan import NodeWorkers, memory_limit

if TYPE_CHECKING:
    from clusterfn.calls.call import Prepared

_PROGRAM = "_clusterfn/bridge/kernel/dask_program.py"
_PACKAGES = ("dask", "distributed")


def run_program(*words: str) -> None:
    """Run a worker, or those of a node, in the job until they are asked to close."""
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
        raise RuntimeError(f"what starts dask's workers on {node} ended with {how}")


# The function is sent by value, so the job need not import modules that only the client uses.
run_program.__module__ = "__main__"


@dataclass(frozen=True)
class DaskSettings:
    """What the scheduler and all workers of one block have in common.

    Attributes:
        imports: The user's own modules that tasks import.
        interface: The network interface of the nodes; "" for the one of their names.
        dashboard: The port of this machine for a browser; 0 for no dashboard.
        security: The certificate of this block alone, and its key.
        node_workers: The workers on each node of the scheduler's job; None if each is a job.
    """

    imports: Sequence[str]
    interface: str
    dashboard: int
    security: Security
    node_workers: NodeWorkers | None = None

    def of_job(self, prepared: Prepared) -> Prepared:
        """Return a job that has these settings as variables, and the key as a secret.

        Raises:
            ConfigError: Its environment has another minor version of Python, where dask could not load the tasks.
        """
        version = prepared.ready.interpreter.version
        if version != CALLER:
            there, here = (".".join(map(str, each)) for each in (version, CALLER))
            problem = f"dask needs the same Python on both sides: the environment has {there}, this is {here}"
            hint = f"use an environment with Python {here}"
            raise ConfigError(problem, host=prepared.session.host.name, hint=hint)
        job, tls_config = prepared.job, self.security.get_tls_config_for_role("client")
        is_one_machine = not prepared.session.scheduler.has_nodes or (self.node_workers and job.resources.nodes == 1)
        each = self.node_workers
        workers: dict[str, Any] | None = None if each is None else {
            "job": layout.job_dir(job.root, job.id), "count": each.count, "cores": each.cores, "gpus": each.gpus,
            "bytes": memory_limit(each.memory_bytes),
        }  # fmt: skip
        settings = {
            "program": posixpath.join(job.bridge, _PROGRAM), "workers": workers, "path": list(job.sys_path),
            "versions": {name: metadata.version(name) for name in _PACKAGES}, "dashboard": self.dashboard,
            "interface": self.interface, "is_one_machine": bool(is_one_machine),
        }  # fmt: skip
        # One job holds several workers here, so the libraries of each must not start threads for all cores of the job.
        threads = dict.fromkeys(layout.THREADS, str(self.node_workers.cores)) if self.node_workers else {}
        tls = json.dumps({"cert": tls_config["cert"], "key": tls_config["key"]})
        env = {**threads, **job.env, dask_program.SETTINGS: json.dumps(settings)}
        return prepared._replace(job=job._replace(env=env, secrets={**job.secrets, dask_program.TLS: tls}))
