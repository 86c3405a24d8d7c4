"""Where the nodes of one job meet: the variables that `torch.distributed` reads, as torchrun sets them.

The address is the first node's, the port one that is free there. PyTorch does the rest.
"""

import os
import random
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    from ..schedulers.base import HostScheduler

_LEAST, _MOST = 10000, 65535
_TRIES = 1000
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
_USUAL = (32768, 60999)


def variables(scheduler: "HostScheduler", rank: int, nodes: int, tasks: int) -> "dict[str, str]":
    """What one task finds in addition to the address."""
    node = str(rank // tasks)
    torch = {
        "RANK": str(rank),
        "NODE_RANK": node,
        "GROUP_RANK": node,
        "LOCAL_RANK": str(rank % tasks),
        "WORLD_SIZE": str(nodes * tasks),
        "LOCAL_WORLD_SIZE": str(tasks),
        "GROUP_WORLD_SIZE": str(nodes),
    }
    return dict(torch, **scheduler.rank_variables(rank, nodes, tasks))


def place(scheduler: "HostScheduler") -> "dict[str, str]":
    """Where all meet, asked on the first node: by its name, or where no name server knows that by its address."""
    address = name = scheduler.node_name()
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        address = scheduler.node_address(name) or os.uname()[1]
    return {"MASTER_ADDR": address, "MASTER_PORT": str(free_port())}


def free_port() -> int:
    """A port of this machine that no process listens on, and that the kernel gives to no outgoing connection.

    Any of thousands, so that two jobs of one moment choose different ones.
    """
    last = OSError("no port between %d and %d is free" % (_LEAST, _MOST))
    ports = ports_outside(*ephemeral_ports())
    for port in random.SystemRandom().sample(ports, min(_TRIES, len(ports))):
        try:
            with socket.socket() as found:
                found.bind(("", port))
            return port
        except OSError as error:
            # Another process has this port.
            last = error
    raise last


def ephemeral_ports() -> "Tuple[int, int]":
    """Return the range of ports that the kernel chooses from."""
    try:
        with open(_RANGE) as file:
            first, last = file.read().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return _USUAL


def ports_outside(first: int, last: int) -> "list[int]":
    below, above = range(_LEAST, first), range(last + 1, _MOST + 1)
    return [*below, *above] or list(range(_LEAST, _MOST + 1))
