"""What the function finds in its environment: the environment's own Python, nothing of the host's, and its secrets."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.bridge.host import Bench
from tests.interpreters import interpreter

ENVIRON = "def f():\n    import os\n    return dict(os.environ)\n"


def test_variables_of_the_host_that_mislead_python_or_are_its_shells_are_gone(bench: Bench):
    misleading = {
        "PYTHONHOME": "/nowhere", "PYTHONPATH": "/nowhere", "PYTHONSTARTUP": "/x", "LD_PRELOAD": "/nowhere.so",
        "LD_LIBRARY_PATH": "/nowhere", "VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c", "CONDA_DEFAULT_ENV": "base",
        "_": "/usr/bin/env", "SHLVL": "1", "PWD": "/nowhere", "OLDPWD": "/nowhere", "CLUSTERFN_KEEP": "NOTHING",
    }  # fmt: skip
    job = bench.job(ENVIRON)
    job.start(**{name: value for name, value in misleading.items() if name != "LD_PRELOAD"}).wait(150)

    found = job.value()
    assert found.pop("PWD") == str(job.attempt / "work")
    assert not set(misleading) & set(found)


def test_a_job_that_another_job_has_started_is_not_taken_for_it(bench: Bench):
    job = bench.job(ENVIRON)
    of_the_other = {"CLUSTERFN_JOB": "other/3", "CLUSTERFN_INDEX": "5", "CLUSTERFN_INPUTS": "/other/inputs"}
    job.start(**of_the_other, CLUSTERFN_CHECKPOINT="/other/checkpoint").wait(150)

    found = job.value()
    assert not {"CLUSTERFN_INDEX", "CLUSTERFN_INPUTS"} & set(found)
    assert (found["CLUSTERFN_JOB"], found["CLUSTERFN_CHECKPOINT"]) == (f"{job.id}/1", f"{job.folder}/checkpoint")


def test_the_jobs_own_variables_win(bench: Bench):
    job, _ = bench.run(ENVIRON, env={"PYTHONPATH": "/mine", "OMP_NUM_THREADS": "7", "HF_HOME": "/hf", "Ü": "ß"})

    found = job.value()
    assert [found[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS", "HF_HOME", "Ü")] == ["/mine", "7", "/hf", "ß"]


def test_what_the_host_sets_on_purpose_is_kept(bench: Bench):
    job = bench.job(ENVIRON)
    given = {"LD_LIBRARY_PATH": "/modules/lib", "https_proxy": "http://p:1", "SSL_CERT_FILE": "/ca"}
    job.start(CLUSTERFN_KEEP="LD_LIBRARY_PATH", **given).wait(150)

    assert given.items() <= job.value().items()


def test_it_is_reported_with_where_it_is_and_what_it_may_use(bench: Bench):
    job, _ = bench.run(ENVIRON, resources={"cores": 1})

    found = job.value()
    assert found["CLUSTERFN_JOB"] == f"{job.id}/1"
    assert found["CLUSTERFN_CHECKPOINT"] == str(job.folder / "checkpoint")
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert {found[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")} == {"1"}
    assert (found["PYTHONNOUSERSITE"], found["PYTHONIOENCODING"], found["PYTHONUNBUFFERED"]) == ("1", "utf-8", "1")


CACHES = ("HF_HOME", "TORCH_HOME", "PIP_CACHE_DIR", "TRITON_CACHE_DIR")


def test_caches_and_logins_stay_in_the_home_directory(bench: Bench, tmp_path: Path):
    job = bench.job(ENVIRON)
    job.start(HOME=str(tmp_path)).wait(150)

    assert not {*CACHES, "HF_TOKEN_PATH"} & set(job.value())
    assert job.outcome()["notes"] == []


def test_caches_are_below_root_where_there_is_no_home_directory(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "no-home"
    monkeypatch.delenv("XDG_CACHE_HOME")  # says where the host's own caches are
    job = bench.job(ENVIRON, env={"TORCH_HOME": "/mine"})
    job.start(HOME=str(home), PIP_CACHE_DIR="/hosts").wait(150)

    found = job.value()
    assert [found[name] for name in CACHES] == [
        f"{bench.root}/cache/huggingface", "/mine", "/hosts", f"{bench.root}/cache/triton",
    ]  # fmt: skip
    (note,) = job.outcome()["notes"]
    assert note == (
        f"HF_HOME, TRITON_CACHE_DIR point below {bench.root}/cache: the home directory {home} does not exist"
    )


def test_activation_is_applied(bench: Bench):
    activation = {"prepend": {"PATH": ["/first", "/second"], "XPATH": ["/only"]}, "set": {"A": "1"}, "unset": ["HOME"]}
    job, _ = bench.run(ENVIRON, activation=activation)

    found = job.value()
    assert found["PATH"].startswith("/first:/second:")
    assert (found["XPATH"], found["A"], "HOME" in found) == ("/only", "1", False)


def test_secrets_reach_the_function_and_no_file(bench: Bench):
    source = "def f():\n    import os\n    return len(os.environ['HF_TOKEN'])\n"
    job = bench.job(source, secret={"HF_TOKEN": "sesame-open"})

    job.run()

    assert job.value() == 11
    assert not (job.folder / "secrets").exists()
    assert "sesame" not in "".join(path.read_text(errors="replace") for path in job.folder.rglob("*") if path.is_file())


def test_secrets_are_masked_in_evidence(bench: Bench):
    job = bench.job(
        "def f():\n    import os\n    print('token', os.environ['HF_TOKEN'], flush=True)\n    os._exit(1)\n",
        secret={"HF_TOKEN": "sesame-open"},
    )

    assert job.run()["evidence"] == ["token ***"]


def test_what_is_kept_of_an_exception_holds_no_secret(bench: Bench):
    source = (
        "def f():\n    import os\n    token = os.environ['HF_TOKEN']\n"
        "    try:\n        raise KeyError(token)\n"
        "    except KeyError as error:\n"
        "        raise ValueError('refused ' + token, {'a': [token.encode(), 7]}) from error\n"
    )
    job = bench.job(source, secret={"HF_TOKEN": "sesame-open"})

    told = job.run()["exception"]

    assert told["message"].startswith("('refused ***', {'a': [b'***', 7]}") and "KeyError: '***'" in told["traceback"]
    assert "sesame" not in "".join(path.read_text(errors="replace") for path in job.folder.rglob("*") if path.is_file())


def test_each_line_of_a_secret_of_several_is_masked_whatever_its_parts_are(bench: Bench):
    secret = {"A": "sesa", "KEY": "-----BEGIN KEY-----\nsesame\n-----END KEY-----"}
    source = "def f():\n    import os\n    raise KeyError(os.environ['KEY'])\n"

    told = str(bench.job(source, secret=secret, secrets=[*secret, "MISSING"]).run())

    assert "***" in told and "sesame" not in told and "***me" not in told


def test_a_secret_that_is_also_a_word_of_the_report_changes_no_outcome(bench: Bench):
    secret = {"A": "turn", "B": "done", "C": "stage", "D": "function", "E": "mess", "F": "modul", "G": "nowhere"}
    good = bench.job("def f():\n    return 7\n", secret=secret)
    bad = bench.job("def f():\n    import nowhere\n", secret=secret)

    assert good.run()["kind"] == "returned"
    assert good.value() == 7
    told = bad.run()
    assert (told["kind"], told["stage"], told["exception"]["missing"]["module"]) == ("raised", "function", "nowhere")
    assert told["exception"]["message"] == "No ***e named '***'"


WRITES = """
def f(folder):
    import os
    open(os.path.join(folder, "shared"), "w").close()
    open("here", "w").close()
