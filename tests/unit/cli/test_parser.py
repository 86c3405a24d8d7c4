"""What a command line means, which jobs and functions it names, and how tables, lines and errors read."""

from __future__ import annotations

import io
import json
import re
import secrets
import shlex
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.calls import history, remote_state
from clusterfn.calls.group import JobGroup
from clusterfn.calls.outcome_errors import RemoteTraceback
from clusterfn.cli import argument_parser, main, output, parser, selection, target
from clusterfn.cli.check import function as check_function
from clusterfn.cli.command_line import describe_error
from clusterfn.cli.run import written
from clusterfn.display import console, live
from clusterfn.errors import ClusterfnError, ConfigError, HostError, OutOfMemory
from clusterfn.hosts import connection
from clusterfn.hosts.connection import Completed
from tests.fakes.slurm_hosts import LoginNode, slurm_hosts


def read(*words):
    return parser.make_parser().read(list(words))


@pytest.mark.parametrize(
    ("line", "means"),
    [
        ("run tensor01 train.py::train 1", {"host": "tensor01", "target": "train.py::train", "words": ["1"]}),
        ("-v run --gpus 1 tensor01 train.py::train", {"host": "tensor01", "target": "train.py::train", "words": []}),
        ("run tensor01 --json train.py::train x=a.py", {"host": "tensor01", "words": ["x=a.py"], "json": True}),
        ("script train", {"host": None, "target": "train", "words": []}),
        ("run train.py --lr 0.1 --json -h", {"script_words": ["--lr", "0.1", "--json", "-h"], "json": False}),
        ("run tensor01 --gpus 1 train.py --host x", {"host": "tensor01", "target": "train.py", "words": []}),
        ("run f.py::f 1e-3 --gpus 1 layers=4", {"host": None, "gpus": 1, "words": ["1e-3", "layers=4"]}),
        ("script f.py::f --gpus 1 -2 x.py", {"host": None, "gpus": 1, "words": ["-2", "x.py"]}),
        ("run f.py::f --gpus 1 -- --x -y", {"host": None, "gpus": 1, "words": ["--x", "-y"]}),
        ("run f.py::f -- --x --gpus 2", {"host": None, "gpus": None, "words": ["--x", "--gpus", "2"]}),
        ("run --gpus 1 -- f.py::f --x", {"host": None, "gpus": 1, "target": "f.py::f", "words": ["--x"]}),
        ("run tensor01 -- nvidia-smi -L", {"host": "tensor01", "command_words": ["nvidia-smi", "-L"]}),
        ("run --gpus 1 -m pkg.t --gpus 2", {"gpus": 1, "command_words": ["python", "-m", "pkg.t", "--gpus", "2"]}),
        ("logs train", {"words": ["train"], "script_words": None}),
        ("logs 7f3a --stderr 90aa --json tensor01",
         {"words": ["7f3a", "90aa", "tensor01"], "stream": "stderr", "json": True}),
    ],
)  # fmt: skip
def test_options_come_anywhere_but_after_a_script_or_a_command_whose_own_they_are(line, means):
    given = read(*line.split())

    assert {name: getattr(given, name) for name in means} == means


@pytest.fixture
def group(monkeypatch) -> None:
    """A group of three, of which one has printed something, as whatever is asked for."""
    found = object.__new__(JobGroup)
    printed = {0: {}, 1: {"stdout": "epoch 1\n", "stderr": "a warning\n"}, 2: {}}
    for name, value in {
        "id": "7f3a9b00aa112233", "name": "f", "host": "lab8",
        "wait": lambda *_: True, "states": ["RETURNED", "RAISED", "PENDING"], "label": lambda _, index: f"x={index}",
        "logs": lambda _, index, stream: printed[index].get(stream, ""), "__len__": lambda _: 3, "state": "RUNNING",
    }.items():  # fmt: skip
        monkeypatch.setattr(JobGroup, name, value, raising=False)
    results = SimpleNamespace(
        read_output=lambda index: [(name, text.encode()) for name, text in printed[index].items()]
    )
    run = SimpleNamespace(results_of=lambda _: results)
    monkeypatch.setattr(output, "run_of_group", lambda *_: run)
    monkeypatch.setattr(output, "find", lambda *_, live: found)


