"""Jupyter kernels in jobs, as Jupyter's own client starts, uses and ends them: by the argv of the kernelspec alone."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jupyter_kernel_test
import pytest
from jupyter_client import write_connection_file
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from clusterfn import cluster
from tests.e2e.conftest import BOTH, ON_SLURM, REPOSITORY, Hosts, lab_venv
from tests.lab.layout import IMAGES
from tests.processes import children_of, descendants_of, environment_of
from tests.programs import main
from tests.waiting import WAIT_S, until

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself"),
    # Of Jupyter's own making: its sockets and loops are closed late.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


# Python overlooks a signal that arrives just before a system call: one long sleep would then go on to its end.
SLEEP = "import time\nwhile not open('{}', 'w').close(): time.sleep(0.05)"  # one statement: each is compiled apart


@pytest.fixture
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jupyter's folder of this user."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path / "jupyter"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clusterfn", "kernel", *words], capture_output=True, text=True, timeout=WAIT_S
    )


class Notebook:
    """A kernel and its client."""

    def __init__(self, root: Path, log: Path) -> None:
        self.root = root
        self.log = log
        # Jupyter gives a kernel 5 s to shut down, and then ends and kills it: too few on a busy machine.
        self.manager = KernelManager(kernel_name="gpu-box", shutdown_wait_time=WAIT_S)
        self.stderr = log.open("wb")  # of each proxy that the manager starts
        self.manager.start_kernel(stderr=self.stderr)
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=WAIT_S)

    def run(self, code: str, answer: str = "", within_s: float = WAIT_S) -> tuple[str, str]:
        """The status of a cell, and what it has printed and returned."""
        texts: list[str] = []

        def keep(message: Any) -> None:
            content = message["content"]
            if message["msg_type"] == "clear_output":  # of what was shown while the kernel started
                texts.clear()
            texts.append(content.get("text") or content.get("data", {}).get("text/plain") or content.get("ename") or "")

        done = self.client.execute_interactive(
            code, timeout=within_s, output_hook=keep, allow_stdin=bool(answer),
            stdin_hook=lambda _: self.client.input(answer),
        )  # fmt: skip
        return done["content"]["status"], "".join(texts)

    def job(self) -> str:
        """The job of the kernel, which the kernel's own processes see."""
        return self.run("import os; print(os.environ['CLUSTERFN_JOB'].partition('/')[0])")[1].strip()

    def print_slowly(self, numbers: int) -> tuple[str, str]:
        """Print numbers, and lose the connection three times meanwhile."""
        marks = [self.root / f"at-{number}" for number in range(3)]
        done: list[Path] = []

        def cut_at(mark: Path) -> None:
            until(mark.exists)
            try:
                self.cut()
                done.append(mark)
            finally:
                mark.unlink()  # for which the cell waits: all of it might be here before a busy machine cuts

        for mark in marks:
            beside(lambda mark=mark: cut_at(mark))
        third = numbers // 3
        said = self.run(
            f"import os, time\nfor number in range({numbers}):\n    print(number, flush=True)\n    time.sleep(0.01)\n"
            f"    if number % {third} == {third // 2}:\n"
            f"        mark = {str(self.root)!r} + '/at-%d' % (number // {third})\n"
            "        open(mark, 'w').close()\n        while os.path.exists(mark): time.sleep(0.01)\n"
        )
        assert sorted(done) == marks
        return said

    def outcome(self, job: str) -> Any:
        path = self.root / "jobs" / job / "attempts" / "1" / "outcome.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def proxy(self) -> int:
        """Its process, which the client takes for the kernel."""
        return int(self.manager.provisioner.pid)

    def cut(self) -> None:
        """Kill the agent, and the shell that has started it: the connection to the host is lost."""
        for child in children_of(self.proxy):
            with contextlib.suppress(ProcessLookupError):  # of an attempt to connect again that has just ended
                os.killpg(child, signal.SIGKILL)


@contextlib.contextmanager
def opened_notebook(
    host: str, root: Path, log: Path, *words: str, when_added: Callable[[], object] = lambda: None
) -> Iterator[Notebook]:  # fmt: skip
    """A kernel on a host, and nothing of it when the test is over."""
    before = {path.name for path in (root / "jobs").iterdir()} if (root / "jobs").exists() else set()
    added = command("add", host, "--name", "GPU box", *words)
    assert added.returncode == 0, added.stderr
    when_added()
    opened = Notebook(root, log)
    yield opened
    opened.client.stop_channels()
    if opened.manager.has_kernel:
        opened.manager.shutdown_kernel(now=True)
    opened.stderr.close()
    ours = [path for path in (root / "jobs").glob("*") if path.name not in before]
    for folder in ours:  # what the test has left running
        (folder / "cancel").touch()
    until(lambda: all(opened.outcome(folder.name) for folder in ours))
    del opened.client, opened.manager
    gc.collect()  # what Jupyter's client leaves open is found in this test, which ignores it, and not in a later one


