"""The steps of `clusterfn check` on hosts that a survey has described: what fails, and by what it is mended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.job_states import PENDING, RUNNING
from clusterfn.cli.check import function
from clusterfn.cli.check import host as steps
from clusterfn.cli.check.step import CheckState, StepFailed, StepSkipped, StepWarning
from clusterfn.config.spec import Host, Interpreter
from clusterfn.errors import ConfigError
from clusterfn.hosts.connection import Completed
from clusterfn.hosts.scheduler_commands import FoundCommands, LoginShellAnswer
from clusterfn.hosts.survey import Site, SurveyedGpus
from clusterfn.hosts.volumes import Volume
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.slurm.site import Account, Partition, SlurmSite

GB = 2**30
needs_sh = pytest.mark.skipif(sys.platform == "win32", reason="a host's shell")
SHORT = Partition("main", True, "up", "1:00:00", 9, "(null)")
DOWN = Partition("old", False, "down", "1:00:00", 9, "(null)")
DRAINED = Partition("spare", False, "drain", "1:00:00", 9, "(null)")
ROOT = Volume(
    "/home/ann/.clusterfn", "/home/ann/.clusterfn", "nfs4", 100 * GB, 10**6, shared=True, device="filer:/home",
    mode="drwx------", links=True,
)  # fmt: skip
SCRATCH = Volume("$SCRATCH", "/scratch/ann", "lustre", 900 * GB, 10**9, shared=True, device="mds:/scratch")


def volume(**changed: Any) -> Volume:
    return Volume(**{**vars(ROOT), **changed})


def found(site: Site, scheduler: str = "bare", noise: str = "", **host: Any) -> CheckState:
    """Steps that have come as far as the survey."""
    facts = SimpleNamespace(user="ann", net_ns="net:[1]")
    connection = SimpleNamespace(facts=facts, noise=noise)
    result = CheckState("cluster")
    result.host = Host("cluster", "cluster", scheduler, "clusterfn.yml:2", **host)
    result.host_state = SimpleNamespace(connection=connection, root=ROOT.path, settings=result.host)  # type: ignore[assignment]
    result.__dict__["site"] = site
    return result


def fails(step: Any, where: CheckState, kind: type[StepFailed] = StepFailed) -> StepFailed:
    with pytest.raises(StepFailed) as caught:
        step(where)
    assert type(caught.value) is kind
    return caught.value


def rejects(step: Any, where: CheckState) -> ConfigError:
    """What the scheduler's own comparison of clusterfn.yml with the site says."""
    with pytest.raises(ConfigError) as caught:
        step(where)
    return caught.value


def slurm(*partitions: Partition, accounts: tuple[Account, ...] = (), **options: Any) -> CheckState:
    site = Site((), {"slurm": SlurmSite(partitions or (SHORT, DOWN, DRAINED), accounts)})
    return found(site, "slurm", scheduler_options=options)


@pytest.mark.parametrize(
    ("partition", "said"),
    [("old", "the partition old is down"), ({"cpu": "main", "gpu": "spare"}, "the partition spare is drain"),
     ("old,spare", "the partition old is down; the partition spare is drain"), ("gone", "there is no partition gone"),
     ("mian", "there is no partition mian; did you mean main?"), (None, "the partition old is down")],
)  # fmt: skip
def test_a_partition_that_takes_no_jobs_fails_with_its_state(partition, said):
    usual = replace(DOWN, default=True)
    failed = rejects(steps.scheduler, slurm(partition=partition) if partition else slurm(usual))

    assert failed.message == said
    assert not partition or "correct slurm: partition: of host cluster (clusterfn.yml:2)" in str(failed.hint)


@needs_sh
@pytest.mark.parametrize(("sent_to", "warned"), [("bare", True), ("slurm", False), ("local", False)])
def test_a_root_that_holds_jobs_of_another_scheduler_is_a_warning(tmp_path, sent_to, warned):
    where = on_this_machine(slurm(), tmp_path)
    for number in range(30):
        (tmp_path / "jobs" / f"7f{number:02}").mkdir(parents=True)
        os.utime(tmp_path / "jobs" / f"7f{number:02}", (number, number))
    (tmp_path / "jobs" / "7f29" / "spec.json").write_text(json.dumps({"scheduler": sent_to}, indent=1))

    if not warned:
        assert steps.root(where) == ROOT.path
        return
    failed = fails(steps.root, where, StepWarning)
    assert str(failed).startswith(f"{ROOT.path} also holds jobs of a host with `scheduler: bare`")
    assert "give host cluster (clusterfn.yml:2) a root of its own" in failed.hint


