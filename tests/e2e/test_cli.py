"""The commands as a user types them, on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import clusterfn
from tests.e2e.conftest import local_host
from tests.e2e.terminal import PROMPT, Terminal
from tests.programs import main
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")

Ran = subprocess.CompletedProcess[str]
WORK = """
import os
import time
from pathlib import Path
from clusterfn import cluster

@cluster(cores=1)
def add(a, b=2):
    print("adding")
    return a + b

async def later(a):
    return add.local(a)

def fail(word):
    raise ValueError(f"no {word}")

class Box:
    def __init__(self, value):
        self.value = value
    def __repr__(self):
        return f"Box({self.value})"

def box(value):
    return Box(value)

def tick(number):
    for each in range(number):
        print("tick", each, flush=True)
        time.sleep(0.2)
    return number

def warn(number):
    import fcntl, termios
    for each in range(3):
        for pipe, word in (1, "step"), (2, "warning"):
            os.write(pipe, f"{word} {number} {each}\\n".encode())
            while any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))):  # two pipes that are full at once have no order
                time.sleep(0.01)

def held(path):
    print("waits", flush=True)
    open(path).close()
"""
SLOWLY = r"(clusterfn: (connecting|preparing|waiting|[0-9a-f]{4} (pending|starting|running)) .*\n)*"  # takes seconds


@pytest.fixture
def folder(tmp_path, warm_root, monkeypatch) -> Path:
    (tmp_path / "clusterfn.yml").write_text(local_host(warm_root))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


def id_in(lines: Iterable[str]) -> str:
    """The id of the job that a command sends; a slow machine may show before that it connects."""
    return next(found[1] for found in map(re.compile(r"clusterfn: (\w{16}) ").match, lines) if found)


def argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "clusterfn", *words]


@pytest.fixture
def run(folder) -> Callable[..., Ran]:
    def command(*words: str) -> Ran:
        return subprocess.run(argv(*words), cwd=folder, capture_output=True, text=True, timeout=150)

    return command


@pytest.fixture
def ask(folder, ask) -> Callable[..., Ran]:
    return ask


@pytest.fixture
def started(folder) -> Callable[..., str]:
    """Starts a call that nobody waits for; gives the job's id."""

    def start(*words: str) -> str:
        waiting = subprocess.Popen(
            argv("run", *words), cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with waiting:
            job = id_in(iter(waiting.stderr.readline, ""))
            waiting.stdout.readline()  # it runs
            waiting.kill()
        return job

    return start


def test_run_prints_the_value_and_what_the_function_prints_by_the_clusterfn_yml_beside_the_file(
    folder, tmp_path_factory, monkeypatch
):
    monkeypatch.delenv("CLUSTERFN_CONFIG")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

    ran = subprocess.run(argv("run", f"{folder}/work.py::add", "40"), capture_output=True, text=True, timeout=150)

    assert (ran.stdout, ran.returncode) == ("adding\n42\n", 0)
    only = rf"\(the only host in {re.escape(str(folder))}/clusterfn.yml\)"
    assert re.fullmatch(rf"{SLOWLY}clusterfn: [0-9a-f]{{16}} add on here {only}\n{SLOWLY}", ran.stderr)


def test_run_with_json_prints_the_value_alone_of_a_coroutine_too(run):
    ran = run("run", "--json", "work.py::later", "a=1")

    assert json.loads(ran.stdout) == 3
    assert "adding" in ran.stderr


def test_an_exception_of_the_function_leaves_with_one_and_its_remote_traceback(run):
    ran = run("run", "work.py::fail", "luck")

    assert (ran.stdout, ran.returncode) == ("", 1)
    assert ran.stderr.endswith("ValueError: no luck\n")
    assert "clusterfn/cli" not in ran.stderr


def test_clean_removes_what_is_over_and_shows_it_before(ask, folder):
    ask("run", "work.py::add", "1")
    blob = folder / "root" / "blobs" / "0123"
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(b"x" * 2048)
    (outcome,) = folder.glob("root/jobs/*/attempts/1/outcome.json")
    for path in (blob, outcome):
        os.utime(path, (1e9, 1e9))

    checked = ask("check", "here", "--no-job").stdout
    shown = ask("clean", "here", "--dry-run")
    assert blob.exists() and outcome.exists()
    done = ask("clean", "here")

    assert re.search(r"stored .*large arguments 2 KB.*`clusterfn clean here` would free", checked)
    for ran in (shown, done):
        assert ran.returncode == 0 and re.search(r"large arguments +1 +2 KB +1 +2 KB", ran.stdout), ran
    assert "would be freed" in shown.stderr and "freed" in done.stderr
    assert not blob.exists() and not outcome.exists()
    assert ask("run", "work.py::add", "1").stdout.endswith("3\n")


def test_a_job_that_has_ended_can_still_be_asked_for(ask):
    job = id_in(ask("run", "work.py::tick", "2").stderr.splitlines())

    assert ask("logs", job).stdout == "tick 0\ntick 1\n"
    assert ask("attach", job).stdout == "tick 0\ntick 1\n"
    assert "had already ended: RETURNED" in ask("stop", job).stderr
    silent = id_in(ask("run", "work.py::tick", "0").stderr.splitlines())
    assert f"the job printed nothing; `clusterfn result {silent[:4]}` shows how it ended" in ask("logs", silent).stderr


def test_the_logs_of_what_has_ended_have_both_streams_in_the_order_in_which_they_came(ask, folder):
    def logs(*words: str) -> list[str]:
        ran = subprocess.run(argv("logs", *words), cwd=folder, stdout=-1, stderr=subprocess.STDOUT, timeout=150)
        return ran.stdout.decode().splitlines()

    def said(number: int) -> list[str]:
        return [f"{word} {number} {each}" for each in range(3) for word in ("step", "warning")]

    call = id_in(ask("run", "work.py::warn", "7").stderr.splitlines())
    told = ["python", "-c", "import work, sys; work.warn(sys.argv[1])", "{n}"]
    assert ask("run", "--map", "n=1,2", "--", *told).returncode == 0

    assert logs(call) == said(7) == logs("-f", call)
    for words in ([], ["-f"]):
        assert ask("logs", *words, "--stderr", call).stdout.splitlines() == said(7)[1::2]
    told = json.loads(ask("logs", "--json", "--stdout", call).stdout)
    assert told["stdout"].splitlines() == said(7)[::2] and "stderr" not in told
    assert [line for line in logs("python") if "==>" not in line] == [*said(1), *said(2)]


def test_logs_follow_until_the_end(ask, started):
    job = started("work.py::tick", "5")

    assert ask("logs", "-f", job).stdout == "".join(f"tick {each}\n" for each in range(5))


def test_attach_shows_everything_and_ends_with_the_job(ask, started):
    job = started("work.py::tick", "5")

    ran = ask("attach", job)

    assert (ran.returncode, ran.stdout) == (0, "".join(f"tick {each}\n" for each in range(5)))
    assert "has returned" in ran.stderr


@pytest.fixture
def one_home(folder, run, monkeypatch) -> str:
    """A job that three hosts show, sent to the second; nothing here remembers it. Its id."""
    block = f"    scheduler: local\n    root: {folder}/root\n    limits: {{cores: 64}}\n"
    (folder / "clusterfn.yml").write_text(f"hosts:\n  a:\n{block}  b:\n{block}  c:\n{block}")
    job = id_in(run("run", "b", "work.py::add", "1").stderr.splitlines())
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "elsewhere"))
    return str(job)


