"""What the one job of a block asks for: all of its workers, each as large as asked, and the scheduler."""

from __future__ import annotations

import pytest

from clusterfn.config.options import Options, parse_options
from clusterfn.config.spec import Host
from clusterfn.integrations.dask.plan import NodeWorkers, memory_limit

GB = 2**30


HOST = Host("cluster", "cluster", "slurm", "clusterfn.yml:2")


def test_a_node_has_what_its_workers_ask_for_and_the_memory_of_a_scheduler():
    worker = parse_options({"cores": 4, "memory": "16GB", "gpus": 2, "gpu_type": "a100", "time": "1h"})
    workers = NodeWorkers.of(3, worker, HOST)
    job = workers.job_options(worker, 2, 2 * GB)

    assert workers == NodeWorkers(3, 4, 16 * GB, 2)
    assert (job.nodes, job.cores, job.memory_bytes, job.gpus) == (2, 12, 50 * GB, 6)
    assert (job.gpu_type, job.time_s, job.name) == ("a100", 3600.0, "dask")


def test_what_is_not_asked_for_comes_from_the_host():
    host = HOST._replace(defaults=HOST.defaults._replace(cores=8, memory_bytes=GB, gpus=1))

    assert NodeWorkers.of(2, Options(), host) == NodeWorkers(2, 8, GB, 1)
    assert NodeWorkers.of(2, Options(gpus=0), host).gpus == 0


def test_without_an_amount_of_memory_the_job_asks_for_none():
    host = HOST._replace(defaults=HOST.defaults._replace(memory_bytes=None))

    assert NodeWorkers.of(2, Options(), host).job_options(Options(), 1, 2 * GB).memory_bytes is None


@pytest.mark.parametrize(
    ("asked", "limit"), [(None, 0), (400 * 2**20, 300 * 2**20), (GB, 824 * 2**20), (16 * GB, 16 * GB - 200 * 2**20)]
)
def test_a_worker_leaves_some_of_its_memory_to_its_nanny(asked, limit):
    assert memory_limit(asked) == limit
