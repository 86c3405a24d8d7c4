"""From what a person types to a host with an address and a name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from clusterfn.cli import init
from clusterfn.cli.init import host as init_host
from clusterfn.cli.init.choices import Answers
from clusterfn.cli.init.host import begin
from clusterfn.errors import ConfigError, HostDiskFull
from clusterfn.hosts.transports import ssh_config_file
from tests.programs import main

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
        "Host fourth # of all\nInclude ~nobody-at-all/x\n"
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