@pytest.mark.long
def test_a_job_that_several_hosts_show_is_taken_from_the_one_it_was_sent_to(run, one_home):
    ran = run("logs", one_home[:4])

    assert (ran.stdout, ran.returncode) == ("adding\n", 0)
    assert "on b" in run("cancel", one_home[:4]).stderr
    assert [line.split()[3] for line in run("jobs", "a").stdout.splitlines()] == ["HOST", "b"]
    assert [job["host"] for job in json.loads(run("jobs", "c", "--json").stdout)] == ["b"]
    assert " on a had already ended" in run("cancel", one_home, "a").stderr


@pytest.mark.long
def test_a_job_whose_host_has_another_name_here_asks_for_one(folder, run, one_home):
    text = (folder / "clusterfn.yml").read_text()
    (folder / "clusterfn.yml").write_text(text.replace("  b:", "  renamed:"))

    ran = run("logs", one_home)

    assert ran.returncode == 2
    assert f"{one_home} is visible on a, renamed, c, but was sent to a host named b" in ran.stderr
    assert f"next:  choose one: clusterfn COMMAND {one_home} a" in ran.stderr
    assert run("logs", one_home, "a").stdout == "adding\n"
    assert [line.split()[3] for line in run("jobs", "a").stdout.splitlines()] == ["HOST", "a"]


