"""What a call asks a host about an environment, and what a queued job says of its own."""

from __future__ import annotations

from clusterfn import cluster
from clusterfn.calls.job import run_of
from tests.e2e.test_environments import compute, fresh, place, pytestmark  # noqa: F401
from tests.waiting import until


def test_a_queued_job_tells_how_far_its_environment_is(fresh, request):  # noqa: F811
    fresh.configure(names=("slurm",), slurm=', begin: "now+2hours"')
    job = cluster(host="slurm", environment="environment.yml")(compute).submit()
    request.addfinalizer(job.stop)
    reasons: list[str] = []
    run_of(job).listen(lambda kind, what: reasons.append(job.reason))

    until(lambda: fresh.environments)
    until(lambda: any("environment: " in each for each in reasons))
    until(lambda: "environment: " not in job.reason)

    assert not job.done()
