"""Values of torch that its documentation shows first: "Learn the basics", "Saving and loading models"."""

import collections
import typing

import torch
from torch import nn


def same(a, b):
    """Compare two values, or all in two containers."""
    if type(a).__name__ != type(b).__name__:
        return False
    if isinstance(a, torch.Tensor):
        return _same_tensor(a, b)
    if isinstance(a, nn.Module):
        return repr(a) == repr(b) and same(a.state_dict(), b.state_dict()) and a.training == b.training
    if isinstance(a, torch.optim.Optimizer):
        return same(_told(a), {**_told(b)})
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and not isinstance(a, torch.Size):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def _same_tensor(a, b):
    facts = [(each.dtype, each.shape, each.requires_grad, each.layout) for each in (a, b)]
    if facts[0] != facts[1]:
        return False
    if a.layout != torch.strided or a.is_quantized:
        a, b = (each.dequantize() if each.is_quantized else each.to_dense() for each in (a, b))
    return bool(torch.equal(a, b))


def _told(optimizer):
    """Return the state of an optimizer, without the settings that only one version has."""
    told = optimizer.state_dict()
    groups = [
        {key: group[key] for key in ("lr", "weight_decay", "params") if key in group} for group in told["param_groups"]
    ]
    return {"state": told["state"], "groups": groups}


def by(look):
    """Compare what `look` sees of both."""
    return lambda a, b: same(look(a), look(b))


class Network(nn.Module):
    """The network of the tutorial."""

    def __init__(self, width=16):
        super().__init__()
        self.flatten = nn.Flatten()
        self.stack = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        return self.stack(self.flatten(x))


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([index**2])


class Pair(typing.NamedTuple):
    x: torch.Tensor
    n: int


def seeded(make):
    """Make a value with the same random numbers in both versions."""

    def maker():
        torch.manual_seed(3)
        return make()

    return maker


def trained(kind, **options):
    """Return a model after a step with an optimizer, and the optimizer."""
    torch.manual_seed(3)
    model = Network()
    optimizer = kind(model.parameters(), **options)
    nn.functional.cross_entropy(model(torch.ones(2, 4)), torch.tensor([0, 1])).backward()
    optimizer.step()
    return model, optimizer


