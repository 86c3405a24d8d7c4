"""The completion of a shell: all our commands, and words that are asked for when they are needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import main


@pytest.fixture
def one_job(tmp_path, monkeypatch) -> None:
    config = tmp_path / "clusterfn.yml"
    config.write_text("hosts:\n  tensor01: {scheduler: bare}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "state/clusterfn").mkdir(parents=True)
    sent = [{"id": each, "host": "tensor01", "config": str(config), "at": 1} for each in ("7f3a", "90aa", "90aa")]
    (tmp_path / "state/clusterfn/jobs.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in sent))


def test_hosts_and_job_ids_are_known_without_a_host_being_asked(one_job, capsys):
    assert main(["completion", "--words", "hosts"]) == 0
    assert capsys.readouterr().out.split() == ["local", "tensor01"]
    assert main(["completion", "--words", "jobs"]) == 0
    assert capsys.readouterr().out.split() == ["90aa", "7f3a", "local", "tensor01"]


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_bash_completes_commands_options_and_ids(one_job, tmp_path, capsys):
    pytest.importorskip("shtab")
    script = tmp_path / "completion.bash"
    assert main(["completion", "bash"]) == 0
    script.write_text(capsys.readouterr().out)
    words = tmp_path / "clusterfn"
    words.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clusterfn "$@"\n')
    words.chmod(0o700)

    def completed(*typed: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in ("clusterfn", *typed))
        code = f"source '{script}'; COMP_WORDS=({line}); COMP_CWORD={len(typed)}; _shtab_clusterfn; "
        asked = subprocess.run(
            ["bash", "--norc", "-c", code + 'printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "CLUSTERFN_CONFIG": str(tmp_path / "clusterfn.yml")}, timeout=150,
            check=False,
        )  # fmt: skip
        return asked.stdout.split()

    assert completed("canc") == ["cancel"]
    assert "--older" in completed("clean", "--o")
    assert completed("gpus", "ten") == ["tensor01"]
    assert main(["completion", "zsh"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("#compdef clusterfn") and "_clusterfn_hosts()" in text and "_clusterfn_jobs()" in text


def test_a_shell_must_be_named_and_shtab_installed(monkeypatch, capsys):
    assert main(["completion"]) == 2
    assert "clusterfn completion bash, or zsh" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "zsh"]) == 2
    assert "next:  pip install '.[completion]' in your clone of clusterfn" in capsys.readouterr().err


def test_the_version_is_answered_by_two_modules(tmp_path: Path):
    program = (
        "import sys; before = {*sys.modules}; import clusterfn.cli; code = clusterfn.cli.main(['--version']);"
        " print(sorted({*sys.modules} - before), file=sys.stderr); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=150, check=True)

    assert ran.stdout.startswith("clusterfn ")
    assert ran.stderr.strip() == "['__future__', 'clusterfn', 'clusterfn.cli']"
