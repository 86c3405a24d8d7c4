"""Who is told of the end of a job: once, by whoever comes first, and once more from another machine if that failed."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from clusterfn.bridge.supervisor import notify
from tests.bridge.host import Bench
from tests.waiting import until


def test_it_is_reported_once_and_what_failed_on_a_node_once_more_where_jobs_are_listed(bench: Bench, tmp_path):
    said = tmp_path / "said"
    job = bench.ended(scheduler="slurm")
    command = f"echo $CLUSTERFN_JOB_STATE >>{said}; exit 1"
    (job.folder / "notify").write_text(json.dumps({"command": command, "after_s": 0.0}))

    for _ in range(2):
        notify.tell_end(str(job.folder))
    assert said.read_text() == "RETURNED\n" and (job.folder / "notify").exists()
    why = "the notification by command failed: sh ended with status 1"
    assert notify.failure_in_words(str(job.folder)).startswith(why)

    for _ in range(2):
        assert why in bench.listed()[job.id]["message"]
    until(lambda: not (job.folder / "notify").exists())
    until(lambda: said.read_text() == "RETURNED\nRETURNED\n")


def test_a_job_that_has_not_ended_is_not_reported(bench: Bench, tmp_path):
    job = bench.job("def f():\n    return 1\n")
    (job.folder / "notify").write_text(json.dumps({"command": f"touch {tmp_path}/said"}))

    notify.tell_end(str(job.folder))

    assert not (tmp_path / "said").exists() and not (job.folder / "notified.json").exists()


@pytest.mark.parametrize(
    "address", ["https://hooks.example/GEHEIM x", "https://hooks.example:GEHEIM/", "http://\xe9..x/GEHEIM"]
)
def test_an_address_with_a_fault_is_not_shown(bench: Bench, capsys, address):
    job = bench.ended()
    (job.folder / "notify").write_text(json.dumps({"webhook": address}))

    notify.tell_end(str(job.folder))

    said = notify.failure_in_words(str(job.folder))
    assert said.startswith("the notification by webhook failed: the address is not that of a webhook")
    assert "GEHEIM" not in said + capsys.readouterr().err


def test_a_webhook_that_answers_a_byte_at_a_time_holds_no_job(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notify, "ANSWER_S", 1.0)
    job, over = bench.ended(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            line, _ = listening.accept()
            with line:
                while not over.wait(0.05):
                    line.sendall(b"H")

        threading.Thread(target=drip, daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        (job.folder / "notify").write_text(json.dumps({"webhook": address}))

        notify.tell_end(str(job.folder))
        over.set()

    assert "by webhook failed: it has not answered within 1 s" in notify.failure_in_words(str(job.folder))
