"""The lab is what it says it is. System ssh and SLURM's own commands only: without these no other lab test counts."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, accounts, layout, teardown, totp
from tests.lab.processes import State
from tests.waiting import until

pytestmark = pytest.mark.lab
CRASH = """
import os
from tests.lab import Lab
with Lab().newcomer() as newcomer:
    print(newcomer.name, flush=True)
    os.kill(os.getpid(), 9)
"""


def need_python(lab: Lab, minor: int) -> None:
    """Skip where this machine lacks that interpreter."""
    if f"3.{minor}" not in lab.pythons:
        pytest.skip(f"no Python 3.{minor} on this machine")


def submit(lab: Lab, options: str, script: str) -> str:
    """sbatch as cfbash on the slurm host; the job's number."""
    done = lab.ssh("slurm", f"sbatch --parsable {options}", stdin=f"#!/bin/sh\n{script}\n".encode())
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def wait_until(true: Callable[[], bool], timeout_s: float = 150) -> bool:
    """As soon as it is true; False after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@contextlib.contextmanager
def watched(log: Path) -> Iterator[Callable[[], bytes]]:
    """What a log has got since the block began."""
    size = log.stat().st_size
    yield lambda: log.read_bytes()[size:]


@pytest.fixture
def output(lab: Lab) -> Iterator[Path]:
    """A file that jobs of cfbash may write."""
    path = lab.home("bash") / "test_lab.out"
    path.unlink(missing_ok=True)
    yield path
    path.unlink(missing_ok=True)


Answering = Callable[[str, str], "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def answering(lab: Lab, tmp_path: Path) -> Answering:
    """Ask an alias for its host's name by the system's ssh, which gets one answer to whatever it asks."""

    def ask(alias: str, answer: str) -> subprocess.CompletedProcess[bytes]:
        program = tmp_path / "answer"
        program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$1\" >&2\necho '{answer}'\n")
        program.chmod(0o700)
        env = {**os.environ, "SSH_ASKPASS": str(program), "SSH_ASKPASS_REQUIRE": "force"}
        argv = ["ssh", "-F", str(lab.ssh_config), "-o", "NumberOfPasswordPrompts=1", alias, "echo $CLUSTERFN_LAB_HOST"]
        return subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=150, check=False)

    return ask


@pytest.mark.parametrize("minor", layout.MINORS)
def test_each_host_has_its_own_python_first(lab: Lab, minor: int) -> None:
    need_python(lab, minor)
    done = lab.ssh(f"py3{minor}-bash", ["python3", "-c", "import ssl, sys; print(sys.version_info[1])"])
    assert done.stdout == b"%d\n" % minor, done.stderr


@pytest.mark.parametrize(
    "account", [a for a in layout.ACCOUNT_LIST if a.name not in ("cfexit", "cfnologin", "cfnoisy")]
)
def test_each_account_has_its_shell_and_home(lab: Lab, account: layout.Account) -> None:
    done = lab.ssh(f"tensor01-{account.name[2:]}", "echo $SHELL; pwd")
    assert done.stdout.decode().splitlines() == [account.shell, str(account.home)]


@pytest.mark.parametrize(("account", "question"), [("tcsh", "echo $tcsh"), ("fish", "echo $FISH_VERSION$version")])
def test_odd_shells_really_answer(lab: Lab, account: str, question: str) -> None:
    assert lab.ssh(f"tensor01-{account}", question).stdout.strip()


def test_noisy_account_writes_to_both_streams_and_eats_a_line(lab: Lab) -> None:
    done = lab.ssh("tensor01-noisy", "cat", stdin=b"first\nsecond\n")
    assert b"\xff\xfe" in done.stdout
    assert b"module system" in done.stderr
    assert done.stdout.endswith(b"second\n")
    assert b"first" not in done.stdout


def test_exit_in_bashrc_ends_every_command(lab: Lab) -> None:
    assert lab.ssh("tensor01-exit", "echo here").returncode == 7


def test_nologin_says_so(lab: Lab) -> None:
    done = lab.ssh("tensor01-nologin", "echo here")
    assert (done.returncode, done.stdout) == (1, b"This account is currently not available.\n")


def test_tiny_home_is_soon_full(lab: Lab) -> None:
    done = lab.ssh("tensor01-tiny", "head -c 20000000 /dev/zero > big; echo $?; rm -f big")
    assert b"No space left on device" in done.stderr


def test_read_only_home_cannot_be_written(lab: Lab) -> None:
    assert b"Read-only file system" in lab.ssh("tensor01-ro", "touch x").stderr


@pytest.mark.parametrize(
    ("alias", "message"),
    [
        ("unknown-key", "Host key verification failed"),
        ("changed-key", "REMOTE HOST IDENTIFICATION HAS CHANGED"),
        ("wrong-user-key", "Permission denied (publickey)"),
        ("unsigned", "Permission denied (publickey)"),
        ("expired-certificate", "Permission denied (publickey)"),
        ("ecdsa-key", "Permission denied (publickey)"),
        ("unknown-authority", "Host key verification failed"),
        ("nosession-bash", "open failed"),
        ("refused", "Connection refused"),
        ("no-such-name", "Could not resolve hostname"),
    ],
)
def test_faulty_aliases_fail_as_named(lab: Lab, alias: str, message: str) -> None:
    done = lab.ssh(alias, "true")
    assert done.returncode == 255
    assert message in done.stderr.decode()


def test_jumped_goes_through_another_host(lab: Lab) -> None:
    assert lab.ssh("jumped", "echo $CLUSTERFN_LAB_HOST").stdout == b"py36\n"


def test_jumped_twice_comes_from_the_first_jump_host(lab: Lab) -> None:
    with watched(lab.root / "log" / "sshd-py36.log") as new:
        assert lab.ssh("jumped-twice", "echo $CLUSTERFN_LAB_HOST").stdout == b"py38\n"
        assert b"Accepted publickey for cfbash" in new()


def test_split_configuration_leads_through_outer_to_py38(lab: Lab) -> None:
    argv = ["ssh", "-F", str(layout.SPLIT_CONFIG), "-o", "BatchMode=yes", "inner", "echo $CLUSTERFN_LAB_HOST; id -un"]
    with watched(lab.root / "log" / "sshd-py37.log") as new:
        assert subprocess.run(argv, stdout=subprocess.PIPE, timeout=150, check=False).stdout == b"py38\ncfsecond\n"
        assert b"Accepted publickey for cfdash" in new()


@pytest.mark.parametrize("alias", ["certificate-bash", "certificate-apart", "ed25519only-bash", "authority"])
def test_keys_and_certificates_that_are_right_are_enough(lab: Lab, alias: str) -> None:
    assert lab.ssh(alias, "echo $CLUSTERFN_LAB_HOST").stdout.decode().strip() == lab.host(alias).name


def test_onestartup_drops_a_second_one_who_is_not_logged_in_yet(lab: Lab) -> None:
    def is_dropped() -> bool:
        port = lab.host("onestartup-bash").port
        # A test beside this one may be logging in just now.
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as first:
            if first.recv(4) == b"SSH-":
                return b"kex_exchange_identification: " in lab.ssh("onestartup-bash", "true").stderr
        return False

    assert wait_until(is_dropped)
    assert wait_until(lambda: lab.ssh("onestartup-bash", "true").returncode == 0)


@pytest.mark.parametrize("host", ["password", "campus"])
def test_a_newcomer_enters_by_password_and_then_by_a_key(lab: Lab, answering: Answering, host: str) -> None:
    with lab.newcomer() as newcomer:
        assert answering(f"{newcomer.name}@{host}", newcomer.password).stdout.decode().strip() == host
        assert answering(f"{newcomer.name}@{host}", "another").returncode == 255
        folder = newcomer.home / ".ssh"
        folder.mkdir()
        shutil.copy(lab.client / "id_ed25519.pub", folder / "authorized_keys")
        argv = ["-i", str(lab.client / "id_ed25519"), "-o", "BatchMode=yes", f"{newcomer.name}@{host}", "id -un"]
        done = subprocess.run(["ssh", "-F", str(lab.ssh_config), *argv], capture_output=True, timeout=150, check=False)
        assert done.stdout.decode().strip() == newcomer.name, done.stderr


def test_nothing_of_a_newcomer_is_left(lab: Lab, answering: Answering) -> None:
    with lab.newcomer() as newcomer:
        argv = ["setsid", "--fork", "sleep", "60"]
        subprocess.run(argv, user=newcomer.uid, cwd="/", check=True, timeout=150)
        assert accounts.processes_of({newcomer.uid})
    assert accounts.processes_of({newcomer.uid}) == []
    assert not newcomer.home.exists()
    assert newcomer.name not in {found.pw_name for found in pwd.getpwall()}


def test_two_newcomers_may_be_there_at_once(lab: Lab) -> None:
    with lab.newcomer() as one, lab.newcomer() as two:
        assert one.uid != two.uid
        assert one.home.exists()


def test_a_newcomer_whom_a_killed_test_left_is_removed_by_the_next(lab: Lab) -> None:
    left = subprocess.run([sys.executable, "-c", CRASH], stdout=subprocess.PIPE, text=True, timeout=150, check=False)
    assert left.returncode == -signal.SIGKILL
    assert pwd.getpwnam(left.stdout.strip())
    with lab.newcomer():
        assert left.stdout.strip() not in {found.pw_name for found in pwd.getpwall()}


def test_twofactor_takes_the_key_and_wants_more(lab: Lab) -> None:
    assert b"Permission denied (password)" in lab.ssh("twofactor-bash", "true").stderr


def test_totp_takes_the_key_and_the_code_of_the_moment_again_and_again(lab: Lab, answering: Answering) -> None:
    for _ in range(2):
        done = answering("totp-bash", lab.totp.code())
        assert done.stdout == b"totp\n", done.stderr
        assert b"Verification code:" in done.stderr


def test_totp_refuses_a_wrong_code_and_no_code(lab: Lab, answering: Answering) -> None:
    assert b"Permission denied (keyboard-interactive)" in answering("totp-bash", "no code").stderr
    assert b"Permission denied (keyboard-interactive)" in lab.ssh("totp-bash", "true").stderr


def test_totp_counts_every_time_it_asks(lab: Lab, answering: Answering) -> None:
    before = lab.totp.prompts("cftcsh")
    answering("totp-tcsh", lab.totp.code())
    answering("totp-tcsh", "no code")
    lab.ssh("totp-tcsh", "true")
    assert lab.totp.prompts("cftcsh") - before == 2


@pytest.mark.parametrize(("moment", "code"), [(59, "287082"), (1111111109, "081804"), (20000000000, "353130")])
def test_codes_are_those_of_rfc_6238(moment: int, code: str) -> None:
    assert totp.code_at("GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ", moment) == code


def test_forced_runs_its_own_command(lab: Lab) -> None:
    assert lab.ssh("forced-bash", "echo mine").stdout == b"This service allows sftp connections only.\n"


@pytest.mark.parametrize("host", ["onesession", "chacha"])
def test_hosts_with_odd_settings_serve_system_ssh(lab: Lab, host: str) -> None:
    assert lab.ssh(f"{host}-bash", "echo $CLUSTERFN_LAB_HOST").stdout.decode() == f"{host}\n"


def test_wipe_leaves_a_clean_host(lab: Lab) -> None:
    command = "mkdir -p d/e; touch f; CLUSTERFN_JOB=test-lab-wipe sleep 60 >/dev/null 2>&1 &"
    lab.ssh("tensor01-tiny", command)
    lab.wipe("tiny")
    assert lab.processes("test-lab-wipe") == []
    left = {path.name for path in lab.home("tiny").iterdir()}
    assert left <= {".clusterfn"}, left  # which an agent of a test beside this one makes


def test_nopython_has_no_python(lab: Lab) -> None:
    assert lab.ssh("nopython-bash", "command -v python3 python").stdout == b""


def test_only_the_slurm_host_has_slurm(lab: Lab) -> None:
    assert lab.ssh("tensor01", "command -v sbatch squeue srun").stdout == b""
    assert b"sbatch" in lab.ssh("slurm", "command -v sbatch").stdout


def test_processes_are_found_by_their_tag(lab: Lab) -> None:
    command = "CLUSTERFN_JOB=test-lab-tag sleep 60 >/dev/null 2>&1 & echo $!"
    pid = int(lab.ssh("tensor01", command).stdout)
    try:
        until(lambda: lab.processes("test-lab-tag") == [pid])  # the shell says its number before it is a sleep
    finally:
        os.kill(pid, signal.SIGKILL)


def test_gpu_box_lists_eight_cards(lab: Lab, gpubox_reset: None) -> None:
    lines = lab.ssh("tensor01", "nvidia-smi -L").stdout.decode().splitlines()
    assert len(set(lines)) == 8
    assert lines[3] == f"GPU 3: NVIDIA RTX A6000 (UUID: {lab.gpubox.uuid(3)})"


def test_gpu_box_shows_memory_with_and_without_units(lab: Lab, gpubox_reset: None) -> None:
    query = "nvidia-smi -i 5 --query-gpu=index,memory.total,memory.used,driver_version --format=csv,noheader"
    with lab.gpubox.hidden_memory(5, 30000):
        assert lab.ssh("tensor01", query).stdout == b"5, 49140 MiB, 30000 MiB, 575.57.08\n"
        assert lab.ssh("tensor01", f"{query},nounits").stdout == b"5, 49140, 30000, 575.57.08\n"


def test_gpu_box_shows_somebody_elses_process_only_inside_the_block(lab: Lab, gpubox_reset: None) -> None:
    query = "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader"
    with lab.gpubox.process(3, pid=4242, used_mib=1000):
        assert lab.ssh("tensor01", query).stdout.decode() == f"{lab.gpubox.uuid(3)}, 4242, 1000 MiB\n"
    assert lab.ssh("tensor01", query).stdout == b""


@pytest.mark.parametrize(
    ("mode", "exit_code", "message"),
    [
        ("nvml-mismatch", 18, b"Failed to initialize NVML: Driver/library version mismatch"),
        ("no-devices", 6, b"No devices were found"),
        ("garbage", 0, b"\xff\xfe"),
    ],
)
def test_gpu_box_fails_as_told(lab: Lab, gpubox_reset: None, mode: str, exit_code: int, message: bytes) -> None:
    with lab.gpubox.mode(mode):
        done = lab.ssh("tensor01", "nvidia-smi -L")
    assert done.returncode == exit_code
    assert message in done.stdout


def test_gpu_box_hangs_as_told(lab: Lab, gpubox_reset: None) -> None:
    with lab.gpubox.mode("hang"), pytest.raises(subprocess.TimeoutExpired):
        lab.ssh("tensor01", "nvidia-smi -L", timeout_s=2)


@pytest.mark.parametrize("node", list(layout.NODES))
def test_each_node_runs_a_job_with_two_cards(lab: Lab, node: str) -> None:
    command = f"srun -w {node} --mem=100 --gres=gpu:2 sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES; id -un'"
    done = lab.ssh("slurm", command)
    assert done.stdout.decode().split() == [node, "0,1", "cfbash"], done.stderr


def test_batch_job_runs_with_the_hosts_python(lab: Lab, output: Path) -> None:
    job = submit(lab, f"--mem=100 -o {output}", "command -v python3")
    lab.slurm.wait_job(job, "COMPLETED")
    assert output.read_text().strip() == f"{layout.HOSTS}/slurm/bin/python3"


def test_too_much_memory_is_killed(lab: Lab, output: Path) -> None:
    script = "python3 -c 'x = b\"a\" * 600000000; import time; time.sleep(30)'"
    job = submit(lab, f"--mem=100 -o {output}", script)
    lab.slurm.wait_job(job, "FAILED", "OUT_OF_MEMORY")
    assert "exceeded memory limit" in output.read_text()


def qsub(lab: Lab, options: str, script: str) -> str:
    """qsub as cfbash on the gridengine host; the job's number."""
    done = lab.ssh("gridengine-bash", f"qsub -terse -S /bin/sh -j y {options}", stdin=f"{script}\n".encode())
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def test_only_the_grid_engine_host_has_grid_engine(lab: Lab) -> None:
    assert lab.ssh("slurm", "command -v qsub qstat qacct").stdout == b""
    assert lab.ssh("gridengine-bash", "command -v sbatch squeue").stdout == b""
    assert lab.ssh("gridengine-bash", "qconf -sel").stdout.split() == [b"ge1", b"ge2"]


