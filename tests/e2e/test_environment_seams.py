"""What a call asks a host about an environment, and what a queued job says of its own."""

from __future__ import annotations

from clusterfn import cluster
from clusterfn.calls.job import entry_of
from tests.e2e.test_environments import compute, fresh, place, pytestmark  # noqa: F401
from tests.waiting import until

AGAIN = """
import json, sys
from clusterfn import cluster
from clusterfn.hosts import connection as host
asked = []
for name in ("have", "put", "put_tree", "run", "spawn"):
    def noting(self, what, *args, _name=name, _plain=getattr(host.HostConnection, name), **more):
        asked.append([_name, what if isinstance(what, list) else [what] if isinstance(what, str) else list(what)])
        return _plain(self, what, *args, **more)
    setattr(host.HostConnection, name, noting)

@cluster(host="tensor01", environment="environment.yml")
def prefix():
    import sys
    return sys.prefix

print(json.dumps([prefix(), asked]))
"""


def test_the_second_call_looks_once_and_sends_nothing(place, run_script):  # noqa: F811
    before = cluster(host="tensor01", environment="environment.yml")(compute)()[1]

    prefix, asked = run_script(AGAIN)

    assert prefix == before
    about_it = [(verb, words) for verb, words in asked if any(str(place.root) in str(word) for word in words)]
    assert about_it == [("have", [f"{prefix}/READY"])]
    assert not [verb for verb, words in asked if any("build.py" in str(word) for word in words)]


def test_a_queued_job_tells_how_far_its_environment_is(fresh, request):  # noqa: F811
    fresh.configure(names=("slurm",), slurm=', begin: "now+2hours"')
    job = cluster(host="slurm", environment="environment.yml")(compute).submit()
    request.addfinalizer(job.stop)
    reasons: list[str] = []
    entry_of(job).listen(lambda kind, what: reasons.append(job.reason))

    until(lambda: fresh.environments)
    until(lambda: any("environment: " in each for each in reasons))
    until(lambda: "environment: " not in job.reason)

    assert not job.done()
