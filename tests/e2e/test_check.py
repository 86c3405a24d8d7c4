"""`clusterfn check` on hosts of the lab that lack something: the step that finds it, and the line that mends it."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs import main

pytestmark = pytest.mark.lab


@pytest.fixture
def check(hosts: Any, lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., str]:
    """Checks one host, with these further lines of clusterfn.yml, and runs no function; what is printed."""

    def run(name: str, extra: str = "", without: str = "", words: tuple[str, ...] = ()) -> str:
        path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, extra, names=(name,))
        lines = [line for line in path.read_text().splitlines() if not re.search(without or "$^", line)]
        path.write_text("\n".join(lines) + "\n")
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
        main(["check", "--no-job", name, *words])
        return str(capsys.readouterr().out)

    return run


def ended(printed: str, word: str, step: str) -> tuple[str, str]:
    """What a step said, and what mends it."""
    pattern = rf"^{word}  {re.escape(step)} +(.*)\n((?: .*\n)*)"
    found = re.search(pattern, printed, re.MULTILINE)
    assert found, printed
    return found[1], found[2].partition("next: ")[2].strip()


def test_a_host_in_order_passes_every_step(check):
    printed = check("tensor01")

    troubles = re.findall("^(?:FAIL|WARN).*", printed, re.MULTILINE)
    assert not [line for line in troubles if "also holds jobs of a host" not in line]  # the lab's hosts share a root
    assert ended(printed, "PASS", "noexec")[0] == "programs on it can be started"
    assert "files free" in ended(printed, "PASS", "space")[0]
    assert "compute capability 8.6; driver 575.57.08" in ended(printed, "PASS", "gpus")[0]


@pytest.fixture
def tiny(lab: Any) -> str:
    """A host with a home of 8 MB that nobody has used: bridges of three releases would fill it."""
    lab.wipe("tiny")
    return "py36-tiny"


def test_a_home_of_eight_megabytes(check, tiny):
    said, mends = ended(check(tiny, without="root:"), "FAIL", "space")

    assert re.match(r"only \d(\.\d)? MB is left in .*/cftiny/.clusterfn", said)
    assert mends.startswith(
        "free some space (`du -xhd1 /opt/clusterfn-lab/home/cftiny | sort -h`), or set root: of host"
    )


def test_a_host_without_python3_in_its_path(check):
    assert "runs the agent and the supervisor" in ended(check("nopython-bash"), "PASS", "python")[0]


@pytest.fixture
def noexec(lab: Any) -> Iterator[Path]:
    """A folder of cfbash's on which nothing can be started."""
    folder = Path(tempfile.mkdtemp(prefix="clusterfn-noexec-", dir=lab.home("cfbash")))
    with lab.disk(folder, "cfbash", "64m", "noexec"):
        yield folder
    folder.rmdir()


@pytest.mark.fault("35")
def test_a_root_from_which_nothing_can_be_started(check, noexec, lab):
    said, mends = ended(check("tensor01", f"root: {noexec}/root", without="root: ~"), "WARN", "noexec")

    assert said.startswith(f"programs in {noexec}/root cannot be started: it is mounted noexec")
    assert mends.startswith(f"set `root: {lab.home('bash')}/.clusterfn` for host tensor01")


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lab's PyTorch is for Python 3.11")
def test_a_pytorch_that_cannot_use_the_gpus_fails_the_calculation(check, lab, hosts, gpubox_reset, capsys):
    check("tensor01")

    code = main(["check", "tensor01", "--environment", f"python:{lab.torch_python}", "--gpus", "1"])

    assert code == 1
    said, mends = ended(capsys.readouterr().out, "FAIL", "pytorch")
    assert said.startswith("this job asked for 1 GPU, and PyTorch 2.13.0") and "a build without CUDA" in said
    assert mends.startswith("install a build of PyTorch with CUDA")


def test_for_machines_all_of_it_is_one_object(check, tiny):
    told = json.loads(check(tiny, without="root:", words=("--json",)))

    steps = {step["name"]: step for step in told["steps"]}
    assert (told["host"], told["ready"]) == (tiny, False)
    assert steps["space"]["result"] == "fail"
    assert "free some space" in steps["space"]["hint"]
    assert steps["function"] == {
        "name": "function", "result": "skip", "message": "needs space", "evidence": [], "hint": "",
    }  # fmt: skip