def scheduled():
    """Return an optimizer with its schedule."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    return torch.optim.lr_scheduler.StepLR(optimizer, 2)


LAYERS = {
    "linear": lambda: nn.Linear(2, 3),
    "convolution": lambda: nn.Conv2d(1, 2, 3, padding="same"),
    "transposed convolution": lambda: nn.ConvTranspose2d(1, 2, 3),
    "normalised batch": lambda: nn.BatchNorm1d(3),
    "normalised layer": lambda: nn.LayerNorm(3),
    "dropout": lambda: nn.Dropout(0.2),
    "embedding": lambda: nn.Embedding(4, 2),
    "lstm": lambda: nn.LSTM(2, 3, num_layers=2),
    "gru": lambda: nn.GRU(2, 3, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    "transformer": lambda: nn.Transformer(4, 2, 1, 1, 8),
    "sequence": lambda: nn.Sequential(collections.OrderedDict(a=nn.Linear(2, 2), b=nn.ReLU())),
    "list of modules": lambda: nn.ModuleList([nn.Linear(2, 2)]),
    "dict of modules": lambda: nn.ModuleDict({"a": nn.GELU()}),
    "list of parameters": lambda: nn.ParameterList([torch.ones(2)]),
    "pooling": lambda: nn.MaxPool2d(2),
    "loss": lambda: nn.CrossEntropyLoss(weight=torch.ones(3)),
    "softmax": lambda: nn.Softmax(dim=1),
}
VALUES = {
    "integers": lambda: torch.tensor([[1, 2], [3, 4]]),
    "floats": lambda: torch.rand(2, 3),
    "halves": lambda: torch.ones(3, dtype=torch.float16),
    "brain floats": lambda: torch.ones(3, dtype=torch.bfloat16),
    "booleans": lambda: torch.tensor([True, False]),
    "complex numbers": lambda: torch.tensor([1 + 2j]),
    "bytes": lambda: torch.tensor([1], dtype=torch.uint8),
    "a number": lambda: torch.tensor(3.0),
    "empty": lambda: torch.empty(0, 3),
    "a transposed tensor": lambda: torch.arange(6).reshape(2, 3).T,
    "a slice": lambda: torch.arange(10)[::2],
    "channels last": lambda: torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last),
    "an expanded tensor": lambda: torch.ones(1, 3).expand(2, 3),
    "a large tensor": lambda: torch.ones(400_000),
    "a tensor with a gradient": lambda: torch.ones(2, requires_grad=True),
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a sparse tensor by rows": lambda: torch.eye(3).to_sparse_csr(),
    "a quantised tensor": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    "a parameter": lambda: nn.Parameter(torch.ones(2)),
    "a frozen parameter": lambda: nn.Parameter(torch.ones(2), requires_grad=False),
    "a buffer's state": lambda: Network().state_dict(),
    "a network": Network,
    "a network in evaluation": lambda: Network().eval(),
    "a trained network": lambda: trained(torch.optim.SGD, lr=0.1)[0],
    "a checkpoint": lambda: _checkpoint(),
    "a size": lambda: torch.Size([2, 3]),
    "a dtype": lambda: torch.float32,
    "a device": lambda: torch.device("cpu"),
    "another device": lambda: torch.device("cuda", 1),
    "a layout": lambda: torch.strided,
    "a memory format": lambda: torch.channels_last,
    "the limits of floats": lambda: torch.finfo(torch.float32).eps,
    "a state of random numbers": lambda: torch.get_rng_state()[:16],
    "a named tuple": lambda: Pair(torch.ones(2), 3),
    "the result of a maximum": lambda: tuple(torch.max(torch.arange(4.0).reshape(2, 2), dim=1)),
    "tensors in a dict": lambda: {"a": [torch.ones(2)], "b": torch.zeros(1, dtype=torch.int8)},
}
OTHERS = {
    **{
        f"the optimizer {kind}": (lambda kind=kind: trained(getattr(torch.optim, kind), lr=0.1)[1], same)
        for kind in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "NAdam", "Adamax")
    },
    "a model and its optimizer": (lambda: trained(torch.optim.Adam), lambda a, b: same(a[0], b[0]) and _tied(*b)),
    "a schedule": (scheduled, by(lambda s: s.get_last_lr())),
    "a generator": (lambda: torch.Generator().manual_seed(3), lambda a, b: _drawn(a) == _drawn(b)),
    "a data set": (Squares, lambda a, b: same(b[3], torch.tensor([9]))),
    "a data set of tensors": (lambda: torch.utils.data.TensorDataset(torch.ones(2, 3)), by(lambda d: d.tensors)),
    "a subset": (lambda: torch.utils.data.Subset(Squares(), [1]), lambda a, b: same(b[0], torch.tensor([1]))),
    "a loader": (lambda: torch.utils.data.DataLoader(Squares(), 2), lambda a, b: len(list(b)) == 2),
    "a distribution": (lambda: torch.distributions.Normal(0.0, 1.0), by(lambda d: d.mean)),
    "a function": (lambda: nn.functional.relu, lambda a, b: b is nn.functional.relu),
    "a compiled function": (lambda: torch.matmul, lambda a, b: b is torch.matmul),
    "a class": (lambda: Network, lambda a, b: same(b(3)(torch.ones(1, 4)).shape, torch.Size([1, 3]))),
    "a class of torch": (lambda: nn.Linear, lambda a, b: b is nn.Linear),
    "the result with names": (lambda: torch.max(torch.ones(2, 2), dim=1), lambda a, b: same(b.values, a.values)),
    "a method": (lambda: Network().forward, lambda a, b: b(torch.ones(1, 4)).shape == (1, 3)),
    "a packed sequence": (
        lambda: nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]), by(lambda p: p.data),
    ),
    "an exception": (lambda: torch.cuda.OutOfMemoryError("no"), by(str)),
    "a version": (lambda: torch.__version__, lambda a, b: isinstance(b, str)),
    "a scaler": (lambda: torch.amp.GradScaler("cpu", enabled=False), lambda a, b: not b.is_enabled()),
}  # fmt: skip


def _tied(model, optimizer):
    """Return whether the optimizer still holds the parameters of the model."""
    return next(model.parameters()) is optimizer.param_groups[0]["params"][0]


def _drawn(generator):
    return torch.rand(3, generator=torch.Generator().set_state(generator.get_state())).tolist()


def _checkpoint():
    model, optimizer = trained(torch.optim.Adam, lr=0.1)
    return {"epoch": 3, "model": model.state_dict(), "loss": torch.tensor(0.5), "optimizer": _told(optimizer)}


def cases():
    """Yield a name, what makes a value, and what compares two of them."""
    for name, maker in {**VALUES, **LAYERS}.items():
        yield name, seeded(maker), same
    for name, (maker, compare) in OTHERS.items():
        yield name, seeded(maker), compare
