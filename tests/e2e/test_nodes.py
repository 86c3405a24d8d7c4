"""One function on two nodes of SLURM: they find each other, and the job has one value or one error, whoever fails."""

from __future__ import annotations

import os
import signal
import time

import pytest

from clusterfn import ConfigError, NodeFailed, WorkerLost, cluster
from tests.processes import tagged
from tests.waiting import until

pytestmark = pytest.mark.lab
on_two = cluster(host="slurm", nodes=2, memory="1GB", time="10min")


def meets():
    import os
    import threading

    import torch
    import torch.distributed as distributed

    distributed.init_process_group("gloo")
    told = {name: os.environ.get(name) for name in ("SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "SLURM_PROCID")}
    all_told = [None, None]
    distributed.all_gather_object(all_told, told)
    total = torch.tensor(float(os.environ["RANK"]) + 1)
    distributed.all_reduce(total)
    distributed.destroy_process_group()
    print("hello from", os.environ["RANK"])
    value = all_told, total.item(), 0
    return value if os.environ["RANK"] == "0" else threading.Lock()  # which nobody wants, and nobody could have


def fails_after_the_other():
    import os
    import threading
    import time
    from pathlib import Path

    if os.environ["RANK"] == "1":
        threading.Thread(target=time.sleep, args=(5,)).start()  # its process, and so srun, stays for a while
        raise ValueError("of rank 1")
    while not Path("../nodes/1/outcome.json").exists():
        time.sleep(0.005)
    raise RuntimeError("that followed from it")


def waits():
    import os
    import subprocess
    import time
    from pathlib import Path

    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(f"here-{os.environ['RANK']}-{os.getppid()}").touch()
    time.sleep(1000)


def fails_once(how):
    import os
    import signal
    import time

    attempt = int(os.environ["CLUSTERFN_JOB"].rpartition("/")[2])
    if attempt > 1:
        return attempt
    if os.environ["RANK"] != how[-1]:
        time.sleep(1000)
    if how.startswith("supervisor"):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


def stands(fails=None):
    """Which of the job's tasks this is; what all of them are, from the first."""
    import json
    import os
    import threading
    import time
    from pathlib import Path

    told = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")}
    told["node"] = os.environ["SLURMD_NODENAME"]
    if os.environ["RANK"] == fails:
        raise ValueError("of one task")
    name = Path(f"rank-{os.environ['RANK']}")
    Path(f"{name}.part").write_text(json.dumps(told))
    Path(f"{name}.part").rename(name)
    if os.environ["RANK"] != "0":
        print("not shown:", os.environ["RANK"])
        return threading.Lock()  # which nobody wants, and nobody could have
    until = time.monotonic() + 200
    while len(list(Path().glob("rank-?"))) < int(os.environ["WORLD_SIZE"]) and time.monotonic() < until:
        time.sleep(0.1)
    print("in the first task")
    return [json.loads(path.read_text()) for path in sorted(Path().glob("rank-?"))]


for function in (meets, fails_after_the_other, waits, fails_once, stands):
    function.__module__ = "__main__"  # so that it travels by value


def test_the_nodes_find_each_other_and_the_first_ones_value_comes_back(hosts, torch, capsys):
    told, total, rank = on_two(meets).with_options(environment=torch, gpus=1, allow_cpu=True)()

    assert [each["SLURM_PROCID"] for each in told] == ["0", "1"]
    assert [each["SLURMD_NODENAME"] for each in told] == ["n1", "n2"]
    assert all(each["CUDA_VISIBLE_DEVICES"] in ("0", "1", "2", "3") for each in told)
    assert (total, rank) == (3.0, 0)
    said = capsys.readouterr()
    assert "hello from 0" in said.out
    assert "left behind" not in said.err


def test_the_error_that_came_first_is_raised_with_the_name_of_its_node(hosts):
    with pytest.raises(ValueError, match="of rank 1") as caught:
        on_two(fails_after_the_other)()

    assert "on slurm (n2), job " in str(caught.value.__cause__)


def started(job, hosts):
    """rank -> pid of its supervisor, once both have said so."""
    work = hosts.root / "jobs" / job.id / "attempts/1/work"
    names = until(lambda: work.exists() and len(list(work.glob("here-*"))) == 2 and list(work.glob("here-*")))
    return {int(name.name.split("-")[1]): int(name.name.split("-")[2]) for name in names}


def test_a_stopped_job_leaves_nothing_on_any_node(hosts):
    job = on_two(waits).submit()
    started(job, hosts)

    job.stop()

    assert type(job.exception(150)).__name__ == "Cancelled"
    until(lambda: not tagged(job.id))


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.long)])
def test_the_death_of_a_supervisor_ends_the_job_on_all_nodes(hosts, rank):
    job = on_two(waits).submit()
    os.kill(started(job, hosts)[rank], signal.SIGKILL)

    error = job.exception(150)

    assert type(error) is WorkerLost, error
    assert "supervisor" in error.message and error.stage == "supervisor"
    assert rank == 0 or "n2" in "\n".join(error.evidence)
    until(lambda: not tagged(job.id))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("error on 1", "on node n2, one of 2: RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        pytest.param(
            "supervisor of 1",
            "the supervisor on another node of the job (rank 1) ended without a word",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "supervisor of 0",
            "the supervisor of the job was ended by SIGKILL; what the function had done by then is not known",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_passes_on_one_node_is_tried_again_on_all(hosts, how, told):
    job = on_two(fails_once).with_options(retries=1).submit(how)

    assert job.result(150) == 2
    assert job.notes == (f"attempt 1 failed: {told}; retried (1 of 1)",)
    until(lambda: not tagged(job.id))


def test_an_srun_that_cannot_start_says_why(hosts, lab, tmp_path, monkeypatch):
    path = hosts.describe(lab, tmp_path / "other.yml", hosts.python, 'prolog: ["export PATH=/nowhere"]', ("slurm",))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    with pytest.raises(NodeFailed, match="srun could not start the function on the other nodes") as caught:
        on_two(time.sleep)(60)

    assert caught.value.stage == "start"
    assert any("srun" in line and "No such file" in line for line in caught.value.evidence)


def test_priority_is_for_a_queue_without_a_scheduler_and_rejected_elsewhere(hosts):
    before = hosts.jobs()

    with pytest.raises(ConfigError, match="priority=1 is for clusterfn's own queue, and slurm has") as caught:
        cluster(host="slurm", priority=1)(time.sleep)(0)

    assert 'slurm={"nice": 100}' in caught.value.hint and hosts.jobs() == before


def test_a_host_without_nodes_is_refused_before_anything_is_sent(hosts):
    before = hosts.jobs()
    with pytest.raises(ConfigError, match="nodes=2: tensor01 is one machine"):
        cluster(host="tensor01", nodes=2)(time.sleep)(0)
    with pytest.raises(ConfigError, match="nodes=2: tensor01 is one machine"):
        cluster(host="tensor01", nodes=2)(time.sleep).map([0])

    assert hosts.jobs() == before


@pytest.mark.parametrize(("nodes", "tasks"), [(2, 2), pytest.param(1, 3, marks=pytest.mark.long)])
def test_each_node_has_as_many_tasks_as_are_asked_for_and_the_first_ones_value_comes_back(hosts, capsys, nodes, tasks):
    call = cluster(host="slurm", nodes=nodes, tasks_per_node=tasks, cores=2, memory="500MB", time="10min")(stands)

    told = call()

    count = nodes * tasks
    assert [each["RANK"] for each in told] == [each["SLURM_PROCID"] for each in told] == [*map(str, range(count))]
    assert [each["LOCAL_RANK"] for each in told] == [str(number % tasks) for number in range(count)]
    assert [each["SLURM_NODEID"] for each in told] == [str(number // tasks) for number in range(count)]
    assert len({each["node"] for each in told}) == nodes
    assert capsys.readouterr().out == "in the first task\n"


def test_tasks_need_srun(hosts):
    call = cluster(tasks_per_node=2)(stands)
    with pytest.raises(ConfigError, match="only a host with `scheduler: slurm` starts tasks as srun does"):
        call.on("tensor01")()
    with pytest.raises(ConfigError, match="only a host with `scheduler: slurm` starts tasks as srun does"):
        call.on("tensor01").map([None])


@pytest.mark.parametrize("tasks", [2, pytest.param(1, marks=pytest.mark.long)])
def test_each_item_of_a_map_has_nodes_and_tasks_of_its_own(hosts, tasks):
    call = cluster(host="slurm", nodes=2, tasks_per_node=tasks, cores=2, memory="500MB", time="10min")(stands)

    group = call.map([None, str(2 * tasks - 1), None], max_parallel=1)
    first, failed, last = group.results(200)

    for told in (first, last):
        assert [each["RANK"] for each in told] == [*map(str, range(2 * tasks))]
        assert len({each["node"] for each in told}) == 2
    assert isinstance(failed, ValueError) and str(failed) == "of one task"
    until(lambda: not tagged(group.id))
