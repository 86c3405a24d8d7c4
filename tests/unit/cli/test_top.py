"""The screen of `clusterfn top`, from what a host has told."""

from __future__ import annotations

from types import SimpleNamespace

from clusterfn.cli import top

GB = 2**30
SESSION = SimpleNamespace(
    settings=SimpleNamespace(name="tensor01"), connection=SimpleNamespace(facts=SimpleNamespace(user="ada"))
)
NOW = {"cores": 3.9, "memory_bytes": 12 * GB, "gpus": [{"uuid": "GPU-1", "memory_bytes": 20 * GB, "use_percent": 97}]}
TRAIN = {
    "id": "7f3a000011112222", "name": "train", "state": "RUNNING", "ran_s": 3723.0, "message": "", "gpus": 1,
    "asked": {"cores": 4, "memory_bytes": 16 * GB, "time_s": 7200.0}, "usage": {"now": NOW}, "since": 1.0,
    "started": 2.0,
}  # fmt: skip
EVAL = {
    "id": "90aa000011112222", "name": "eval", "state": "PENDING", "ran_s": None, "message": "waiting for 3", "gpus": 3,
    "asked": {"cores": 1}, "usage": {}, "since": None, "started": 1.0,
}  # fmt: skip


def other(user="bob", state="RUNNING", **more):
    return {"user": user, "job": "c0de000011112222", "state": state, "gpus": 1, "cores": 8, "memory_mb": 32768, **more}


def row_of(text, job):
    return next(line for line in text.splitlines() if line.startswith(job))


def test_a_running_job_shows_what_it_uses_of_what_it_asked_for_and_a_waiting_one_why_it_waits():
    text = top.text(SESSION, {"own": [EVAL, TRAIN]})

    assert row_of(text, "7f3a").split("  ") == [
        "7f3a", "train", "RUNNING", "1:02:03", "57:57", "3.9 of 4", "12 GB of 16 GB", "1: 97 %, 20 GB",
    ]  # fmt: skip
    assert text.index("7f3a") < text.index("90aa")
    assert "waiting for 3" in row_of(text, "90aa") and "  - of 1  " in row_of(text, "90aa")
    not_measured = top.text(SESSION, {"own": [{**TRAIN, "usage": {}}], "jobs": [other("ada")]})
    assert "- of 4" in not_measured and "- of 16 GB" in not_measured and "USER" not in not_measured


def test_jobs_of_other_users_are_shown_in_their_order_with_who_is_next():
    look = {"own": [], "jobs": [other(), other(state="PENDING"), other("ada", "PENDING")]}

    text = top.text(SESSION, look)

    assert "none of your jobs waits or runs" in text
    assert [line.split()[0] for line in text.splitlines() if "PENDING" in line] == ["bob", "ada"]
    assert list(top.notes_on(look)) == ["bob is next with c0de000011112222"]


def test_on_a_narrow_terminal_the_columns_stay_that_say_which_job_does_what():
    text = top.text(SESSION, {"own": [EVAL, TRAIN], "jobs": [other()]}, 39)

    assert row_of(text, "7f3a").split() == ["7f3a", "train", "RUNNING", "1:02:03"]
    assert row_of(text, "bob").split()[:2] == ["bob", "RUNNING"]
    assert max(map(len, text.splitlines()[1:])) <= 39


def test_the_machine_or_the_nodes_and_their_gpus_are_above_and_a_broken_driver_is_said():
    machine = {"cores": 64, "load": 12.3, "memory_bytes": 256 * GB, "used_bytes": 118 * GB}
    nodes = [{"node": "n1", "state": "idle", "type": "a100", "total": 4, "used": 1}]
    on_a_cluster = top.text(SESSION, {"own": [EVAL], "nodes": nodes, "waiting": []})
    assert "3 of 4 GPUs free" in on_a_cluster and row_of(on_a_cluster, "n1").endswith("3 of 4")

    text = top.text(SESSION, {"own": [], "machine": machine, "gpus": [], "trouble": "no driver"})

    assert text.splitlines()[0].endswith(": load 12.3 on 64 cores, 118 GB of 256 GB of memory in use")
    assert "the GPUs cannot be seen: no driver" in text
