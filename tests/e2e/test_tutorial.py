"""The tutorial is played from its text alone, by somebody with nothing but a clone, a terminal and an empty home.

Each indented line of docs/tutorial.md is typed, in order; each script is saved under the name that the page gives; what
the page shows must appear. Only names of hosts and ids of jobs are replaced.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import REPOSITORY
from tests.e2e.terminal import Terminal
from tests.e2e.test_first_hour import PASSWORD, RETURNS, TRUSTS, Laptop

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself"),
]
SECTION = re.compile(r"^## \d\. ([^\n]+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
STEP = re.compile(
    r"Save this[^`\n]*`(?P<file>\w+\.py)`[^`]*\n```python\n(?P<script>.*?)^```"
    r"|^```\n(?P<shown>.*?)^```"
    r"|^```\w+\n.*?^```"  # lines of a configuration, which are there to be read
    r"|^    (?P<typed>\S[^\n]*)$",
    re.DOTALL | re.MULTILINE,
)
JOB = re.compile(r"\b[0-9a-f]{16}\b")
JOB_OF_THE_PAGE = re.compile(r"^    clusterfn result ([0-9a-f]{4})$", re.MULTILINE)
WITHOUT_SERVER = ("Install", "Run a function in another process", "Handle an error", "Run several calls at once")
SERVER, GPU, SLURM, LAST = "Add your own server", "Use a GPU", "Use SLURM", "Close your laptop"
SHELL = ("bash", "--norc", "--noprofile", "-i")
PYTHONS = Path(sys.executable).resolve().parent


class Reader:
    """Does what the page says.

    Args:
        home: The reader's home.
        names: What to type for a word of the page, such as the address of a server.

    Attributes:
        seen: What the last command has shown.
    """

    def __init__(self, terminal: Terminal, home: Path, clone: Path, names: Mapping[str, str]) -> None:
        page = (clone / "docs" / "tutorial.md").read_text(encoding="utf-8")
        self.sections = dict(SECTION.findall(page))
        self._terminal = terminal
        self._folder = home / "clusterfn-tutorial"
        self._names = dict(names)
        (self._job_of_the_page,) = JOB_OF_THE_PAGE.findall(page)
        self.seen = ""

    def follow(self, title: str, answers: Mapping[str, str] | None = None) -> None:
        """Play one section."""
        done = [self._take(step, answers or {}) for step in STEP.finditer(self.sections[title])]
        assert any(done), f"nothing to do in {title}"

    def _take(self, step: re.Match[str], answers: Mapping[str, str]) -> bool:
        if step["file"]:
            (self._folder / step["file"]).write_text(step["script"], encoding="utf-8")
        elif step["typed"]:
            self._type(" ".join(self._names.get(word, word) for word in step["typed"].split(" ")), answers)
        elif step["shown"]:
            missing = [line for line in step["shown"].splitlines() if not re.search(pattern_of(line), self.seen)]
            assert missing == [], self.seen
        return bool(step["typed"])

    def _type(self, line: str, answers: Mapping[str, str]) -> None:
        self.seen = self._terminal.command(line, answers, timeout_s=400)
        assert "code 0" in self._terminal.command("echo code $?", {}), self.seen
        if found := JOB.search(self.seen):
            self._names[self._job_of_the_page] = found[0][:4]


def pattern_of(line: str) -> str:
    """A line of the page as it may appear: each job has another id."""
    return JOB.sub("[0-9a-f]{16}", re.escape(line.strip()))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The last commit."""
    subprocess.run(["git", "-C", str(REPOSITORY), "archive", "-o", f"{tmp_path}/clone.tar", "HEAD"], check=True)
    with tarfile.open(tmp_path / "clone.tar") as archive:
        archive.extractall(tmp_path / "clone")
    return tmp_path / "clone"


def test_each_section_is_played() -> None:
    sections = dict(SECTION.findall((REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")))

    assert tuple(sections) == (*WITHOUT_SERVER, SERVER, GPU, SLURM, LAST)


def test_the_tutorial_leads_to_results_without_a_server(clone: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    env = {**kept, "HOME": str(home), "PATH": f"{PYTHONS}:/usr/bin:/bin", "TERM": "xterm", "LANG": "C.UTF-8"}
    terminal = Terminal(SHELL, clone, env)
    reader = Reader(terminal, home, clone, {"cluster": "local"})
    try:
        for title in (*WITHOUT_SERVER, LAST):
            reader.follow(title)
    finally:
        terminal.close()

    assert "\n[2, 3, 5, 7, 11, " in reader.seen
    saved = {path.name for path in (home / "clusterfn-tutorial").glob("*.py")}
    assert saved == {"cubes.py", "half.py", "mistake.py", "primes.py"}


@pytest.mark.lab
def test_the_tutorial_leads_to_results_on_a_server_and_on_slurm(clone: Path, tmp_path: Path, lab: Any) -> None:
    """All of it but the GPU, for which the lab has no PyTorch with CUDA."""
    machine = tmp_path / "laptop"
    machine.mkdir()
    laptop = Laptop(machine, PYTHONS)
    terminal = Terminal(laptop.inside(*SHELL), clone, laptop.env)
    with lab.newcomer() as ada, lab.newcomer() as eve:
        names = {
            "ada@tensor01.example.edu": f"{ada.name}@127.0.0.1:{lab.host('password').port}",
            "ada@login.cluster.example.edu": f"{eve.name}@127.0.0.1:{lab.host('campus').port}",
        }
        reader = Reader(terminal, laptop.home, clone, names)
        try:
            for title in WITHOUT_SERVER:
                reader.follow(title)
            reader.follow(SERVER, answers_of("tensor01", ada.password))
            reader.follow(SLURM, answers_of("cluster", eve.password))
            reader.follow(LAST)
        finally:
            terminal.close()

    assert "\n[2, 3, 5, 7, 11, " in reader.seen
    assert "tensor01 is ready" in terminal.seen and "cluster is ready" in terminal.seen
    assert re.search(r"hello from \S+, Python 3\.", terminal.seen)


def answers_of(name: str, password: str) -> dict[str, str]:
    """What a reader answers `init`: the name that it would propose for the address of the page."""
    return {r"A short name for it \[[^\]]*\]: $": name, **RETURNS, **TRUSTS, PASSWORD: password}
