"""What cannot work is refused here, before anything is sent, in words that say what to write instead."""

from __future__ import annotations

import threading

import pytest

from clusterfn import ConfigError, EnvironmentBuildError, File, PayloadError, cluster
from tests.e2e.conftest import ON_BARE


def plain(*args):
    return args


plain.__module__ = "__main__"  # by value: what it needs is not looked for in this file's imports


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpu": 1}, ["gpu", "did you mean gpus"]),
        ({"mem": "4GB"}, ["'mem'", "did you mean memory"]),
        ({"partition": "short"}, ["'partition'"]),
        ({"memory": "4XB"}, ["4XB", 'memory="4GB"']),
        ({"memory": 4}, ["memory=4", 'memory="4GB"']),
        ({"time": 2}, ["time=2", 'time="90min"']),
        ({"time": "2"}, ["time='2'", 'time="90min"']),
        ({"gpus": -1}, ["gpus=-1", "at least 0"]),
        ({"gpus": True}, ["gpus=True"]),
        ({"cores": 0}, ["cores=0", "at least 1"]),
        ({"cores": 1.5}, ["cores=1.5"]),
        ({"env": {"A": True}}, ["env['A']=True", "neither a string nor a number"]),
        ({"outputs": "*.pt"}, ["outputs='*.pt'", "not a list"]),
        ({"on_interrupt": "kill"}, ["on_interrupt='kill'", "detach"]),
        ({"host": "ten sor"}, ["host='ten sor'"]),
    ],
)
def test_an_option_that_cannot_be_is_refused_where_it_is_written(options, words):
    with pytest.raises(ConfigError) as caught:
        cluster(**options)(plain)

    for word in words:
        assert word in str(caught.value)


def test_options_are_checked_again_when_they_are_changed():
    with pytest.raises(ConfigError, match="memory='big'"):
        cluster(plain).with_options(memory="big")


@pytest.mark.parametrize("what", ["function", 3, int])
def test_only_a_function_can_be_decorated(what):
    with pytest.raises(ConfigError):
        cluster(cores=1)(what)


def test_a_host_that_is_not_in_the_file_is_refused_with_those_that_are(here):
    with pytest.raises(ConfigError) as caught:
        cluster(host="hre")(plain)()

    assert "hre" in str(caught.value)
    assert "here" in str(caught.value)
    assert not (here / "jobs").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hosts:\n  a:\n   scheduler: [bare\n", ["clusterfn.yml", "line"]),
        ("hosts:\n  a:\n    scheduler: bare\n\tb: 1\n", ["clusterfn.yml"]),
        ("hosts:\n  a:\n    scheduler: slrum\n", ["slrum", "slurm", "clusterfn.yml:3"]),
        ("hosts:\n  a:\n    shceduler: bare\n", ["shceduler", "scheduler", "clusterfn.yml:3"]),
        ("hosts:\n  a:\n    scheduler: bare\n    password: x\n", ["password", "clusterfn.yml:4"]),
        ("- a\n- b\n", ["clusterfn.yml"]),
    ],
)
def test_a_broken_configuration_is_refused_with_its_line(tmp_path, monkeypatch, text, words):
    path = tmp_path / "clusterfn.yml"
    path.write_text(text)
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))

    with pytest.raises(ConfigError) as caught:
        cluster(plain)()

    for word in words:
        assert word in str(caught.value)


def test_several_hosts_and_no_default_is_refused_with_their_names(tmp_path, monkeypatch):
    path = tmp_path / "clusterfn.yml"
    path.write_text("hosts:\n  ada:\n    scheduler: bare\n  bob:\n    scheduler: bare\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))

    with pytest.raises(ConfigError, match=r"ada.*bob"):
        cluster(plain)()


def left_behind(root):
    return list((root / "jobs").glob("*")) if root.exists() else []


def test_an_open_file_is_refused_by_its_path(here, tmp_path):
    with (tmp_path / "open.txt").open("w") as file, pytest.raises(PayloadError) as caught:
        cluster(plain)({"log": [1, file]})

    assert "args[0]['log'][1]" in str(caught.value)
    assert "inside the function" in str(caught.value)
    assert left_behind(here) == []


def test_a_lock_in_an_attribute_is_refused_by_its_path(here):
    class Model:
        def __init__(self):
            self.parts = {"guard": threading.Lock()}

    with pytest.raises(PayloadError) as caught:
        cluster(plain)(Model())

    assert "args[0].parts['guard']" in str(caught.value)
    assert "lock" in str(caught.value)
    assert left_behind(here) == []


def test_a_lock_in_a_closure_is_refused_by_its_name(here):
    guard = threading.Lock()

    def locked():
        with guard:
            return 1

    with pytest.raises(PayloadError, match="guard"):
        cluster(locked)()

    assert left_behind(here) == []


def test_a_secret_that_is_not_set_here_is_refused(here, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)

    with pytest.raises(ConfigError, match="HF_TOKEN"):
        cluster(secrets=["HF_TOKEN"])(plain)()

    assert left_behind(here) == []


def test_a_file_argument_that_is_not_there_is_refused(here):
    with pytest.raises(PayloadError, match="no-such.csv"):
        cluster(plain)(File("no-such.csv"))

    assert left_behind(here) == []


def test_an_environment_that_cannot_be_is_refused(here):
    with pytest.raises(ConfigError, match="does not name an environment"):
        cluster(environment="my env")(plain)()

    assert left_behind(here) == []


@pytest.mark.lab
@ON_BARE
def test_an_environment_older_than_the_worker_is_refused(hosts, lab, host):
    before = hosts.jobs()

    with pytest.raises(EnvironmentBuildError, match=r"Python 3\.8.*3\.9"):
        cluster(host=host, environment=f"python:{lab.python('3.8')}")(plain)()

    assert hosts.jobs() == before


@pytest.mark.lab
def test_an_interpreter_that_is_not_there_is_refused(hosts):
    before = hosts.jobs()

    with pytest.raises(EnvironmentBuildError, match="/no/such/python"):
        cluster(host="tensor01", environment="python:/no/such/python")(plain)()

    assert hosts.jobs() == before


@pytest.mark.lab
def test_what_cannot_travel_leaves_nothing_on_the_host(hosts):
    before = hosts.jobs()

    with pytest.raises(PayloadError):
        cluster(host="tensor01")(plain)(threading.Lock())

    assert hosts.jobs() == before