@pytest.mark.parametrize("host", list(layout.EXECUTION_HOSTS))
def test_each_execution_host_runs_a_job_with_gpus_and_cores(lab: Lab, output: Path, host: str) -> None:
    job = qsub(lab, f"-l h={host},gpu=1 -pe smp 2 -o {output}", "echo $(hostname) $NSLOTS $(id -un)")
    ended = lab.grid_engine.wait_ended(job)
    assert output.read_text().split() == [host, "2", "cfbash"]
    assert (ended["failed"], ended["exit_status"], ended["hostname"]) == ("0", "0", host)


def test_grid_engine_ends_a_job_at_its_time(lab: Lab) -> None:
    ended = lab.grid_engine.wait_ended(qsub(lab, "-l h_rt=1 -o /dev/null", "sleep 60"))
    assert ended["failed"].startswith("37 ")


def test_what_grid_engine_cannot_run_is_refused_when_it_is_asked_to_check(lab: Lab) -> None:
    done = lab.ssh("gridengine-bash", "qsub -w e -l gpu=99", stdin=b"true\n")
    assert (done.returncode, done.stdout, done.stderr) == (
        1, b"", b"Unable to run job: error: no suitable queues\nExiting.\n",
    )  # fmt: skip


@pytest.mark.long
def test_a_high_job_puts_a_low_one_back_into_the_queue(lab: Lab, output: Path) -> None:
    low = submit(lab, f"-p low -w n1 --exclusive --mem=100 --open-mode=append -o {output}", "sleep 3")
    lab.slurm.wait_job(low, "RUNNING", timeout_s=150)
    high = submit(lab, "-p high -w n1 --exclusive --mem=100", "true")
    lab.slurm.wait_job(high, "COMPLETED", timeout_s=150)
    lab.slurm.wait_job(low, "COMPLETED", timeout_s=150)
    assert "DUE TO PREEMPTION" in output.read_text()


