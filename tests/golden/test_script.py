"""job.sh: its text, and what really happens when dash and bash run it with a stub in the supervisor's place."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.golden.golden import matches
from tests.golden.samples import BARE, SCRIPTS, job, script_of
from tests.waiting import until

STUB = r"""
import os, signal, sys, time
folder = sys.argv[2]
open(os.path.join(folder, "calls"), "a").write(" ".join([sys.argv[1], *sys.argv[3:]]).rstrip() + "\n")
if sys.argv[1] == "run":
    names = ("SLURM_EXPORT_ENV", "SLURM_GET_USER_ENV", "A")
    open(os.path.join(folder, "kept"), "w").write(os.environ["CLUSTERFN_KEEP"])
    open(os.path.join(folder, "seen"), "w").write(repr([os.environ.get(n) for n in names] + [os.umask(0)]))
    how = open(os.path.join(folder, "how")).read()
    if how.startswith("signal"):
        os.kill(os.getpid(), int(how[6:]))
    if how.startswith("wait"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(10))
        open(os.path.join(folder, "ready"), "w").close()
        for _ in range(600):  # a signal that comes just before a sleep is heard after it
            time.sleep(0.1)
    sys.exit(int(how))
"""
SHELLS = [pytest.param([name], id=name) for name in ("dash", "bash") if shutil.which(name)]
SHELLS.append(pytest.param(["bash", "--posix"], id="posix"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_the_approved_one(name):
    assert matches(script_of(SCRIPTS[name]), f"scripts/{name}.sh")


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck here")
@pytest.mark.parametrize("name", SCRIPTS)
def test_script_satisfies_shellcheck(name):  # SC2016: a `$` in single quotes, which is meant
    text = script_of(SCRIPTS[name])
    done = subprocess.run(
        ["shellcheck", "-s", "sh", "--exclude=SC2016", "-"], input=text, capture_output=True, encoding="utf-8"
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture(params=SHELLS)
def ran(request, tmp_path):
    """Runs a job's script whose supervisor ends as told; returns its exit status and the calls that were made."""
    root = tmp_path / "a b's $HOME `id`"

    def run(how="0", host=BARE, **changes):
        made = make(root, how, host, **changes)
        done = subprocess.run([*request.param, str(made / "job.sh")], capture_output=True, encoding="utf-8", env=ENV)
        return done.returncode, (made / "calls").read_text().splitlines(), done.stderr, made

    return run


ENV = {**os.environ, "SLURM_EXPORT_ENV": "HOME", "SLURM_GET_USER_ENV": "1", "MODULESHOME": "/nonexistent"}


def make(root, how, host=BARE, **changes):
    made = job(host, root=str(root), host_python=sys.executable, **changes)
    folder = root / "jobs" / made.id
    folder.mkdir(parents=True)
    (root / "bridge" / "abc123").mkdir(parents=True)
    (root / "bridge" / "abc123" / "supervise.py").write_text(STUB)
    (folder / "how").write_text(how)
    (folder / "job.sh").write_text(script_of(made), encoding="utf-8")
    return folder


@pytest.mark.parametrize("status", [0, 10])
def test_an_outcome_that_was_published_needs_no_after(ran, status):
    assert ran(str(status))[:2] == (status, ["run"])


@pytest.mark.parametrize("status", [1, 11])
def test_after_learns_any_other_status(ran, status):
    assert ran(str(status))[:2] == (status, ["run", f"after {status}"])


@pytest.mark.parametrize("number", [signal.SIGKILL])
def test_after_learns_the_signal_that_ended_the_supervisor(ran, number):
    assert ran(f"signal{int(number)}")[:2] == (128 + number, ["run", f"after {128 + number}"])


def test_slurms_variables_do_not_reach_the_job_and_its_files_are_private(ran):
    folder = ran(host=BARE._replace(setup=("export A='b c'",)))[3]
    assert (folder / "seen").read_text() == repr([None, None, "b c", 0o077])


@pytest.mark.parametrize(
    "lines, kept",
    [
        ((), ""),
        (("LD_LIBRARY_PATH=/old",), ""),
        (("export LD_LIBRARY_PATH=/cuda:$LD_LIBRARY_PATH",), "LD_LIBRARY_PATH"),
        (("export LD_LIBRARY_PATH=/cuda PYTHONPATH=/site",), "LD_LIBRARY_PATH PYTHONPATH"),
    ],
)
def test_only_what_the_hosts_own_lines_set_is_kept_for_the_function(ran, monkeypatch, lines, kept):
    monkeypatch.setitem(ENV, "LD_LIBRARY_PATH", "/old")
    assert (ran(host=BARE._replace(setup=lines))[3] / "kept").read_text() == kept


