"""`requeue=` and `warn_before=` as their user meets them: one job, one outcome, and a line for each attempt."""

from __future__ import annotations

import pytest

from clusterfn import ConfigError, cluster

pytestmark = pytest.mark.lab


def counting(enough):
    """Counts its attempts in its checkpoint; ends by itself in attempt `enough`, and else when it is warned."""
    import time

    import clusterfn

    path = clusterfn.checkpoint() / "attempts"
    path.touch()
    try:
        with path.open("a") as file:
            file.write("x")
        if path.stat().st_size < enough:
            time.sleep(600)
    except clusterfn.TimeAlmostUp:  # anywhere above, on a slow machine
        if path.stat().st_size < enough:
            raise
    return path.stat().st_size


counting.__module__ = "__main__"


def test_what_requeue_cannot_do_is_rejected_before_anything_is_sent(hosts):
    before = hosts.jobs()
    with pytest.raises(ConfigError, match="requeue= cannot be used with map"):
        cluster(host="tensor01", time="1h", requeue=["timeout"])(counting).map([1])
    with pytest.raises(ConfigError, match='names "timeout", but the call has no time limit'):
        cluster(host="tensor01", requeue=["timeout"])(counting)(1)
    with pytest.raises(ConfigError, match="warn_before= needs a time limit"):
        cluster(host="tensor01", warn_before="5min")(counting)(1)
    assert hosts.jobs() == before
