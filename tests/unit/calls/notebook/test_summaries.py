"""What a cell shows of a job, a group, a session and a list of jobs; hosts wrote many of the words."""

from __future__ import annotations

import concurrent.futures
import json
import re

import pytest
from IPython.core.formatters import DisplayFormatter

from clusterfn import Job, JobGroup, Session
from clusterfn.calls.group import state_of_group
from clusterfn.calls.group_items import ItemOutcome
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.job import entry_of
from clusterfn.calls.remote_state import JobInfo, JobList
from clusterfn.config.spec import Resources, ResultPolicy
from clusterfn.errors import HostError, JobError
from clusterfn.hosts.rpc.reply import Reply
from tests.fakes.taken import Taken
from tests.waiting import WAIT_S, until

EVIL = "<script>alert('x')</script>&\x1b[31m"
SAFE = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;"
USED = {
    "wall_s": 75.0, "peak_memory_bytes": 3 << 30,
    "gpus": [{"name": "RTX A6000", "peak_memory_bytes": 40 << 30, "mean_use_percent": 87.5}],
}  # fmt: skip


class Output(Taken):
    """Gives what a job prints, and can answer nothing else: a representation must ask no host."""

    is_fetched_apart = False
    results = ResultPolicy()

    def __init__(self, used=None):
        self.on_output = None
        self.connection = UsageFile(used)

    def watch_output(self, on_output):
        self.on_output = on_output

    def log_path(self, stream):
        return f"/r/7f3a/attempts/1/{stream}"


class UsageFile:
    """A connection that gives one file, if there is one; nobody waits for it."""

    def __init__(self, used):
        self.used = used

    def get(self, path, sink, **_):
        assert path == "/r/7f3a/attempts/1/usage.json"
        reply = Reply(lambda: None)
        if self.used is None:
            reply.reject(HostError("no such file"))
        else:
            sink(json.dumps(self.used).encode() + b"\nrest of a longer line")
            reply.resolve(0)
        return reply


def shown(obj):
    """What IPython takes for it: (HTML, plain text), neither with anything that a browser or a terminal obeys."""
    bundle, _ = DisplayFormatter().format(obj)
    html, plain = bundle["text/html"], bundle["text/plain"]
    assert "<script" not in html and "\x1b" not in html + plain
    return html, plain


def a_job(backend=None):
    job = Job("7f3a000011112222", "train", "tensor01", "/r/7f3a", backend or Output())
    entry_of(job).asked = Resources(cores=4, memory_bytes=16 << 30, gpus=1, gpu_type="a6000")
    return job


def ends(job, kind="raised", **told):
    entry_of(job).settle({"kind": kind, "usage": USED, **told}, None)
    concurrent.futures.wait([job], WAIT_S)


def test_a_job_that_has_ended_shows_state_duration_memory_and_gpus():
    job = a_job()
    ends(job, message=EVIL, exception={"type": "ValueError", "message": EVIL})

    html, plain = shown(job)

    assert plain.splitlines() == [
        "7f3a000011112222 train on tensor01: RAISED 01:15 (<script>alert('x')</script>&)",
        "  asked for 4 cores, 16GB of memory, 1 GPU (a6000)",
        "  ran 1 min 15 s, peak memory 3 GB",
        "  GPU RTX A6000, peak memory 40 GB, 87.5 % busy",
    ]
    assert SAFE in html and all(word in html for word in ("train on tensor01", "RAISED", "01:15", "RTX A6000"))


def test_a_running_job_is_updated_in_place_with_the_end_of_its_output(notebook):
    backend = Output()
    job = a_job(backend)
    entry_of(job).set_state("RUNNING", "node3")
    with notebook:
        assert DisplayFormatter().format(job) == ({}, {})
        (before,) = notebook.plain
        assert re.match(r"7f3a000011112222 train on tensor01: RUNNING 00:0\d \(node3\)", before)
        backend.on_output("stdout", "".join(f"epoch {number}\n" for number in range(40)).encode() + EVIL.encode())
        until(lambda: "epoch 39" in notebook.plain[0])
        assert "epoch 28" not in notebook.plain[0] and SAFE in notebook.html[0] and "<script" not in notebook.html[0]
        backend.on_output("stderr", b"\n10%\r100%")
        ends(job)
        until(lambda: "RAISED" in notebook.plain[0] and "100%" in notebook.plain[0])

    assert len(notebook.outputs) == 1 and "10%" not in notebook.plain[0].replace("100%", "")
    assert "100%" in shown(job)[1]