def test_stack_shows_where_a_job_is_and_lets_it_go_on(ask, started, folder):
    os.mkfifo(folder / "gate")
    job = started("work.py::held", str(folder / "gate"))

    line = "in held\n      open(path).close()\n"  # not in the answer of a process that was too busy to give one
    ran = until(lambda: shown if line in (shown := ask("stack", job)).stdout and not shown.stderr else None)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.search(r'File "work.py", line \d+ in held', ran.stdout), ran.stdout
    (folder / "gate").write_text("")
    assert ask("result", job).stdout == "None\n"


def test_jobs_are_listed_newest_first(ask):
    ask("run", "work.py::add", "1")
    ask("run", "work.py::box", "1")

    table = ask("jobs").stdout.splitlines()
    listed = json.loads(ask("jobs", "--json").stdout)

    head = ["ID", "NAME", "ARGUMENTS", "HOST", "STATE", "AGE", "RAN", "GPUS", "USE", "DETAIL"]
    assert table[0].split() == head
    assert [line.split()[1] for line in table[1:]] == ["box", "add"]
    assert [(job["name"], job["state"]) for job in listed] == [("box", "RETURNED"), ("add", "RETURNED")]
    assert all(0 < job["ran_s"] < 60 and job["gpus"] == 0 for job in listed)


def test_jobs_are_narrowed_by_state_time_and_number(ask):
    for word in ("1", "luck"):
        ask("run", "work.py::add" if word == "1" else "work.py::fail", word)

    def names(*words: str) -> list[str]:
        return [job["name"] for job in json.loads(ask("jobs", "--json", *words).stdout)]

    assert names("-n", "1") == names("--state", "failed") == ["fail"]
    assert names("--state", "returned,raised", "--since", "1h") == names("--since", "2001-02-03") == ["fail", "add"]
    assert names("--state", "active") == []
    assert "none of 2 jobs on here matches" in ask("jobs", "--state", "active").stderr
    wrong = ask("jobs", "--state", "retruned")
    assert wrong.returncode == 2 and "did you mean returned?" in wrong.stderr
    assert "is neither a duration nor a date" in ask("jobs", "--since", "yesterday").stderr


def test_jobs_of_all_hosts_are_one_list_and_a_host_that_fails_is_named(ask, folder, tmp_path):
    other = f"  other:\n    scheduler: local\n    root: {tmp_path}/other\n    limits: {{cores: 64}}\n"
    gone = "  gone:\n    scheduler: bare\n    address: nowhere.invalid\n    transport: openssh\n"
    text = (folder / "clusterfn.yml").read_text()
    (folder / "clusterfn.yml").write_text(text + other)
    ask("run", "here", "work.py::add", "1")
    ask("run", "other", "work.py::box", "1")

    listed = ask("jobs", "--all-hosts", "--json")
    assert [(job["name"], job["host"]) for job in json.loads(listed.stdout)] == [("box", "other"), ("add", "here")]
    assert len(ask("jobs", "here", "other").stdout.splitlines()) == 3
    (folder / "clusterfn.yml").write_text(text + other + gone)
    partly = ask("jobs", "--all-hosts")
    assert partly.returncode == 1 and len(partly.stdout.splitlines()) == 3
    assert "no jobs of gone are shown: " in partly.stderr


def test_cancel_all_ends_what_runs_and_nothing_else(ask, started):
    first, second = started("work.py::tick", "3000"), started("work.py::tick", "3000")
    ask("run", "work.py::add", "1")

    asked = ask("cancel", "--all")
    assert asked.returncode == 2 and "would cancel 2 jobs, and there is no terminal to ask" in asked.stderr
    ran = ask("cancel", "--all", "--json", "--yes")

    assert ran.returncode == 0
    assert {job["id"]: job["state"] for job in json.loads(ran.stdout)} == {first: "CANCELLED", second: "CANCELLED"}
    assert "nothing to cancel" in ask("cancel", "--all").stderr


SCRIPT = """
import argparse, json, os, sys
import helper

given = argparse.ArgumentParser()
given.add_argument("--lr", type=float)
given.add_argument("--fail", type=int, default=0)
given = given.parse_args()
with open("data/x.txt") as data, open("model.pt", "w") as model:
    model.write(helper.NAME + data.read())
print(json.dumps([sys.argv, given.lr, __name__, os.path.exists(".env"), os.path.exists("big.bin")]), flush=True)
sys.exit(given.fail)
"""


