"""A command as a function: its places, its project, its name, and what is wrong with it before anything is sent."""

from __future__ import annotations

import contextlib
import inspect
import subprocess

import pytest

import clusterfn
from clusterfn import ConfigError
from clusterfn.bridge.worker.command_line import NotPlain, fill, fill_words
from clusterfn.public_api import check_values


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working directory, with a script, a module, and files that do not travel."""
    here = tmp_path / "project"
    for name, text in {
        "train.py": "print(1)\n", "job.sh": "echo\n", "dos.sh": "#!/bin/sh\r\necho\r\n", "pkg/train.py": "",
        "local.py": "", ".gitignore": "local.py\n", ".env": "KEY=1", "data/x.csv": "",
    }.items():  # fmt: skip
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(text.encode())
    (tmp_path / "shared.py").write_text("")
    subprocess.run(["git", "init", "-q"], cwd=here, check=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLUSTERFN_HOST", raising=False)
    return here


def sent(line, **options):
    """What a command is made of."""
    return clusterfn.command(line, **options).__wrapped__.args[0]


def names_sent(monkeypatch, folder, line="nvidia-smi"):
    """The files of a folder that go with a command."""
    monkeypatch.chdir(folder)
    return {each.name for each in sent(line)["project"].contents().files}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torchrun --nproc-per-node 2 train.py", ("torchrun", "--nproc-per-node", "2", "train.py")),
        ("python train.py --name 'a b'", ("python", "train.py", "--name", "a b")),
        (["python", "-c", "print('$HOME')"], ("python", "-c", "print('$HOME')")),
        *[(line, tuple(line.split())) for line in ("bash job.sh", "python -c pass", "bash -c ls", "python --version")],
        ("python train.py | tee log", ()), ("LR=1 python train.py", ()), ("cat *.txt", ()), ("echo $HOME", ()),
        ("exit 3", ()), ("source env.sh", ()),
    ],
)  # fmt: skip
def test_a_list_is_exact_and_a_text_goes_to_a_shell_only_if_it_needs_one(project, line, words):
    read = sent(line)

    assert (read["words"], bool(read["line"])) == (words, not words)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("python train.py --lr {lr} --name {lr}-{seed}", ("lr", "seed")),
        (["awk", "{print $1}", '{"a": {"b": 1}}', "${HOME}", "{{lr}}"], ()),
    ],
)
def test_places_are_names_in_single_braces(project, line, names):
    assert tuple(inspect.signature(clusterfn.command(line)).parameters) == names
    assert sent(["echo", "{{lr}}"])["words"] == ("echo", "{lr}"), "doubled braces are text"


def test_its_places_are_its_parameters(project):
    with pytest.raises(TypeError, match="'lr'"):
        clusterfn.command("python train.py --lr {lr}", host="local").submit()
    with pytest.raises(TypeError, match="rate"):
        clusterfn.command("python train.py --lr {lr}", host="local").submit(lr=1, rate=2)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("torchrun --nproc-per-node 2 train.py", "train"), ("python -m pkg.train --lr 1", "pkg.train"),
        ("./job.sh a b", "job"), ("nvidia-smi -L", "nvidia-smi"), ("zcat *.gz | wc -l", "zcat"),
        ("python clean.py && python train.py", "clean"), ("train.py", "train"), ("~no-one/bin/tool a", "tool"),
    ],
)  # fmt: skip
def test_a_job_has_the_name_of_the_script_the_module_or_the_program(project, line, name):
    assert clusterfn.command(line).__name__ == name


def test_git_decides_what_belongs_to_a_project_and_keys_never_do(project, monkeypatch):
    names = names_sent(monkeypatch, project)

    assert names == {"train.py", "job.sh", "dos.sh", "pkg/train.py", ".gitignore", "data/x.csv"}


def test_a_submodule_that_was_not_fetched_has_no_files_and_a_fetched_one_has(project, tmp_path, monkeypatch):
    git = ["git", "-c", "protocol.file.allow=always", "-c", "user.name=ada", "-c", "user.email=ada@example.edu"]
    library, clone = tmp_path / "library", tmp_path / "clone"
    library.mkdir()
    (library / "lib.py").write_text("")
    for where, words in (
        (library, ["init", "-q"]), (library, ["add", "."]), (library, ["commit", "-qm", "library"]),
        (project, ["submodule", "--quiet", "add", str(library), "lib"]), (project, ["commit", "-qm", "with library"]),
        (tmp_path, ["clone", "-q", str(project), str(clone)]),
    ):  # fmt: skip
        subprocess.run([*git, *words], cwd=where, check=True)

    assert names_sent(monkeypatch, clone) == {".gitmodules"}
    assert "lib/lib.py" in names_sent(monkeypatch, project)


def test_a_repository_around_the_project_that_ignores_all_of_it_decides_nothing(project, monkeypatch):
    (project / ".gitignore").write_text("*\n")

    assert names_sent(monkeypatch, project / "pkg") == {"train.py"}


def test_a_link_to_a_key_is_a_key(project, tmp_path, monkeypatch):
    (tmp_path / "id_ed25519").write_text("")
    (project / "mine").symlink_to(tmp_path / "id_ed25519")

    assert "mine" not in names_sent(monkeypatch, project)


def test_a_folder_above_the_home_directory_or_of_everybody_is_no_project(project, tmp_path, monkeypatch):
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    for folder in (tmp_path, shared):
        (folder / "run.sh").write_text("echo\n")
        monkeypatch.chdir(folder)
        with pytest.raises(ConfigError, match=f"the project of run.sh would be all of {folder}\n"):
            clusterfn.command("./run.sh", host="local")
        assert sent("nvidia-smi")["project"] is None


def test_the_script_itself_is_sent_even_if_git_ignores_it(project, monkeypatch):
    assert "local.py" in names_sent(monkeypatch, project, "python local.py")


def test_the_project_of_a_script_elsewhere_is_its_folder(project, tmp_path):
    elsewhere = tmp_path / "home" / "tools"
    elsewhere.mkdir(parents=True)
    (elsewhere / "clean.sh").write_text("echo\n")
    told = sent([str(elsewhere / "clean.sh"), "a"])

    assert (told["words"], str(told["project"])) == (("./clean.sh", "a"), str(elsewhere))


@pytest.mark.parametrize("line", ["nvidia-smi", "python -c pass", "ls ~/data"])
def test_a_command_that_names_no_file_sends_nothing_of_the_home_directory(project, line, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(project))

    assert sent(line)["project"] is None
    assert f"nothing of {project} is sent" in capsys.readouterr().err


def test_with_a_folder_of_the_host_nothing_is_sent(project):
    told = sent("./on-the-host.sh a", cwd="~/project")

    assert (told["project"], told["words"]) == (None, ("./on-the-host.sh", "a"))


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        ("python trian.py", "there is no file trian.py; did you mean train.py?", "relative to"),
        ("torchrun --standalone train.py", "--standalone is for one node", "leave out --standalone"),
        ("./dos.sh", "dos.sh has the line ends of Windows", r"sed -i 's/\r$//' dos.sh"),
        ("python ../shared.py", "../shared.py is outside of the project", "run the command from"),
        ("bash", "bash waits for a keyboard", "clusterfn shell tensor01"),
        (["cd", "data"], "cd is a command of a shell", 'one pair of quotes: "cd data"'),
        ("sbatch job.sh", "sbatch would start a second job", "clusterfn run tensor01 job.sh"),
        ("python 'train.py", "is no complete command", "close the quotes"),
        ("  ", "there is no command", "write it as"), ([], "there is no command", "write it as"),
        (len, "<built-in function len> is a function, not a command", "decorate it with @cluster, and call it"),
        (["python", 3], "3 is not a word of a command", 'write it as text: "3"'),
    ],
)  # fmt: skip
def test_what_cannot_run_is_rejected_with_what_to_do(project, line, problem, hint):
    with pytest.raises(ConfigError) as caught:
        clusterfn.command(line, host="tensor01", nodes=2)

    assert problem in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("line", "value", "is_taken"),
    [
        ("echo {x} | cat", "1e-3", True), ("echo {x} | cat", "3; ls", False), ("echo {x}", "3; ls", True),
        (["bash", "-c", "echo {x}"], "$(id)", False), ("cat {x} | wc", clusterfn.File("train.py"), True),
    ],
)  # fmt: skip
def test_a_value_that_a_shell_would_read_as_code_is_rejected_before_it_is_sent(project, line, value, is_taken):
    called = clusterfn.command(line)
    for calls, constants in (([("1",), (value,)], {}), ([()], {"x": value})):
        rejects = pytest.raises(ConfigError, match="would not read the value .* of {x} as one word")
        with contextlib.nullcontext() if is_taken else rejects:
            check_values(called.__wrapped__, calls, constants)


def test_a_script_that_calls_srun_needs_slurm_or_a_srun_of_its_own(project, tmp_path, monkeypatch):
    (tmp_path / "clusterfn.yml").write_text("hosts:\n  tensor01: {scheduler: bare}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    (project / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -c 2\nsrun python train.py\n")
    with pytest.raises(ConfigError, match="calls srun, which tensor01 does not have") as caught:
        clusterfn.command("./job.sbatch")

    line = (caught.value.hint or "").partition("script: ")[2]
    (project / "job.sbatch").write_text(f"#!/bin/bash\n#SBATCH -c 2\n{line}\nsrun python train.py\n")
    assert clusterfn.command("./job.sbatch").options.cores == 2
    assert clusterfn.command("./job.sbatch", cores=None).options.cores == 2
    assert clusterfn.command("./job.sbatch", cores=3).options.cores == 3


@pytest.fixture
def two_hosts(tmp_path, monkeypatch):
    """A machine without a scheduler, and a cluster whose calls ask for 4 GB of memory."""
    made = tmp_path / "clusterfn.yml"
    made.write_text("hosts:\n  tensor01: {scheduler: bare}\n  hpc: {scheduler: slurm, slurm: {account: lab}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(made))


@pytest.mark.parametrize(
    ("line", "options", "asked"),
    [
        ("-n 4 -c 2 --mem-per-cpu=1G", {}, {"ntasks": "4", "cpus-per-task": "2", "mem-per-cpu": "1G", "mem": None}),
        ("-n 4 -c 2", {"cores": 3}, {"ntasks": "4", "mem": None}),
        ("-p gpu --qos=x", {"slurm": {"partition": "cpu"}},
         {"partition": "cpu", "qos": "x", "mem": None, "cpus-per-task": None}),
        ("--gres=gpu:2", {"gpus": 1, "memory": "2GB"}, {"cpus-per-task": None}), 
        ("-p gpu", {"nodes": 2}, {"partition": "gpu", "nodes": "2", "mem": None, "cpus-per-task": None}),
    ],
)  # fmt: skip
def test_on_slurm_a_script_asks_as_by_sbatch_and_the_call_comes_first(project, two_hosts, line, options, asked):
    (project / "job.sbatch").write_text(f"#!/bin/bash\n#SBATCH {line}\n")

    function = clusterfn.command("./job.sbatch", host="hpc", **options)

    assert function.options.scheduler_options.get("slurm", {}) == {"requeue": None, **asked}
    cores = options.get("cores", 8 if "-n" in line else 1)
    assert (function.options.cores or 1, function.options.nodes) == (cores, None)
    assert function.__wrapped__.args[0]["env"]["OMP_NUM_THREADS"] is None, "as sbatch leaves it"


def test_the_host_that_the_variable_chooses_is_the_one_that_a_script_asks(project, two_hosts, monkeypatch):
    (project / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -n 4 --gpus-per-task=1\n")
    monkeypatch.setenv("CLUSTERFN_HOST", "tensor01")

    options = clusterfn.command("./job.sbatch", host="hpc").options

    assert (options.host, options.cores, options.gpus, options.scheduler_options) == ("tensor01", 4, 4, {})


@pytest.mark.parametrize(
    ("name", "text", "host", "said"),
    [
        ("job.sh", "#SBATCH -c 1\nS=$(scontrol show job $SLURM_JOBID | awk -F= '/Command=/{print $2}')\n", "hpc",
         "job.sh looks for itself by scontrol, which names clusterfn's job.sh: the copy of its project is"),
        ("job.sh", "#PBS -l walltime=1:00\n", "tensor01", "not taken from job.sh: 1 lines with #PBS"),
        ("train.py", "#!/usr/bin/env python\n#SBATCH -c 2\nimport os\n", "tensor01", "train.py asks for cores=2"),
        ("./train", "#!/usr/bin/Rscript\n#SBATCH -c 3\n", "tensor01", "train asks for cores=3"),
        ("bash job.sh", "#SBATCH -c 2\n", "hpc", "bash reads no #SBATCH lines, so those of job.sh do not count; write "
         "clusterfn run hpc job.sh"),
    ],
)  # fmt: skip
def test_what_a_script_asks_for_is_read_or_named(project, two_hosts, capsys, name, text, host, said):
    (project / name.split()[-1]).write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}")

    clusterfn.command(name, host=host)

    assert said in capsys.readouterr().err


def test_a_script_that_names_its_packages_has_them_where_its_host_names_no_environment(
    project, two_hosts, tmp_path, capsys
):
    (project / "train.py").write_text('# /// script\n# dependencies = ["numpy"]\n# ///\n')
    environments = [
        clusterfn.command("python train.py", host="tensor01", **options).options.environment
        for options in ({}, {"environment": "script"}, {"environment": "venv:~/v"}, {"packages": ["torch"]})
    ]
    path = tmp_path / "clusterfn.yml"
    path.write_text(path.read_text().replace("{scheduler: bare}", '{scheduler: bare, environment: "venv:~/w"}'))

    assert environments == [str(project / "train.py"), str(project / "train.py"), "venv:~/v", None]
    assert "does not count" not in capsys.readouterr().err
    assert clusterfn.command("python train.py", host="tensor01").options.environment is None
    assert "the header of train.py (# /// script) does not count" in capsys.readouterr().err


def test_a_command_finds_the_commit_of_its_project_which_has_no_repository_there(project):
    assert sent("python train.py")["env"] == {}, "there is no commit yet"
    git = ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.edu"]
    for words in (["add", "job.sh"], ["commit", "-qm", "begin"]):
        subprocess.run([*git, *words], cwd=project, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True, text=True).stdout

    assert sent("python train.py")["env"] == {"CLUSTERFN_GIT_COMMIT": head.strip()}
    (project / "job.sh").write_text("echo changed\n")
    assert sent("python train.py")["env"] == {"CLUSTERFN_GIT_COMMIT": f"{head.strip()}-dirty"}


@pytest.mark.parametrize("word", ["~/data", "$SCRATCH/x", "--out=${HOME}/x"])
def test_a_word_for_the_hosts_shell_is_advised_to_stay_as_it_is(project, word, capsys):
    clusterfn.command(["python", "train.py", word])

    assert f"the command gets {word} as it is" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["echo $HOME", "ls ~/data | wc", "python train.py --out=$SCRATCH"])
def test_of_a_line_for_the_hosts_shell_nothing_is_reported(project, line, capsys):
    clusterfn.command(line)

    assert "as it is" not in capsys.readouterr().err


def test_a_place_without_a_value_is_rejected_before_anything_is_sent(project):
    with pytest.raises(ConfigError, match="the place {lr} of the command has no value") as caught:
        clusterfn.run("python train.py --lr {lr}")

    assert "clusterfn.command(...)(lr=...)" in caught.value.hint


def test_unknown_options_are_those_of_cluster():
    with pytest.raises(ConfigError, match="did you mean gpus"):
        clusterfn.command("nvidia-smi", gpu=1)


CODE = ["a b", "", "$(touch x)", "`touch x`", "; touch x", "x) touch x", "'", '"', "\\", "*", "~", "a\nb", "{y}"]


@pytest.mark.parametrize("line", ["echo '{x}'; true", "echo $(( {x} ))", "cat <<E\n{x}\nE", "eval {x}", "[[ -v {x} ]]"])
def test_no_shell_reads_a_value_as_code(project, line):
    filled = fill(sent(f"{line}; true")["line"], {"x": "lr=1e-3"}, is_code=True)
    assert filled == f"{line.replace('{x}', 'lr=1e-3')}; true"
    commands = [["bash", "-ec", line], ["env", "a=b", "/bin/sh", "-c", line], ["ssh", "n1", line]]
    in_words = [sent(words)["words"] for words in commands]
    for words in in_words:
        assert fill_words(words, {"x": "1e-3"})[-1] == line.replace("{x}", "1e-3")
    for value in CODE:
        with pytest.raises(NotPlain, match="as one word"):
            fill(line, {"x": value}, is_code=True)
        for words in in_words:
            with pytest.raises(NotPlain, match="as one word"):
                fill_words(words, {"x": value})


@pytest.mark.parametrize("value", CODE)
def test_a_word_is_any_value(project, value):
    words = sent(["bash", "job.sh", "{{x}}", "-{x}", "${x}"])["words"]

    assert fill_words(words, {"x": value})[-3:] == ["{x}", f"-{value}", "${x}"]
