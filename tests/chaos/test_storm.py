"""Five hundred jobs of four clients, on two hosts or on a list of three, while everybody who works for them is killed:
none is lost, invented, run twice or left behind. Judged by `judge` from what was ordered, published on the host, told
by clients, and killed."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.chaos import judge, killers
from tests.chaos.killers import Administrator, Agents, Killer
from tests.chaos.lanes import Lane
from tests.chaos.onhost import processes_of, session_of, until, until_none
from tests.chaos.orders import BARE, OF_A_LIST, OF_TWO, OTHER, SLURM, orders
from tests.chaos.reaper import job_of, kind_of, words_of
from tests.chaos.storm import Storm
from tests.chaos.world import HOSTS, World
from tests.lab import layout
from tests.lab.network import DelayProxy
from tests.processes import everyone

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(3600)]

# Read when this is imported: no test sees CLUSTERFN_ variables. JOBS makes a smaller storm, to look for a mistake.
SEED = int(os.environ.get("CLUSTERFN_SEED") or random.SystemRandom().randrange(10**6))
JOBS = int(os.environ.get("CLUSTERFN_STORM_JOBS") or 500)
KEEP = os.environ.get("CLUSTERFN_STORM_KEEP", "")  # a folder for the root of a storm that found something
KILLS = min(10, JOBS // 20)
PAUSE_S, DAEMONS_PAUSE_S, AWAY_S = (0.5, 2.5), (2.0, 8.0), (0.3, 2.5)
RAGES_S, ENDS_S, DAY_S = 2400.0, 150.0, 86400.0


@pytest.fixture
def proxies(world: World) -> Iterator[dict[str, DelayProxy]]:
    """One before each host, whose connections can be cut."""
    with contextlib.ExitStack() as stack:
        ports = {name: world.lab.host(HOSTS[name].alias).port for name in (BARE, OTHER, SLURM)}
        yield {name: stack.enter_context(DelayProxy(0, port)) for name, port in ports.items()}


@pytest.fixture
def new_client(world: World, proxies: Mapping[str, DelayProxy], tmp_path: Path) -> Iterator[Callable[[], Lane]]:
    ports = {name: proxy.port for name, proxy in proxies.items()}
    config, made = world.behind(tmp_path, ports, *proxies), []

    def make() -> Lane:
        made.append(Lane(config, tmp_path / "state"))
        return made[-1]

    yield make
    for lane in made:
        lane.kill()
        lane.close()


@pytest.fixture
def healed(world: World) -> Iterator[None]:
    """SLURM works again afterwards."""
    yield
    world.lab.slurm.heal()


@pytest.mark.fault("18 19 24 25 26 27")
@pytest.mark.usefixtures("healed")
@pytest.mark.parametrize(("crowd", "share"), [(OF_TWO, 1.0), (OF_A_LIST, 0.8)], ids=["of-two-hosts", "of-a-list"])
def test_five_hundred_jobs_end_once_and_truthfully_whatever_is_killed(
    world: World, proxies: Mapping[str, DelayProxy], new_client: Callable[[], Lane], table: Callable[[str], None],
    crowd: Mapping[str, tuple[int, int]], share: float,
) -> None:  # fmt: skip
    jobs, agents = round(JOBS * share), Agents(list(proxies.values()))
    storm = Storm(world.roots(), world.runs, new_client, orders(random.Random(SEED), JOBS / 500, crowd))
    began = time.monotonic()
    deaths = acts(storm, world, proxies, agents)
    whole: list[tuple[str, str, float]] = []
    if crowd is OF_A_LIST:
        deaths["host"] = host_away(world, proxies[OTHER], whole)
    killing = Killer(deaths, KILLS, random.Random(SEED + 1), PAUSE_S)
    breaking = Killer(daemons(world), KILLS, random.Random(SEED + 2), DAEMONS_PAUSE_S)
    with Administrator(world.lab.slurm), killing, breaking:
        all_ended = storm.rage(jobs, lambda: killing.done() and breaking.done(), RAGES_S)
    lasted, kills = time.monotonic() - began, [*killing.killed, *breaking.killed, *whole]
    world.lab.slurm.heal()
    storm.settle(lambda stem: f".{stem}" in queued(world), ENDS_S)
    parts = parts_of_a_day_later(storm, world, new_client)
    for client in storm.clients:
        client.lane.close()
    fates = storm.fates(kills)
    left = [*until_none(lambda: [*processes_of(storm.jobs()), *agents.living()], ENDS_S), *tickets(world), *parts]
    wrong = [each for fate in fates for each in judge.judged(fate)] + judge.judged_groups(fates)
    title = f"{storm.count} jobs in {lasted:.0f} s, CLUSTERFN_SEED={SEED}"
    told = "".join(f"\nnot taken {count} times: {why}" for why, count in storm.refusals.most_common())
    table(judge.as_table(title, {**killing.counts(), **breaking.counts()}, fates, wrong, left) + told)
    keep_for_inspection(world, bool(wrong))
    assert (killing.failed, breaking.failed) == (None, None)
    assert not storm.given_up, f"{title}: {storm.refusals}"
    assert all_ended, f"{title}: no client told the end of {storm.open_ids()}"
    assert not wrong and not left, f"{title}\n" + "\n".join(f"{each.kind}: {each.text}" for each in wrong) + str(left)
    assert killing.done() and breaking.done()


def acts(storm: Storm, world: World, proxies: Mapping[str, DelayProxy], agents: Agents) -> dict[str, killers.Act]:
    """How each kind of process dies, and a connection."""

    def client(rng: random.Random) -> str | None:
        lane = rng.choice(storm.clients).lane
        if not lane.alive():
            return None
        lane.kill()
        return ""

    def sshd(rng: random.Random) -> str | None:
        there = agents.serving()
        found = session_of(rng.choice(there)) if there else []
        return "" if any([killers.kill(pid) for pid in found]) else None

    def cut(rng: random.Random) -> str | None:
        return "" if rng.choice(list(proxies.values())).cut() else None

    ours = killers.belongs_to(world.root)
    processes = {kind: killers.of_process(kind, ours) for kind in ("supervisor", "worker", "spooler")}
    return {
        "client": client,
        "agent": killers.of_process("agent", agents.is_ours),
        "sshd": sshd,
        "cut": cut,
        **processes,
    }


def host_away(world: World, proxy: DelayProxy, whole: list[tuple[str, str, float]]) -> killers.Act:
    """All that works on a machine dies at once, and it cannot be reached for a moment; `whole` is told whose it was."""

    def act(rng: random.Random) -> str:
        proxy.refuse()
        proxy.cut()
        ours = killers.belongs_to(next(root for root in world.roots() if root != world.root))
        there = [(pid, words) for pid in everyone() if ours(pid, words := words_of(pid))]
        for pid, words in there:
            if kind_of(words) and killers.kill(pid):
                whole.append((kind_of(words), job_of(words), time.time()))
        time.sleep(rng.uniform(*AWAY_S))
        proxy.refuse(refusing=False)
        return ""

    return act


def daemons(world: World) -> dict[str, killers.Act]:
    """SLURM's: away for a moment each time."""
    lab = world.lab

    def slurmd(rng: random.Random) -> str:
        daemon = lab.slurmd(rng.choice(sorted(layout.NODES)))
        daemon.kill()
        time.sleep(rng.uniform(*AWAY_S))
        daemon.start()
        return ""

    def slurmctld(rng: random.Random) -> str:
        lab.slurmctld.kill()
        time.sleep(rng.uniform(*AWAY_S))
        lab.slurmctld.start()
        until(lambda: lab.slurm.run("sinfo", "-h").returncode == 0, ENDS_S, 0.5)
        return ""

    return {"slurmd": slurmd, "slurmctld": slurmctld}


