"""Units, and the keywords of the decorator."""

import re
from datetime import timedelta

import pytest

from clusterfn.api.decorator import cluster
from clusterfn.bridge import layout
from clusterfn.config.keys import HOST_KEYS
from clusterfn.config.options import CallOptions, Options, keywords, parse_options
from clusterfn.config.scheduler_keys import keys_by_scheduler
from clusterfn.config.units import parse_memory, parse_time
from clusterfn.config.unknown_option import ALIASES, OF_HOSTS
from clusterfn.errors import ConfigError, did_you_mean


@pytest.mark.parametrize(
    "text, size",
    [("1KB", 2**10), ("512MB", 2**29), ("16GB", 2**34), ("16 GiB", 2**34), ("1.5tb", 3 * 2**39), (" 1gb ", 2**30)],
)
def test_memory_is_counted_in_powers_of_two(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    "value", ["16", "16G", "GB", "-1GB", "0GB", "9" * 400 + "GB", "1e3MB", "1 GB x", "", 16, 1.5, None, True, b"1GB"]
)
def test_memory_needs_a_unit(value):
    with pytest.raises(ConfigError, match="is not an amount of memory") as caught:
        parse_memory(value)
    assert re.search(r'memory="[\d.]+[GM]B"', caught.value.hint)


TIMES_IN_EVERY = [
        ("90min", 5400), ("90m", 5400), ("2h", 7200), ("1d 12h", 129600), ("1h30min", 5400), ("45s", 45),
        ("0.5h", 1800), ("2 hours", 7200), ("1 hour 30 minutes", 5400), ("90 mins", 5400), ("1 Day", 86400),
        ("2hrs", 7200), ("3 days", 259200), ("45 seconds", 45), ("1min 5secs", 65),
        ("02:00:00", 7200), ("100:00:00", 360000), ("1-00:00:00", 86400), (timedelta(hours=1), 3600),
    ]  # fmt: skip


def test_times_in_every_spelling():
    for value, seconds in TIMES_IN_EVERY:
        assert parse_time(value) == seconds


def test_a_time_needs_a_unit():
    for value in ("90", "1:30", "h", "", "2 weeks", "2 months", "1 hourly", "-1h", "0s", "9" * 400 + "d",
                  "9" * 400 + "-00:00:01", "00:00:00", 90, 1.5, None, True, timedelta(0)):  # fmt: skip
        with pytest.raises(ConfigError, match="is not a duration") as caught:
            parse_time(value)
        assert 'time="90min"' in caught.value.hint, value


@pytest.mark.parametrize("value", ["0d", "0s", "00:00:00"])
def test_a_time_of_zero_names_the_shortest(value):
    with pytest.raises(ConfigError) as caught:
        parse_time(value, "--older")
    assert '--older="1s" is the shortest' in caught.value.hint


def test_every_keyword_is_read():
    given = {
        "cores": 4, "memory": "16GB", "gpus": 0, "time": timedelta(hours=2), "host": "tensor01",
        "environment": "conda:torch", "modules": ["cuda/12.4"], "env": {"A": ""}, "secrets": ("HF_TOKEN",),
        "outputs": ["*.pt"], "cwd": "~/data", "name": "train", "on_interrupt": "stop",
        "stall_timeout": "10min", "retries": 2, "warn_before": "5min", "requeue": {"timeout": 2, "node": 0},
        "priority": -3,
    }  # fmt: skip
    assert parse_options(given) == Options(
        cores=4, memory_bytes=2**34, gpus=0, time_s=7200.0, host="tensor01", environment="conda:torch",
        modules=("cuda/12.4",), env={"A": ""}, secrets=("HF_TOKEN",), outputs=("*.pt",), cwd="~/data", name="train",
        on_interrupt="stop", stall_s=600.0, retries=2, warn_s=300.0, requeue={"timeout": 2},
        priority=-3,
    )  # fmt: skip


def test_a_list_of_causes_means_three_times_each():
    assert parse_options({"requeue": ["timeout", "node"]}).requeue == {"timeout": 3, "node": 3}


def test_a_number_as_a_variable_is_its_digits_as_in_clusterfn_yml():
    assert parse_options({"env": {"A": 4, "B": 1.5, "C": "x"}}).env == {"A": "4", "B": "1.5", "C": "x"}


def test_none_means_not_said():
    assert parse_options(dict.fromkeys(["cores", "memory", "modules", "env", "name", "on_interrupt"])) == Options()


def test_methods_of_every_kind_work_in_the_advised_order(monkeypatch):
    monkeypatch.setenv(layout.TAG, "0123/1")  # as in a job: a call is the plain function

    class Kinds:
        @classmethod
        @cluster
        def made(cls, x):
            return cls.__name__, x

        @staticmethod
        @cluster
        def still(x):
            return x

        @property
        @cluster
        def double(self):
            return 2

    assert (Kinds.made(1), Kinds().made(1), Kinds.still(3), Kinds().still(3)) == (("Kinds", 1),) * 2 + (3, 3)
    assert Kinds().double == 2


def test_no_guess_where_nothing_is_near():
    assert did_you_mean("zzz", ["cores"]) == ""


def test_every_option_that_can_be_written_is_checked():
    for keyword in CallOptions.__annotations__:
        with pytest.raises(ConfigError, match=keyword) as caught:
            parse_options({keyword: object()})
        assert "no argument" not in caught.value.message


def test_what_belongs_below_a_host_is_known_of_every_such_key():
    assert set(OF_HOSTS) == set(HOST_KEYS) - set(keywords()) - set(ALIASES) - set(keys_by_scheduler())
