"""Many calls at once on a shared box of eight cards: no card is given twice, and all of them work."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clusterfn import cluster
from tests.e2e.conftest import give_to
from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("gpubox_reset")]
SECONDS = 200.0  # at most: longer than any test waits


def hold(seconds, n=0, gate=""):
    """What a job sees of its cards, and from when to when it ran; in a folder as gate it waits for the file `go`."""

    import os
    from pathlib import Path

    begin = time.time()
    if gate:
        Path(gate, f"began-{n}").touch()
    while time.time() < begin + seconds and not (gate and Path(gate, "go").exists()):
        time.sleep(0.02)
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    return n * n, begin, time.time(), visible.split(",") if visible else []


@pytest.fixture
def held(hosts, monkeypatch):
    """`hold` as a function of a script, so that it travels by value; and a journal of holds at the root."""
    monkeypatch.setattr(hold, "__module__", "__main__")
    (hosts.root / "machines").mkdir(mode=0o700, parents=True, exist_ok=True)
    give_to("cfbash", hosts.root)
    give_to("cfbash", hosts.root / "machines")
    return cluster(host="tensor01", gpus=1)(hold)


@pytest.fixture
def journal(hosts):
    """From the journal of holds, the `count` holds of a card by one of these jobs: uuid, taken, released."""

    def read(jobs, count):
        ids = {job.id for job in jobs}

        def lines():
            texts = [path.read_text() for path in hosts.root.glob("machines/*/holds.jsonl")]
            told = [json.loads(line) for text in texts for line in text.splitlines()]
            times = {(line["job"], line["event"]): line["t"] for line in told}
            held = [line for line in told if line["job"] in ids and line["event"] == "released"]
            mine = [
                {"uuid": uuid, "taken": times[line["job"], "taken"], "released": line["t"]}
                for line in held
                for uuid in line["cards"]
            ]
            return mine if len(mine) >= count else None

        found = until(lines)
        assert len(found) == count
        return found

    return read


def most_at_once(spans):
    """The largest number of spans (begin, end) that hold at one time."""
    steps = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    level, most = 0, 0
    for _, step in steps:
        level += step
        most = max(most, level)
    return most


def check_cards(lines, values):
    """No card has two holders at any time, by the journal and by what the functions saw."""
    for uuid in {line["uuid"] for line in lines}:
        assert most_at_once([(line["taken"], line["released"]) for line in lines if line["uuid"] == uuid]) == 1, uuid
    for uuid in {card for value in values for card in value[3]}:
        assert most_at_once([value[1:3] for value in values if uuid in value[3]]) == 1, uuid


@pytest.mark.long
def test_twelve_jobs_share_eight_gpus(held, journal, hosts, tmp_path):
    held.with_options(gpus=0)(0)  # the host is warm
    gate = hosts.root / f"gate-{tmp_path.name}"
    gate.mkdir()
    give_to("cfbash", gate)

    jobs = [held.submit(SECONDS, n, str(gate)) for n in range(12)]
    until(lambda: len(list(gate.glob("began-*"))) >= 8)
    until(lambda: any("8 of 8 GPUs held by you (8)" in job.status for job in jobs))
    (gate / "go").touch()
    values = [job.result(150) for job in jobs]

    lines = journal(jobs, 12)
    assert [value[0] for value in values] == [n * n for n in range(12)]
    assert [len(value[3]) for value in values] == [1] * 12
    check_cards(lines, values)
    assert most_at_once([value[1:3] for value in values]) == 8
    assert len({line["uuid"] for line in lines}) == 8


@pytest.mark.long
def test_twelve_threads_call_at_once(held):
    with ThreadPoolExecutor(12) as pool:
        values = list(pool.map(lambda n: held(0.5, n), range(12)))

    assert [value[0] for value in values] == [n * n for n in range(12)]
    check_cards([], values)


@pytest.mark.long
def test_jobs_of_several_gpus_are_mixed(held, journal):
    wanted = [2, 3, 4, 2, 1, 4, 3, 2]

    jobs = [held.with_options(gpus=gpus).submit(0.5, n) for n, gpus in enumerate(wanted)]
    values = [job.result(150) for job in jobs]

    assert [len(set(value[3])) for value in values] == wanted
    check_cards(journal(jobs, sum(wanted)), values)


def test_gpus_in_use_by_others_are_passed_over(held, lab):
    with lab.gpubox.process(0, 1), lab.gpubox.hidden_memory(3, 9000):
        value = held.with_options(gpus=6)(0)

    assert set(value[3]) == {lab.gpubox.uuid(n) for n in (1, 2, 4, 5, 6, 7)}


def test_a_job_that_waits_for_another_user_says_so_and_starts_when_they_go(held, lab):
    with lab.gpubox.process(0, os.getpid()):
        job = held.with_options(gpus=8).submit(0)
        until(lambda: "in use without a lease" in job.status)

    assert len(job.result(150)[3]) == 8