def queued(world: World) -> str:
    """What SLURM has that is not over."""
    argv = ("squeue", "-h", "--states=PENDING,RUNNING,COMPLETING,CONFIGURING", "-o", "%j")
    return world.lab.slurm.run(*argv).stdout


def tickets(world: World) -> list[str]:
    """Jobs that wait in the queue of the machine, or are taken for interrupted ones."""
    kept = ("machines/*/queue/*", "machines/*/interrupted/*")
    return [str(path) for root in world.roots() for pattern in kept for path in root.glob(pattern)]


def parts_of_a_day_later(storm: Storm, world: World, new_client: Callable[[], Lane]) -> list[str]:
    """Parts of uploads that are there after the next call, a day later: agents that were killed leave theirs."""
    then = time.time() - 2 * DAY_S
    for part in parts_of(world):
        for path in (part, *part.rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                os.utime(path, (then, then))
    late = new_client()
    for host in (BARE, OTHER):
        order = next(orders(random.Random(SEED + 3), 1 / 190))
        large = {**order.words_for(world.runs)["args"], "ballast": 3_000_000, "ending": "returns"}
        late.order("submit", order.id, host, call="storm", args=large)
        assert late.hear(order.id, "state"), "the call a day later"
    until(lambda: not parts_of(world), 150, 0.2)  # its agent looks once it is idle
    late.close()
    return [str(path) for path in parts_of(world)]


def parts_of(world: World) -> list[Path]:
    """Parts of uploads. rglob() fails if a folder vanishes, and the agent may remove some meanwhile."""
    walks = [os.walk(root) for root in world.roots()]
    return [
        Path(top, name)
        for walk in walks
        for top, folders, files in walk
        for name in fnmatch.filter(folders + files, "*.part-*")
    ]


def keep_for_inspection(world: World, wrong: bool) -> None:
    """Copy the root if something is wrong with it, and somebody wants to look at it."""
    if wrong and KEEP:
        shutil.copytree(world.root, Path(KEEP) / world.session, ignore_dangling_symlinks=True, dirs_exist_ok=True)