"""


def test_what_the_function_writes_has_the_users_own_umask_and_what_clusterfn_writes_is_private(
    bench: Bench, tmp_path: Path
):
    job = bench.job(WRITES, str(tmp_path), umask=0o002)

    assert job.run()["kind"] == "returned"

    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o664
    ours = [path for path in job.attempt.iterdir() if path.name != "work"]
    assert {path.name: oct(path.stat().st_mode & 0o77) for path in ours} == {path.name: "0o0" for path in ours}


LIMIT = """
def f():
    import resource
    limit = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (limit[1], limit[1]))
    return limit[0], resource.getrlimit(resource.RLIMIT_CORE) == (limit[1], limit[1])
"""


@pytest.mark.parametrize(("secret", "dumped"), [({"TOKEN": "s3cret"}, 1), (None, 4096)])
def test_no_core_dump_holds_a_secret_unless_the_function_asks(bench: Bench, secret, dumped):
    job = bench.job(LIMIT, secret=secret)
    job.start(before=lambda: resource.setrlimit(resource.RLIMIT_CORE, (4096, 8192))).wait(150)

    assert job.value() == [dumped, True]


LISTENS = """
import os

def f(opens):
    import socket
    port = socket.create_server(("127.0.0.1", 0)) if opens else None
    tables = [line.split() for name in ("tcp", "tcp6") for line in open("/proc/net/" + name)]
    listening = {"socket:[%s]" % words[9] for words in tables if words[3] == "0A"}
    pid, found = os.getpid(), []
    for _ in range(3):  # the worker, its supervisor, job.sh
        folder = "/proc/%d/fd/" % pid
        found += [name for name in os.listdir(folder)  # realpath also takes what is closed meanwhile
                  if os.path.basename(os.path.realpath(folder + name)) in listening]
        pid = int(open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[1])
    return len(found)
"""


@pytest.mark.parametrize("opened_by_the_function", [0, 1])
def test_no_process_of_a_job_listens_on_a_port(bench: Bench, opened_by_the_function: int):
    assert bench.run(LISTENS, opened_by_the_function)[0].value() == opened_by_the_function


def test_stdin_is_empty(bench: Bench):
    job = bench.job("def f():\n    import sys\n    return sys.stdin.read()\n")
    script = job.folder / "job.sh"
    script.write_text(script.read_text().replace("trap", "exec < /etc/passwd\ntrap", 1))

    job.run()

    assert job.value() == ""


@pytest.mark.parametrize("host", ["3.6", "3.13"])
def test_odd_characters_in_paths_work_under_an_old_locale(bridge, tmp_path, host):
    if interpreter(host) is None:
        pytest.skip(f"Python {host} is not installed here")
    bench = Bench(tmp_path / "zoë's höme $HOME %j", bridge, str(interpreter(host)), str(interpreter("3.11")))
    job = bench.job("def f():\n    import os\n    print(os.environ['A'])\n    return os.getcwd()\n", env={"A": "ü"})
    (job.folder / "job.sh").write_text((job.folder / "job.sh").read_text().replace("zoë's", "zoë'\\''s"))

    outcome = job.run(LC_ALL="C", LANG="C")

    assert outcome["kind"] == "returned", job.log()
    assert job.value() == str(job.attempt / "work")
    assert job.output() == "ü\n"


def test_the_users_modules_come_first_and_ours_stay_hidden(bench: Bench, tmp_path: Path):
    (tmp_path / "worker.py").write_text("NAME = 'mine'\n")
    source = "def f():\n    import sys, worker\n    return [worker.NAME, *sys.path]\n"
    job = bench.job(source, sys_path=[str(tmp_path)])

    outcome = job.run()

    assert outcome["kind"] == "returned", outcome
    assert job.value()[:2] == ["mine", str(tmp_path)]
    assert str(bench.bridge) not in job.value()