def test_the_gpu_of_a_running_job_shows_what_it_uses_now(notebook):
    gpu = {"uuid": "GPU-1", "memory_bytes": 20 << 30, "use_percent": 97}
    now = {"cores": 3.9, "memory_bytes": 3 << 30, "gpus": [gpu]}
    job = a_job(Output({"wall_s": 10.0, "gpus": [{"uuid": "GPU-1", "name": "RTX A6000"}], "now": now}))
    entry_of(job).set_state("RUNNING", "node3")
    with notebook:
        DisplayFormatter().format(job)
        until(lambda: "uses 3.9 cores, 3 GB" in notebook.plain[0])
        assert "GPU RTX A6000: 20 GB in use, 97 % busy" in notebook.plain[0]
        ends(job)
        until(lambda: "ran 1 min 15 s" in notebook.plain[0])
    assert "uses" not in notebook.plain[0]


def test_a_representation_outside_a_notebook_is_not_updated(notebook):
    notebook.shell.kernel = None
    job = a_job()

    html, plain = shown(job)

    assert re.search(r"PENDING 00:0\d", plain) and "PENDING" in html and not notebook.outputs


def a_group(ended):
    state = GroupState("5b08000011112222", "score", "tensor01", "/r/5b08", 50)
    end_items(state, range(ended))
    return JobGroup(state)


def end_items(state, indices):
    for index in indices:
        error = JobError(EVIL) if index % 10 == 7 else None
        usage = {"peak_memory_bytes": 1 << 30}
        state.end_item(index, ItemOutcome("RAISED" if error else "RETURNED", None, error, usage))


def test_a_group_shows_how_far_it_is_and_the_causes_of_its_failures(notebook):
    html, plain = shown(a_group(50))

    assert '<progress value="50" max="50"' in html and f"5 x JobError: {SAFE}" in html
    assert plain.splitlines()[0].startswith("5b08000011112222 score on tensor01: RETURNED 50/50 00:0")
    assert "45 returned, 5 raised" in plain and "peak memory of an item 1 GB" in plain
    group = a_group(20)
    with notebook:
        assert DisplayFormatter().format(group) == ({}, {})
        assert '<progress value="20" max="50"' in notebook.html[0] and "30 pending" in notebook.plain[0]
        end_items(state_of_group(group), range(20, 50))
        until(lambda: '<progress value="50" max="50"' in notebook.html[0])
    assert len(notebook.outputs) == 1


def test_a_list_of_jobs_is_a_table_and_still_a_list():
    infos = [JobInfo(f"{n:016x}", "train", "tensor01", "RAISED", EVIL, 1.7e9) for n in range(60)]
    listed = JobList(infos)

    html, plain = shown(listed)

    assert listed == infos and listed[0] is infos[0] and repr(listed) == repr(infos)
    assert html.count("<tr>") == 51 and "and 10 more" in html and SAFE in html
    assert shown(listed[:2])[1].splitlines()[0] == "2 jobs" and listed[:2] == infos[:2]
    columns = ["id", "name", "arguments", "host", "state", "sent", "ran", "GPUs", "uses"]
    assert plain.splitlines()[0] == "60 jobs" and plain.splitlines()[1].split() == columns


def test_a_session_that_has_not_begun_says_what_starts_it():
    html, plain = shown(Session("tensor01"))

    assert plain.splitlines()[0] == "session: not begun" and "its first call starts it" in html


@pytest.mark.parametrize("color", ["--jp-ui-font-color2", "--vscode-descriptionForeground"])
def test_colours_follow_the_theme_of_the_notebook(color):
    assert color in shown(a_group(50))[0]