@pytest.mark.long
def test_a_killed_slurmd_is_noticed_and_its_job_queued_again(lab: Lab) -> None:
    job = submit(lab, "-w n2 --mem=100", "sleep 60")
    lab.slurm.wait_job(job, "RUNNING")
    lab.slurmd("n2").kill()
    try:
        assert lab.slurm.wait_job(job, "PENDING", timeout_s=150) == "PENDING"
        assert lab.slurm.node_state("n2").startswith("down")
    finally:
        lab.slurm.heal()
        lab.slurm.run("scancel", job)


@pytest.mark.long
def test_a_running_job_survives_slurmctld(lab: Lab) -> None:
    job = submit(lab, "--mem=100", "sleep 5")
    lab.slurm.wait_job(job, "RUNNING")
    lab.slurmctld.kill()
    lab.slurm.heal()
    assert lab.slurm.wait_job(job, "COMPLETED") == "COMPLETED"


def test_torch_environment_runs_as_an_account(lab: Lab) -> None:
    done = lab.ssh("tensor01", [str(lab.torch_python), "-c", "import torch; print(torch.ones(2).sum().item())"])
    assert done.stdout == b"2.0\n", done.stderr


def test_down_would_remove_own_things_only(lab: Lab) -> None:
    words = [line.split(maxsplit=1) for line in teardown.removals(State.load())]
    places = {what for kind, what in words if kind in ("folder", "mount")}
    assert {what[:2] for kind, what in words if kind == "account"} == {"cf"}
    elsewhere = ("/run/sshd", str(layout.GRID_ENGINE_LIBRARIES))
    assert all(place in elsewhere or place.startswith(str(layout.ROOT)) for place in places)
    assert {what for kind, what in words if kind == "file"} == {str(totp.PAM_SERVICE)}