@pytest.mark.parametrize(
    "line, status",
    [
        ("exit 3", 3),
        ("exit 0", 1),
        ("set -e; false", 1),
        ("if then", 2),
        ("echo 'unclosed", 2),
        ("set -u; : $nope", None),
    ],
)
def test_a_setup_line_that_ends_the_script_is_reported(ran, line, status):
    code, calls, _, _ = ran(host=BARE._replace(setup=(line,)))
    assert code == (status or code) != 0
    assert len(calls) == 1 and calls[0].startswith("after setup:") and calls[0].endswith(f":{line}")


@pytest.mark.parametrize(
    "lines, status, failed",
    [
        (("A=1", "source_nothing /opt/none.sh", "A=2"), 127, "source_nothing /opt/none.sh"),
        ((". /opt/none.sh", "A=2"), None, ". /opt/none.sh"),
        (("if true; then", "  false", "fi", "A=2"), 1, "if true; then\n  false\nfi"),
        (("A=$(cat <<END", "it's", "END", "false", ")"), 1, "A=$(cat <<END\nit's\nEND\nfalse\n)"),
        (("if true; then", "A=2"), None, "if true; then\nA=2"),
        (("fi",), None, "fi"),
    ],
    ids=["missing", "file", "block", "here", "open", "closed"],
)
@pytest.mark.parametrize("where", ["setup", "prolog"])
def test_a_line_that_fails_ends_the_job_and_is_named(ran, where, lines, status, failed):
    code, calls, _, _ = ran(host=BARE._replace(**{where: lines}))

    assert code == (status or code) != 0
    assert "\n".join(calls) == f"after {where}:{code}:{failed}"


def test_lines_of_a_block_share_a_command_and_what_they_set(ran):
    block = ("export A=1", "if [ -f /no/such ] ||", "  true", "then", "  A=$A-\\", "2", "fi", "# the end")
    code, calls, _, folder = ran(host=BARE._replace(setup=block, prolog=("false || true", 'A="$A!"')))

    assert (code, calls) == (0, ["run"])
    assert "'1-2!'" in (folder / "seen").read_text()


def test_a_condition_that_does_not_hold_is_no_failure(ran):
    lines = ("[ -f /no/such ] && . /no/such", '[ -n "$NO_SUCH" ] && export A=1')
    assert ran(host=BARE._replace(setup=lines))[:2] == (0, ["run"])


def test_a_command_that_fails_after_another_is_a_failure(ran):
    assert ran(host=BARE._replace(setup=("true && false",)))[:2] == (1, ["after setup:1:true && false"])


@pytest.mark.parametrize(
    "line, advice", [("no_conda activate ml", "set environment: conda:NAME"), ("PATH= no_source x", "write . FILE")]
)
def test_the_job_says_what_to_write_in_place_of_a_line_that_no_sh_has(ran, line, advice):
    code, _, said, _ = ran(host=BARE._replace(setup=(line,)))

    assert code == 127 and advice in said


def test_set_e_in_setup_does_not_keep_after_from_running(ran):
    assert ran("7", BARE._replace(setup=("set -eu",)))[:2] == (7, ["run", "after 7"])


def test_a_site_without_modules_is_named(ran):
    code, calls, said, _ = ran(modules=("cuda/12.4",))
    assert (code, calls) == (1, ["after module:cuda/12.4"])
    assert "module cuda/12.4: this machine has no environment modules" in said


@pytest.mark.parametrize(
    "body",
    [
        "return 1",
        "echo \"ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for '$2'\" >&2",
        "echo 'ModuleCmd_Load.c(213):ERROR:150: Module conflicts' >&2",
    ],
    ids=["new", "old-returns-0", "old-conflict"],
)
def test_a_missing_module_is_named_and_nothing_runs(ran, body):
    code, calls, said, _ = ran(host=BARE._replace(setup=(f"module() {{ {body}; }}",), modules=("gcc", "it's")))
    assert (code, calls) == (1, ["after module:gcc"])
    assert "module gcc: it could not be loaded on" in said


def test_modules_are_loaded_in_order_and_prolog_sees_them(ran):
    host = BARE._replace(
        setup=('module() { export A="$A+$2"; echo "loaded $2" >&2; }',), modules=("gcc/12", "cuda"), prolog=('A="$A!"',)
    )
    code, calls, said, folder = ran(host=host, modules=("cuda", "mpi"))
    assert (code, calls) == (0, ["run"])
    assert "'+gcc/12+cuda+mpi!'" in (folder / "seen").read_text()
    assert said == "loaded gcc/12\nloaded cuda\nloaded mpi\n"


@pytest.mark.parametrize("shell", [shell.values[0] for shell in SHELLS], ids=" ".join)
def test_a_sigterm_to_the_script_waits_for_the_supervisor(shell, tmp_path):
    folder = make(tmp_path, "wait")
    with subprocess.Popen([*shell, str(folder / "job.sh")], start_new_session=True) as process:
        until((folder / "ready").exists)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(150) == 10
    assert (folder / "calls").read_text() == "run\n"


def test_what_is_put_in_is_not_searched_for_holes():
    assert "/r/@@python/bridge" in script_of(job(root="/r/@@python"))
