"""A host whose logind ends jobs at the logout: whoever submits there first is told, once."""

from __future__ import annotations

import pytest

from clusterfn import cluster
from tests.e2e.inside import session_of

SAID = "clusterfn: logind on {} ends your processes when you log out"


def double(x):
    return 2 * x


double.__module__ = "__main__"


def ending_jobs(host, monkeypatch):
    """The host as if its agent had found that in logind's files."""
    connection = session_of(host).connection
    monkeypatch.setattr(connection, "facts", connection.facts._replace(ends_jobs=True))


def test_the_first_submission_of_a_process_says_that_jobs_end_with_the_connection(here, monkeypatch, capfd):
    ending_jobs("here", monkeypatch)
    function = cluster(host="here")(double)

    assert function.map([1, 2]).results(150) == [2, 4]
    assert capfd.readouterr().err.startswith(SAID.format("here"))
    assert function(3) == 6 and function.submit(4).result(150) == 8
    assert "logind" not in capfd.readouterr().err


@pytest.mark.lab
def test_where_a_scheduler_starts_jobs_on_nodes_nothing_is_said(hosts, monkeypatch, capfd):
    ending_jobs("slurm", monkeypatch)

    assert cluster(host="slurm")(double)(3) == 6
    assert "logind" not in capfd.readouterr().err
