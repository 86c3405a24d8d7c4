"""Where the nodes of one job meet: the variables that `torch.distributed` reads, as torchrun sets them.

The address is the first node's, the port one that is free there. PyTorch does the rest.
"""

import os
import random
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Tuple

_LEAST, _MOST = 10000, 65535
_TRIES = 1000
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_USUAL = (32768, 60999)


def variables(rank: int, nodes: int) -> "dict[str, str]":
    """What the process of one node finds besides the address: it is the only one of its node."""
    one, number, count = "1", str(rank), str(nodes)
    torch = {"RANK": number, "NODE_RANK": number, "GROUP_RANK": number, "LOCAL_RANK": "0",
             "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": one, "GROUP_WORLD_SIZE": count}  # fmt: skip
    slurm = {"SLURM_PROCID": number, "SLURM_NODEID": number, "SLURM_LOCALID": "0", "SLURM_NTASKS": count,
             "SLURM_NPROCS": count, "SLURM_NNODES": count, "SLURM_NTASKS_PER_NODE": one}  # fmt: skip
    return dict(torch, **slurm)


def place() -> "dict[str, str]":
    """Where all meet, asked on the first node."""
    return {"MASTER_ADDR": _address(), "MASTER_PORT": str(free_port())}


def _address() -> str:
    """The node's name; where no name server knows it, the address that SLURM has for it."""
    name = os.environ.get("SLURMD_NODENAME") or os.uname()[1]
    return name if _resolves(name) else _by_slurm(name) or os.uname()[1]


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


def _by_slurm(name: str) -> str:
    import subprocess

    try:
        answer = subprocess.run(
            ["scontrol", "-o", "show", "node", name],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=10,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    words = [word.partition("=") for word in answer.decode("utf-8", "replace").split()]
    return dict((key, value) for key, _, value in words).get("NodeAddr", "")


def free_port() -> int:
    """A port of this machine that no process listens on, and that the kernel gives to no outgoing connection.

    Any of thousands, so that two jobs of one moment choose different ones.
    """
    last = OSError("no port between %d and %d is free" % (_LEAST, _MOST))
    for port in _some(_outside(*_given_out())):
        try:
            _bind(port)
            return port
        except OSError as error:  # another's
            last = error
    raise last


def _bind(port: int) -> None:
    with socket.socket() as found:
        found.bind(("", port))


def _given_out() -> "Tuple[int, int]":
    """The ports that the kernel chooses from."""
    try:
        with open(_RANGE) as file:
            first, last = file.read().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return _USUAL


def _outside(first: int, last: int) -> "list[int]":
    below, above = range(_LEAST, first), range(last + 1, _MOST + 1)
    return [*below, *above] or list(range(_LEAST, _MOST + 1))


def _some(ports: "list[int]") -> "Iterator[int]":
    yield from random.SystemRandom().sample(ports, min(_TRIES, len(ports)))
