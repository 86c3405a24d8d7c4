"""Clients on Windows and macOS, as far as this machine can tell: in a process from which taken is what they lack."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it takes away what Linux has")
FIXTURES = Path(__file__).parents[1] / "fixtures"
PLATFORMS = ["win32", "darwin"]
STRICT = ["-W", "error"] if sys.version_info < (3, 10) else ["-X", "warn_default_encoding", "-W", "error"]
Run = Callable[..., Any]


def program(name: str) -> str:
    """The text of a program of tests/fixtures/platforms."""
    return (FIXTURES / "platforms" / f"{name}.py").read_text(encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a text as a script of a platform ("win32", "win32 with an ssh", "darwin"); its last line, as JSON.

    Every warning is an error there.
    """

    def run(platform: str, text: str, **env: str) -> Any:
        name, *programs = platform.split(" with ")
        script = tmp_path / "script.py"
        become = f"import elsewhere\nelsewhere.become({name!r}, programs={bool(programs)!r})\n"
        script.write_text(become + text, encoding="utf-8")
        env["PYTHONPATH"] = str(FIXTURES)
        kept = {key: value for key, value in os.environ.items() if key in ("PATH", "CLUSTERFN_CONFIG")}
        home = {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "USERNAME": "ada", "CLUSTERFN_DEBUG": "1"}
        done = subprocess.run(
            [sys.executable, *STRICT, str(script), *programs],
            env={**kept, **home, **env}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=150,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_module_of_a_client_is_imported(run: Run, platform: str) -> None:
    names = run(platform, program("import_all"))

    ways = {f"clusterfn.hosts.transports.{way}" for way in ("paramiko", "openssh")}
    assert {"clusterfn.calls.call", *ways} <= {*names}
    assert "_clusterfn_wire.container" in names and len(names) > 50


@pytest.mark.parametrize(
    ("platform", "env", "ledger", "config"),
    [
        ("win32", {"LOCALAPPDATA": "@/Local", "APPDATA": "@/Roaming"}, "Local/clusterfn", "Roaming/clusterfn"),
        ("win32", {"APPDATA": "@/Roaming", "XDG_STATE_HOME": "@/x"}, "AppData/Local/clusterfn", "Roaming/clusterfn"),
        ("darwin", {}, "Library/Application Support/clusterfn", "Library/Application Support/clusterfn"),
        ("darwin", {"XDG_STATE_HOME": "@/x"}, "x/clusterfn", ".config/clusterfn"),
    ],
)
def test_what_is_remembered_lies_where_the_platform_keeps_it(run, tmp_path, platform, env, ledger, config):
    """A job is remembered and found again, and a clusterfn.yml in the user's folder is read."""
    (tmp_path / config).mkdir(parents=True)
    (tmp_path / config / "clusterfn.yml").write_text("hosts: {lab8: {scheduler: bare}}\n", encoding="utf-8")
    path, hosts = run(
        platform, program("remembered"), **{key: value.replace("@", str(tmp_path)) for key, value in env.items()}
    )

    assert path == str(tmp_path / config / "clusterfn.yml")
    assert hosts == ["lab8"] and (tmp_path / ledger / "jobs.jsonl").is_file()


@pytest.mark.parametrize(
    ("platform", "machine", "other_way"), [("win32", "a Windows machine", "WSL"), ("darwin", "a Mac", "")]
)
def test_a_call_on_the_machine_itself_is_rejected_in_one_sentence(run, platform, machine, other_way):
    text = """
import json, os
os.environ.pop("CLUSTERFN_CONFIG", None)
from clusterfn import ConfigError, cluster

@cluster
def double(x):
    return 2 * x

try:
    double(1)
except ConfigError as error:
    print(json.dumps([error.message, error.host, error.hint]))
"""
    message, host, hint = run(platform, text)

    assert (message, host) == (f"Jobs cannot run on {machine} itself", "local")
    assert "add a Linux host to clusterfn.yml" in hint and other_way in hint


def test_windows_has_no_control_master(run: Run, tmp_path: Path) -> None:
    """None is asked for though a ControlPath is set, and none is used; elsewhere it is asked."""
    (tmp_path / "config").write_text("Host lab8\n  ControlPath ~/.ssh/%C\n", encoding="utf-8")
    assert [run(platform, program("master")) for platform in ("win32", "darwin")] == [True, False]


CALLS = """
import _thread, contextlib, io, json, sys
from pathlib import Path
from clusterfn import File, Session, attach, cluster, jobs
from tests.programs import main

@cluster(host="far", outputs=["left.txt"])
def work(name, text):
    import sys
    print("printed", name)
    print("said", file=sys.stderr)
    with open("left.txt", "w") as file:
        file.write(open(text).read())
    return {"name": name, "platform": sys.platform}

class Own(Exception):
    pass

@cluster(host="far")
def fail():
    raise Own("as itself")

@cluster(host="far")
def wait():
    import time
    print("begun", flush=True)
    time.sleep(60)

@cluster(host="far")
def square(x):
    return x * x

class CtrlC(io.StringIO):
    def write(self, text):
        if "begun" in text:
            _thread.interrupt_main()
        return super().write(text)

told = {}
Path("text.txt").write_text("carried", encoding="utf-8")
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
    told["value"] = work("ada", File("text.txt"))
told["printed"], told["said"] = out.getvalue(), "said" in err.getvalue()
told["left"] = Path("left.txt").read_text(encoding="utf-8")
try:
    fail()
except Own as error:
    told["raised"] = [str(error), type(error.__cause__).__name__]
job = work.submit("bob", File("text.txt"))
told["attached"] = attach(job.id).result(150)["name"]
told["listed"] = [each.name for each in jobs("far") if each.id == job.id]
long = wait.submit()
long.stop()
told["stopped"] = type(long.exception(150)).__name__
told["map"] = square.map(range(4)).results()
with Session(host="far") as session:
    told["session"] = list(session.map(square, [5, 6]))
try:
    with contextlib.redirect_stdout(CtrlC()), contextlib.redirect_stderr(io.StringIO()):
        wait()
except KeyboardInterrupt:
    detached = next(job for job in jobs("far") if job.name == "wait")
    told["interrupted"] = detached.state
    attach(detached.id).stop()
with contextlib.redirect_stdout(io.StringIO()) as out:
    told["run"] = main(["run", "far", "--", "echo", "of a command"])
told["command"] = out.getvalue()
with contextlib.redirect_stdout(io.StringIO()) as out:
    told["check"] = main(["check", "far"])
told["steps"] = out.getvalue()
told["by ssh"] = fail.on("far-by-ssh").submit().exception(150).args if sys.argv[1:] else None
print(json.dumps(told))
"""


@pytest.fixture
def far(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clusterfn.yml with host `far` of the lab."""
    root = lab.home("bash") / f"platform-{secrets.token_hex(4)}"
    python = lab.python(f"3.{sys.version_info[1]}")
    lines = ["address: py36-bash", f"ssh_config: {lab.ssh_config}", "scheduler: bare", f"root: {root}"]
    text = "".join(f"    {line}\n" for line in [*lines, f'environment: "python:{python}"'])
    config = f"hosts:\n  far:\n{text}  far-by-ssh:\n    transport: openssh\n{text}"
    (tmp_path / "far.yml").write_text(config, encoding="utf-8")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "far.yml"))
    yield
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.lab
@pytest.mark.parametrize("platform", ["win32 with an ssh", "darwin", pytest.param("win32", marks=pytest.mark.long)])
def test_functions_run_on_a_host_by_ssh(far: None, run: Run, platform: str) -> None:
    told = run(platform, CALLS)

    assert told["value"] == {"name": "ada", "platform": "linux"} and told["left"] == "carried"
    assert told["printed"] == "printed ada\n" and told["said"]
    assert told["raised"][0] == "as itself"
    assert (told["attached"], told["listed"], told["stopped"]) == ("bob", ["work"], "Cancelled")
    assert (told["map"], told["session"], told["interrupted"]) == ([0, 1, 4, 9], [25, 36], "RUNNING")
    assert (told["run"], told["command"]) == (0, "of a command\n")
    way = "by openssh" if platform == "darwin" else "by paramiko"
    assert told["check"] == 0 and way in told["steps"], told["steps"]
    assert told["by ssh"] == (["as itself"] if "ssh" in platform else None)
