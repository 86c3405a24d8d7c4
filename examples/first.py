"""The first call: on this machine, in a process of its own, without any server.

    python examples/first.py

Name a host in clusterfn.yml, write `host="its name"` in the decorator, and the same call runs there.
"""

from __future__ import annotations

import os

from clusterfn import cluster


@cluster(cores=1, memory="1GB")
def count_primes(below: int) -> int:
    """How many primes there are; what it prints appears here while it runs."""
    print(f"counting in process {os.getpid()}")
    sieve = bytearray([1]) * below
    sieve[:2] = b"\0\0"
    for n in range(2, int(below**0.5) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, below, n)))
    return sum(sieve)


@cluster(memory="1GB")
def fail() -> None:
    """Raises an exception; it is raised here as what it is."""
    raise ValueError("this was raised in the other process")


if __name__ == "__main__":
    print(f"called from process {os.getpid()}")
    print("primes below a million:", count_primes(1_000_000))
    try:
        fail()
    except ValueError as error:
        print("caught:", error)
