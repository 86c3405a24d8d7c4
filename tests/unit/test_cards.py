"""What a call for cards of a type is told where a cluster has none of it."""

import pytest

from clusterfn import cards
from clusterfn.errors import Unsatisfiable
from clusterfn.spec import Resources

WANTED = Resources(gpus=2, gpu_type="a6000")


@pytest.mark.parametrize("types", [None, ["a6000"], ["", "a6000", "v100"]])
def test_a_type_that_is_there_or_may_be_is_asked_for(types):
    cards.known(types, WANTED, "hpc")


@pytest.mark.parametrize(
    ("types", "says", "hint"),
    [
        (["a100", "v100"], "the types of hpc are: a100, v100", "ask for one of these types, or choose another host"),
        (["", "A6000"], "the types of hpc are: A6000; some of its cards have none", 'did you mean gpu_type="A6000"?'),
        (["h100", "nvidia_rtx_a6000"], "h100, nvidia_rtx_a6000", 'did you mean gpu_type="nvidia_rtx_a6000"?'),
        (["a600"], "the types of hpc are: a600", 'did you mean gpu_type="a600"?'),
        ([""], "the cards of hpc have no types in SLURM", "leave gpu_type= out"),
        ([], "no node of hpc has a gres named gpu", "choose another host"),
    ],
)
def test_a_type_that_is_not_there_is_refused_with_those_that_are(types, says, hint):
    with pytest.raises(Unsatisfiable) as caught:
        cards.known(types, WANTED, "hpc")

    assert caught.value.message.startswith("the call asks for 2 GPUs of type a6000, and ")
    assert caught.value.message.endswith(says)
    assert caught.value.hint == hint
