"""A list of hosts as the host of a call: a shared GPU server, another one and SLURM."""

from __future__ import annotations

import re
import socket
import time

import pytest

import clusterfn
from clusterfn import HostError, Session, Unsatisfiable, cluster
from tests.programs import main
from tests.waiting import until

pytestmark = pytest.mark.lab
LISTS = "  lab: {{any: [{0}, slurm]}}\n  all: {{any: [{0}, silent, slurm]}}\n"


def rest(seconds=600):
    time.sleep(seconds)


def negative(x):
    return -x


for function in (rest, negative):
    function.__module__ = "__main__"


@pytest.fixture
def box(own_box, lab, hosts, tmp_path, monkeypatch):
    """The name of a server of eight GPUs that nobody else uses, which is the first of `lab`; SLURM is the second."""
    name = own_box.alias("cfbash")
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, names=(name, "slurm"))
    silent = f"  silent: {{address: silent, scheduler: bare, ssh_config: {tmp_path / 'ssh_config'}}}\n"
    # A port that takes connections, and says nothing.
    listener = socket.create_server(("127.0.0.1", 0))
    (tmp_path / "ssh_config").write_text(f"Host silent\n  HostName 127.0.0.1\n  Port {listener.getsockname()[1]}\n")
    path.write_text(path.read_text() + silent + LISTS.format(name))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    monkeypatch.setattr("clusterfn.calls.host_choice.PATIENCE_S", 60.0)  # a busy machine may need more than 5 s
    yield name
    listener.close()


@pytest.fixture
def holder(box):
    """A job that has seven of the eight GPUs of the server."""
    job = cluster(host=box, gpus=7)(rest).submit()
    until(lambda: job.state == "RUNNING")
    yield job
    job.stop()
    until(job.done)


def test_a_call_goes_to_the_first_host_that_can_start_it_now_and_says_why(box, holder, capsys):
    one = cluster(host="lab", gpus=1, name="one")(negative).submit(1)
    two = cluster(host=[box, "slurm"], gpus=2, name="two")(negative).submit(1)

    assert (one.host, two.host) == (box, "slurm")
    assert one.result() == two.result() == -1
    said = capsys.readouterr().err
    # What SLURM says depends on its other jobs, and on how soon it says it.
    assert re.search(rf"clusterfn: one on {box} \((can start it now|slurm: about [\w ]+)\)\n", said), said
    held = rf"{box}: ([78]) of 8 GPUs held by you \(\1\); waiting for 2"
    assert re.search(rf"clusterfn: two on slurm \((?:about [\w ]+; )?{held}", said), said


def test_calls_that_are_sent_in_a_row_do_not_all_go_to_the_machine_that_had_room_for_one(box, holder):
    jobs = [cluster(host="lab", gpus=1)(rest).submit() for _ in range(2)]

    assert [job.host for job in jobs] == [box, "slurm"]
    for job in jobs:
        job.stop()


def test_where_no_host_can_ever_run_it_the_error_has_a_line_for_each(box, hosts):
    with pytest.raises(Unsatisfiable) as caught:
        cluster(host="lab", gpus=9)(negative)(1)

    assert f"{box}: gpus=9 is more than {box} has: 8" in caught.value.evidence
    assert len(caught.value.evidence) == 2 and caught.value.evidence[1].startswith("slurm: ")


def test_a_host_that_does_not_answer_is_passed_over_and_named_once(box, capsys, monkeypatch):
    cluster(host=box)(negative)(0)  # from now on there is a connection, and an answer comes soon
    monkeypatch.setattr("clusterfn.calls.host_choice.PATIENCE_S", 10.0)
    began = time.monotonic()
    first = cluster(host=["silent", box])(negative).submit(1)
    took_s = time.monotonic() - began
    second = cluster(host=["silent", box])(negative).submit(1)

    assert first.host == second.host == box and took_s >= 4
    assert len(re.findall(r"silent: .*answer within (10|15) s", capsys.readouterr().err)) == 1  # 15 s by the connection
    with pytest.raises(HostError, match="no host can take negative now") as caught:
        cluster(host=["silent", box], gpus=9)(negative)(1)
    assert len(caught.value.evidence) == 2


def test_a_session_stays_on_one_host_and_so_does_what_takes_a_value_there(box, holder):
    with Session("lab", gpus=2) as session:
        assert session.call(cluster(host="lab")(negative), 3) == -3 and session.job.host == "slurm"
        assert session.actor(set, [1]).union([2]) == {1, 2}
    for keep in (True, False):
        sent = cluster(host="slurm", keep=keep)(negative).submit(4)

        taken = [cluster(host="lab")(f).submit(value) for f, value in ((negative, sent), (len, [sent, {"a": sent}]))]

        assert [job.host for job in taken] == ["slurm", "slurm"]
        assert [job.result() for job in taken] == [4, 2]


def test_items_of_a_map_that_wait_on_one_host_move_to_the_other(box, holder):
    group = cluster(host="lab", gpus=2)(negative).map([1, 2, 3])

    assert group.results(150) == [-1, -2, -3] and set(group.hosts) == {"slurm"}


def test_run_takes_a_list_as_it_takes_a_host(box, holder, capsys):
    assert main(["run", "lab", "--gpus", "2", "--", "hostname"]) == 0
    assert "hostname on slurm" in capsys.readouterr().err
    assert [job for job in clusterfn.jobs("lab") if job.name == "hostname" and job.host == "slurm"]
