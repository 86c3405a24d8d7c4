"""Modules of PyTorch and Lightning, and environments of Gymnasium."""

import importlib.util

import gymnasium
import numpy

NEEDS = ("gymnasium", "numpy")


class Walk(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), numpy.float32)

    def __init__(self, end=3):
        self.end, self.at = end, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action):
        self.at += 1
        return numpy.zeros(1, numpy.float32), float(action), self.at >= self.end, False, {}


def walked(env=Walk(2)):
    env.reset(seed=1)
    return env.step(1)[1:4], env.step(0)[2]


def trained():
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x)

    return Net()(torch.ones(1, 2)).shape[1]


def cases():
    yield "an environment", Walk(4), lambda got: type(got) is Walk and got.end == 4
    yield "the class Walk", Walk, lambda got: got is Walk
    yield "default and global", walked, lambda got: got == walked()
    if importlib.util.find_spec("torch"):
        yield "a module made there", trained, lambda got: got == 1
