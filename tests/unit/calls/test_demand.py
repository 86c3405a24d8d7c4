"""What a call asks for, with its host's defaults: cards by type and size, and what is refused before all else."""

import pytest

from clusterfn import cluster
from clusterfn.calls.call import resources_of
from clusterfn.config.options import parse_options
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import ConfigError, Unsatisfiable
from clusterfn.scheduler import scheduler_for

BARE = Host(name="tensor01", address="tensor01", scheduler="bare", source="clusterfn.yml:2")
SIZES = {"a6000": 48 << 30, "A100": 80 << 30, "t4": 16 << 30}
SLURM = BARE._replace(name="hpc", scheduler="slurm", gpu_sizes=SIZES)


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
    ("words", "kind"),
    [
        ({}, None),
        ({"gpu_type": "h100"}, "h100"),
        ({"gpu_type": "a100"}, "A100"),
        ({"gpu_memory": "16GB"}, "t4"),
        ({"gpu_memory": "20GB"}, "a6000"),
        ({"gpu_memory": "60GB"}, "A100"),
        ({"gpu_type": "a100", "gpu_memory": "20GB"}, "A100"),
    ],
)
def test_slurm_is_asked_for_a_type_and_for_a_size_by_the_smallest_that_has_it(words, kind):
    assert asked(SLURM, gpus=1, **words).gpu_type == kind


def test_the_type_of_the_hosts_gres_is_the_one_that_must_be_large_enough():
    host = SLURM._replace(scheduler_options={"gres": "gpu:a6000"})

    assert asked(host, gpus=1, gpu_memory="16GB").gpu_type == "a6000"
    with pytest.raises(Unsatisfiable, match=r'gpu_memory="80GB" is more than a GPU of hpc has: a6000 \(48GB\)'):
        asked(host, gpus=1, gpu_memory="80GB")


@pytest.mark.parametrize(
    ("host", "words", "error", "says", "hint"),
    [
        (SLURM, {"gpu_memory": "90GB"}, Unsatisfiable, "a6000 (48GB), A100 (80GB), t4 (16GB)", "another gpu_type="),
        (
            SLURM, {"gpu_memory": "40GB", "gpu_type": "h100"}, ConfigError,
            "clusterfn.yml:2 does not say how large the h100 GPUs of hpc are", "`gpu_sizes: {h100: 80GB}`",
        ),
        (
            SLURM._replace(gpu_sizes={}), {"gpu_memory": "40GB"}, ConfigError,
            'gpu_memory="40GB" cannot be requested from SLURM', "or set only gpu_type=",
        ),
        (SLURM, {"gpu_type": "RTX A6000"}, ConfigError, "is not a type of SLURM", "sinfo -o %G"),
    ],
)  # fmt: skip
def test_what_slurm_cannot_be_asked_for_is_refused(host, words, error, says, hint):
    with pytest.raises(error) as caught:
        asked(host, gpus=1, **words)

    assert says in caught.value.message
    assert hint in caught.value.hint
