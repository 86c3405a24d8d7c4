"""The steps of CONTRIBUTING.md, each followed in a copy of the sources: what they promise works, in no more files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "fixtures" / "contributing"
Edit = tuple[str, str, str]  # a file, a text that it has once ("" for the end), and what follows that text
OPTION_ON_HOST: list[Edit] = [
    ("clusterfn/config/options.py",
     "        secrets: Names of local environment variables whose values only this job gets.\n",
     "        open_files: How many files the function may open at a time.\n"),
    ("clusterfn/config/options.py", "    secrets: Sequence[str] | None\n", "    open_files: int | None\n"),
    ("clusterfn/config/options.py", "    cores: int | None = None\n", "    open_files: int = 0\n"),
    ("clusterfn/config/options.py", '    "cores": ("cores", checks.whole_number(1)),\n',
     '    "open_files": ("open_files", checks.whole_number(16)),\n'),
    ("clusterfn/config/options.py", 'PASSED_ON = ("warn_s", ', '"open_files", '),
    ("clusterfn/bridge/supervisor/spec.py", "    warn_s: float\n", "    open_files: int\n"),
    ("clusterfn/bridge/supervisor/worker_process.py", '    os.umask(spec.get("umask", 0o077))\n',
     '    if spec.get("open_files"):\n' "        import resource\n\n"
     "        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
     '        resource.setrlimit(resource.RLIMIT_NOFILE, (spec["open_files"], hard))\n'),
    ("docs/reference/protocol.md", "", "`open_files` is there if the call has it.\n"),
    ("docs/reference/api.md", "| `cores` | 1 | processor cores |\n", "| `open_files` | the host's | open files |\n"),
    ("CHANGELOG.md", "", "- `open_files=` limits the open files of a call.\n"),
]  # fmt: skip
OPEN_FILES = """
from clusterfn import cluster

@cluster(host="local")
def most(_):
    import resource
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

if __name__ == "__main__":
    few = most.with_options(open_files=128)
    print(few(0), few.map([1]).results(), most(0) != 128)
"""
OUTCOME: list[Edit] = [
    ("clusterfn/bridge/layout.py", 'TIME = "time"\n', 'BUSY = "busy"  # it ended with EX_TEMPFAIL\n'),
    ("clusterfn/bridge/layout.py", "        DISK, HOST_DISK, LOST,", " BUSY,"),
    ("clusterfn/bridge/supervisor/classify_exit.py", "from ..layout import ", "BUSY, "),
    ("clusterfn/bridge/supervisor/classify_exit.py", "        code = os.WEXITSTATUS(status)\n",
     "        if code == os.EX_TEMPFAIL:\n"
     '            return Verdict(BUSY, "the function could not run", code=code, stage=stage, hint="call later")\n'),
    ("clusterfn/errors.py", "  OutOfMemory  TimeLimit  Stalled  Preempted  NodeFailed\n",
     "            ├── TemporaryFailure\n"),
    ("clusterfn/errors.py", '    """The machine that ran the job went down."""\n',
     '\n\nclass TemporaryFailure(WorkerLost):\n    """The function could not run now."""\n'),
    ("clusterfn/calls/outcome_errors.py", "    layout.TIME: errors.TimeLimit,\n",
     "    layout.BUSY: errors.TemporaryFailure,\n"),
    ("clusterfn/__init__.py", "        Stalled,\n", "        TemporaryFailure,\n"),
    ("clusterfn/__init__.py", '    "Stalled",\n', '    "TemporaryFailure",\n'),
    ("docs/reference/errors.md", "", "| `TemporaryFailure` | it ended with EX_TEMPFAIL | call later |\n"),
    ("CHANGELOG.md", "", "- A function that ends with EX_TEMPFAIL raises `TemporaryFailure`.\n"),
]  # fmt: skip
ENDS = """
import clusterfn, os

@clusterfn.cluster(host="local")
def gives_up(_):
    os._exit(os.EX_TEMPFAIL)

if __name__ == "__main__":
    job = gives_up.submit(0)
    try:
        job.result()
    except clusterfn.TemporaryFailure as error:
        print(error.message, error.hint, job.state)
    group = gives_up.map([1])
    group.wait()
    print(*(type(error).__name__ for error in group.failed.values()))
