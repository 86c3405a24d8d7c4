"""The words of a command line, by the program itself: what is wrong with them, and what to write instead."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import main


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run", "there is nothing to run; write a script, or clusterfn run [HOST] -- COMMAND"),
        ("list", "there is no command 'list'; did you mean jobs?"),
        ("hold tensor01", "there is no command 'hold'; did you mean clusterfn.Session(…) in Python?"),
        ("help run", "there is no command 'help'; write clusterfn run --help"),
        ("version", "there is no command 'version'; did you mean --version?"),
        ("jobs --host tensor01", "; write the host without --host: clusterfn jobs tensor01"),
        ("jobs --jsno", "clusterfn jobs: error: unrecognized arguments: --jsno; did you mean --json?"),
        ("--verison", "clusterfn: error: unrecognized arguments: --verison; did you mean --version?"),
        ("--hots x", "--hots; write the host without --host: clusterfn COMMAND x"),
        ("--gpus 1 run f.py::f", "--gpus; write options after the command: clusterfn COMMAND --gpus"),
        ("run --gpu 1 f.py::f", "did you mean --gpus? An argument of the function is written gpu=1"),
        ("run --epochs 3 f.py::f", "--epochs; an argument of the function is written epochs=3"),
        ("run f.py::f -1e-3", "unrecognized arguments: -1e-3; put -- before it: clusterfn run ... -- -1e-3"),
        ("run --keep 2 f.py::f", "; write keep=... in @cluster. An argument of the function is written keep=2"),
        (
            "run f.py::f --partition gpu",
            "; write --slurm partition=gpu, or partition: below slurm: in clusterfn.yml. "
            "An argument of the function is written partition=gpu",
        ),
        ("run -c four f.py::f", "-c; an argument of the function is written c=four"),
        ("train.py --lr 1", "there is no command 'train.py'; to run it, write clusterfn run [HOST] train.py"),
        ("sh train.sh", "to run that program on a host, write clusterfn run [HOST] -- sh"),
        ("sbatch job.sh", "there is no command 'sbatch'; did you mean run?"),
        ("env lst", "clusterfn env: error: there is no command 'env lst'; did you mean list?"),
        ("init --scheduler slrm ada@lab8", "; did you mean slurm?"),
        ("logs 7f3a -g", "clusterfn logs: error: unrecognized arguments: -g"),
    ],
)
def test_wrong_words_are_answered_with_what_to_write(line, said, capsys):
    assert main(line.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "usage: clusterfn" in printed.err
    assert printed.err.endswith(f"{said}\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("check tensr", "ConfigError: there is no host 'tensr'; did you mean tensor01?"),
        ("run nvidia-smi", "for a command, write -- before it: clusterfn run -- nvidia-smi"),
        ("run tensr -- ls", "there is no host 'tensr'; did you mean tensor01?"),
        ("run --", "next:  clusterfn run [HOST] -- COMMAND"), ("run tensor01 -m", "clusterfn run [HOST] -m MODULE"),
        ("run tensor01 job", "for a script, its path with a slash; for a module, -m before it"),
        ("run --map lr -- ls", "write it as --map lr=1e-3,1e-4"),
        ("run --map seed=4..0 -- ls {seed}", "--map 'seed=4..0' names no values"),
        ("run --map 'seed=0\n1\n2' -- ls {seed}", "put commas between them: --map seed=$(seq -s, 0 9), or seed=0..9"),
        ("run --map 'x=a b' -- 'ls {x} | wc'", "a shell would not read the value 'a b' of {x} as one word"),
        ("run --map lr=1 -- ls", "the command has no place {lr}"), ("run --env A -- ls", "write --env A=VALUE"),
        ("run --result x.json f.py::f", "--result is for commands and scripts"),
        ("run tensor01", "there is nothing to run on tensor01"),
        ("run tensor01,tensor01 ls", "clusterfn run tensor01,tensor01 -- ls"),
        ("run tensor01 'ls | wc'", "clusterfn run tensor01 -- 'ls | wc'; for a function"),
        ("run tensor01 -- --gpus 1 ls", "options of clusterfn come before --: clusterfn run [HOST] --gpus ... --"),
        ("run tensor01 --memory 16 -- ls", 'next:  write it with a unit: memory="16GB"'),
        ("run -- ls", "next:  clusterfn run tensor01 ...; or add `default_host: tensor01`"),
        ("run pkg/train.py::f 1", "next:  clusterfn run tensor01 ...; or add `default_host: tensor01`"),
    ],
)  # fmt: skip
def test_a_command_that_is_nearly_right_is_reported_with_how_it_is_written(
    line, said, two_hosts, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/nowhere")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("def f(x): pass\n")
    (tmp_path / "job").write_text("#!/bin/sh\n")

    assert main(shlex.split(line)) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.out == ""


@pytest.mark.parametrize("line", ["check", "jobs", "rm --all", "cancel --all --state pending --number 2"])
def test_without_a_host_the_hint_names_one_and_keeps_the_jobs_that_were_named(two_hosts, line, capsys):
    assert main(line.split()) == 2
    expected = f"next:  clusterfn {line} tensor01; or add `default_host: tensor01` to {two_hosts}\n"
    assert capsys.readouterr().err.endswith(expected)


def test_a_host_behind_the_packages_is_not_taken_for_a_package(two_hosts, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERFN_HOST", "cluster")

    assert main(["env", "build", "--packages", "python=3.11", "numpy", "tensor01"]) == 2
    said = capsys.readouterr().err

    assert "--packages takes tensor01 for a package, but it is a host of" in said
    assert "clusterfn env build tensor01 --packages" in said


@pytest.mark.parametrize("words", [["jobs", "nowhere"], ["gpus", "nowhere"], ["logs", "7f3a", "nowhere"], ["rm"]])
def test_an_error_is_json_too_where_json_is_asked_for(words, two_hosts, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERFN_HOST", "nowhere")

    assert main([*words, "--json"]) == 2
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert (error["type"], error["exit_code"]) == ("ConfigError", 2)
    assert error["message"] in printed.err and error["hint"] in printed.err


TRAIN = """
from clusterfn import cluster
@cluster(cores=3)
def train(lr, layers=2): return lr
class Kind: pass
async def cube(x): return x
if __name__ == '__main__': raise SystemExit('it was run')
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose name no other module of this process has."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / f"mine_{abs(hash(tmp_path)) % 10**8}.py"
    path.write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    Path("clusterfn.yml").write_text("hosts: {}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", "clusterfn.yml")
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("{file}::", "next:  write it as train.py::train\n"),
        ("{file}::trian", "no function 'trian'; did you mean train?"),
        ("empty.py::zzz", "next:  it has no functions; to run it as a script, leave out ::zzz\n"),
        ("{file}::Kind", "is not a function"),
        ("x{file}::train", "did you mean {file}?"),
        ("train", "names no function"),
        ("json.py::f", "already imported"),
        ("{file}::train", "it is train(lr, layers=2)"),
        ("{file}::train 1 rate=2", "it is train(lr, layers=2)"),
    ],
)
def test_a_wrong_function_or_argument_is_reported_before_anything_is_sent(words, said, file, capsys):
    Path("json.py").write_text("def f(): pass\n")
    Path("empty.py").touch()

    assert main(["run", *words.format(file=file.name).split()]) == 2
    assert said.format(file=file.name) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says", "hides"),
    [
        ("def f():\n    return 1\n\nprint(undefined_name)\n",
         ["NameError: name 'undefined_name' is not defined", "line 4"], "cli/target.py"),
        ("from clusterfn import cluster\n@cluster(host='nowhere')\ndef f():\n    return 1\nf()\n",
         ["{name} calls a decorated function while it is imported", "line 5",
          'put the call under `if __name__ == "__main__":`'], "decorator.py"),
        ("raise SystemExit(0)\n", ["SystemExit"], "cli/target.py"),
        *((f"from clusterfn import cluster\n{line}\ndef f():\n    return 1\n", ["ConfigError: "], "__main__")
          for line in ("@cluster(gpu=1)", "@cluster(memory=16)", "@(lambda f: cluster(f).with_options(time=5))",
                       "@(lambda f: cluster(f).with_options(gpu=1))", "@cluster()\n@classmethod")),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_imported_shows_the_users_lines_alone(text, says, hides, file, capsys):
    file.write_text(text)

    assert main(["run", f"{file.name}::f"]) == 2

    said = capsys.readouterr().err
    assert [part for part in says if part.format(name=file.name) not in said] == []
    assert hides not in said


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