@pytest.fixture
def notebook(here: Path, jupyter: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    words = getattr(request, "param", ())
    with opened_notebook("here", here, tmp_path / "stderr", "--environment", "current", *words) as opened:
        yield opened


def tcp_sockets(pids: list[int]) -> set[str]:
    """The inodes of TCP sockets that these processes hold."""
    of_tcp = {
        line.split()[9] for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]
    }
    held = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # it was closed
                    held.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return of_tcp & {name.partition("[")[2].rstrip("]") for name in held}


def beside(action: Callable[[], object]) -> None:
    threading.Thread(target=action, daemon=True).start()


def test_cells_run_in_a_job_print_return_ask_and_are_interrupted(notebook: Notebook):
    # Else it drops output where much comes at once, or opens a debugger that others can reach.
    settings = "get_ipython().kernel.iopub_thread.socket.sndhwm, d._is_debugpy_available"
    assert notebook.run(f"import ipykernel.debugger as d\n{settings}") == ("ok", "(0, False)")
    about = notebook.client.kernel_info(reply=True, timeout=WAIT_S)["content"]
    assert "debugger" not in about.get("supported_features", [])
    assert notebook.run("print('ä'); 6 * 7") == ("ok", "ä\n42")
    assert notebook.run("input('name? ')", answer="ada") == ("ok", "'ada'")
    assert notebook.run("import os; os.getcwd()") == ("ok", repr(os.path.expanduser("~")))
    assert notebook.outcome(notebook.job()) is None

    for interrupt in (notebook.manager.interrupt_kernel, lambda: os.kill(notebook.proxy, signal.SIGINT)):
        marked = notebook.root / "sleeps"
        beside(lambda: until(marked.exists) and interrupt())
        status, text = notebook.run(SLEEP.format(marked))
        marked.unlink()
        assert (status, text) == ("error", "KeyboardInterrupt")


def test_what_listens_is_private(notebook: Notebook):
    holder = int(notebook.run("os = __import__('os'); os.getppid()")[1])
    address = json.loads((notebook.root / "jobs" / notebook.job() / "kernel.json").read_text())["socket"]
    folder = Path(address).parent

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "connection.json").stat().st_mode) == 0o600
    sockets = {f"k-{number}" for number in range(1, 6)}
    assert {path.name for path in folder.iterdir()} == {"s", "pipe", "connection.json", *sockets}
    assert not tcp_sockets(descendants_of(holder)), "a port that others can connect to"
    forking = "import os, sys\nif os.fork() == 0:\n    print('child', flush=True)\n    os._exit(0)\n"
    forking += "os.wait()[1]"
    cell, shown = notebook.client.execute(forking), ""
    while not {"0", "child"} <= set(shown.split()):  # the child's output takes another way, and may come after the end
        message = notebook.client.get_iopub_msg(timeout=WAIT_S)
        if message["parent_header"].get("msg_id") == cell:
            shown += " " + (message["content"].get("text") or message["content"].get("data", {}).get("text/plain", ""))
    assert sorted(shown.split()) == ["0", "child"]
    assert environment_of(holder)["CLUSTERFN_JOB"].startswith(notebook.job())

    notebook.client.shutdown()
    until(lambda: not folder.exists())


def test_a_restart_keeps_the_job_and_a_shutdown_ends_it(notebook: Notebook):
    job, kernels = notebook.job(), set()
    for now in (False, True):
        kernels.add(notebook.run("x = 1; os = __import__('os'); os.getpid()")[1])
        notebook.manager.restart_kernel(now=now)
        notebook.client.wait_for_ready(timeout=WAIT_S)
        assert notebook.run("x") == ("error", "NameError")
        assert notebook.job() == job
    kernels.add(notebook.run("os = __import__('os'); os.getpid()")[1])
    assert len(kernels) == 3

    notebook.manager.shutdown_kernel()

    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in kernels))
    ended = until(lambda: notebook.outcome(job))
    assert (ended["kind"], len(list((notebook.root / "jobs").iterdir()))) == ("returned", 1)


