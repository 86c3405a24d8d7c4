"""What cannot work is refused here, before anything is sent, in words that say what to write instead."""

from __future__ import annotations

import pytest

from clusterfn import ConfigError, EnvironmentBuildError, cluster


def plain(*args):
    return args


plain.__module__ = "__main__"  # by value: what it needs is not looked for in this file's imports


def test_options_are_checked_again_when_they_are_changed():
    with pytest.raises(ConfigError, match="memory='big'"):
        cluster(plain).with_options(memory="big")


@pytest.mark.parametrize("what", ["function", 3, int])
def test_only_a_function_can_be_decorated(what):
    with pytest.raises(ConfigError):
        cluster(cores=1)(what)


def left_behind(root):
    return list((root / "jobs").glob("*")) if root.exists() else []


def test_a_secret_that_is_not_set_here_is_refused(here, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)

    with pytest.raises(ConfigError, match="HF_TOKEN"):
        cluster(secrets=["HF_TOKEN"])(plain)()

    assert left_behind(here) == []


@pytest.mark.lab
def test_an_interpreter_that_is_not_there_is_refused(hosts):
    before = hosts.jobs()

    with pytest.raises(EnvironmentBuildError, match="/no/such/python"):
        cluster(host="tensor01", environment="python:/no/such/python")(plain)()

    assert hosts.jobs() == before
