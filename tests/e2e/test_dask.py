"""dask on a host for a `with` block: its tasks, its workers that die, its connections, and that all of it ends."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn import ClusterfnError, ConfigError, EnvironmentBuildError
from tests.e2e.conftest import BOTH, lab_venv, local_host
from tests.processes import agents_here, command_of, tagged
from tests.waiting import WAIT_S, stays, until

pytestmark = [
    pytest.mark.long,
    # Imported here, it would cost each process of the tests half a second.
    pytest.mark.skipif(find_spec("distributed") is None, reason="dask is not installed"),
    pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="looks at processes in /proc"),
    # numpy is here and not in the lab's environment: dask warns if the workers are there before the client
    pytest.mark.filterwarnings("ignore:Mismatched versions found"),
    # dask leaves a socket (without a peer) behind when a connection was refused and it tries again
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <ssl.SSLSocket(?!.*raddr):pytest.PytestUnraisableExceptionWarning"
    ),
]
SMALL = {"memory": "1GB", "scheduler_memory": "1GB"}
LITTLE = {"memory": "512MB", "scheduler_memory": "512MB"}  # what the lab's nodes have for several jobs
LISTENS = "0A"  # as /proc/net/tcp writes it


@pytest.fixture
def _sockets_collected():
    """Have the sockets of refused connections warn here, where that is expected, and not in a later test."""
    yield
    gc.collect()


def where(number):
    import os

    return number, os.environ["CLUSTERFN_JOB"], os.getpid()


def surroundings():
    """The node of a worker, and its GPUs."""
    import os

    names = ("SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES")
    return tuple(os.environ.get(name) for name in names)


def slow(number, seconds, notes=""):
    """`number`; each start of it leaves a line in the folder `notes`."""
    import os
    import time

    if notes:
        with open(f"{notes}/{number}", "a") as file:  # noqa: PTH123
            file.write(f"{os.getpid()}\n")
    time.sleep(seconds)
    return number


def many_bytes(number, size):
    return bytes([number]) * size


def remainder(number):
    return number % 7


for each in (where, surroundings, slow, many_bytes, remainder):
    each.__module__ = "__main__"


def pids_of(root: Path, earlier: Collection[str] = ()) -> set[int]:
    """The processes of all jobs below this root but the earlier ones."""
    return set(tagged(*(job.name for job in (root / "jobs").iterdir() if job.name not in earlier)))


def listening(pids: set[int]) -> set[tuple[str, int]]:
    """Addresses and ports of TCP at which these processes listen."""
    inodes, lines = set(), set()
    for pid in pids:
        try:
            inodes |= {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
            lines |= {*Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]}
            lines |= {*Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]}
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
    found = set()
    for words in map(str.split, lines):
        if words[3] == LISTENS and f"socket:[{words[9]}]" in inodes:
            address, port = words[1].split(":")
            raw = bytes.fromhex(address)
            family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
            found.add((socket.inet_ntop(family, raw[::-1] if len(raw) == 4 else raw), int(port, 16)))
    return found


def admits_a_stranger(address: tuple[str, int]) -> bool:
    """Whether what listens there answers somebody without the certificate of the block: first, by HTTP, or by TLS."""
    with socket.create_connection(address, WAIT_S) as plain:
        plain.settimeout(1.0)
        with contextlib.suppress(OSError):
            if plain.recv(1):
                return True
        with contextlib.suppress(OSError):
            plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            if plain.recv(4) == b"HTTP":
                return True
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(address, WAIT_S) as plain, context.wrap_socket(plain) as sock:
            return sock.recv(1) != b""
    except (ssl.SSLError, ConnectionError):
        return False


def outcomes(root: Path) -> list[dict[str, Any]]:
    """How the jobs have ended, once all have."""
    files = [job / "attempts" / "1" / "outcome.json" for job in (root / "jobs").iterdir()]
    until(lambda: all(file.exists() for file in files), f"the end of {files}")
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def _block(tmp_path_factory: pytest.TempPathFactory, _bridge: Path) -> Iterator[Any]:
    """A client with two workers on this machine, and the host's root; for the tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("dask")
    shutil.copytree(_bridge, folder / "root" / "bridge")
    (folder / "clusterfn.yml").write_text(local_host(folder / "root"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLUSTERFN_CONFIG", str(folder / "clusterfn.yml"))
        with clusterfn.dask_client("here", workers=2, **SMALL) as client:
            client.wait_for_workers(2, WAIT_S)
            yield client, folder / "root"


@pytest.fixture
def block(_block: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same, and the host of the block is the one of this process."""
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(_block[1].parent / "clusterfn.yml"))
    return _block


def test_tasks_run_in_the_jobs_of_workers(block):
    client, root = block
    found = client.gather(client.map(where, range(20)))

    assert [number for number, _, _ in found] == list(range(20))
    assert {job.partition("/")[0] for _, job, _ in found} < {job.name for job in (root / "jobs").iterdir()}


def test_other_users_reach_nothing(block):
    """Every port is on this machine alone, and is of no use without the certificate."""
    client, root = block
    theirs = listening(pids_of(root))
    ours = listening({os.getpid()})
    addresses = {(ip, int(port)) for ip, port in (each.rpartition("/")[2].split(":") for each in workers_of(client))}

    assert len(addresses) == 2
    assert addresses < theirs, "the test does not see what listens"
    assert {ip for ip, _ in theirs | ours} == {"127.0.0.1"}
    assert not [each for each in theirs | ours if admits_a_stranger(each)]


def workers_of(client: Any) -> list[str]:
    # `scheduler_info` returns none if the regular update of the client, which asks for none, comes in between.
    return list(client.nthreads())


def test_the_key_is_in_no_argument_and_no_file_that_others_read(block):
    client, root = block
    arguments = b"".join(command_of(pid) for pid in pids_of(root))
    open_to_others = [each for each in root.rglob("*") if each.is_file() and each.stat().st_mode & 0o077]

    assert b"dask_program.py" in arguments
    assert b"PRIVATE KEY" not in arguments
    assert not [each for each in open_to_others if b"PRIVATE KEY" in each.read_bytes()]


def test_a_worker_that_is_killed_is_replaced_and_its_tasks_run_again(block, tmp_path):
    client, _ = block
    futures = [client.submit(slow, number, 2.0, str(tmp_path), pure=False) for number in range(4)]
    (started,) = until(lambda: [*tmp_path.iterdir()][:1])
    os.kill(int(until(started.read_text)), signal.SIGKILL)

    assert client.gather(futures) == list(range(4))
    assert len(started.read_text().split()) == 2
    client.wait_for_workers(2, WAIT_S)


def test_a_worker_whose_job_is_killed_comes_again_as_another_job(block):
    client, root = block
    before = {job.name for job in (root / "jobs").iterdir()}
    _, job, _ = client.submit(where, 0, pure=False).result(WAIT_S)
    clusterfn.attach(job.partition("/")[0], "here").stop()

    until(lambda: {job.name for job in (root / "jobs").iterdir()} - before)
    until(lambda: len(workers_of(client)) == 2)
    assert client.gather(client.map(remainder, range(20), pure=False)) == [number % 7 for number in range(20)]


def test_a_connection_that_breaks_loses_no_task_and_no_value(block):
    client, _ = block
    kept = client.submit(many_bytes, 7, 1000, pure=False)
    kept.result(WAIT_S)
    waiting = client.submit(slow, 3, 2.0, pure=False)
    large = client.map(many_bytes, range(4), size=4_000_000, pure=False)
    for _ in range(3):
        os.kill(until(agents_here)[0], signal.SIGKILL)
        assert client.submit(remainder, 10, pure=False).result(WAIT_S) == 3

    assert waiting.result(WAIT_S) == 3
    assert client.gather(large) == [bytes([number]) * 4_000_000 for number in range(4)]
    assert kept.result(WAIT_S) == bytes([7]) * 1000


def test_a_client_that_is_killed_leaves_nothing_behind(here, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, clusterfn\n"
        "if __name__ == '__main__':\n"
        "    with clusterfn.dask_client('here', workers=1, idle='3s', memory='1GB', scheduler_memory='1GB'):\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, str(script)], timeout=WAIT_S, check=False)

    assert [each["kind"] for each in outcomes(here)] == ["returned"] * 2
    until(lambda: not pids_of(here))


@pytest.mark.parametrize("cores", [1, 64])
def test_ctrl_c_ends_everything_while_jobs_wait_and_in_the_block(tmp_path, warm_root, cores):
    """With one core there is none left for a worker beside the scheduler, at the latest."""
    (tmp_path / "clusterfn.yml").write_text(
        f"hosts:\n  here:\n    scheduler: local\n    root: {warm_root}\n    limits: {{cores: {cores}}}\n"
    )
    (tmp_path / "script.py").write_text(
        "import sys, time, clusterfn\n"
        "if __name__ == '__main__':\n"
        "    with clusterfn.dask_client('here', workers=1, memory='1GB', scheduler_memory='1GB') as client:\n"
        "        print('PENDING no longer', file=sys.stderr, flush=True)\n"
        "        client.submit(time.sleep, 600).result()\n"
    )
    env = {**os.environ, "CLUSTERFN_CONFIG": str(tmp_path / "clusterfn.yml")}
    argv = [sys.executable, str(tmp_path / "script.py")]
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        said = next(line for line in program.stderr if "PENDING" in line)
        program.send_signal(signal.SIGINT)
        rest = program.stderr.read()

    assert ("no longer" in said) == (cores > 1)
    assert rest.rstrip().endswith("KeyboardInterrupt"), rest
    assert outcomes(warm_root)
    until(lambda: not pids_of(warm_root))


def test_own_modules_go_to_scheduler_and_workers(here, run_script, tmp_path):
    (tmp_path / "mine.py").write_text("def double(x):\n    return 2 * x\n")
    text = (
        "import json, clusterfn, mine\n"
        "if __name__ == '__main__':\n"
        "    with clusterfn.dask_client('here', workers=1, imports=['mine'], memory='1GB') as client:\n"
        "        print(json.dumps(client.submit(mine.double, 21).result(150)))\n"
    )

    assert run_script(text) == 42


def test_a_scheduler_that_dies_while_dask_connects_to_it_is_named(here, monkeypatch):
    def dies(*_: object, **__: object) -> None:
        for pid in pids_of(here):
            if b"\0scheduler\0" in command_of(pid):
                os.kill(pid, signal.SIGKILL)
        raise OSError("the connection to the scheduler is closed")

    monkeypatch.setattr("clusterfn.integrations.dask.block.Client", dies)
    with (
        pytest.raises(ClusterfnError, match="dask's scheduler died: SIGKILL"),
        clusterfn.dask_client("here", workers=1, **SMALL),
    ):
        pytest.fail("it began")
    until(lambda: not pids_of(here))


def test_ctrl_c_while_the_reason_of_a_lost_connection_is_awaited_leaves_nothing_behind(here, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        threading.Timer(0.5, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        raise OSError("the connection to the scheduler is closed")

    monkeypatch.setattr("clusterfn.integrations.dask.block.Client", fails)
    with pytest.raises(KeyboardInterrupt), clusterfn.dask_client("here", workers=1, **SMALL):
        pytest.fail("it began")
    until(lambda: not pids_of(here))


# what is wrong is said, and nothing stays behind


def test_another_version_on_the_host_is_an_error_that_names_both(here, monkeypatch):
    known = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2020.1.0" if name == "dask" else known(name))

    with (
        pytest.raises(EnvironmentBuildError, match=rf"dask is {known('dask')} in .*, and 2020\.1\.0 on your machine"),
        clusterfn.dask_client("here", workers=1, **SMALL),
    ):
        pytest.fail("it began")
    until(lambda: not pids_of(here))


def test_an_environment_without_dask_is_an_error_that_says_so(here, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)

    with (
        pytest.raises(EnvironmentBuildError, match="has no distributed, which this job needs"),
        clusterfn.dask_client("here", workers=1, environment=f"venv:{tmp_path}/bare", **SMALL),
    ):
        pytest.fail("it began")


@pytest.mark.lab
def test_another_python_is_refused_before_anything_is_sent(lab, here):
    other = next(minor for minor in ("3.12", "3.13") if minor != f"3.{sys.version_info[1]}")

    with (
        pytest.raises(ConfigError, match=rf"dask needs the same Python on both sides: the environment has {other},"),
        clusterfn.dask_client("here", workers=1, environment=f"python:{lab.python(other)}", **SMALL),
    ):
        pytest.fail("it began")
    assert not (here / "jobs").exists()


def test_workers_that_cannot_start_are_an_error_and_no_endless_loop(here):
    broken = {"DASK_DISTRIBUTED__NANNY__PRELOAD": "no_such_module"}

    with (
        pytest.raises(ClusterfnError, match="what starts dask's worker on .* ended with exit status 1"),
        clusterfn.dask_client("here", workers=1, env=broken, **SMALL),
    ):
        pytest.fail("it began")
    assert len([*(here / "jobs").iterdir()]) == 4
    until(lambda: not pids_of(here))


@pytest.mark.usefixtures("_sockets_collected")
def test_a_scheduler_that_is_killed_ends_the_block_with_the_reason(here):
    with (
        pytest.raises(ClusterfnError, match="dask's scheduler died: SIGKILL"),
        clusterfn.dask_client("here", workers=1, **SMALL) as client,
    ):
        os.kill(client.run_on_scheduler(os.getpid), signal.SIGKILL)
        client.submit(where, 1, pure=False).result(WAIT_S)
    outcomes(here)
    until(lambda: not pids_of(here))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "workers=None is not a whole number of at least 1"),
    ({"workers": 2, "adapt": (0, 2)}, "dask_client.. has no argument 'adapt'"),
    ({"workers": 0}, "workers=0 is not a whole number of at least 1"),
    ({"workers": 2, "nodes": 2}, "dask_client.. has no argument 'nodes'"),
    ({"worker": 2}, "dask_client.. has no argument 'worker'; did you mean workers?"),
    ({"workers": 2, "memory": "2"}, "memory='2' is not an amount of memory"),
    ({"workers": 2, "idle": "5"}, "idle='5' is not a duration"),
    ({"workers": 2, "imports": "mine"}, "imports='mine' is not a list of modules"),
    ({"workers": 2, "imports": ["json"]}, "imports='json' is not a module of your own"),
]


def test_bad_input_is_refused_before_anything_is_sent(here):
    for options, problem in WRONG:
        with pytest.raises(ConfigError, match=problem):
            clusterfn.dask_client("here", **options)
    assert not (here / "jobs").exists()


def test_a_host_without_a_way_into_a_job_is_refused_before_a_connection(tmp_path, monkeypatch):
    (tmp_path / "clusterfn.yml").write_text(
        "hosts:\n  campus:\n    address: ada@campus.invalid\n    scheduler: grid_engine\n    root: /scratch/ada/cf\n"
    )
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))

    with pytest.raises(
        ConfigError, match="dask cannot run on campus: clusterfn cannot reach into a running job of Grid"
    ):
        clusterfn.dask_client("campus", workers=1)


# hosts of the lab


@pytest.fixture
def environment(lab: Any) -> str:
    """The environment of the lab's jobs: the versions that this process has, as dask asks."""
    versions = [f"{name}=={metadata.version(name)}" for name in ("dask", "distributed")]
    return f"venv:{lab_venv(lab, 'dask', *versions)}"


@pytest.mark.lab
def test_twenty_seconds_without_network_lose_nothing(lab, environment, tmp_path, monkeypatch):
    root = lab.home("bash") / f"dask-{secrets.token_hex(4)}"
    with lab.cable() as cable:
        lines = [f"address: {cable.alias}", f"ssh_config: {lab.ssh_config}", "scheduler: bare", f"root: {root}"]
        lines += ["limits: {cores: 64}", f'environment: "{environment}"']
        (tmp_path / "clusterfn.yml").write_text("hosts:\n  far:\n" + "".join(f"    {line}\n" for line in lines))
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
        with clusterfn.dask_client("far", workers=1, **LITTLE) as client:
            kept = client.submit(many_bytes, 7, 1000, pure=False)
            kept.result(WAIT_S)
            during = client.submit(slow, 3, 5.0, pure=False)
            cable.down()
            sent = client.submit(remainder, 10, pure=False)
            stays(lambda: not sent.done(), 20)
            cable.up()

            assert [each.result(WAIT_S) for each in (during, sent)] == [3, 3]
            assert kept.result(WAIT_S) == bytes([7]) * 1000
        until(lambda: not pids_of(root))
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.lab
@BOTH
def test_on_a_host_workers_have_gpus_of_their_own_and_shuffle_and_one_dies(hosts, environment, host, gpubox_reset):
    from dask import bag

    earlier = hosts.jobs()
    with clusterfn.dask_client(host, workers=2, gpus=1, environment=environment, **LITTLE) as client:
        client.wait_for_workers(2, WAIT_S)
        found = list(client.run(surroundings).values())
        numbers = bag.range(20_000, npartitions=16).groupby(remainder, shuffle="tasks", npartitions=8)
        computing = client.compute(numbers)
        os.kill(client.run(os.getpid)[workers_of(client)[0]], signal.SIGKILL)
        groups = dict(computing.result(WAIT_S))

    assert {key: sorted(found) for key, found in groups.items()} == {key: [*range(key, 20_000, 7)] for key in range(7)}
    assert len(set(found)) == 2
    assert all(gpus and "," not in gpus for _, gpus in found)
    until(lambda: not pids_of(hosts.root, earlier))


@pytest.mark.lab
@BOTH
def test_on_a_host_other_users_reach_nothing(hosts, environment, host):
    """On SLURM the nodes reach each other, so what listens must ask for the certificate of the block."""
    earlier = hosts.jobs()
    with clusterfn.dask_client(host, environment=environment, workers=1, **LITTLE):
        # The scheduler, and a nanny and a worker: the block begins before all workers have started.
        theirs = until(lambda: len(found := listening(pids_of(hosts.root, earlier))) >= 3 and found)
        admitted = [each for each in theirs if admits_a_stranger(each)]

    assert not admitted
    assert host == "slurm" or {ip for ip, _ in theirs} == {"127.0.0.1"}