@pytest.fixture
def project(folder) -> Path:
    """A project in a git repository, with a file that git ignores, and one with a password."""
    for name, text in {
        "train.py": SCRIPT, "helper.py": "NAME = 'helped '\n", "data/x.txt": "by data", ".env": "KEY=1",
        "big.bin": "0", ".gitignore": "big.bin\nroot\n",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def test_a_script_runs_as_it_is_in_its_project_and_brings_its_outputs(run, project):
    ran = run("run", "--outputs", "*.pt", "train.py", "--lr", "0.1", "--fail", "0")

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [["train.py", "--lr", "0.1", "--fail", "0"], 0.1, "__main__", False, False]
    assert (project / "model.pt").read_text() == "helped by data"
    assert ".env: not sent, because it looks like a key or a password" in ran.stderr
    (work,) = (project / "root").glob("jobs/*/attempts/1/work")
    assert [path.name for path in work.rglob("*") if path.is_file() and path.suffix != ".pyc"] == ["model.pt"]


def test_a_script_that_sends_its_own_functions_is_distinguished_from_one_that_runs_there(ask, project):
    (project / "square.py").write_text("from nowhere import x\n@cluster(\n    cores=2,\n)\ndef square(x): ...\n")

    err = ask("run", "square.py").stderr

    assert "python square.py, or for one function: clusterfn run square.py::square" in err


def test_the_exit_status_of_a_script_becomes_ours(run, ask, project):
    ran = run("run", "train.py", "--fail", "7")
    as_json = ask("run", "--json", "train.py", "--fail", "7")

    assert ran.returncode == as_json.returncode == 7
    assert ran.stderr.endswith("clusterfn: train.py has exited with status 7\n") and "Traceback" not in ran.stderr
    assert json.loads(as_json.stdout) == {"script": "train.py", "exit_status": 7}
    assert [job["name"] for job in json.loads(ask("jobs", "--state", "raised", "--json").stdout)] == ["train"] * 2


def test_a_detached_script_is_pulled_later(ask, project, tmp_path):
    sent = ask("run", "--detach", "--outputs", "model.*", "train.py", "--lr", "2")
    job = sent.stdout.strip()

    assert sent.returncode == 0 and re.fullmatch("[0-9a-f]{16}", job)
    assert f"{job} train on here keeps running" in sent.stderr
    result = ask("result", job)
    assert (result.stdout, result.returncode) == ("", 0)
    assert f"{job} has returned, without a value: clusterfn logs {job[:4]} shows what it printed" in result.stderr
    pulled = ask("pull", job, "--to", "fetched")
    assert pulled.returncode == 0 and pulled.stdout.split() == ["fetched/model.pt"]
    assert (project / "fetched" / "model.pt").read_text() == "helped by data"
    told = json.loads(ask("pull", job, "--only", "*.pt", "--to", "again", "--json").stdout)
    assert (told["id"], told["files"]) == (job, ["again/model.pt"])
    nothing = ask("pull", job, "--only", "*.csv")
    assert nothing.returncode == 1 and f'next:  clusterfn pull {job[:4]} --only "**"' in nothing.stderr
    some = ask("pull", job, "--only", "*.csv", "--only", "*.pt", "--to", "some")
    assert some.stdout == "some/model.pt\n" and "left no file that matches '*.csv'" in some.stderr


def test_a_project_is_no_home_and_not_too_large(ask, project, monkeypatch):
    monkeypatch.setenv("HOME", str(project))
    assert "the project of train.py would be all of" in ask("run", "train.py").stderr
    monkeypatch.setenv("HOME", "/")
    with (project / "large.bin").open("wb") as file:
        file.truncate(300 << 20)

    ran = ask("run", "train.py")

    assert ran.returncode == 2 and "300 MB  large.bin" in ran.stderr
    assert "list large files in .gitignore" in ran.stderr
    assert "there is no file trian.py; did you mean train.py?" in ask("run", "trian.py").stderr


def test_a_shell_has_the_environment_of_a_host_and_the_folder_of_a_job(run, started, folder):
    job = started("work.py::tick", "3000")
    terminal = Terminal(["/bin/sh"], folder, {**os.environ, "SHELL": "/bin/sh"})
    try:
        terminal.type(f"'{sys.executable}' -m clusterfn shell here")
        terminal.wait_for(re.escape(f"({os.uname().nodename}) $ "))
        terminal.type("echo first=$(command -v python); exit 4")
        terminal.wait_for(rf"first={re.escape(str(Path(sys.executable).parent))}/python")
        terminal.wait_for(PROMPT)
        terminal.type(f"echo status=$?; '{sys.executable}' -m clusterfn shell {job}")
        terminal.wait_for("status=4")
        terminal.wait_for(rf"\({job[:4]}\) \$ ")
        terminal.type("pwd; exit")
        terminal.wait_for(f"/jobs/{job}/attempts/1/work")
        terminal.wait_for(PROMPT)
    finally:
        os.kill(terminal.pid, signal.SIGKILL)
        run("cancel", job)


@pytest.mark.lab
def test_a_shell_beside_a_job_of_slurm_is_on_its_node(hosts, tmp_path):
    job = clusterfn.cluster(host="slurm", cores=1)(time.sleep).submit(300)
    until(job.running)
    terminal = Terminal(["/bin/sh"], tmp_path, {**os.environ, "SHELL": "/bin/sh"})
    try:
        terminal.type(f"'{sys.executable}' -m clusterfn shell {job.id} slurm")
        terminal.wait_for(rf"\({job.id[:4]}\) \$ ")
        terminal.type("echo node=$SLURMD_NODENAME parent=$(cat /proc/$PPID/comm); pwd; exit 5")
        terminal.wait_for(r"node=n\d parent=slurmstepd")
        terminal.wait_for(f"/jobs/{job.id}/attempts/1/work")
        terminal.wait_for(PROMPT)
        terminal.type("echo status=$?")
        terminal.wait_for("status=5")
    finally:
        os.kill(terminal.pid, signal.SIGKILL)
        job.stop()


def test_rm_removes_what_has_ended_and_never_what_runs(ask, started, folder):
    ask("run", "work.py::add", "1")
    running, (ended,) = started("work.py::tick", "3000"), json.loads(ask("jobs", "--state", "ended", "--json").stdout)
    place = folder / "root" / "jobs" / ended["id"]

    kept = ask("rm", running)
    assert kept.returncode == 1 and kept.stdout == ""
    assert f"{running} was not removed: it is RUNNING; clusterfn cancel {running} ends it first" in kept.stderr
    assert f"would remove {ended['id']} from here" in ask("rm", "--all", "--dry-run").stdout and place.exists()
    mixed = ask("rm", ended["id"][:6], running, "ffff0000", "--json")
    told = json.loads(mixed.stdout)
    assert mixed.returncode == 1 and not place.exists()
    assert [each["id"] for each in told["removed"]] == [ended["id"]] and told["removed"][0]["bytes"] > 1000
    assert [each["id"] for each in told["kept"]] == ["ffff0000", running]
    assert "it is RUNNING" in ask("rm", "tick").stderr
    assert "nothing to remove" in ask("rm", "tick", "--all").stderr
    assert ask("cancel", "tick").returncode == 0
    assert f"removed {running} from here" in ask("rm", "--all").stdout
    assert ask("jobs").stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cancel",), "cancel names no job"),
        (("logs", "add"), "there is no job named 'add'"),
        (("rm", "7f3a", "-n", "1"), "--all, -n, --state and --since do not apply to ids"),
        (("attach", "7f3a", "heer"), "did you mean here?"),
        (("logs", "7f3a", "90aa"), "logs takes one ID, not 7f3a and 90aa"),
        (("logs", "-f", "7f3a", "--json"), "cannot follow a job"),
        (("jobs", "here", "--all-hosts"), "contradict each other"),
        (("shell", "here"), "shell needs a terminal"),
    ],
)
def test_words_that_make_no_sense_here_are_refused(folder, capsys, words, said):
    assert main(list(words)) == 2 and said in capsys.readouterr().err