def test_logs_of_a_group_leave_out_items_that_printed_nothing_but_as_json_hold_every_item(group, capsys):
    assert main(["logs", "7f3a"]) == 0
    assert capsys.readouterr() == ("==> item 1: x=1 (raised) <==\nepoch 1\n", "a warning\n")
    assert main(["logs", "7f3a", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["id"], told["host"], told["state"]) == ("7f3a9b00aa112233", "lab8", "RUNNING")
    assert [(item["label"], item["state"], item["stdout"] + item["stderr"]) for item in told["items"]] == [
        ("x=0", "RETURNED", ""), ("x=1", "RAISED", "epoch 1\na warning\n"), ("x=2", "PENDING", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "hint"),
    [("-f", "clusterfn attach 7f3a follows it; without -f its items' output is shown"),
     ("--scheduler", "leave out --scheduler")],
)  # fmt: skip
def test_logs_of_a_group_say_what_to_leave_out(option, hint, group, capsys):
    assert main(["logs", "7f3a", option]) == 2
    assert capsys.readouterr().err.endswith(f"next:  {hint}\n")


def test_jobs_names_the_other_hosts_to_which_jobs_were_sent(two_hosts, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("clusterfn.calls.history.ledger_path", lambda: tmp_path / "jobs.jsonl")
    monkeypatch.setattr(selection, "jobs_on", lambda host: [])
    monkeypatch.setenv("CLUSTERFN_HOST", "tensor01")
    for name, config in (("cluster", two_hosts), ("tensor01", two_hosts), ("gone", two_hosts), ("local", "other.yml")):
        history.remember(SimpleNamespace(id="7f3a", host=name, name="f"), config)

    assert main(["jobs"]) == 0
    assert "other hosts with jobs: cluster (clusterfn jobs --all-hosts)\n" in capsys.readouterr().err
    main(["jobs", "tensor01"])
    assert "other hosts" not in capsys.readouterr().err


@pytest.mark.parametrize("usual", ["cluster", ""])
@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("cancel", "clusterfn cancel --all tensor01 is for all its jobs, and clusterfn cancel ID for one"),
        ("logs", "clusterfn logs ID"),
    ],
)
def test_a_host_instead_of_a_job_is_recognized_as_what_it_is(command, hint, usual, two_hosts, monkeypatch, capsys):
    monkeypatch.setattr(selection, "jobs_on", lambda host: [])
    monkeypatch.setenv("CLUSTERFN_HOST", usual)

    assert main([command, "tensor01"]) == 2
    said = capsys.readouterr().err
    assert "there is no job named 'tensor01'; tensor01 is a host" in said
    assert said.endswith(f"next:  {hint}\n")


@pytest.mark.parametrize("name", ["a.b", "_01_train", "train-2.1"])
def test_a_job_is_found_by_every_name_that_it_can_have(name, two_hosts, monkeypatch):
    job = remote_state.JobInfo("7f3a000011112222", name, "cluster", "RUNNING", "", 0.0)
    monkeypatch.setattr(selection, "jobs_on", lambda host: [job] if host == "cluster" else [])
    monkeypatch.setenv("CLUSTERFN_HOST", "cluster")
    given = parser.make_parser().read(["cancel", name])

    assert selection.select(given, "cancel").jobs == [(job.id, "cluster")]
    assert selection.select_one(parser.make_parser().read(["attach", name]), "attach") == (job.id, "cluster")


@pytest.fixture
def several(two_hosts, monkeypatch, tmp_path):
    """Jobs named train on both hosts, to which this machine has sent them; calls go to cluster."""
    told = {
        "cluster": [("aaaa", "RETURNED", 4.0), ("bbbb", "RUNNING", 1.0)],
        "tensor01": [("cccc", "RUNNING", 2.0), ("dddd", "DIED", 3.0)],
    }

    def list_jobs(host):
        return [remote_state.JobInfo(job, "train", host, state, "", at) for job, state, at in told[host]]

    monkeypatch.setattr("clusterfn.calls.history.ledger_path", lambda: tmp_path / "jobs.jsonl")
    monkeypatch.setattr(selection, "jobs_on", list_jobs)
    monkeypatch.setenv("CLUSTERFN_HOST", "cluster")
    for host in told:
        history.remember(SimpleNamespace(id="7f3a", host=host, name="train"), two_hosts)
    return told