"""
COMMAND: list[Edit] = [
    ("clusterfn/cli/greet.py", "",
     '"""`clusterfn greet HOST`."""\n\n\ndef greet(args):\n    print("hello", args.host)\n    return 3\n'),
    ("clusterfn/cli/parser.py", "    _add_jobs(commands)\n",
     '    add_command(commands, "greet", "greet.greet", "greet a host").add_argument("host", metavar="HOST")\n'),
    ("clusterfn/cli/argument_parser.py", "EXAMPLES: Mapping[str, Sequence[str]] = {\n",
     '    "greet": ("greet tensor01",),\n'),
    ("docs/reference/cli.md", "", "\n`clusterfn greet HOST` greets.\n"),
    ("CHANGELOG.md", "", "- `clusterfn greet` greets a host.\n"),
]  # fmt: skip
# `environment="project:~/work"` is a folder with a virtual environment in `.venv`.
ENVIRONMENT_KIND: list[Edit] = [
    ("clusterfn/config/environment_kinds.py", "ENVIRONMENT_KINDS: Mapping[str, EnvironmentKind] = {\n",
     '    "project": EnvironmentKind("~/work", lambda folder: _in_folder(posixpath.join(folder, ".venv"))),\n'),
    ("README.md", "| `conda:name` | a conda environment by its name |\n", "| `project:~/work` | its `.venv` |\n"),
    ("CHANGELOG.md", "", '- `environment="project:~/work"` is the virtual environment of a project.\n'),
]  # fmt: skip
PREFIXES = """
import json, sys
from clusterfn import cluster

@cluster(host="local", environment=sys.argv[1])
def describe():
    import os, subprocess, sys
    started = subprocess.run(["python", "-c", "import sys; print(sys.prefix)"], stdout=subprocess.PIPE, text=True)
    return sys.prefix, os.environ["PATH"], started.stdout.strip()

if __name__ == "__main__":
    print(json.dumps(describe()))
"""
LSF_OF_CLIENT = (PROGRAMS / "lsf_of_client.py").read_text(encoding="utf-8")
LSF_ON_HOST = (PROGRAMS / "lsf_on_host.py").read_text(encoding="utf-8")
SCHEDULER: list[Edit] = [
    ("clusterfn/scheduler/lsf.py", "", LSF_OF_CLIENT),
    ("clusterfn/bridge/schedulers/lsf.py", "", LSF_ON_HOST),
    ("clusterfn/bridge/schedulers/registry.py", "SCHEDULERS = {\n",
     '    "lsf": Registration(on_host="lsf.LsfOnHost", client="lsf.Lsf", site="lsf.LsfSite", keys="lsf.KEYS",\n'
     '                        job_variable="LSB_JOBID", task_variable="LSB_JOBINDEX"),\n'),
]  # fmt: skip
SITE = (PROGRAMS / "survey.py").read_text(encoding="utf-8")


def steps_of(title: str) -> set[str]:
    """The files that a section of CONTRIBUTING.md names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"`((?:clusterfn|docs)/[\w/.]+|(?:README|CHANGELOG)\.md)`", section))


def lines_of(folder: str) -> int:
    """Count the lines of its Python files; `folder/*.py` means those beside its folders."""
    place, is_top = ROOT / folder.partition("/*")[0], folder.endswith("*.py")
    files = place.glob("*.py") if is_top else place.rglob("*.py")
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def test_each_folder_keeps_within_its_budget_of_lines() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/*.]+)` \| ([\d,]+) \|", text, re.MULTILINE)
    budget = {folder: int(most.replace(",", "")) for folder, most in rows}
    places = [path.parent for top in ("clusterfn", "tests") for path in (ROOT / top).glob("*/__init__.py")]
    folders = {path.relative_to(ROOT).as_posix() for path in places} | {"clusterfn/*.py", "tests/*.py", "benchmarks"}

    assert budget.keys() == folders
    too_long = {folder: lines_of(folder) for folder, most in budget.items() if lines_of(folder) > most}
    assert not too_long, "write less, or change the table of CONTRIBUTING.md with a reason"


