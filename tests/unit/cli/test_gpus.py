"""What commands show of a host on a screen: `gpus`, `top` and `usage`, and the keys that end one that refreshes."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

import pytest

from clusterfn.calls.remote_state import JobInfo
from clusterfn.cli import gpus, top
from clusterfn.cli.jobs import reports_on, suggestions
from tests.e2e.terminal import PROMPT, Terminal


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


def job(name="train", state="RETURNED", asked=None, kind="", message="", **usage):
    used = {"wall_s": 100.0, "cpu_s": 140.0, "peak_memory_bytes": 3 * GB, "gpus": [], **usage}
    wanted = {"cores": 8, "memory_bytes": 32 * GB} if asked is None else asked
    return JobInfo("7f3a", name, "tensor01", state, message, 0.0, ended=1.0, asked=wanted, usage=used, kind=kind)


def test_jobs_of_one_function_that_asked_for_the_same_are_one_line_with_the_most_that_any_needed():
    reports = reports_on([job(), job(peak_memory_bytes=5 * GB, cpu_s=290.0), job(asked={"cores": 2}), job("embed")])

    first = reports[0]
    assert (len(reports), first["name"], first["jobs"]) == (3, "train", 2)
    assert (first["cores"], first["memory_bytes"], first["longest_s"]) == (2.9, 5 * GB, 100.0)
    assert first["suggestions"] == ["cores=4", 'memory="7GB"']


@pytest.mark.parametrize(
    ("used", "asked", "said"),
    [
        ({"cores": 0.1}, {"cores": 1}, []),
        ({"memory_bytes": 31.9 * GB}, {"memory_bytes": 32 * GB}, ['memory="48GB": it was close to its limit']),
        ({"memory_bytes": 200 << 20}, {"memory_bytes": 4 * GB}, ['memory="256MB"']),
        ({"gpu_use_percent": 0, "longest_s": 60.0}, {"gpus": 1}, ["gpus=0: its GPUs did nothing"]),
        ({"gpu_use_percent": 0, "longest_s": 5.0}, {"gpus": 1}, []),
        ({"gpu_use_percent": 0, "longest_s": 60.0, "gpu_memory_bytes": 500 << 20}, {"gpus": 1}, []),
        ({"gpu_use_percent": None}, {"gpus": 1}, []),
        ({"longest_s": 7200.0}, {"time_s": 43200.0}, ['time="180min"']),
        ({"longest_s": 590.0}, {"time_s": 600.0}, ['time="15min": it was close to its limit']),
        ({}, {"cores": 8, "memory_bytes": GB, "gpus": 1, "time_s": 60.0}, []),
    ],
)
def test_a_request_is_suggested_where_it_saves_much_or_was_close(used, asked, said):
    assert suggestions(used, asked) == said


def test_a_map_is_measured_by_its_largest_item_and_a_function_that_never_returned_gets_no_suggestion():
    (report,) = reports_on([job(wall_s=1000.0, cpu_s=1000.0, items=10, longest_s=120.0)])

    assert (report["cores"], report["longest_s"]) == (1.0, 120.0)
    assert reports_on([job(state="DIED")])[0]["suggestions"] == []
    assert reports_on([job(state="DIED"), job()])[0]["suggestions"] != []
    assert reports_on([job(state="RAISED", message="9 of 9 ended: 8 returned, 1 raised")])[0]["suggestions"] != []


@pytest.mark.parametrize(("kind", "option"), [("memory", 'memory="48GB"'), ("time", 'time="15min"')])
def test_what_ran_out_of_memory_or_time_gets_the_advice_to_ask_for_more_whatever_was_measured_before(kind, option):
    asked = {"cores": 8, "memory_bytes": 32 * GB, "time_s": 600.0}
    died, said = job(state="DIED", kind=kind, asked=asked), f"{option}: it reached its limit"

    assert reports_on([died])[0]["suggestions"] == [said]
    assert said in reports_on([job(asked=asked), died])[0]["suggestions"]


# As `clusterfn top`, it waits for what a host says.
SHOWS = """
import queue
from clusterfn.cli.keys import ended_by_key
with ended_by_key():
    print("be" + "gan", flush=True)
    queue.SimpleQueue().get()
"""


@pytest.fixture
def terminal(tmp_path):
    (tmp_path / "shows.py").write_text(SHOWS)
    opened = Terminal(["sh"], tmp_path, {**os.environ, "TERM": "xterm", "PYTHONPATH": os.getcwd()})
    yield opened
    opened.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of Unix")
@pytest.mark.parametrize(
    ("key", "code"), [("q", 0), ("Q", 0), ("\x1b", 0), ("\x03", 130)], ids=["q", "Q", "Esc", "Ctrl-C"]
)
def test_a_key_ends_a_screen_and_leaves_the_terminal_as_it_was(terminal, key, code):
    terminal.type(f"stty -a > before; '{sys.executable}' shows.py 2> err")
    terminal.wait_for("began")
    # Neither another key nor an arrow is meant.
    terminal.press("x")
    terminal.press("\x1b[A")
    terminal.press(key)

    terminal.wait_for(PROMPT)
    terminal.type("echo code=$?; stty -a | cmp - before && echo as before")

    assert terminal.wait_for(r"code=\d+") == f"code={code}"
    terminal.wait_for("as before\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the queue")
def test_the_gpus_of_a_list_of_hosts_are_shown_until_a_key_ends_it(terminal, tmp_path):
    hosts = "".join(f"  {name}: {{scheduler: local, root: {tmp_path / name}}}\n" for name in "ab")
    (tmp_path / "clusterfn.yml").write_text(f"hosts:\n{hosts}  lab: {{any: [a, b]}}\n")
    terminal.type(f"CLUSTERFN_CONFIG=clusterfn.yml '{sys.executable}' -m clusterfn gpus lab --watch; echo code=$?")

    terminal.wait_for(r"\d+ of \d+ GPUs free: a \d+ of \d+, b \d+ of \d+")
    terminal.press("q")

    assert terminal.wait_for(r"code=\d+") == "code=0"


def test_a_key_before_the_first_answer_ends_it_too(monkeypatch):
    monkeypatch.setattr(gpus, "ended_by_key", lambda: pytest.raises(IndexError))
    monkeypatch.setattr(gpus, "ask_each", lambda *_: [].pop())
    monkeypatch.setattr("clusterfn.cli.target.hosts", lambda *_: (None, [SimpleNamespace(name="a")], ""))

    assert gpus.gpus(SimpleNamespace(host="local", watch=True, json=False)) == 0


def test_the_gpus_of_several_hosts_are_one_table_with_the_free_ones_first():
    machine = {"host": "tensor01", "gpus": [card(holder=holder()), card(index=1)], "waiting": []}
    nodes = [{"node": "n1", "state": "mix", "type": "a100", "total": 4, "used": 1}]
    full = {"node": "n2", "state": "alloc", "type": "", "total": 4, "used": 4}

    first, _, head, *rows = gpus.tables_of_all([machine, {"host": "hpc", "nodes": [full, *nodes]}]).splitlines()

    assert first == "4 of 10 GPUs free: tensor01 1 of 2, hpc 3 of 8"
    assert head.split() == ["HOST", "GPU", "NAME", "MEMORY", "USE", "HELD", "BY"]
    assert [row.split()[:2] for row in rows] == [["tensor01", "1"], ["hpc", "n1"], ["tensor01", "0"], ["hpc", "n2"]]
    assert "3 of 4 free, mix" in rows[1]
