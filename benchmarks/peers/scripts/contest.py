"""What all contenders have in common: one pass that is not counted, then the passes, each as a line of JSON.

argv: where ("machine" or "slurm"), calls in a pass, calls at a time, seconds after which a pass is broken off.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

WHERE, COUNT, AT_ONCE, LIMIT_S = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
_PASSES, _QUICK_PASSES, _QUICK_S = 3, 30, 1.0


def run(calls: Callable[[int, float], int]) -> None:
    """Let `calls(count, until)` do so many calls, and say how many were done; passes end once their time is used up.

    Quick passes are repeated more often: of one call, three say little.
    """
    calls(AT_ONCE, time.monotonic() + LIMIT_S)
    print(json.dumps({"ready": True}), flush=True)
    used_s = 0.0
    for number in range(_QUICK_PASSES):
        if number >= _PASSES and used_s > _QUICK_S:
            break
        began = time.monotonic()
        done = calls(COUNT, began + LIMIT_S)
        took_s = time.monotonic() - began
        used_s += took_s
        print(json.dumps({"done": done, "seconds": took_s}), flush=True)
        if used_s + took_s > LIMIT_S:
            break


def checked(values: Sequence[int]) -> int:
    """How many there are; they must be what was asked for."""
    if list(values) != list(range(len(values))):
        raise SystemExit(f"other values came back: {values}")
    return len(values)


def gathered(futures: Sequence["Future[Any]"], until: float) -> int:
    """How many are done by then; the others are withdrawn."""
    done, late = wait(futures, max(0.0, until - time.monotonic()))
    for future in late:
        future.cancel()
    if not late:
        checked([future.result() for future in futures])
    return len(done)
