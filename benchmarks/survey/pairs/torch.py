"""Between two minor versions of torch, on the CPU: what its tutorial shows first."""

from collections import OrderedDict

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, TensorDataset


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(nn.Linear(28 * 28, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x):
        return self.linear_relu_stack(self.flatten(x))


class Pictures(Dataset):
    def __init__(self, n=4):
        self.data = torch.arange(n * 4.0).reshape(n, 4)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], index


def trained():
    torch.manual_seed(0)
    model = NeuralNetwork()
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    loss = nn.CrossEntropyLoss()(model(torch.rand(2, 1, 28, 28)), torch.tensor([1, 2]))
    loss.backward()
    optimizer.step()
    return model, optimizer.state_dict(), loss.item()


def loaded():
    return [batch[0].shape for batch in DataLoader(Pictures(), batch_size=2)]


def gradient():
    x = torch.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    return x


def failing():
    try:
        torch.ones(2) @ torch.ones(3)
    except RuntimeError as error:
        return error


def weights(model):
    return torch.cat([each.detach().flatten().float() for each in model.state_dict().values()])


def cases():
    torch.manual_seed(1)
    for kind in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool", "complex64"):
        dtype = getattr(torch, kind)
        yield f"tensor of {kind}", torch.ones(2, 3).to(dtype), None
        yield f"dtype {kind}", dtype, None
    tensors = {
        "no dimension": torch.tensor(3.5), "empty": torch.empty(0), "a view": torch.arange(12.0).reshape(3, 4)[:, 1:],
        "transposed": torch.arange(6.0).reshape(2, 3).T, "channels last": torch.rand(1, 3, 4, 4).to(memory_format=torch.channels_last),
        "ten megabytes": torch.arange(2_600_000.0), "of numpy": torch.from_numpy(np.arange(3)),
    }  # fmt: skip
    for name, tensor in tensors.items():
        yield f"tensor: {name}", tensor, None
    yield "requires_grad", torch.ones(2, requires_grad=True), lambda back: back.requires_grad
    yield "Parameter", nn.Parameter(torch.ones(2)), lambda back: type(back) is nn.Parameter and back.requires_grad
    yield "sparse", torch.eye(3).to_sparse(), lambda back: torch.equal(back.to_dense(), torch.eye(3))
    yield "sparse_csr", torch.eye(3).to_sparse_csr(), lambda back: torch.equal(back.to_dense(), torch.eye(3))
    yield "quantized", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), lambda back: back.q_scale() > 0
    yield "device", torch.device("cpu"), None
    yield "Size", torch.Size([1, 2]), None
    yield "Generator", torch.Generator().manual_seed(3), lambda back: back.initial_seed() == 3
    yield "memory_format", torch.channels_last, None
    modules = {
        "NeuralNetwork": NeuralNetwork(), "Linear": nn.Linear(2, 3), "Conv2d": nn.Conv2d(1, 2, 3), "LSTM": nn.LSTM(2, 3),
        "Transformer layer": nn.TransformerEncoderLayer(4, 2, 8), "BatchNorm1d": nn.BatchNorm1d(3), "Embedding": nn.Embedding(3, 2),
        "Sequential": nn.Sequential(OrderedDict(a=nn.Linear(1, 2), b=nn.Tanh(), c=nn.Linear(2, 1))),
        "ModuleList": nn.ModuleList([nn.Linear(1, 1)]), "GRU": nn.GRU(2, 2), "MultiheadAttention": nn.MultiheadAttention(4, 2),
        "LayerNorm": nn.LayerNorm(3),
    }  # fmt: skip
    for name, module in modules.items():
        yield f"module {name}", module, lambda back, one=module: torch.equal(weights(back), weights(one))
        yield f"state_dict of {name}", module.state_dict(), lambda back, one=module: list(back) == list(one.state_dict())
    for name in ("ReLU", "Dropout", "Flatten", "Softmax", "CrossEntropyLoss", "MSELoss", "MaxPool2d", "GELU", "Identity"):
        module = getattr(nn, name)(*([2] if name == "MaxPool2d" else []))
        yield f"module {name}", module, lambda back, one=module: repr(back) == repr(one)
    model = nn.Linear(2, 1)
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"):
        optimizer = getattr(optim, name)(model.parameters(), lr=0.1)
        model(torch.ones(2)).backward()
        optimizer.step()
        yield f"optimizer {name}", optimizer, lambda back, one=optimizer: back.defaults["lr"] == 0.1 and len(back.state) == len(one.state)
        yield f"state of {name}", optimizer.state_dict(), lambda back, one=optimizer: back.keys() == one.state_dict().keys()
    for name, args in (("StepLR", [1]), ("ExponentialLR", [0.9]), ("CosineAnnealingLR", [5])):
        scheduler = getattr(optim.lr_scheduler, name)(optim.SGD(model.parameters(), lr=0.1), *args)
        yield f"scheduler {name}", scheduler, lambda back: back.get_last_lr() == [0.1]
    yield "dataset of the script", Pictures(), lambda back: back[1][0].tolist() == [4, 5, 6, 7]
    yield "TensorDataset", TensorDataset(torch.arange(3)), lambda back: len(back) == 3
    yield "DataLoader", DataLoader(Pictures(), batch_size=2), lambda back: len(list(back)) == 2
    yield "Subset", torch.utils.data.Subset(Pictures(), [1]), lambda back: len(back) == 1
    yield "distribution", torch.distributions.Normal(0.0, 1.0), lambda back: float(back.mean) == 0
    yield "class NeuralNetwork", NeuralNetwork, lambda back: back is NeuralNetwork
    for name in ("Tensor", "nn.Module", "nn.Linear", "optim.Adam", "utils.data.DataLoader", "no_grad", "device", "Generator"):
        found = torch
        for part in name.split("."):
            found = getattr(found, part)
        yield f"class {name}", found, None
    for name in ("sin", "matmul", "cat", "relu", "zeros", "save", "manual_seed", "nn.functional.relu", "nn.functional.cross_entropy"):
        found = torch
        for part in name.split("."):
            found = getattr(found, part)
        yield f"function {name}", found, None
    yield "scripted", torch.jit.script(nn.Linear(1, 1)), lambda back: back(torch.ones(1)).shape == (1,)
    yield "trained in a job", trained, lambda back: isinstance(back[0], NeuralNetwork) and isinstance(back[2], float)
    yield "DataLoader in a job", loaded, lambda back: back[0] == (2, 4)
    yield "gradient of a job", gradient, lambda back: back.requires_grad
    yield "an exception as a value", failing, lambda back: isinstance(back, RuntimeError)
    yield "in a dict", {"a": torch.ones(1), "b": [torch.zeros(2)]}, lambda back: back["b"][0].shape == (2,)