def test_a_kernel_that_dies_says_why_and_starts_again_in_its_job(notebook: Notebook):
    job, proxy = notebook.job(), notebook.proxy
    notebook.client.execute("import os, sys; os.write(2, b'out of luck\\n'); os._exit(7)")

    until(lambda: not notebook.manager.is_alive())
    assert notebook.manager.provisioner.process.poll() == 1
    assert "the kernel died: exit status 7" in notebook.log.read_text()

    notebook.manager.restart_kernel(now=True)  # as a client does by itself
    notebook.client.wait_for_ready(timeout=WAIT_S)
    assert notebook.job() == job
    assert notebook.proxy != proxy


def test_a_lost_connection_loses_no_output(notebook: Notebook):
    assert notebook.print_slowly(300) == ("ok", "".join(f"{number}\n" for number in range(300)))
    until(lambda: "the connection to the kernel is back" in notebook.log.read_text())


def start_as_vs_code(
    folder: Path, name: str, meanwhile: Callable[[], None] = lambda: None
) -> tuple[subprocess.Popen[bytes], BlockingKernelClient]:
    """Start a kernel by its argv alone, which waits for its connection file until `meanwhile` is done."""
    path, _ = write_connection_file(str(folder / name), key=name.encode())
    argv, pipe = KernelSpecManager().get_kernel_spec("gpu-box").argv, folder / f"{name}.pipe"
    os.mkfifo(pipe)
    process = subprocess.Popen([str(pipe) if word == "{connection_file}" else word for word in argv])
    with pipe.open("w") as asked:  # once the process opens it, too
        meanwhile()
        asked.write(Path(path).read_text())
    client = BlockingKernelClient(connection_file=path)
    client.load_connection_file()
    client.start_channels()
    until(lambda: hears_output(client))  # wait_for_ready gives up when the heart does not beat at once
    return process, client


def hears_output(client: BlockingKernelClient) -> bool:
    """Whether the client hears what the kernel publishes: what comes before it has subscribed is lost, in Jupyter."""
    client.kernel_info(reply=True, timeout=WAIT_S)
    with contextlib.suppress(queue.Empty):
        return bool(client.get_iopub_msg(timeout=1))
    return False


def test_a_client_that_ends_without_a_word_may_start_the_kernel_again_in_its_job(notebook: Notebook, tmp_path: Path):
    job, kernel = notebook.job(), notebook.run("import os; os.getpid()")[1]
    notebook.client.stop_channels()

    def end_last() -> None:
        notebook.cut()  # as VS Code does: the children first, and the next process before this one has ended
        os.kill(notebook.proxy, signal.SIGTERM)
        records = Path(os.environ["XDG_STATE_HOME"], "clusterfn", "kernels")
        until(lambda: any("orphan_at" in record.read_text() for record in records.glob("*.json")))

    # The next process must find within 8 s that this one has left its job: a busy machine needs them to start it.
    process, notebook.client = start_as_vs_code(tmp_path, "first.json", end_last)
    assert notebook.job() == job
    assert notebook.run("import os; os.getpid()")[1] != kernel
    until(lambda: not Path(f"/proc/{kernel}").exists())

    other, client = start_as_vs_code(tmp_path, "other.json")
    notebook.client, first = client, notebook.client
    assert notebook.job() != job, "it has taken the job of a kernel that lives"
    for each, ended in ((first, process), (client, other)):
        each.stop_channels()
        ended.terminate()
        assert ended.wait(WAIT_S) == 0
    assert until(lambda: notebook.outcome(job))["kind"] == "returned"


@pytest.mark.long
@pytest.mark.parametrize("notebook", [["--idle", "12s"]], indirect=True)
def test_an_idle_kernel_ends_its_job_and_does_not_start_again_by_itself(notebook: Notebook):
    until(lambda: not notebook.manager.is_alive())
    notebook.manager.restart_kernel(now=True)  # as a client does by itself, within seconds
    until(lambda: not notebook.manager.is_alive())

    (job,) = [folder.name for folder in (notebook.root / "jobs").iterdir()]
    assert until(lambda: notebook.outcome(job))["kind"] == "returned"
    assert "the kernel was idle for 12 s, and has released its GPUs" in notebook.log.read_text()