def test_ctrl_c_lets_go_of_the_job_and_leaves_with_130(folder, run):
    os.mkfifo(folder / "gate")
    waiting = subprocess.Popen(
        argv("run", "work.py::held", str(folder / "gate")),
        cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with waiting:
        job = id_in(iter(waiting.stderr.readline, ""))
        assert waiting.stdout.readline() == "waits\n"
        waiting.send_signal(signal.SIGINT)
        said = waiting.stderr.read()

    assert waiting.returncode == 130
    assert f"{job} keeps running on here" in said
    assert "Traceback" not in said
    (folder / "gate").write_text("")
    assert run("result", job).stdout == "None\n"


def test_a_reader_that_leaves_early_is_no_error(folder):
    shell = f"'{sys.executable}' -m clusterfn script work.py::add 1 | head -n 1"
    ran = subprocess.run(["/bin/sh", "-c", shell], cwd=folder, capture_output=True, text=True, timeout=150)

    assert ran.stdout.startswith("# job add on here")
    assert re.fullmatch(SLOWLY, ran.stderr)


@pytest.mark.parametrize(
    "words, status, said",
    [
        ("clusterfn hosts >&-", 0, ""),
        ("clusterfn hosts >/dev/full", 1, "is full, perhaps the one to which stdout goes"),
        ("ulimit -f 0; clusterfn hosts >hosts", 1, "File too large: see `ulimit -f` here"),
        ("clusterfn config none --json >/dev/full", 2, "there is no host 'none'"),
    ],
)
def test_a_stdout_that_takes_nothing_is_no_defect_of_ours(folder, words, status, said):
    shell = words.replace("clusterfn", f"'{sys.executable}' -m clusterfn")
    ran = subprocess.run(["/bin/sh", "-c", shell], cwd=folder, capture_output=True, text=True, timeout=150)

    assert ran.returncode == status
    assert said in ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.lab
@pytest.mark.parametrize(
    ("alias", "step", "remedy"),
    [
        ("changed-key", "host key", "ssh-keygen -R"),
        ("twofactor-bash", "login", "clusterfn login twofactor-bash"),
        ("refused", "connection", "check that sshd is running and that its port is 22099;"),
        ("no-such-name", "name", "`HostName no-such-name.invalid` of no-such-name in /opt/clusterfn-lab/client/ssh_co"),
        ("py36-ro", "root", "a folder that you can write to"),
    ],
)
def test_check_names_the_step_that_fails_and_its_remedy(ask, folder, lab, alias, step, remedy):
    (folder / "clusterfn.yml").write_text(
        f"hosts:\n  {alias}:\n    ssh_config: {lab.ssh_config}\n    scheduler: bare\n"
    )

    ran = ask("check", "--no-job", alias)

    failed = re.search(rf"^FAIL  {step} .*\n(?: .*\n)* +next: (.*)$", ran.stdout, re.MULTILINE)
    assert failed, ran.stdout
    assert remedy in failed[1]
    assert ran.returncode == 1


@pytest.fixture
def queue(folder, hosts, lab) -> Callable[[], str]:
    """A host whose jobs wait for an hour; gives the names of those that do."""
    hosts.describe(lab, folder / "clusterfn.yml", hosts.python, names=("slurm",))
    text = (folder / "clusterfn.yml").read_text().replace("{cpu: short, gpu: gpu}", "short, begin: now+1hour")
    (folder / "clusterfn.yml").write_text(text)

    def waiting() -> str:
        asked = lab.ssh("slurm", ["squeue", "--noheader", "--user=cfbash", "--format=%j", "--states=PENDING"])
        return str(asked.stdout.decode())

    return waiting


@pytest.mark.lab
def test_check_shows_why_its_job_waits_and_withdraws_it(folder, hosts, queue, monkeypatch):
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(folder / "clusterfn.yml"))
    jobs_before = hosts.jobs()

    ran = subprocess.run(argv("check", "slurm", "--timeout", "18"), capture_output=True, text=True, timeout=150)

    start = r"\((?:expected start .* host time; )?BeginTime: it "
    waits = rf"^clusterfn: function waits in the queue 00:[01]\d {start}may not start before its begin time"
    assert len(re.findall(waits, ran.stderr, re.MULTILINE)) == 1, ran.stderr
    assert re.search(
        rf"^skip  function +still waiting {start}.*\); everything before it works$", ran.stdout, re.MULTILINE
    )
    assert ran.returncode == 0
    assert not {job for job in hosts.jobs() - jobs_before if f"check.{job}" in queue()}


@pytest.mark.lab
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_check_that_is_ended_leaves_no_job_in_the_queue(folder, hosts, queue, monkeypatch, number, code):
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(folder / "clusterfn.yml"))
    jobs_before = hosts.jobs()
    checking = subprocess.Popen(argv("check", "slurm"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with checking:
        line = next(line for line in checking.stderr if "waits in the queue" in line)
        waited = until(lambda: {job for job in hosts.jobs() - jobs_before if f"check.{job}" in queue()})
        checking.send_signal(number)
        checking.communicate(timeout=150)

    assert line.startswith("clusterfn: function ")
    assert len(waited) == 1
    assert checking.returncode == code
    assert not {job for job in waited if f"check.{job}" in queue()}
