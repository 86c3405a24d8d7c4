"""Units, and the keywords of the decorator."""

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterfn.errors import ConfigError
from clusterfn.spec import Options, did_you_mean, parse_memory, parse_options, parse_time


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
    assert "unit" in caught.value.hint


@pytest.mark.parametrize(
    "value, seconds",
    [
        ("90min", 5400), ("90m", 5400), ("2h", 7200), ("1d 12h", 129600), ("1h30min", 5400), ("45s", 45),
        ("0.5h", 1800),
        ("02:00:00", 7200), ("100:00:00", 360000), ("1-00:00:00", 86400), (timedelta(hours=1), 3600),
    ],
)  # fmt: skip
def test_times_in_every_spelling(value, seconds):
    assert parse_time(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "90",
        "1:30",
        "h",
        "",
        "2 weeks",
        "-1h",
        "0s",
        "9" * 400 + "d",
        "9" * 400 + "-00:00:01",
        "00:00:00",
        90,
        1.5,
        None,
        True,
        timedelta(0),
    ],
)
def test_a_time_needs_a_unit(value):
    with pytest.raises(ConfigError, match="is not a duration") as caught:
        parse_time(value)
    assert "unit" in caught.value.hint


@given(st.text(max_size=20))
def test_no_text_brings_out_anything_but_configerror(text):
    for parse in (parse_memory, parse_time):
        with contextlib.suppress(ConfigError):
            assert parse(text) > 0


def test_every_keyword_is_read():
    given = {
        "cores": 4, "memory": "16GB", "gpus": 0, "time": timedelta(hours=2), "host": "tensor01",
        "environment": "conda:torch", "modules": ["cuda/12.4"], "env": {"A": ""}, "secrets": ("HF_TOKEN",),
        "outputs": ["*.pt"], "cwd": "~/data", "name": "train", "on_interrupt": "stop",
    }  # fmt: skip
    assert parse_options(given) == Options(
        cores=4, memory_bytes=2**34, gpus=0, time_s=7200.0, host="tensor01", environment="conda:torch",
        modules=("cuda/12.4",), env={"A": ""}, secrets=("HF_TOKEN",), outputs=("*.pt",), cwd="~/data", name="train",
        on_interrupt="stop",
    )  # fmt: skip


def test_none_means_not_said():
    assert parse_options(dict.fromkeys(["cores", "memory", "modules", "env", "name", "on_interrupt"])) == Options()


BAD = [
    ({"core": 2}, "no argument 'core'; did you mean cores?"),
    ({"mem": "1GB"}, "no argument 'mem'; did you mean memory?"),
    ({"xyzzy": 2}, "no argument 'xyzzy'"),
    ({"cores": 0}, "cores=0 is not a whole number of at least 1"),
    ({"cores": "4"}, "cores='4' is not a whole number"),
    ({"cores": True}, "cores=True is not a whole number"),
    ({"cores": 2.0}, "cores=2.0 is not a whole number"),
    ({"gpus": -1}, "gpus=-1 is not a whole number of at least 0"),
    ({"memory": 16}, "memory=16 is not an amount"),
    ({"time": 90}, "time=90 is not a duration"),
    ({"host": "-oProxyCommand=x"}, "host='-oProxyCommand=x' is not possible"),
    ({"host": 3}, "host=3 is not possible"),
    ({"environment": ""}, "environment='' is not a text"),
    ({"modules": "cuda"}, "modules='cuda' is not a list"),
    ({"modules": ["-x"]}, "modules='-x' is not possible"),
    ({"modules": [3]}, "modules=3 is not possible"),
    ({"env": ["A=b"]}, "env=['A=b'] is not a dict"),
    ({"env": {"A-B": "x"}}, "env='A-B' is not possible"),
    ({"env": {"A": 4}}, "env['A']=4 is not a text"),
    ({"env": {"A": "x\0"}}, "is not a text"),
    ({"secrets": ["A B"]}, "secrets='A B' is not possible"),
    ({"outputs": "*.pt"}, "outputs='*.pt' is not a list"),
    ({"cwd": "a\0"}, "is not a text"),
    ({"name": "a b"}, "name='a b' is not possible"),
    ({"name": "a" * 65}, "is not possible"),
    ({"on_interrupt": "kill"}, "on_interrupt='kill' is not possible"),
]


@pytest.mark.parametrize("given, says", BAD)
def test_a_wrong_keyword_is_named_with_one_thing_to_do(given, says):
    with pytest.raises(ConfigError) as caught:
        parse_options(given)
    assert says in caught.value.message
    assert caught.value.hint


def test_no_guess_where_nothing_is_near():
    assert did_you_mean("zzz", ["cores"]) == ""