@needs_sh
@pytest.mark.parametrize(("tickets", "said"), [(0, "none of your jobs wait now"), (2, "2 of your jobs wait now")])
def test_a_machine_without_slurm_says_how_many_jobs_wait_in_its_queue(tmp_path, tickets, said):
    where = on_this_machine(found(Site(())), tmp_path)
    for number in range(tickets):
        ticket = tmp_path / "machines" / "m-1" / "queue" / f"7f3{number}"
        ticket.parent.mkdir(parents=True, exist_ok=True)
        ticket.write_text("{}")

    assert steps.scheduler(where).endswith(said)


def on_this_machine(where, root):
    """The same steps; what they ask of jobs is asked of a root here."""

    def run(argv, **_):
        ended = subprocess.run([word.replace(ROOT.path, str(root)) for word in argv], capture_output=True, check=True)
        return done(SimpleNamespace(out=ended.stdout))

    vars(where.host_state.connection).update(run=run)
    vars(where.host_state.connection.facts).update(machine="m-1", platform="linux")
    return where


def done(value):
    reply = Future()
    reply.set_result(value)
    return reply


@pytest.mark.parametrize(
    ("path", "hint"),
    [((), "(clusterfn.yml:2)"), (("/opt/new/bin",), "(clusterfn.yml:2), and add scheduler_path: [/opt/new/bin]")],
)
def test_a_folder_of_scheduler_path_without_commands_is_a_warning(path, hint):
    login = LoginShellAnswer({"slurm": FoundCommands("by a login shell", path)}, empty=("/opt/old/bin",))
    where = found(Site((), {"slurm": SlurmSite((SHORT,))}, login=login), "slurm", scheduler_path=("/opt/old/bin",))

    warned = fails(steps.scheduler, where, StepWarning)

    assert str(warned).endswith("\n/opt/old/bin of scheduler_path: has none of SLURM's commands")
    assert warned.hint == f"remove /opt/old/bin from scheduler_path: of host cluster {hint}"
    without_sinfo = found(Site((), login=LoginShellAnswer(empty=("/opt/old/bin",))), "slurm")
    assert fails(steps.scheduler, without_sinfo).evidence == (str(warned).splitlines()[-1],)


def test_a_sinfo_that_fails_is_shown_with_its_words():
    silent = SlurmSite(trouble="slurm_load_partitions: Unable to contact")
    failed = rejects(steps.scheduler, found(Site((), {"slurm": silent}), "slurm"))

    assert failed.evidence == ("slurm_load_partitions: Unable to contact",)
    assert "see what sinfo prints" in str(failed.hint)


PHYSICS = Account("physics", "", ("normal", "long"))


def test_an_account_or_qos_that_slurm_does_not_give_fails_with_those_that_it_gives():
    assert "physics  any  normal, long" in steps.account(slurm(accounts=(PHYSICS,), account="physics", qos="long"))
    with pytest.raises(StepSkipped):
        steps.account(slurm(account="physics"))
    for options, said, mends in (
        ({"account": "phisics"}, "account phisics; did you mean physics?", "account: {} physics"),
        ({"qos": "high"}, "qos high", "qos: {} normal, long"),
    ):
        failed = rejects(steps.account, slurm(accounts=(PHYSICS,), **options))
        assert failed.message == f"SLURM does not let you use {said}"
        assert failed.hint == f"set `slurm: {mends.format('of host cluster (clusterfn.yml:2) to one of')}".replace(
            ": of", ":` of"
        )


CARDS = SurveyedGpus(("NVIDIA A100", "NVIDIA A100"), 40 * GB, "570.1", ("8.0", "8.0"))
ROOM = "100 GB free, 1000000 files free, your quota leaves 3 GB"


@pytest.mark.parametrize(
    ("step", "site", "said"),
    [
        (steps.space, Site((), root=volume(quota_bytes=3 * GB)), ROOM),
        (steps.gpus, Site((), gpus=CARDS), "2 x NVIDIA A100, 40 GB, compute capability 8.0; driver 570.1"),
        (steps.lingering, Site((), lingering=True), ""), (steps.lingering, Site((), lingering=None), ""),
    ],
)  # fmt: skip
def test_what_is_in_order_is_reported(step, site, said):
    told = step(found(site))

    assert told and said in told