def edited_copy(folder: Path, edits: list[Edit]) -> None:
    """Copy the sources to a folder, and make these edits there."""
    for name in ("clusterfn", "docs"):
        # With byte code, which its Python would compile anew, but not what another process just writes of it.
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copytree(ROOT / "templates", folder / "clusterfn" / "templates")
    for name in ("README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    for name, anchor, added in edits:
        path = folder / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        assert not anchor or text.count(anchor) == 1, f"{name} has this {text.count(anchor)} times: {anchor}"
        before, _, after = text.partition(anchor) if anchor else (text, "", "")
        path.write_text(before + anchor + added + after, encoding="utf-8")


def run_there(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy in place of the sources, and this machine as its only host."""
    host = f"{{scheduler: local, root: {folder}/root, limits: {{cores: 64}}}}"  # other tests hold this machine's
    (folder / "clusterfn.yml").write_text(f"hosts:\n  local: {host}\n")
    env = {**os.environ, "PYTHONPATH": str(folder), "CLUSTERFN_CONFIG": str(folder / "clusterfn.yml")}
    return subprocess.run([sys.executable, *argv], cwd=folder, env=env, capture_output=True, text=True, timeout=150)


@pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")
def test_an_option_with_an_effect_on_the_host_is_added_by_the_steps(tmp_path: Path) -> None:
    edited_copy(tmp_path, OPTION_ON_HOST)
    (tmp_path / "limits.py").write_text(OPEN_FILES)

    ran = run_there(tmp_path, "limits.py")

    assert ran.stdout.splitlines() == ["128 [128] True"], ran.stderr
    assert {name for name, _, _ in OPTION_ON_HOST} <= steps_of("Add an option with an effect on the host")
    of_any_option = steps_of("Add an option of a call") - {"clusterfn/calls/demand.py"}
    assert len(of_any_option) == 3 and of_any_option <= {name for name, _, _ in OPTION_ON_HOST}


@pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")
def test_a_kind_of_outcome_is_added_by_the_steps_and_raised_as_its_class(tmp_path: Path) -> None:
    edited_copy(tmp_path, OUTCOME)
    (tmp_path / "ends.py").write_text(ENDS)

    ran = run_there(tmp_path, "ends.py")

    assert ran.stdout.splitlines() == ["the function could not run call later DIED", "TemporaryFailure"], ran.stderr
    assert {name for name, _, _ in OUTCOME} <= steps_of("Add a kind of outcome")


def test_a_command_is_added_by_the_steps(tmp_path: Path) -> None:
    edited_copy(tmp_path, COMMAND)

    ran = run_there(tmp_path, "-m", "clusterfn", "greet", "tensor01")
    shown = run_there(tmp_path, "-m", "clusterfn", "greet", "--help")

    assert (ran.returncode, ran.stdout) == (3, "hello tensor01\n"), ran.stderr
    assert "\n  clusterfn greet tensor01\n\nGreet a host.\n" in shown.stdout
    assert {name for name, _, _ in COMMAND} - {"clusterfn/cli/greet.py"} == steps_of("Add a command")


@pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")
def test_a_kind_of_environment_is_added_by_the_steps_and_runs_the_function(tmp_path: Path) -> None:
    edited_copy(tmp_path, ENVIRONMENT_KIND)
    folder = tmp_path / "work" / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (tmp_path / "prefixes.py").write_text(PREFIXES)

    ran = run_there(tmp_path, "prefixes.py", f"project:{folder.parent}")

    assert ran.returncode == 0, ran.stderr
    prefix, path, started = json.loads(ran.stdout)
    assert prefix == started == str(folder)
    assert path.split(os.pathsep)[0] == str(folder / "bin")
    assert {name for name, _, _ in ENVIRONMENT_KIND} == steps_of("Add an environment kind")


def test_a_scheduler_is_added_by_the_steps_and_is_known_to_init_and_check(tmp_path: Path) -> None:
    edited_copy(tmp_path, SCHEDULER)
    (tmp_path / "survey.py").write_text(SITE)

    ran = run_there(tmp_path, "survey.py")

    assert ran.stdout.splitlines() == [
        "  LSF with one queue",
        "{'scheduler': 'lsf', 'root': '~/x', 'lsf': {'queue': 'short'}}",
        "LSF blaunch",
        "LSF has the queue short",
    ], ran.stderr
    assert {name for name, anchor, _ in SCHEDULER if anchor} == {"clusterfn/bridge/schedulers/registry.py"}
    assert "clusterfn/bridge/schedulers/registry.py" in steps_of("Add a scheduler")
