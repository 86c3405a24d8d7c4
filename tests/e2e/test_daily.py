"""A day of work on this machine: which call is meant, and what is said where a call has another effect than here."""

from __future__ import annotations

import concurrent.futures
import errno
import importlib
import json
import multiprocessing
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn import DiskFull, PayloadError, cluster


@dataclass
class Config:
    lr: float
    depth: int = 3


Config.__module__ = "__main__"


def score(cfg: Any, extra: Any = None) -> float:
    return float(cfg["lr"] if isinstance(cfg, dict) else cfg.lr)


score.__module__ = "__main__"


def test_two_jobs_of_one_function_are_distinguished(ask, here):
    jobs = [cluster(name="lr 0.2")(score).submit({"lr": lr}, extra="x") for lr in (0.1, 0.2)]
    group = cluster(score).map([{"lr": 1}, {"lr": 2}, {"lr": 3}])
    concurrent.futures.wait(jobs)
    group.wait()

    told = {job.id: job for job in clusterfn.jobs()}
    assert [told[job.id].arguments for job in jobs] == ["{'lr': 0.1}, extra='x'", "{'lr': 0.2}, extra='x'"]
    assert {told[job.id].name for job in jobs} == {"lr 0.2"} and jobs[0].name == "lr 0.2"
    assert told[group.id].arguments == "{'lr': 1} … {'lr': 3}"
    assert "lr 0.2  {'lr': 0.2}, extra='x'  here" in ask("jobs").stdout
    named = ask("result", "lr 0.2", "--json")
    assert json.loads(named.stdout) == 0.2, "a name means its newest job"


class StoreFull(OSError):
    """A class of the function's own."""


StoreFull.__module__ = "__main__"


def test_a_full_disk_is_caught_as_python_raises_it_and_as_the_function_raises_it(here):
    def fills(kind: type[OSError], number: int) -> None:
        raise kind(number, "no room", "/tmp/model.pt")

    for number in (errno.ENOSPC, errno.EDQUOT):
        with pytest.raises(OSError, match="could not write: no room") as full:
            cluster(fills)(OSError, number)
        copied = pickle.loads(pickle.dumps(full.value))
        for each in (full.value, copied):
            assert (each.errno, each.strerror, each.filename) == (number, "no room", "/tmp/model.pt")
        assert (type(copied), str(copied)) == (DiskFull, str(full.value))
    with pytest.raises(StoreFull) as own:
        cluster(fills)(StoreFull, errno.ENOSPC)
    assert own.value.errno == errno.ENOSPC
    assert "df -h" in own.value.__notes__[0]


def test_a_module_that_sends_jobs_when_a_job_imports_it_says_where_and_what_to_do(here, tmp_path, monkeypatch):
    text = "import os\nfrom clusterfn import cluster\n@cluster\ndef f(x):\n    return x\n"
    (tmp_path / "sends.py").write_text(f"{text}for x in [1] * ('CLUSTERFN_JOB' in os.environ):\n    f.submit(x)\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(PayloadError) as rejected:
        importlib.import_module("sends").f(1)

    assert "sends.py, line 7, uses f.submit() while a job imports it" in rejected.value.message
    assert rejected.value.hint == 'put the call under `if __name__ == "__main__":`'


def ended() -> concurrent.futures.Future[int]:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    future.set_result(1)
    return future


def test_a_reference_to_a_value_of_this_machine_is_rejected_with_what_to_pass(here):
    with multiprocessing.Manager() as manager:
        for proxy in (manager.list([1]), manager.dict(a=1), {"deep": [manager.Value("i", 1)]}):
            with pytest.raises(PayloadError) as rejected:
                cluster(score).submit(proxy)
            assert "a proxy of a process on your machine cannot be used on another one" in rejected.value.message
            assert "pass the data instead" in str(rejected.value.hint)
    for value in (ended(), [ended()], {"x": ended()}):
        with pytest.raises(PayloadError) as rejected:
            cluster(score).submit(value)
        assert rejected.value.message.endswith(": a Future is not the value that it will have")
        assert rejected.value.hint == "pass its value: .result()"
    assert not (here / "jobs").exists()


def test_a_job_says_how_to_find_it_in_another_process(here):
    job, group = cluster(score).submit({"lr": 1}), cluster(score).map([{"lr": 1}])

    for each in (job, group):
        with pytest.raises(TypeError, match=f'clusterfn.attach\\("{each.id[:4]}"\\)'):
            pickle.dumps(each)
    with pytest.raises(TypeError, match="pickle its .result"):
        pickle.dumps(job["x"])
    job.result()
    group.results()


def test_a_value_is_no_list_for_any_map(here):
    job = cluster(score).submit({"lr": 1})
    with clusterfn.Session() as session, clusterfn.Executor() as executor:
        for mapped in (cluster(score).map, executor.map, session.map):
            call: Any = mapped
            with pytest.raises(TypeError, match=r"means one value, and map\(\) takes lists: map over its .result\(\)"):
                call(job) if mapped not in (executor.map, session.map) else list(call(score, job))


def sets_a_global() -> None:
    global counted
    counted = 1


sets_a_global.__module__ = "__main__"


def test_an_assigned_global_is_said_once(here, capsys):
    for _ in range(2):
        cluster(sets_a_global)()

    assert capsys.readouterr().err.count("sets_a_global sets the global counted in its job only") == 1


def test_a_changed_variable_of_ones_own_module_is_named_once(here, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine_conf.py").write_text("LR = 0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    mine_conf: Any = importlib.import_module("mine_conf")
    mine_conf.LR = 0.5

    assert [cluster(lambda: mine_conf.LR)() for _ in range(2)] == [0.1, 0.1]
    assert capsys.readouterr().err.count("mine_conf.LR was changed on this machine, but not in the job") == 1
    del sys.modules["mine_conf"]


UNCAUGHT = """
from clusterfn import cluster

def fails(x):
    raise ValueError(f"no {x}")

@cluster
def main(x):
    fails(x)

%s
"""


@pytest.mark.parametrize(
    "line",
    [
        "main(1)",
        "main.map([1, 2]).results()",
        "cluster(gpu=1)",
        *(pytest.param(line, marks=pytest.mark.long) for line in ("main.submit(2).result()", "main(1, 2)")),
    ],
)
def test_the_traceback_of_a_script_has_no_frame_of_clusterfn(here, tmp_path, line):
    (tmp_path / "script.py").write_text(UNCAUGHT % line)

    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False
    )

    assert done.returncode == 1 and "script.py" in done.stderr
    ours = [each for each in done.stderr.splitlines() if str(Path(clusterfn.__file__).parent) in each]
    assert not ours, done.stderr