def test_jobs_shows_the_newest_thirty_and_says_how_to_see_the_others(two_hosts, monkeypatch, capsys):
    ids = [f"{number:016x}" for number in range(100)]
    jobs_there = [
        remote_state.JobInfo(each, "train", "cluster", "RETURNED", "", 100.0 - at) for at, each in enumerate(ids)
    ]
    monkeypatch.setattr(selection, "jobs_on", lambda host: jobs_there)

    def shown(*words):
        assert main(["jobs", "cluster", *words]) == 0
        printed = capsys.readouterr()
        return printed.out.count("RETURNED"), "shown" in printed.err and printed.err

    assert shown() == (30, "clusterfn: 70 older jobs not shown: -n 100 shows all 100\n")
    assert shown("--state", "returned")[0] == 30
    assert shown("-n", "100") == (100, False)
    assert shown("--json") == (100, False)


EVERY = ["attach", "stack", "shell", "logs", "result", "pull", "cancel", "stop", "rm"]


def meant(command, *words):
    args, states = read(command, *words), {"cancel": selection.ACTIVE, "rm": selection.ENDED}
    if command not in ("cancel", "stop", "rm"):
        return [selection.select_one(args, command)]
    return list(selection.select(args, command, states.get(command, selection.STATES)).jobs)


@pytest.mark.parametrize("command", EVERY)
def test_a_name_means_the_newest_that_runs_else_the_newest_in_every_command(several, command, capsys):
    assert meant(command, "train") == [("cccc", "tensor01")]
    assert "4 jobs are named 'train'; cccc on tensor01 is the newest that has not ended" in capsys.readouterr().err
    assert meant(command, "train", "cluster") == [("bbbb", "cluster")]
    several["cluster"].pop(1)
    several["tensor01"].pop(0)
    assert meant(command, "train") == [("aaaa", "cluster")]


def test_several_jobs_of_a_name_are_meant_by_their_number_or_by_all(several):
    assert [job for job, _ in meant("stop", "train", "--all")] == ["aaaa", "dddd", "cccc", "bbbb"]
    assert meant("stop", "train", "-n", "2") == [("aaaa", "cluster"), ("dddd", "tensor01")]
    assert meant("cancel", "--all", "train", "tensor01") == [("cccc", "tensor01")]
    assert meant("rm", "--all", "tensor01") == [("dddd", "tensor01")]
    assert meant("rm", "train", "--all", "--state", "died") == [("dddd", "tensor01")]
    assert not selection.select(read("rm", "train", "-n", "1"), "rm").single


@pytest.mark.parametrize(("command", "doing"), [("cancel", "cancel"), ("stop", "cancel"), ("rm", "remove")])
@pytest.mark.parametrize("words", [["--all"], ["train", "--all"], ["train", "-n", "2"]])
def test_more_than_one_job_ends_only_after_a_question(several, command, doing, words, monkeypatch, capsys):
    several["cluster"] += [("eeee", "RUNNING", 0.5), ("ffff", "DIED", 0.4)]
    args = read(command, *words, "cluster")
    chosen = selection.select(args, command, selection.ENDED if command == "rm" else selection.ACTIVE)

    with pytest.raises(ConfigError, match=rf"^{command} would {doing} 2 jobs, and there is no terminal") as rejected:
        selection.agreed(chosen, args, doing)
    assert "--yes" in rejected.value.hint
    for typed, goes_on in {"y\n": True, "n\n": False, "\n": False, "": False}.items():
        typing = io.StringIO(typed)
        typing.isatty = lambda: True
        monkeypatch.setattr("sys.stdin", typing)
        assert selection.agreed(chosen, args, doing) is goes_on
    assert f"{doing} these 2 jobs? [y/N]" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", None)
    assert selection.agreed(chosen, read(command, *words, "cluster", "--yes"), doing)


