"""The table at the end of a run: each fault, where it was injected, what the user saw, and what was lost or left over.

Rows of tests/faults put their own facts into it. A test elsewhere is marked `@pytest.mark.fault("28")` with the number
of the fault that it injects; its name says what it asserts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

FAULTS = {
    1: "the function raises",
    2: "its exception cannot be unpickled here",
    3: "os._exit",
    4: "sys.exit",
    5: "SIGSEGV",
    6: "KeyboardInterrupt in the function",
    7: "binary output without end",
    8: "it closes its output",
    9: "it removes its job folder",
    10: "it leaves child processes",
    11: "it leaves a thread",
    12: "recursion, MemoryError",
    13: "the kernel's OOM killer",
    14: "SLURM's memory limit",
    15: "time limit",
    16: "scancel",
    17: "preempted and requeued",
    18: "slurmd killed, node down",
    19: "slurmctld dead",
    20: "squeue slow or wrong",
    21: "sbatch accepts a job and fails",
    22: "the job left squeue, no accounting",
    23: "a request that can never start",
    24: "worker killed",
    25: "supervisor killed",
    26: "client killed, laptop asleep",
    27: "session's sshd killed, socket cut",
    28: "the network swallows everything",
    29: "sshd refuses, MaxStartups, MaxSessions",
    30: "the host reboots",
    31: "disk full on the host",
    32: "disk full on the client",
    33: "quota, no inodes",
    34: "home not writable",
    35: "noexec",
    36: "clocks that are wrong or are set",
    37: "another Python, a changed environment",
    38: "payload or result damaged",
    39: "huge argument or result",
    40: "a result that cannot be pickled",
    41: "a lock from before a crash",
    42: "two clients build one environment",
    43: "a build killed half way",
    44: "odd names and values",
    45: "csh, fish",
    46: "noisy .bashrc",
    47: "host key changed or unknown",
    48: "password or key refused",
    49: "second factor without a terminal",
    50: "no GPU, a broken driver, busy GPUs",
}
PROPERTY = "fault"
_WIDTHS = (4, 40, 16, 22, 12, 8, 5, 9, 5)


def numbers_of(fault: str) -> list[int]:
    """The numbers in FAULTS that a row or a mark names: "2.8 3c 5" is 5."""
    return [int(number) for number in re.sub(r"\b2\.\d+|3c", " ", fault).split() if number.isdigit()]


def fault_table(seen: Iterable[tuple[bool, Mapping[str, Any]]]) -> str:
    """The table of (whether the test passed, what it says of its fault); empty if there is nothing to say."""
    facts = sorted(
        ((number, passed, each) for passed, each in seen for number in numbers_of(each["fault"]) or [0]),
        key=lambda line: (line[0], line[2]["what"], line[2]["host"]),
    )
    if not facts:
        return ""
    lines = [_line("", "fault", "host", "the user sees", "stage", "seconds", "lost", "invented", "left")]
    told = -1
    for number, passed, each in facts:
        if number != told:
            lines.append(f"{number or '-':<4} {FAULTS.get(number, 'other ways to end')}")
            told = number
        lines.append(_case(passed, each))
    lost, invented, left = (sum(each.get(what, 0) for _, _, each in facts) for what in ("lost", "invented", "left"))
    failed, missing = sum(not passed for _, passed, _ in facts), sorted(set(FAULTS) - {line[0] for line in facts})
    slowest = max((each.get("seconds", 0.0) for _, _, each in facts if each.get("stage")), default=0.0)
    lines.append(
        f"{len({line[0] for line in facts} - {0})} of {len(FAULTS)} faults, {len(facts)} cases, {failed} failed: "
        f"lost {lost}, invented {invented}, left over {left}; from death to error at most {slowest:.1f} s"
    )
    return "\n".join([*lines, f"not injected in this run: {', '.join(map(str, missing))}"] if missing else lines)


def _case(passed: bool, each: Mapping[str, Any]) -> str:
    if "lost" not in each:
        return f"     {each['what']}: {'it holds' if passed else 'FAILED'}"
    counts = (f"{each['seconds']:.2f}", each["lost"], each["invented"], each["left"])
    line = _line("", each["what"], each["host"], each["saw"], each["stage"] or "-", *map(str, counts))
    return line if passed else f"{line} FAILED"


def _line(*cells: str) -> str:
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS)).rstrip()