ANOTHER = "set `root: /scratch/ann/.clusterfn` for host cluster (clusterfn.yml:2): it has the most space"
ROOTS = [  # the step, what is known of the root, the host, and what is said
    (steps.space, {"free_bytes": 30 * 2**20}, {}, StepWarning, "only 30 MB is left in /home/ann/.clusterfn"),
    (steps.space, {"free_bytes": 8 * 2**20}, {}, StepFailed, "only 8 MB is left in /home/ann/.clusterfn"),
    (steps.space, {"quota_bytes": 0}, {}, StepFailed, "only 0 bytes is left under your quota in /home/ann/.cluster"),
    (steps.space, {"free_files": 3000}, {}, StepWarning, "only 3000 more files can be created in /home/ann/.cluster"),
    (steps.noexec, {"noexec": True}, {"environment": "environment.yml"}, StepFailed, "it is mounted noexec"),
    *((steps.noexec, {"noexec": True}, {"environment": each}, StepWarning, "it is mounted noexec")
      for each in ("python:/opt/bin/python", "conda:ml", None)),
    (steps.root, {"writable": False}, {}, StepFailed, "cannot be written to"),
    (steps.root, {"kind": "tmpfs"}, {"scheduler": "slurm"}, StepFailed, "where no compute node sees it"),
    (steps.root, None, {}, StepFailed, "the file system of /home/ann/.clusterfn does not answer"),
]  # fmt: skip


@pytest.mark.parametrize(("step", "root", "host", "kind", "said"), ROOTS)
def test_a_root_that_cannot_serve_is_reported_with_another_one(step, root, host, kind, said):
    site = Site((SCRATCH,), silent=("root",)) if root is None else Site((SCRATCH,), root=volume(**root))

    wrong = fails(step, found(site, **host), kind)

    assert said in str(wrong) and "set `root: /scratch/ann/.clusterfn`" in wrong.hint
    assert step is not steps.space or (str(wrong).startswith(said) and ANOTHER in wrong.hint)


FULL_HOME = Site((volume(name="$HOME", path="/home/ann"),), root=volume(free_bytes=0))
NO_SINFO = "there is no sinfo on cluster, nor does its login shell find one"
WRONG = [  # the step, what is found, and what is said
    (steps.scheduler, found(Site(()), "slurm"), StepFailed, NO_SINFO,
     ["scheduler_path:", "login node of the cluster", "scheduler: bare"]),
    (steps.scheduler, found(Site((), {"slurm": SlurmSite((SHORT,))})), StepWarning, "",
     ["write scheduler: slurm for host cluster (clusterfn.yml:2)"]),
    (steps.lingering, found(Site((), lingering=False)), StepWarning, "", ["KillExcludeUsers=ann"]),
    (steps.space, found(FULL_HOME), StepFailed, "", ["to a folder on another file system"]),
]  # fmt: skip


@pytest.mark.parametrize(("step", "where", "kind", "said", "hints"), WRONG)
def test_what_is_wrong_has_a_next_step(step, where, kind, said, hints):
    wrong = fails(step, where, kind)

    assert str(wrong).startswith(said)
    assert [each for each in hints if each not in wrong.hint] == []


@pytest.mark.parametrize(
    ("trouble", "silent", "mends"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", (), "sudo modprobe nvidia"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", (), "driver is not loaded"),
        ("it did not answer in time", ("gpus",), "dmesg | grep -i xid"),
        ("Unable to determine the device handle", (), "log in and run nvidia-smi"),
    ],
)
def test_an_nvidia_smi_that_fails_has_its_own_remedy(trouble, silent, mends):
    failed = fails(steps.gpus, found(Site((), gpus=SurveyedGpus(trouble=trouble), silent=silent)))

    assert failed.evidence == (trouble,)
    assert mends in failed.hint


TREE = """
module() {
    case "$1 $2 $3" in
        "load gcc/12 ") return 0 ;;
        "-t avail cuda") printf '/opt/modules:\ncuda/11.8\ncuda/12.5(default)\n' >&2 ;;
        *) echo "ERROR: Unable to locate a modulefile for '$2'" >&2 ;;
    esac
}
"""


def loading(*modules: str, setup: str = TREE, scheduler: str = "bare", prolog: tuple[str, ...] = ()) -> CheckState:
    """A host that wants these modules; its shell is this machine's."""
    where = found(Site(()), scheduler, modules=modules, setup=(setup,), prolog=prolog)

    def run(*argv: str) -> Completed:
        done = subprocess.run(argv, capture_output=True, timeout=150, check=False)
        return Completed(done.returncode, None, done.stdout, done.stderr)

    where.run = run  # type: ignore[method-assign]
    return where