def test_a_job_that_is_named_by_itself_ends_without_a_question(several, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    for words in (["train"], ["7f3a", "90aa"], ["train", "-n", "1"]):
        assert selection.agreed(selection.select(read("cancel", *words), "cancel"), read("cancel", *words), "cancel")


def test_a_name_that_this_machine_has_never_sent_is_looked_for_on_all_hosts_as_an_id_is(
    two_hosts, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr("clusterfn.calls.history.ledger_path", lambda: tmp_path / "none.jsonl")
    far = remote_state.JobInfo("cccc", "train", "tensor01", "RUNNING", "", 2.0)
    monkeypatch.setattr(selection, "jobs_on", lambda host: [far] if host == "tensor01" else [])

    for usual in ("cluster", ""):
        monkeypatch.setenv("CLUSTERFN_HOST", usual)
        assert selection.select_one(read("logs", "train"), "logs") == ("cccc", "tensor01")
    assert main(["logs", "trian"]) == 2
    assert "there is no job named 'trian' on tensor01; did you mean train?" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["7f3a000011112222/12", "7f3a000011112222[12]"])
def test_the_id_of_a_sessions_call_or_of_an_item_leads_to_the_whole(two_hosts, monkeypatch, capsys, word):
    monkeypatch.setattr(selection, "jobs_on", lambda host: [])

    assert main(["logs", word, "cluster"]) == 2

    said = capsys.readouterr().err
    assert f"there is no job named {word!r} on cluster; that is a call of a session, or an item of a map" in said
    assert said.endswith("next:  clusterfn logs 7f3a000011112222 is for all of it\n")


def test_the_record_of_jobs_does_not_grow_for_ever(monkeypatch, tmp_path):
    path = tmp_path / "jobs.jsonl"
    monkeypatch.setattr("clusterfn.calls.history.ledger_path", lambda: path)
    monkeypatch.setattr("clusterfn.calls.history.LARGEST_BYTES", 1000)
    for number in range(50):
        history.remember(SimpleNamespace(id=f"{number:016x}", host="here", name="f"), None)

    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 2500
    assert len(history.entries(f"{49:016x}")) == len(history.entries(f"{42:016x}")) == 1
    assert not history.entries(f"{0:016x}")


def test_a_file_of_a_package_is_imported_as_its_part_and_its_function_keeps_its_options(tmp_path, monkeypatch):
    package = tmp_path / "pack_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("VALUE = 7\n")
    (package / "work.py").write_text("from .other import VALUE\ndef f():\n    return VALUE\n")
    (package / "made.py").write_text(
        "from clusterfn import cluster\n@cluster(cores=3)\ndef g(): ...\n"
        "if __name__ == '__main__':\n    raise SystemExit('run as a script')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    found = target.function(f"{package}/work.py::f")

    assert (found(), found.__module__) == (7, "pack_of_test.work")
    assert target.function(f"{package}/made.py::g").options.cores == 3


@pytest.mark.parametrize(
    ("word", "value"),
    [("3", 3), ("1e-3", 1e-3), ("-2", -2), ("[1, 2]", [1, 2]), ("None", None), ("cat", "cat"), ("a b", "a b"),
     ("'3'", "3"), ("data/x.csv", "data/x.csv"), ("", ""), ("a-b=3", "a-b=3")],
)  # fmt: skip
def test_a_word_is_a_literal_or_a_text(word, value):
    assert target.arguments([word]) == ((value,), {})


def test_name_and_value_make_a_keyword_which_is_given_once():
    keywords = {"lr": 1e-3, "name": "cat", "path": "a=b"}
    assert target.arguments(["1", "lr=1e-3", "name=cat", "path=a=b"]) == ((1,), keywords)
    with pytest.raises(ConfigError, match="twice"):
        target.arguments(["a=1", "a=2"])


def test_table_cells_are_cleaned_and_aligned():
    shown = live.table(("ID", "NAME"), [("7f3a", "train"), ("1", "\x1b[31mred")])

    assert shown == "ID    NAME\n7f3a  train\n1     red"


def test_an_error_of_a_host_cannot_obey_on_the_terminal(monkeypatch, capsys):
    def refused(*_):
        raise OutOfMemory("x\x1b]52;c;cm0=\x07", host="lab8", evidence=["\x1b[2Jy"])

    monkeypatch.setattr(output, "find", refused)

    assert main(["result", "7f3a"]) == 1
    assert capsys.readouterr().err == "OutOfMemory: x\n  where: host lab8\n  seen:\n    y\n"


def test_what_is_said_of_a_job_cannot_obey_on_the_terminal_and_json_means_the_same(capsys):
    value = {"name": "\x1b[2J\x9b1m\u202eü\n"}
    assert console.as_json(value) == '{"name": "\\u001b[2J\\u009b1m\\u202eü\\n"}'
    assert json.loads(console.as_json(value)) == value

    console.say("clusterfn: 7f3a \x1b]0;PWNED\x07x\n\ty\r\n")
    console.redraw("7f3a pending (used by \x1b[2Jtrain\n\u2028x)")
    assert capsys.readouterr().err == "clusterfn: 7f3a x\n\ty\n\r\x1b[K7f3a pending (used by train  x)"


def test_a_job_that_may_still_wait_is_reported_with_the_command_that_ends_it(monkeypatch):
    monkeypatch.setattr(check_function, "CANCEL_S", -1.0)
    failed: Future[Completed] = Future()
    failed.set_result(Completed(1, None, b"", b"scancel: error: Unable to contact slurm controller\n"))
    queue = SimpleNamespace(run=lambda *_, **__: failed, cancel_command=lambda name: ("scancel", name), unset=())
    job = SimpleNamespace(name="check", id="50cafb8a11fdb1d0", host="cluster")

    with pytest.raises(ClusterfnError, match="may still be in its queue") as caught:
        check_function.leave_queue(job, SimpleNamespace(connection=queue, scheduler=queue))

    assert caught.value.hint == "later: clusterfn cancel 50cafb8a11fdb1d0 cluster"


def test_what_an_exception_learnt_here_is_shown_below_the_remote_traceback():
    error = FileNotFoundError(2, "not there, but it is here", "x.csv")
    error.__cause__ = RemoteTraceback('"""on lab8\nFileNotFoundError: not there\n"""')

    assert "but it is here" in describe_error(error).text.splitlines()[-1]
    assert describe_error(ZeroDivisionError("of clusterfn itself")) is None


def words_of(line: str) -> list[str]:
    return shlex.split(re.split(r" [|>] (?![^']*'$)", line)[0])


@pytest.mark.parametrize("name", argument_parser.EXAMPLES)
def test_the_help_of_a_command_begins_with_an_example_of_it_and_each_is_a_command_of_ours(name, capsys):
    lines = argument_parser.EXAMPLES[name]
    assert main([*name.split(), "--help"]) == 0
    usage, first, *rest = capsys.readouterr().out.split("\n\n")

    assert usage.startswith(f"usage: clusterfn {name}") and first == f"  clusterfn {lines[0]}"
    assert [line for line in lines[1:] if f"  clusterfn {line}" not in rest[-1].splitlines()] == []
    assert all(line.startswith(name) and callable(read(*words_of(line)).run) for line in lines)


def test_the_help_of_the_program_fits_a_screen_and_begins_with_the_commands_of_a_normal_day(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.splitlines()

    assert len(shown) <= 24 and max(map(len, shown)) <= 80
    assert [line.split()[0] for line in shown if line.startswith("  ")] == ["run", "jobs", "logs", "result", "cancel"]
    named = set(re.findall(r"\w+", "\n".join(shown)))
    assert {name for name in parser.make_parser().commands if name != "stop"} <= named & argument_parser.EXAMPLES.keys()


def test_what_json_cannot_say_is_refused_by_name():
    with pytest.raises(ClusterfnError, match="cannot be written as JSON"):
        written({1, 2}, as_json=True)


class Holder(LoginNode):
    """A login node with jobs that have returned, by id with their host, which it can remove."""

    jobs: dict[str, str]

    def ran(self, program: str, request: Any, stdin: bytes) -> Iterator[tuple[Any, bytes]]:
        words, lines = request["argv"], []
        if "list" in words:
            facts = {"name": "f", "state": "RETURNED", "message": "", "started": 1.0}
            lines = [json.dumps({"id": job, "host": host, **facts}) for job, host in self.jobs.items()]
        elif "remove" in words:
            ids = words[words.index("remove") + 3 :]
            lines = [json.dumps({"removed": [{"id": each, "bytes": 1} for each in ids], "kept": []})]
        else:
            yield from super().ran(program, request, stdin)
            return
        out = "".join(f"{line}\n" for line in lines).encode()
        yield {"end": True, "ok": True, "rc": 0, "signal": None, "out": len(out), "truncated": False}, out


def test_a_host_that_does_not_answer_hides_nothing_of_another(monkeypatch, tmp_path, capsys: Any):
    def connect(host: Any, **more: Any) -> Any:
        if host.name == down:
            raise HostError("it does not answer", host=down)
        return connects(host, **more)

    with slurm_hosts(monkeypatch, tmp_path, 2, secrets.randbelow(10**9), node=Holder) as world:
        up, down = world.nodes
        connects, node = connection.connect, world.nodes[up]
        assert isinstance(node, Holder)
        monkeypatch.setattr(connection, "connect", connect)
        jobs = [secrets.token_hex(8) for _ in range(4)]
        node.jobs = {**dict.fromkeys(jobs, up), jobs[3]: down}

        code = main(["rm", "--json", "--yes", "--all", up])

    said = json.loads(capsys.readouterr().out)
    (failed,) = said["kept"]
    assert code == 1
    assert [each["id"] for each in said["removed"]] == jobs[:3]
    assert failed["id"] == jobs[3] and failed["error"]["message"].endswith("it does not answer")
