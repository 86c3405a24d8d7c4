"""results="data" and max_result=: what a host returns makes no code run here, and no large value comes unasked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import clusterfn
from clusterfn import ConfigError, ResultError, ResultTooLarge, cluster, errors
from tests.e2e.conftest import MINOR, ON_BARE
from tests.waiting import until

MB = 1 << 20


def make(size):
    return bytes(size)


def describe(x):
    import datetime

    return {"x": x, "at": datetime.date(2026, 11, 22), "all": [(x, 1.5), {x}]}


class Model:
    pass


def model():
    return Model()


class Refused(Exception):
    pass


def fail(x):
    raise Refused(f"no {x}")


def one_fails(x):
    return fail(x) if x == 1 else Model() if x == 2 else x


def opener(path):
    class Opener:
        """Opens a file where it is loaded."""

        def __reduce__(self):
            return open, (path, "w")

    return Opener()


for each in (make, describe, Model, model, Refused, fail, one_fails, opener):
    each.__module__ = "__main__"


@pytest.fixture
def untrusted(lab, hosts, tmp_path, monkeypatch):
    """The hosts of the lab, with `results: data`."""
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", lab.python(MINOR), "results: data", ("tensor01", "slurm"))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    return hosts


def replace_value(attempt: Path, other: Path) -> None:
    """Do what a hostile host can: give a job that has ended the value of another, with all sums right."""
    data = (other / "value.pkl").read_bytes()
    (attempt / "value.pkl").write_bytes(data)
    told = json.loads((attempt / "outcome.json").read_text())
    (attempt / "outcome.json").write_text(json.dumps({**told, "kind": "returned", "value": {"size": len(data)}}))


@pytest.mark.lab
@ON_BARE
def test_a_value_that_the_host_has_replaced_is_rejected_by_name_and_nothing_happens_here(host, hosts, tmp_path):
    made = tmp_path / "made"
    job = cluster(host=host, results="data", keep=True)(describe).submit(3)
    other = cluster(host=host, keep=True)(opener).submit(str(made))
    until(lambda: job.done() and other.done())
    assert other.state == "RETURNED"
    replace_value(*(hosts.root / "jobs" / each.id / "attempts" / "1" for each in (job, other)))

    attached = clusterfn.attach(job.id, host)  # the host does not know what this machine accepts
    until(attached.done)
    with pytest.raises(ResultError, match=r'the value is a Python pickle: with results="data"'):
        attached.result(150)
    assert not made.exists()

    trusted = clusterfn.attach(job.id, host, results="objects")
    until(trusted.done)
    trusted.result(150).close()
    assert made.exists()


@pytest.mark.lab
@ON_BARE
def test_calls_maps_and_sessions_of_an_untrusted_host_return_plain_data_and_errors_as_text(host, untrusted):
    plain, broken = cluster(host=host)(describe), cluster(host=host)(fail)
    assert plain(3) == describe(3)
    with pytest.raises(errors.FunctionError, match="the function raised .*Refused: no 3") as caught:
        broken(3)
    assert caught.value.type_name.endswith("Refused") and "raise Refused" in caught.value.traceback
    with pytest.raises(ResultError, match="result is a .*Model: with results="):
        cluster(host=host)(model)()

    group = cluster(host=host)(one_fails).map([0, 1, 2, 3])
    assert group.wait(150) and sorted(group.failed) == [1, 2]
    assert (group.result(0), group.result(3)) == (0, 3)
    assert type(group.failed[1]) is errors.FunctionError and isinstance(group.failed[2], ResultError)
    with clusterfn.Session(host) as session:
        assert session.call(describe, 4) == describe(4)
        with pytest.raises(errors.FunctionError, match="Refused: no 4"):
            session.call(fail, 4)
        with pytest.raises(ResultError, match="Model: with results="):
            session.call(model)


@pytest.mark.lab
@ON_BARE
def test_a_value_larger_than_max_result_stays_on_the_host_until_it_is_asked_for(host, hosts):
    job = cluster(host=host, max_result="1MB")(make).submit(3 * MB)
    with pytest.raises(ResultTooLarge, match=r"the value has 3 MB \(\d+ bytes\), more than max_result=1MB") as caught:
        job.result(150)
    assert caught.value.size_bytes > 3 * MB
    assert f"clusterfn.attach('{job.id}').result(max_result='4MB')" in str(caught.value)
    assert job.status == f"RETURNED (its value, 3 MB, is on {host})"

    later = clusterfn.attach(job.id, host)
    until(later.done)
    with pytest.raises(ResultTooLarge):
        later.result(150)
    assert later.result(150, max_result="4MB") == bytes(3 * MB)

    group = cluster(host=host, max_result="1MB")(make).map([10, 3 * MB, 20])
    assert group.wait(150)
    assert (group.result(0), group.result(2)) == (bytes(10), bytes(20)) and list(group.failed) == [1]
    with pytest.raises(ResultTooLarge, match=rf"attach\('{group.id}', max_result='4MB'\)\.result\(1\)"):
        group.result(1)
    assert clusterfn.attach(group.id, host, max_result="4MB").result(1, 150) == bytes(3 * MB)


def test_on_a_terminal_a_large_value_is_asked_about(here, monkeypatch):
    asked, answers = [], iter(["no", "Y"])
    person = lambda question: asked.append(str(question)) or next(answers)  # noqa: E731
    monkeypatch.setattr("clusterfn.hosts.transports.prompts.person", lambda: person)
    job = cluster(max_result="1MB")(make).submit(3 * MB)
    with pytest.raises(ResultTooLarge):
        job.result(150)
    assert job.result(150) == bytes(3 * MB) == job.result(150)

    assert asked == [f"(here) Fetch 3 MB, the value of make ({job.id[:4]})? [y/N] "] * 2


def test_a_smaller_value_and_an_exception_come_as_always(here):
    f = cluster(max_result="1MB")
    assert f(make)(10) == bytes(10)
    with pytest.raises(Refused, match="no 3"):
        f(fail)(3)
    assert f(make).map([1, 2]).results() == [b"\0", b"\0\0"]
    with clusterfn.Session(max_result="1MB") as session:
        assert session.call(make, 5) == bytes(5)
        with pytest.raises(ResultTooLarge, match="more than max_result=1MB") as caught:
            session.call(make, 3 * MB)
    assert "to fetch it: job.result(max_result='4MB')" in str(caught.value)


def test_a_call_says_otherwise_than_the_keys_of_its_host(here):
    config = Path(os.environ["CLUSTERFN_CONFIG"])
    config.write_text(config.read_text() + "    results: data\n    max_result: 1MB\n")
    assert isinstance(cluster(results="objects")(model)(), Model)
    with pytest.raises(ResultError, match="Model"):
        cluster(model)()
    assert len(cluster(max_result="5MB")(make)(3 * MB)) == 3 * MB
    with pytest.raises(ResultTooLarge):
        cluster(make)(3 * MB)


@pytest.mark.parametrize(
    "given", [{"results": "dat"}, {"results": True}, {"max_result": 5}, {"max_result": "5"}, {"max_result": "0GB"}]
)
def test_a_wrong_policy_is_rejected_before_anything_is_sent(given, here):
    with pytest.raises(ConfigError, match=f"{next(iter(given))}=?"):
        cluster(**given)(make)
    with pytest.raises(ConfigError, match=f"{next(iter(given))}=?"):
        clusterfn.attach("7f3a", **given)
    assert not (here / "jobs").exists() or not list((here / "jobs").iterdir())


def test_dask_exchanges_objects_so_it_is_rejected_on_an_untrusted_host(here):
    pytest.importorskip("distributed")
    with pytest.raises(ConfigError, match='dask_client.* results="data"'):
        clusterfn.dask_client("here", workers=1, results="data")
