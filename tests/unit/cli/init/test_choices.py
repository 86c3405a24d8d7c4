"""What `clusterfn init` proposes for a host, and when it asks: a question only where there is a choice."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from clusterfn.cli.init import choices
from clusterfn.cli.init.choices import Answers
from clusterfn.errors import ConfigError
from clusterfn.hosts.survey import Site, SurveyedGpus
from clusterfn.hosts.volumes import Volume
from clusterfn.scheduler.grid_engine.site import GridEngineSite
from clusterfn.scheduler.site import AdvanceAnswers
from clusterfn.scheduler.slurm.site import Account, Partition, SlurmSite

GB = 2**30
HOME = Volume("$HOME", "/home/ada", "nfs4", 900 * GB, 10**7, shared=True)
LITTLE = Volume("$HOME", "/home/ada", "nfs4", GB, 10**7, shared=True)
SCRATCH = Volume("$SCRATCH", "/scratch/ada", "lustre", 5000 * GB, 10**8, shared=True)
COMMON = Volume("/data", "/data", "xfs", 5000 * GB, 10**8)


def partition(name: str, default: bool = False, state: str = "up", gres: str = "(null)") -> Partition:
    return Partition(name, default, state, "1:00:00", 2, gres)


def with_memory(name: str, memory_mb: int, default: bool = False) -> Partition:
    return replace(partition(name, default), memory_mb=memory_mb)


def slurm(*partitions: Partition, accounts: tuple[str, ...] = (), volumes: tuple[Volume, ...] = (HOME,)) -> Site:
    return Site(volumes, {"slurm": SlurmSite(partitions, tuple(Account(name, "", ()) for name in accounts))})


@pytest.fixture
def typed(monkeypatch, capsys):
    """Makes a terminal at which these lines are typed; gives what was asked."""

    def make(*lines: str):
        stdin = io.StringIO("".join(f"{line}\n" for line in lines))
        stdin.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdin", stdin)
        return lambda: capsys.readouterr().err

    return make


def proposed(site: Site, scheduler: str | None = None, root: str | None = None, **given: str) -> dict:
    return choices.keys(site, "ada", scheduler, root, AdvanceAnswers(**given), Answers(yes=True))


@pytest.mark.parametrize("option", ["partition", "gpu_partition", "account"])
def test_an_answer_in_advance_that_a_machine_without_a_scheduler_cannot_use_is_rejected(option):
    with pytest.raises(ConfigError, match=f"--{option.replace('_', '-')} is for a scheduler, and this host has none"):
        proposed(Site((HOME,)), **{option: "x"})
    if option == "account":
        with pytest.raises(ConfigError, match="--account is for SLURM"):
            GridEngineSite().choose_options(AdvanceAnswers(account="x"), lambda *_: "")


@pytest.mark.parametrize(
    ("volumes", "root"),
    [
        ((HOME, SCRATCH), "~/.clusterfn"),
        ((LITTLE, SCRATCH), "/scratch/ada/.clusterfn"),
        ((LITTLE, COMMON), "/data/ada/.clusterfn"),
    ],
)
def test_the_root_lies_where_there_is_room_and_in_a_folder_of_ones_own(volumes, root):
    assert proposed(Site(volumes)) == {"scheduler": "bare", "root": root}


@pytest.mark.parametrize(
    ("site", "options"),
    [
        (slurm(partition("main", default=True)), None),
        (slurm(partition("main", default=True, gres="gpu:4"), partition("gpu", gres="gpu:4")), None),
        (slurm(partition("main", default=True), partition("gpu", gres="gpu:a100:4")),
         {"partition": {"cpu": "main", "gpu": "gpu"}}),
        (slurm(partition("main", default=True), partition("gpu", state="down", gres="gpu:4")), None),
        (slurm(partition("main")), {"partition": "main"}),
        (slurm(partition("main"), partition("gpu", gres="gpu:4")), {"partition": {"cpu": "main", "gpu": "gpu"}}),
        (slurm(partition("main", default=True), accounts=("b", "a")), {"account": "a"}),
        (slurm(with_memory("main", 1, default=True), with_memory("more", 0)), {"mem": None}),
        (slurm(with_memory("main", 1, default=True), with_memory("more", 8000)), None),
    ],
)  # fmt: skip
def test_only_what_slurm_would_not_choose_itself_is_written(site, options):
    assert proposed(site).get("slurm") == options


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"partition": "mian"}, "there is no partition mian; did you mean main?", "give --partition one of main, gpu"),
        ({"partition": "main,x"}, "there is no partition x", "give --partition one of main, gpu"),
        ({"gpu_partition": "nosuch"}, "there is no partition nosuch", "give --gpu-partition one of main, gpu"),
        ({"account": "x"}, "SLURM does not let you use account x", "give --account one of mine, yours"),
    ],
)
def test_what_is_given_and_slurm_does_not_have_is_rejected_with_what_there_is(given, message, hint):
    site = slurm(partition("main", default=True), partition("gpu", gres="gpu:1"), accounts=("mine", "yours"))

    with pytest.raises(ConfigError) as caught:
        proposed(site, **given)

    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_queue_that_grid_engine_does_not_have_is_rejected_with_those_it_has():
    site = Site((HOME,), {"grid_engine": GridEngineSite(("all.q", "gpu.q"), (), {})})

    with pytest.raises(ConfigError, match=r"there is no queue gpu; did you mean gpu\.q\?") as caught:
        proposed(site, partition="all.q@node1", gpu_partition="gpu")
    assert caught.value.hint == "give --gpu-partition one of all.q, gpu.q"


def test_what_is_given_counts_unless_the_host_has_it_not():
    assert proposed(slurm(), partition="x", account="a")["slurm"] == {"partition": "x", "account": "a"}
    assert proposed(slurm(partition("main", default=True)), scheduler="bare")["scheduler"] == "bare"
    for scheduler, title in (("slurm", "no SLURM"), ("grid_engine", "that host has no Grid Engine")):
        with pytest.raises(ConfigError, match=title):
            proposed(Site((HOME,)), scheduler=scheduler)


def test_a_choice_is_asked_about_until_it_is_one(typed):
    asked = typed("", "nonsense", "b", "nobody", "mine")
    site = slurm(partition("main", default=True), partition("a", gres="gpu:1"), partition("b", gres="gpu:1"),
                 accounts=("mine", "yours"))  # fmt: skip

    keys = choices.keys(site, "ada", None, None, AdvanceAnswers(account="mine"), Answers(yes=False))

    assert keys["slurm"]["partition"] == {"cpu": "main", "gpu": "b"}
    assert "'nonsense' is not one of a, b" in asked()


def test_what_is_neither_yes_nor_no_is_asked_again(typed):
    asked = typed("maybe", "nope", "y")

    assert Answers(yes=False).agree("Sure?", "--yes") is True
    assert asked().count("Sure? [Y/n]") == 3
    typed("No")
    assert Answers(yes=False).agree("Sure?", "--yes") is False


def test_a_root_is_asked_for_until_it_is_one_and_where_there_is_no_room_anywhere(typed):
    asked = typed("scratch", "/scratch/ada")
    assert choices.keys(Site((HOME,)), "ada", None, None, AdvanceAnswers(), Answers(yes=False))["root"] == SCRATCH.path
    assert "'scratch' is not an absolute path" in asked()

    typed("/somewhere")
    assert proposed(Site((replace(HOME, free_bytes=0, free_files=0, writable=False),)))["root"] == "/somewhere"

    typed()  # the end of the input is as Ctrl-C
    with pytest.raises(KeyboardInterrupt):
        Answers(yes=False).text("Anything", "--any", "x")


def test_what_was_found_is_reported(capsys):
    choices.say_site(Site((HOME,), gpus=SurveyedGpus(("A100", "A100"), 80 * GB, "575.57.08")))
    choices.say_site(slurm(partition("main", default=True, gres="gpu:4"), accounts=("mine",)))

    told = capsys.readouterr().out
    assert "2 x A100, 80 GB; driver 575.57.08" in told
    assert "$HOME (/home/ada, nfs4): 900 GB free, room for 10,000,000 files" in told
    assert "main*  up, limit 1:00:00, 2 nodes, gpu:4" in told and "your accounts: mine" in told


def test_grid_engine_is_written_with_the_names_of_the_site_and_the_queues_that_were_given():
    usual = GridEngineSite(("all.q",), ("smp",), {"h_vmem": False, "gpu": False})
    other = GridEngineSite(("a.q", "b.q"), ("shm",), {"h_vmem": True, "ngpus": False})

    assert proposed(Site((HOME,), {"grid_engine": usual})) == {"scheduler": "grid_engine", "root": "~/.clusterfn"}
    assert proposed(Site((HOME,), {"grid_engine": other}), gpu_partition="b.q")["grid_engine"] == {
        "queue": {"gpu": "b.q"}, "parallel_environment": "shm", "gpus": "ngpus", "per_job": ["h_vmem"],
    }  # fmt: skip
