"""What `clusterfn gpus` shows of what a host has told."""

import time

from clusterfn.cli import gpus


def card(**facts):
    return {
        "uuid": "GPU-1", "name": "NVIDIA RTX A6000", "index": 0, "total_mib": 49140, "used_mib": 20580,
        "use_percent": 97, "holder": None, "without_lease": [], **facts,
    }  # fmt: skip


def holder(**facts):
    return {"user": "bob", "own": False, "job": None, "name": None, "since": None, **facts}


def shown(*of):
    return gpus.machine_tables({"gpus": of, "waiting": []})


def test_each_gpu_says_who_has_it():
    own = holder(own=True, user="ada", job="7f3a000011112222", name="train", since=time.time() - 7300)
    text = shown(
        card(holder=own),
        card(index=1, holder=holder()),
        card(index=2, without_lease=["python (pid 123, bob)", "800 MB in use by an unknown process"]),
        card(index=3, used_mib=4, use_percent=None),
    )

    first, _, head, *rows = text.splitlines()
    assert first == "1 of 4 GPUs free"
    assert head.split() == ["GPU", "NAME", "MEMORY", "USE", "HELD", "BY"]
    assert [row.split("  ")[-1].strip() for row in rows] == [
        "you: train (7f3a), 2 h 1 min",
        "bob",
        "in use without a lease: python (pid 123, bob), 800 MB in use by an unknown process",
        "free",
    ]
    assert "20.1 GB of 48 GB" in rows[0] and "97 %" in rows[0] and " ? " in rows[3]
    told = {"nodes": [{"node": "n1", "state": "idle", "type": "", "total": 4, "used": None}], "waiting": []}
    assert gpus.cluster_tables(told).splitlines()[0] == "? of 4 GPUs free"
