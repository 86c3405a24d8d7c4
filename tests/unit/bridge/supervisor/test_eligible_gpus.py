"""Which cards are of the type and the size that a job asks for."""

import pytest

from clusterfn.bridge.supervisor.eligible_gpus import (
    GpuInfo,
    describe_gpus,
    describe_request,
    eligible_gpus,
    is_gpu_type,
    suggest_gpus,
)

A6000, A1000, A100, H100, T4 = (
    GpuInfo(index, f"GPU-{index}", name, mib)
    for index, (name, mib) in enumerate([
        ("NVIDIA RTX A6000", 49140),
        ("NVIDIA RTX A1000", 8188),
        ("NVIDIA A100-SXM4-80GB", 81920),
        ("NVIDIA H100 80GB HBM3", 81559),
        ("Tesla T4", 15360),
    ])
)  # fmt: skip
ALL = [A6000, A1000, A100, H100, T4]


@pytest.mark.parametrize(
    ("name", "kind", "same"),
    [
        ("NVIDIA RTX A6000", "a6000", True),
        ("NVIDIA RTX A6000", "RTX A6000", True),
        ("NVIDIA RTX A6000", "rtx_a6000", True),
        ("NVIDIA RTX A6000", "6000", False),
        ("NVIDIA RTX A1000", "a100", False),
        ("NVIDIA A100-SXM4-80GB", "a100", True),
        ("NVIDIA GeForce RTX 4090", "rtx4090", True),
        ("NVIDIA GeForce RTX 4090", "409", False),
        ("NVIDIA GeForce RTX 3080 Ti", "3080", True),
        ("NVIDIA RTX A6000", "--", False),
    ],
)
def test_a_type_is_whole_words_of_the_gpus_name(name, kind, same):
    assert is_gpu_type(name, kind) is same


@pytest.mark.parametrize(
    ("kind", "memory_gb", "expected"),
    [
        (None, None, ALL),
        ("a100", None, [A100]),
        (None, 48, [A6000, A100, H100]),
        (None, 80, [A100, H100]),
        (None, 16, [A6000, A100, H100, T4]),
        ("a6000", 80, []),
        ("t4", 10, [T4]),
    ],
)
def test_a_gpu_counts_with_the_size_under_which_it_is_sold(kind, memory_gb, expected):
    assert eligible_gpus(ALL, kind, memory_gb and memory_gb << 30) == expected


def test_what_is_asked_for_and_what_there_is_is_said_in_words():
    assert describe_request(2, "a100", 40 << 30) == "2 GPUs of type a100 with 40 GB"
    assert describe_request(1, None, None) == "1 GPU"
    assert describe_gpus([A6000, T4, A6000]) == "2 x NVIDIA RTX A6000 (48 GB), 1 x Tesla T4 (15 GB)"
    assert describe_gpus([]) == "none"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("a6001", 'did you mean gpu_type="a6000"?'),
        ("A600", 'did you mean gpu_type="a6000"?'),
        ("mi300x", "ask for fewer or other GPUs, or choose another host"),
        ("a6000", "ask for fewer or other GPUs, or choose another host"),
        (None, "ask for fewer or other GPUs, or choose another host"),
    ],
)
def test_a_refusal_names_the_type_that_was_perhaps_meant(kind, expected):
    assert suggest_gpus([A6000, T4], kind) == expected