def test_a_cancelled_job_ends_the_kernel_and_says_why(notebook: Notebook):
    job = notebook.job()
    (notebook.root / "jobs" / job / "cancel").touch()

    until(lambda: not notebook.manager.is_alive())
    assert "stopped on request" in notebook.log.read_text() or "cancelled" in notebook.log.read_text()


@pytest.fixture(scope="module")
def with_ipykernel(lab: Any) -> Path:
    return lab_venv(lab, "kernel", "ipykernel")


@pytest.mark.lab
@ON_SLURM
@pytest.mark.parametrize("in_image", [False, pytest.param(True, marks=pytest.mark.long)], ids=["venv", "image"])
def test_a_kernel_runs_over_ssh_and_inside_a_job_of_slurm(
    hosts: Hosts, lab: Any, host: str, in_image: bool, with_ipykernel: Path, jupyter, tmp_path: Path, monkeypatch
):
    environment = f"venv:{with_ipykernel}"
    if in_image:
        packages = next(with_ipykernel.glob("lib/*/site-packages"))
        lines = f"binds: ['{packages}:/mnt']\nenv: {{PYTHONPATH: /mnt}}"
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(hosts.describe(lab, tmp_path / "yml", hosts.python, lines)))
        environment = f"charliecloud:{IMAGES}/{packages.parent.name}"
    words = ["--environment", environment, "--memory", "500MB"]
    with opened_notebook(host, hosts.root, tmp_path / "stderr", *words) as notebook:
        where = "__import__('os').environ.get('SLURM_JOB_ID', '').isdecimal(), __import__('os').uname()[1]"
        assert notebook.run(where)[1].startswith(f"({host == 'slurm'}")
        use_and_end(notebook)


def use_and_end(notebook: Notebook) -> None:
    """Use all that a kernel does for its client: print, ask, interrupt, reconnect, restart, shut down."""
    for _ in range(20):  # of a program that looks for open ports
        socket.create_connection(("127.0.0.1", notebook.client.shell_port)).close()
    job = notebook.job()
    assert notebook.run("print('ä'); 6 * 7") == ("ok", "ä\n42")
    assert notebook.run("input('name? ')", answer="ada") == ("ok", "'ada'")

    marked = notebook.root / "sleeps"
    beside(lambda: until(marked.exists) and notebook.manager.interrupt_kernel())
    said = notebook.run(SLEEP.format(marked))
    marked.unlink()
    assert said == ("error", "KeyboardInterrupt")
    assert len(notebook.run("print('x' * 20_000_000)")[1]) == 20_000_001
    assert notebook.print_slowly(300) == ("ok", "".join(f"{number}\n" for number in range(300)))

    notebook.manager.restart_kernel()
    notebook.client.wait_for_ready(timeout=WAIT_S)
    assert notebook.job() == job
    assert notebook.run("number") == ("error", "NameError")

    notebook.manager.shutdown_kernel()
    assert until(lambda: notebook.outcome(job))["kind"] == "returned"


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_a_mac_or_a_windows_machine_uses_a_kernel(
    hosts: Hosts, platform: str, with_ipykernel: Path, jupyter: Path, tmp_path: Path
):
    words = ["--environment", f"venv:{with_ipykernel}", "--memory", "500MB"]
    with opened_notebook(
        "tensor01", hosts.root, tmp_path / "stderr", *words,
        when_added=lambda: run_by(jupyter, "played_client.py", platform),
    ) as notebook:  # fmt: skip
        use_and_end(notebook)


@pytest.mark.lab
@pytest.mark.long
@BOTH
def test_a_kernel_keeps_the_protocol(
    hosts: Hosts, host: str, with_ipykernel: Path, jupyter: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["--name", "GPU box", "--environment", f"venv:{with_ipykernel}", "--memory", "500MB"]
    assert command("add", host, *words).returncode == 0
    suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, (ProtocolTests, WelcomeTests)))

    done = unittest.TextTestRunner(verbosity=2).run(suite)

    assert done.wasSuccessful(), capsys.readouterr().err
    assert [why for _, why in done.skipped] == ["History range not supported"], "as for ipykernel itself"
    assert done.testsRun >= 13


class ProtocolTests(jupyter_kernel_test.KernelTests):
    __test__ = False  # run on the lab's hosts, by the test above
    kernel_name = "gpu-box"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples = ["1", "print('hello')", "def f(x):\n  return x*2\n\n"]
    incomplete_code_samples = ["print((1,", "def f(x):\n  x*2"]
    invalid_code_samples = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise ValueError('seven')"
    code_execute_result = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"}
    ]
    supported_history_operations = ("tail", "search")
    code_history_pattern = "1?2*"
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


