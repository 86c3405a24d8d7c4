"""What a call asks for, with its host's defaults: cards by type and size, and what is refused before all else."""

import pytest

from clusterfn import cluster
from clusterfn.calls.demand import resources_of
from clusterfn.config.options import parse_options
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import ConfigError
from clusterfn.scheduler import scheduler_for

BARE = Host(name="tensor01", address="tensor01", scheduler="bare", source="clusterfn.yml:2")
SLURM = BARE._replace(name="hpc", scheduler="slurm")


def asked(host, **words):
    return resources_of(parse_options(words), host, scheduler_for(host))


def test_the_words_of_a_call_reach_a_bare_host_as_they_are():
    found = asked(BARE, gpus=2, gpu_type="RTX A6000", gpu_memory="24GB")

    assert found == Resources(gpus=2, gpu_type="RTX A6000", gpu_memory_bytes=24 << 30)


def test_the_hosts_defaults_count_for_calls_with_gpus_alone():
    host = BARE._replace(defaults=Resources(gpu_type="a6000", gpu_memory_bytes=1 << 30))

    assert asked(host, gpus=1) == Resources(gpus=1, gpu_type="a6000", gpu_memory_bytes=1 << 30)
    assert asked(host, gpus=1, gpu_type="a100").gpu_type == "a100"
    assert asked(host) == Resources()


@pytest.mark.parametrize("words", [{"gpu_type": "a6000"}, {"gpu_memory": "20GB"}, {"gpu_type": "a6000", "gpus": 0}])
def test_a_kind_of_gpu_without_gpus_is_refused(words):
    with pytest.raises(ConfigError, match="selects GPUs, but the call asks for none") as caught:
        asked(BARE, **words)

    assert "gpus=1" in caught.value.hint


def test_no_gpus_take_their_type_and_size_back():
    trained = cluster(gpus=2, gpu_type="a6000", gpu_memory="24GB")(lambda: None)

    assert resources_of(trained.with_options(gpus=0).options, BARE, scheduler_for(BARE)) == Resources()
    assert resources_of(trained.with_options(gpus=1).options, BARE, scheduler_for(BARE)).gpu_type == "a6000"


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        ({"gpu_memory": "40GB"}, 'gpu_memory="40GB" cannot be requested from SLURM', "set gpu_type="),
        ({"gpu_type": "RTX A6000"}, "is not a type of SLURM", "sinfo -o %G"),
    ],
)
def test_what_slurm_cannot_be_asked_for_is_refused(words, says, hint):
    with pytest.raises(ConfigError) as caught:
        asked(SLURM, gpus=1, **words)

    assert says in caught.value.message
    assert hint in caught.value.hint
