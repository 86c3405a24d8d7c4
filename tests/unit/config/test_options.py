"""Units, and the keywords of the decorator."""

from datetime import timedelta

import pytest

from clusterfn.config import config_file
from clusterfn.config.options import CallOptions, Options, parse_options
from clusterfn.errors import ConfigError, did_you_mean


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


def test_none_means_not_said():
    assert parse_options(dict.fromkeys(["cores", "memory", "modules", "env", "name", "on_interrupt"])) == Options()


def test_no_guess_where_nothing_is_near():
    assert did_you_mean("zzz", ["cores"]) == ""


def test_a_word_in_the_other_case_is_near():
    assert did_you_mean("LOCAL", ["hpc", "local"]) == "; did you mean local?"
    assert did_you_mean("account", ["ACCOUNT", "PARTITION"]) == "; did you mean ACCOUNT?"


def test_every_option_that_can_be_written_is_checked():
    for keyword in CallOptions.__annotations__:
        with pytest.raises(ConfigError, match=keyword) as caught:
            parse_options({keyword: object()})
        assert "no argument" not in caught.value.message


@pytest.mark.parametrize(
    ("slurm", "memory_bytes"), [({"mem-per-cpu": "2G"}, None), ({"mem": None}, None), ({"qos": "long"}, 8 << 30)]
)
def test_memory_among_the_options_of_slurm_replaces_the_default_of_the_host(slurm, memory_bytes, tmp_path, monkeypatch):
    path = tmp_path / "clusterfn.yml"
    path.write_text("hosts:\n  hpc: {address: hpc, scheduler: slurm, defaults: {memory: 8GB}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))

    called = config_file.host_of_call(parse_options({"slurm": slurm})).called

    assert called.defaults.memory_bytes == memory_bytes