NO_LICENCE = "echo no such licence >&2; exit 3"
SHELLS = [  # what the host wants, what fails, what is seen, and what mends it
    (loading("gcc/12", "cuda/12.4"), "the module cuda/12.4 cannot be loaded; did you mean cuda/12.5",
     "Unable to locate a modulefile for 'cuda/12.4'",
     "correct modules: of host cluster (clusterfn.yml:2); there are cuda/11.8, cuda/12.5"),
    (loading("no/such", setup=":"), "the module no/such cannot be loaded", "", ""),
    (loading("gcc/12", setup=NO_LICENCE), f"setup: fails with exit code 3 at the line `{NO_LICENCE}`",
     "no such licence", "correct that line in setup: of host cluster"),
    (loading(setup="gone 3"), "setup: fails with exit code 127 at the line `gone 3`", "", ""),
    (loading(prolog=(":", "gone 3", ":")), "prolog: fails with exit code 127 at the line `gone 3`", "", ""),
    (loading(setup="module load cuda"), "setup: fails", "", "name the modules in modules:"),
]  # fmt: skip


@needs_sh
def test_modules_and_lines_that_succeed_pass_and_the_prolog_of_slurm_is_left_to_its_nodes():
    assert function.modules(loading("gcc/12")) == "gcc/12 can be loaded"
    where = loading(scheduler="slurm", prolog=("false",))
    assert function.modules(where) == "the lines of setup: and prolog: succeed"


@needs_sh
@pytest.mark.parametrize(("where", "said", "seen", "hint"), SHELLS)
def test_a_module_or_a_line_that_fails_is_named_with_what_mends_it(where, said, seen, hint):
    failed = fails(function.modules, where)

    assert str(failed).startswith(said)
    assert seen in "\n".join(failed.evidence) and hint in str(failed.hint)


def test_jobs_in_a_network_namespace_of_their_own_are_a_warning_without_a_scheduler(monkeypatch):
    returned = function.Returned("n1", "3.11.7", 42, "net:[2]", None, 0.1)
    monkeypatch.setattr(function, "run_probe", lambda *_: returned)
    warned = fails(function.function, found(Site(())), StepWarning)

    assert "(net:[2], the agent in net:[1])" in str(warned)
    assert warned.hint == "run all jobs of the host in one network namespace, in containers by `--network host`"
    said = "returned from n1, Python 3.11.7, process 42, after 0.10 s"
    assert function.function(found(Site(()), scheduler="slurm")) == said


def test_more_gpus_than_the_host_has_are_refused_in_the_words_of_check():
    where = found(Site((), gpus=SurveyedGpus(("NVIDIA RTX A6000",) * 8)))
    where.gpus = 9

    failed = fails(function.pytorch, where)

    assert str(failed) == "cluster has 8 GPUs, and --gpus asks for 9" and failed.hint == "write --gpus 8, or fewer"


@pytest.mark.parametrize(("driver", "warned"), [("570.26", False), ("470.82", True), ("", False)])
def test_a_driver_that_is_too_old_for_the_pytorch_of_an_environment_is_a_warning(driver, warned):
    image = Interpreter("/s", (3, 12), {}, "apptainer:/x.sif", ("2.7.1", "12.6"))
    where = found(Site((), gpus=SurveyedGpus(("NVIDIA A100",), driver=driver) if driver else None))
    where.host_state.environments = SimpleNamespace(find=lambda _: SimpleNamespace(interpreter=image))
    if not warned:
        assert function.environment(where).endswith("; PyTorch 2.7.1 for CUDA 12.6)")
        return
    failed = fails(function.environment, where, StepWarning)

    assert str(failed).startswith("apptainer:/x.sif (Python 3.12")
    assert "CUDA 12.6 needs driver 525.60.13 or newer, and the host has 470.82" in str(failed)
    assert failed.hint == "use a PyTorch for CUDA 11.0 or older"


@pytest.mark.parametrize(
    ("state", "reason", "moving"),
    [
        (RUNNING, "", ""),
        (PENDING, "", ""),
        (PENDING, "environment: unpacking 3 of 60 packages", ""),
        (PENDING, "connection to cluster needs you: clusterfn login cluster; your jobs keep running", ""),
        (PENDING, "sending 38 of 114 MB", "sending 38 of 114 MB"),
    ],
)
def test_a_function_that_waits_for_no_turn_fails_when_its_time_is_over(state, reason, moving, monkeypatch):
    job: Any = Future()
    told = {"state": state, "reason": reason, "moving": moving, "status": f"{state} ({reason})", "_run": job}
    vars(job).update(id="7f3a000011112222", name="check", host="cluster", stop=lambda: job.set_result(None), **told)
    where = found(Site(()))
    where.host_state.scheduler = Bare()  # type: ignore[misc]
    where.timeout_s = 0.01
    monkeypatch.setattr(function.call, "submit_call", lambda *_: job)

    failed = fails(function.function, where)

    assert str(failed) == f"no result within 0 s: {job.status}" and job.done()
