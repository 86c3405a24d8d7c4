"""The values of options as the decorator keeps them: units, causes, variables."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from clusterfn import ConfigError, cluster


def option(keyword: str, value: object, field: str) -> Any:
    """What the options of a function have for a keyword."""
    return getattr(cluster(**{keyword: value})(abs).options, field)


@pytest.mark.parametrize(
    "text, size",
    [("1KB", 2**10), ("512MB", 2**29), ("16GB", 2**34), ("16 GiB", 2**34), ("1.5tb", 3 * 2**39), (" 1gb ", 2**30)],
)
def test_memory_is_counted_in_powers_of_two(text, size):
    assert option("memory", text, "memory_bytes") == size


@pytest.mark.parametrize(
    "value", ["16", "16G", "GB", "-1GB", "0GB", "9" * 400 + "GB", "1e3MB", "1 GB x", "", 16, 1.5, True, b"1GB"]
)
def test_memory_needs_a_unit(value):
    with pytest.raises(ConfigError, match="is not an amount of memory") as caught:
        option("memory", value, "memory_bytes")
    assert 'memory="16GB"' in caught.value.hint


TIMES_IN_EVERY = [
        ("90min", 5400), ("90m", 5400), ("2h", 7200), ("1d 12h", 129600), ("1h30min", 5400), ("45s", 45),
        ("0.5h", 1800), ("2 hours", 7200), ("1 hour 30 minutes", 5400), ("90 mins", 5400), ("1 Day", 86400),
        ("2hrs", 7200), ("3 days", 259200), ("45 seconds", 45), ("1min 5secs", 65),
        ("02:00:00", 7200), ("100:00:00", 360000), ("1-00:00:00", 86400), (timedelta(hours=1), 3600),
    ]  # fmt: skip


def test_times_in_every_spelling():
    for value, seconds in TIMES_IN_EVERY:
        assert option("time", value, "time_s") == seconds


def test_a_time_needs_a_unit():
    for value in ("90", "1:30", "h", "", "2 weeks", "2 months", "1 hourly", "-1h", "0s", "9" * 400 + "d",
                  "9" * 400 + "-00:00:01", "00:00:00", 90, 1.5, True, timedelta(0)):  # fmt: skip
        with pytest.raises(ConfigError, match="is not a duration") as caught:
            option("time", value, "time_s")
        assert 'time="90min"' in caught.value.hint, value


def test_a_list_of_causes_means_three_times_each():
    assert option("requeue", ["timeout", "node"], "requeue") == {"timeout": 3, "node": 3}


def test_a_number_as_a_variable_is_its_digits_as_in_clusterfn_yml():
    assert option("env", {"A": 4, "B": 1.5, "C": "x"}, "env") == {"A": "4", "B": "1.5", "C": "x"}


def test_methods_of_every_kind_work_in_the_advised_order(monkeypatch):
    monkeypatch.setenv("CLUSTERFN_JOB", "0123/1")  # as in a job: a call is the plain function

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
