"""`clusterfn init`: from what a person types to a host, what is proposed for it, and when there is a question."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clusterfn.cli import init
from clusterfn.cli.init import choices
from clusterfn.cli.init import host as init_host
from clusterfn.cli.init.choices import Answers
from clusterfn.cli.init.host import begin
from clusterfn.errors import ConfigError, HostDiskFull
from clusterfn.hosts.survey import Site, SurveyedGpus
from clusterfn.hosts.transports import ssh_config_file
from clusterfn.hosts.volumes import Volume
from clusterfn.scheduler.grid_engine.site import GridEngineSite
from clusterfn.scheduler.site import AdvanceAnswers
from clusterfn.scheduler.slurm.site import Account, Partition, SlurmSite
from tests.programs import main

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


YES = Answers(yes=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERFN_CONFIG")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("tensor01", "tensor01"),
        ("ada@tensor01.example.edu:2222", "tensor01"),
        ("ada@login.cluster.example.edu", "cluster"),
        ("login2.hpc.example.edu", "hpc"),
        ("ada@127.0.0.1:22", "127.0.0.1"),
        ("ada@[::1]:22", "server"),
        ("ada@höst.example.edu", "h-st"),
        ("ssh://ada@127.0.0.1:22028/", "127.0.0.1"),
    ],
)
def test_a_name_is_proposed(folder, given, name):
    begun = begin(given, None, YES)

    address = given.removeprefix("ssh://").rstrip("/")
    assert (begun.host.name, begun.host.address, begun.is_configured) == (name, address, False)
    assert begun.path == folder / "clusterfn.yml"


@pytest.mark.parametrize(
    "given", ["ada:secret@tensor01", "two words", "-oProxyCommand=x", "host:99999", "ssh://ada:secret@b", "", "ssh://"]
)
def test_what_is_no_address_is_refused(folder, given):
    with pytest.raises(ConfigError) as caught:
        begin(given, "x", YES)
    assert "secret" not in str(caught.value)
    assert ("password" in str(caught.value)) is ("secret" in given)


@pytest.mark.parametrize("name", ["two words", "-x", "a/b"])
def test_what_is_no_name_is_refused(folder, name):
    with pytest.raises(ConfigError, match="cannot name a host"):
        begin("tensor01", name, YES)


def test_this_machine_needs_no_init_but_an_alias_of_the_same_name_can_be_added(folder):
    with pytest.raises(ConfigError, match="local is this machine") as caught:
        begin("local", None, YES)
    assert "run `clusterfn check local`" in str(caught.value.hint)
    assert begin("local", "gpubox", YES).host.address == "local"


def test_a_host_that_is_in_the_file_is_recognised_by_its_address(folder):
    (folder / "clusterfn.yml").write_text("hosts:\n  mine:\n    address: ada@t1\n    scheduler: bare\n    root: /r\n")

    begun = begin("ada@t1", None, Answers(yes=False))

    assert (begun.host.name, begun.host.root, begun.is_configured) == ("mine", "/r", True)


def test_a_name_that_is_taken_by_another_host_is_refused(folder):
    (folder / "clusterfn.yml").write_text("hosts:\n  t1:\n    address: ada@t1\n    scheduler: bare\n")

    with pytest.raises(ConfigError, match=r"t1 is at ada@t1 according to .*clusterfn.yml:2, not at ada@t2"):
        begin("ada@t2", "t1", YES)
    with pytest.raises(ConfigError, match=r"t1 is at ada@t1 according to .*clusterfn.yml:2, not at t1") as caught:
        begin("t1", "t1", YES)
    assert caught.value.hint is not None and caught.value.hint.startswith("run `clusterfn check t1`")


def test_aliases_of_ssh_are_offered(folder, monkeypatch, capsys):
    monkeypatch.setattr(ssh_config_file, "home", lambda: folder)
    (folder / ".ssh" / "more.d").mkdir(parents=True)
    (folder / ".ssh" / "config").write_text(
        'Include more.d/* nothing\nInclude config\nHost gpu box *.lab\n  User ada\nHost !not *\nhost=third "a b\n'
        "Include ~nobody-at-all/x ~no\0body/x\nHost fourth # of all\n"
    )
    (folder / ".ssh" / "more.d" / "lab").write_text('Match host x\nHost "slurmbox"\n')

    with pytest.raises(ConfigError, match="no terminal"):
        begin(None, None, YES)
    assert capsys.readouterr().out == f"{folder}/.ssh/config knows slurmbox, gpu, box, fourth\n"


def test_a_script_of_the_users_own_is_not_overwritten(folder, capsys):
    host, done = begin("tensor01", None, YES).host, init.Done()

    assert init.leave_script(host, done) == "python first.py"
    assert '@cluster(host="tensor01"' in (folder / "first.py").read_text()
    assert done.notes == ["wrote first.py, a function that runs on tensor01"]

    (folder / "first.py").write_text("mine")
    assert init.leave_script(host, done) == "clusterfn run tensor01 FILE.py::FUNCTION"
    assert (folder / "first.py").read_text() == "mine"
    assert "first.py already exists, and is left unchanged." in capsys.readouterr().out

    (folder / "first.py").unlink()
    init.leave_script(host, init.Done())
    second = begin("uni", None, YES).host
    assert init.leave_script(second, init.Done()) == "clusterfn run uni first.py::where hello"


def test_a_home_without_room_is_reported_with_the_option_for_another_folder(folder, monkeypatch, capsys):
    def connect(host, *_):
        raise HostDiskFull(f"there is no room in {host.root}", host=host.name)

    monkeypatch.setattr(init, "trust_hosts", lambda *_, **__: [])
    opened = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(init_host, "transport_for", lambda _: SimpleNamespace(open=lambda _: opened))
    monkeypatch.setattr(init_host, "connection_for", connect)

    assert main(["init", "t1", "--name", "t1"]) == 1
    said = capsys.readouterr().err
    assert "there is no room in" in said and "--root FOLDER" in said


def test_the_check_at_the_end_is_the_command_as_it_would_be_typed(folder, monkeypatch, capsys):
    from clusterfn.cli import check, init
    from clusterfn.cli.parser import make_parser

    checked = []
    monkeypatch.setattr("clusterfn.cli.check.check_host", lambda found: checked.append(found) or 0)

    assert init.check_like_command(begin("tensor01", None, YES).host, "python first.py") == 0
    assert check.check(make_parser().read(["check", "tensor01"])) == 0
    assert checked[0] == checked[1]
    assert checked[0].host_name == "tensor01" and "Now: python first.py" in capsys.readouterr().out


SLURM = "hosts:\n  mine:\n    address: ada@t1\n    scheduler: slurm\n    slurm: {partition: {cpu: short, gpu: big}}\n"


def test_options_for_new_lines_are_named_for_a_host_that_has_its_lines(folder, monkeypatch, capsys):
    from clusterfn.cli import init

    path = folder / "clusterfn.yml"
    path.write_text(SLURM)
    monkeypatch.setattr(init, "trust_hosts", lambda *_, **__: [])
    monkeypatch.setattr(init, "connected", lambda *_: None)
    monkeypatch.setattr("clusterfn.cli.check.check_host", lambda _: 0)

    assert main(["init", "ada@t1", "--yes", "--scheduler", "bare", "--gpu-partition", "short"]) == 0

    told = " ".join(capsys.readouterr().out.split())
    assert f"mine is already in {path}:2, and is left unchanged. --scheduler, --gpu-partition: not used" in told
    assert path.read_text() == SLURM