class WelcomeTests(jupyter_kernel_test.IopubWelcomeTests):
    __test__ = False
    kernel_name = "gpu-box"
    support_iopub_welcome = True


@pytest.mark.lab
@pytest.mark.long
def test_a_minute_without_network_loses_no_output(
    lab: Any, with_ipykernel: Path, jupyter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = lab.home("bash") / f"kernel-{secrets.token_hex(4)}"
    with lab.cable() as cable:
        config = tmp_path / "clusterfn.yml"
        config.write_text(
            f"hosts:\n  far: {{address: {cable.alias}, ssh_config: {lab.ssh_config}, scheduler: bare, root: {root},"
            " limits: {cores: 64}}\n"
        )
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
        with opened_notebook("far", root, tmp_path / "stderr", "--environment", f"venv:{with_ipykernel}") as notebook:
            began = root / "began"
            beside(lambda: (until(began.exists), cable.down(), time.sleep(60), cable.up()))
            text = notebook.run(
                f"import time; open({str(began)!r}, 'w').close()\n"
                "for number in range(700): print(number, flush=True); time.sleep(0.1)",
                within_s=200,
            )[1]
        assert text == "".join(f"{number}\n" for number in range(700))
        assert "the connection to the kernel is back" in (tmp_path / "stderr").read_text()
    shutil.rmtree(root, ignore_errors=True)


def connection_file(path: Path) -> Path:
    ports = {f"{name}_port": 0 for name in ("shell", "iopub", "stdin", "control", "hb")}
    path.write_text(json.dumps({"transport": "tcp", "ip": "127.0.0.1", "key": "k", **ports}))
    return path


def until_there(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.02)


def run_by(jupyter: Path, script: str, word: str) -> None:
    """Let a script of tests/fixtures be the kernel's process, with this word before those of `clusterfn`."""
    spec = jupyter / "kernels" / "gpu-box" / "kernel.json"
    told = json.loads(spec.read_text())
    words = told["argv"][told["argv"].index("kernel") :]
    argv = [sys.executable, str(REPOSITORY / "tests" / "fixtures" / script), word, *words]
    spec.write_text(json.dumps({**told, "argv": argv}))


def waits_for(jupyter: Path, go: Path) -> None:
    """Let the kernel's process look for its job only once this file is there, and fail with its text."""
    run_by(jupyter, "slow_kernel.py", str(go))


def displayed(notebook: Notebook, cells: Sequence[str], text: str) -> list[str]:
    """The texts that these cells show, once each has shown this one; of what is updated, the last."""
    shown: dict[str, str] = {}
    while not all(text in shown.get(cell, "") for cell in cells):
        message = notebook.client.get_iopub_msg(timeout=WAIT_S)
        if message["msg_type"] in ("display_data", "update_display_data"):
            shown[message["parent_header"]["msg_id"]] = message["content"]["data"]["text/plain"]
    return [shown[cell] for cell in cells]


def test_a_kernel_that_is_not_there_yet_answers_and_its_cells_show_what_it_waits_for(
    here: Path, jupyter: Path, tmp_path: Path
):
    go = tmp_path / "go"
    with opened_notebook(
        "here", here, tmp_path / "log", "--environment", "current", when_added=lambda: waits_for(jupyter, go)
    ) as notebook:
        assert not list((here / "jobs").glob("*/kernel.json")), "Jupyter takes it for ready, and there is no job"
        cells = [notebook.client.execute(code) for code in ("print('ran')", "6 * 7")]
        displayed(notebook, cells, "clusterfn: 7f3a PENDING (environment: fetch 6 of 60)")
        go.touch()
        cleared: set[str] = set()
        while cleared < set(cells):
            message = notebook.client.get_iopub_msg(timeout=WAIT_S)
            cleared |= {message["parent_header"]["msg_id"]} if message["msg_type"] == "clear_output" else set()

        replies = {}
        while set(cells) - set(replies):
            reply = notebook.client.get_shell_msg(timeout=WAIT_S)
            replies[reply["parent_header"]["msg_id"]] = reply["content"].get("status")
        assert [replies[cell] for cell in cells] == ["ok", "ok"]
        assert notebook.run("x = 6 * 7; x") == ("ok", "42")
        assert notebook.job()


def test_a_kernel_that_cannot_start_says_so_in_the_cells_that_wait(here: Path, jupyter: Path, tmp_path: Path):
    go = tmp_path / "go"
    with opened_notebook(
        "here", here, tmp_path / "log", "--environment", "current", when_added=lambda: waits_for(jupyter, go)
    ) as notebook:
        cell = notebook.client.execute("1")
        displayed(notebook, [cell], "fetch 6 of 60")
        go.with_suffix(".new").write_text("numpy has no wheel")
        go.with_suffix(".new").rename(go)

        displayed(notebook, [cell], "clusterfn: there will be no kernel: numpy has no wheel")
        until(lambda: not notebook.manager.is_alive())


@pytest.mark.long  # other tests' jobs on this machine wait behind it
def test_a_kernel_that_waits_says_so_and_is_withdrawn_when_its_client_ends(here: Path, tmp_path: Path):
    before = cluster(cores=40)(until_there).submit(str(tmp_path / "gate"))
    until(before.running)
    words = ["kernel", "run", "here", "--cores", "40", "--environment", "current"]
    with (tmp_path / "stderr").open("wb") as stderr:
        argv = [sys.executable, "-m", "clusterfn", *words, str(connection_file(tmp_path / "file"))]
        proxy = subprocess.Popen(argv, stderr=stderr)
    try:
        until(lambda: "(waiting" in (tmp_path / "stderr").read_text())
        (waiting,) = {folder.name for folder in (here / "jobs").iterdir()} - {before.id}
        proxy.terminate()

        assert proxy.wait(WAIT_S) == 0
        outcome = here / "jobs" / waiting / "attempts" / "1" / "outcome.json"
        until(outcome.exists)
        assert json.loads(outcome.read_text())["kind"] == "cancelled"
    finally:
        (tmp_path / "gate").touch()
        proxy.kill()
    before.result(WAIT_S)


def test_an_environment_without_ipykernel_is_an_error_that_says_so(here: Path, jupyter: Path, tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    file = connection_file(tmp_path / "connection.json")

    ran = [command("run", "here", "--environment", f"venv:{tmp_path}/bare", str(file)) for _ in range(2)]

    assert [each.returncode for each in ran] == [1, 1]
    assert "has no ipykernel" in ran[0].stderr
    assert "add ipykernel to the environment" in ran[0].stderr
    assert "has no ipykernel" in ran[1].stderr, "the second start within seconds"
    assert len(list((here / "jobs").iterdir())) == 1, "the second start sent another job"


def test_kernels_are_added(here: Path, jupyter: Path, tmp_path: Path):
    words = ["here", "--name", "GPU box", "--gpus", "2", "--memory", "8GB", "--environment", "conda:ml"]
    assert command("add", *words).returncode == 0

    spec = KernelSpecManager().get_kernel_spec("gpu-box")
    assert Path(spec.argv[0]).is_absolute()
    assert spec.argv[-1] == "{connection_file}"
    given = spec.argv[spec.argv.index("run") + 1 : -1]
    assert given == ["here", "--memory", "8GB", "--gpus", "2", "--environment", "conda:ml"]
    assert (spec.display_name, spec.language, spec.interrupt_mode) == ("GPU box", "python", "message")
    assert spec.env == {"CLUSTERFN_CONFIG": os.environ["CLUSTERFN_CONFIG"]}

    assert command("add", *words).returncode == 0, "it replaces its own"
    Path(KernelSpecManager().find_kernel_specs()["gpu-box"], "kernel.json").write_text("{}")
    again = command("add", *words)
    assert (again.returncode, "clusterfn has not added it" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["campus"], "kernels cannot run on campus: clusterfn cannot reach into a running job of Grid Engine"),
        (["bare"], "no environment is named for the kernel"),
        (["bare", "--environment", "no.yml"], "there is no file"),
        (["bare", "--environment", "conda:ml", "--memory", "8"], "memory='8'"),
        (["nowhere"], "there is no host 'nowhere'"),
    ],
)
def test_what_cannot_start_is_not_added(
    words: list[str], said: str, jupyter: Path, tmp_path: Path, monkeypatch, capsys
):
    config = tmp_path / "clusterfn.yml"
    config.write_text("hosts:\n  campus: {address: a, scheduler: grid_engine}\n  bare: {address: b, scheduler: bare}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    monkeypatch.chdir(tmp_path)

    assert main(["kernel", "add", *words]) == 2
    assert said in capsys.readouterr().err and not jupyter.exists()
