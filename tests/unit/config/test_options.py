"""The options of a call: units, causes, how the decorator keeps them, and the answer to each wrong keyword."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from clusterfn import ConfigError, cluster
from clusterfn.config import config_file
from clusterfn.config.options import CallOptions, Options, changed, parse_options
from clusterfn.errors import did_you_mean
from tests.programs import main


def test_every_keyword_is_read():
    given = {
        "cores": 4, "memory": "16GB", "gpus": 0, "time": timedelta(hours=2), "host": "tensor01",
        "environment": "conda:torch", "modules": ["cuda/12.4"], "env": {"A": ""}, "secrets": ("HF_TOKEN",),
        "outputs": ["*.pt"], "cwd": "~/data", "name": "train", "on_interrupt": "stop",
        "stall_timeout": "10min", "retries": 2, "warn_before": "5min", "requeue": {"timeout": 2, "node": 0},
        "priority": -3,
    }  # fmt: skip
    assert parse_options(given) == Options(
        cores=4, memory_bytes=2**34, gpus=0, time_s=7200.0, host="tensor01", environment="conda:torch",
        modules=("cuda/12.4",), env={"A": ""}, secrets=("HF_TOKEN",), outputs=("*.pt",), cwd="~/data", name="train",
        on_interrupt="stop", stall_s=600.0, retries=2, warn_s=300.0, requeue={"timeout": 2},
        priority=-3,
    )  # fmt: skip


def test_none_means_not_said():
    assert parse_options(dict.fromkeys(["cores", "memory", "modules", "env", "name", "on_interrupt"])) == Options()


def test_no_guess_where_nothing_is_near():
    assert did_you_mean("zzz", ["cores"]) == ""


def test_a_word_in_the_other_case_is_near():
    assert did_you_mean("LOCAL", ["hpc", "local"]) == "; did you mean local?"
    assert did_you_mean("account", ["ACCOUNT", "PARTITION"]) == "; did you mean ACCOUNT?"


def test_every_option_that_can_be_written_is_checked():
    for keyword in CallOptions.__annotations__:
        with pytest.raises(ConfigError, match=keyword) as caught:
            parse_options({keyword: object()})
        assert "no argument" not in caught.value.message


@pytest.mark.parametrize(
    ("slurm", "memory_bytes"), [({"mem-per-cpu": "2G"}, None), ({"mem": None}, None), ({"qos": "long"}, 8 << 30)]
)
def test_memory_among_the_options_of_slurm_replaces_the_default_of_the_host(slurm, memory_bytes, tmp_path, monkeypatch):
    path = tmp_path / "clusterfn.yml"
    path.write_text("hosts:\n  hpc: {address: hpc, scheduler: slurm, defaults: {memory: 8GB}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))

    called = config_file.hosts_of_call(parse_options({"slurm": slurm}))[0].called

    assert called.defaults.memory_bytes == memory_bytes


def option(keyword: str, value: object, field: str) -> Any:
    """What the options of a function have for a keyword."""
    return getattr(cluster(**{keyword: value})(abs).options, field)


@pytest.mark.parametrize(
    "text, size",
    [("1KB", 2**10), ("512MB", 2**29), ("16GB", 2**34), ("16 GiB", 2**34), ("1.5tb", 3 * 2**39), (" 1gb ", 2**30)],
)
def test_memory_is_counted_in_powers_of_two(text, size):
    assert option("memory", text, "memory_bytes") == size


@pytest.mark.parametrize(
    "value", ["16", "16G", "GB", "-1GB", "0GB", "9" * 400 + "GB", "1e3MB", "1 GB x", "", 16, 1.5, True, b"1GB"]
)
def test_memory_needs_a_unit(value):
    with pytest.raises(ConfigError, match="is not an amount of memory") as caught:
        option("memory", value, "memory_bytes")
    assert 'memory="16GB"' in caught.value.hint


TIMES_IN_EVERY = [
        ("90min", 5400), ("90m", 5400), ("2h", 7200), ("1d 12h", 129600), ("1h30min", 5400), ("45s", 45),
        ("0.5h", 1800), ("2 hours", 7200), ("1 hour 30 minutes", 5400), ("90 mins", 5400), ("1 Day", 86400),
        ("2hrs", 7200), ("3 days", 259200), ("45 seconds", 45), ("1min 5secs", 65),
        ("02:00:00", 7200), ("100:00:00", 360000), ("1-00:00:00", 86400), (timedelta(hours=1), 3600),
    ]  # fmt: skip


def test_times_in_every_spelling():
    for value, seconds in TIMES_IN_EVERY:
        assert option("time", value, "time_s") == seconds


def test_an_environment_and_packages_replace_each_other():
    assert changed(parse_options({"packages": ["rich"]}), {"environment": "current"}).packages == ()
    assert changed(parse_options({"environment": "current"}), {"packages": ["rich"]}).environment is None


def test_a_time_needs_a_unit():
    for value in ("90", "1:30", "h", "", "2 weeks", "2 months", "1 hourly", "-1h", "0s", "9" * 400 + "d",
                  "9" * 400 + "-00:00:01", "00:00:00", 90, 1.5, True, timedelta(0)):  # fmt: skip
        with pytest.raises(ConfigError, match="is not a duration") as caught:
            option("time", value, "time_s")
        assert 'time="90min"' in caught.value.hint, value


def test_a_list_of_causes_means_three_times_each():
    assert option("requeue", ["timeout", "node"], "requeue") == {"timeout": 3, "node": 3}


def test_a_number_as_a_variable_is_its_digits_as_in_clusterfn_yml():
    assert option("env", {"A": 4, "B": 1.5, "C": "x"}, "env") == {"A": "4", "B": "1.5", "C": "x"}


def test_methods_of_every_kind_work_in_the_advised_order(monkeypatch):
    monkeypatch.setenv("CLUSTERFN_JOB", "0123/1")  # as in a job: a call is the plain function

    class Kinds:
        @classmethod
        @cluster
        def made(cls, x):
            return cls.__name__, x

        @staticmethod
        @cluster
        def still(x):
            return x

        @property
        @cluster
        def double(self):
            return 2

    assert (Kinds.made(1), Kinds().made(1), Kinds.still(3), Kinds().still(3)) == (("Kinds", 1),) * 2 + (3, 3)
    assert Kinds().double == 2


BAD = [
    ({"core": 2}, "no argument 'core'; did you mean cores?"),
    ({"cores": 0}, "cores=0 is not a whole number of at least 1"),
    ({"host": "-oProxyCommand=x"}, "host='-oProxyCommand=x' is not the name of a host"),
    ({"environment": ""}, "environment='' is not a string"),
    ({"environment": "conda"}, "environment='conda' does not name an environment"),
    ({"allow_cpu": 1}, "allow_cpu=1 is neither True nor False"),
    ({"modules": "cuda"}, "modules='cuda' is not a list"), ({"modules": ["-x"]}, "modules='-x' is not possible"),
    ({"env": ["A=b"]}, "env=['A=b'] is not a dict"), ({"env": {"A-B": "x"}}, "env='A-B' is not possible"),
    ({"env": {"A": True}}, "env['A']=True is neither a string nor a number"),
    ({"secrets": ["A B"]}, "secrets= is not a list of names of variables"), ({"cwd": "a\0"}, "is not a string"),
    ({"cwd": "C:\\data"}, "is not an absolute path"), ({"outputs": ["a/../../x"]}, "is outside the job's folder"),
    ({"name": "a/b"}, "name='a/b' is not possible"), ({"name": "a" * 65}, "is not possible"),
    ({"on_interrupt": "kill"}, "on_interrupt='kill' is not possible"),
    ({"priority": 10**7}, "priority=10000000 is not a whole number from -1000000 to 1000000"),
    ({"requeue": [3]}, "requeue=[3] is neither a list of causes"),
    ({"requeue": ["timeouts"]}, "requeue= has no cause 'timeouts'; did you mean timeout?"),
    ({"requeue": {"timeout": -1}}, "requeue['timeout']=-1 is not a whole number from 0 to 1000"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "says"), BAD)
def test_a_wrong_keyword_is_named_with_one_thing_to_do(given, says):
    with pytest.raises(ConfigError) as caught:
        cluster(**given)
    assert says in caught.value.message
    assert caught.value.hint


ADVICE = [  # what people write, and what they are told to write instead
    ({"cpus": 4}, "did you mean cores?", "write cores=4"),
    ({"keep": "yes"}, "keep='yes' is neither True nor False", "write keep=True"),
    ({"resume": 7}, "resume=7 is not the id of a job", 'use at least its first four digits: resume="7f3a"'),
    ({"results": "text"}, "results='text' is not possible", 'write results="objects" or results="data"'),
    ({"environment": "pyproject.tml"}, "does not name an environment", 'write environment="pyproject.toml"'),
    ({"environment": "pyproject.toml[gpu"}, "does not name an", 'write environment="pyproject.toml[gpu]"'),
    ({"requeue": 3}, "is neither a list of causes", 'write requeue=["timeout", "preempted", "node"]'),
    ({"mem": "4GB"}, "did you mean memory?", 'write memory="4GB"'),
    ({"python": "/p"}, "did you mean environment?", 'write environment="python:/p"'),
    ({"python": "3.11"}, "did you mean packages?", 'write packages=["python=3.11"]'),
    ({"python": 3.10}, "did you mean packages?", 'write packages=["python=3.10"]'),
    ({"environment": "python:3.11"}, "names a version of Python", 'or write packages=["python=3.11"]'),
    ({"conda": "ml"}, "did you mean environment?", 'write environment="conda:ml"'),
    ({"memory_gb": 16}, "did you mean memory?", 'memory="16GB"'),
    ({"pip": ["rich"]}, "did you mean packages?", "write packages=['rich']"),
    ({"queue_timeout": "1h"}, "no argument 'queue_timeout'", "keys of a host belong in clusterfn.yml"),
    ({"nice": 100}, "no argument 'nice'", 'with SLURM, write slurm={"nice": 100}; without a scheduler, priority=-1'),
    ({"queue": "gpu"}, "no argument 'queue'", 'write slurm={"partition": "gpu"}'),
    ({"files": ["data.csv"]}, "no argument 'files'", 'clusterfn.File("data.csv")'),
    ({"environment": "conda: ml"}, "does not name an environment", 'write environment="conda:ml"'),
    ({"environment": "prefix:/e/bin/python3.11"}, "does not name an", 'write environment="python:/e/bin/python3.11"'),
    ({"environment": "/opt/envs/ml"}, "does not name an", 'write environment="python:/opt/envs/ml/bin/python"'),
    ({"environment": "/shared/pytorch.sif"}, "does not name an", 'write environment="apptainer:/shared/pytorch.sif"'),
    ({"environment": "ch-run:/image"}, "does not name an", 'write environment="charliecloud:/image"'),
    ({"environment": "bwrap:images/ml"}, "needs an absolute path", '"bwrap:/folder"'),
    ({"environment": "apptainer:/image\n.sif"}, "needs an absolute path", '"apptainer:/image.sif"'),
    ({"environment": "docker://pytorch/pytorch"}, "could neither end nor measure", "apptainer pull x.sif docker://"),
    ({"environment": "podman:ubuntu"}, "unable to start any container", "apptainer build x.sif docker-archive:x.tar"),
    ({"environment": "apptainer exec --nv ~/x.sif"}, "does not name", 'environment="apptainer:~/x.sif"'),
    ({"mounts": ["/data"]}, "did you mean binds?", "write binds=['/data']"),
    ({"binds": ["data"]}, "binds='data' is not possible", "write it like '/data:/mnt'"),
    ({"environment": "pyxis:/x.sqsh"}, "SLURM itself", "write `slurm: {container-image: IMAGE}` below the host"),
    ({"environment": "shifter:x"}, "the host has to say", '"container:IMAGE"'),
    ({"environment": ["numpy", "rich"]}, "is not a string", 'write packages=["numpy", "rich"]'),
    ({"environment": "setup.py"}, "does not name an", '"requirements.txt"'),
    ({"env": "OMP_NUM_THREADS=1"}, "is not a dict", 'write env={"NAME": "value"}'),
    ({"secrets": {"HF_TOKEN": "hf_0"}}, "secrets= is not a list of names", 'write secrets=["HF_TOKEN"]'),
    ({"notify": {"after": "10min"}}, "notify['command'] is not a text", '"mail -s done'),
    ({"packages": ["requirements.txt"]}, "is a file, not a package", 'write environment="requirements.txt"'),
    ({"packages": ["-r reqs/all.txt"]}, "is a file, not a package", 'write environment="reqs/all.txt"'),
    ({"partition": "short"}, "", 'write slurm={"partition": "short"}, or set it in clusterfn.yml, below `slurm:`'),
    ({"slurm_qos": "long"}, "", 'write slurm={"qos": "long"}'),
    ({"slurm": "gpu"}, "slurm='gpu' is not a dict of options", 'write slurm={"partition": "gpu"}'),
    ({"slurm": {"mem": "4G"}}, "clusterfn sets `--mem` itself", "use `memory=` or `defaults:`; None leaves the"),
    ({"slurm": {"cpus_per_task": 2}}, '"cpus_per_task" is not an option of sbatch', "use `cores=`"),
    ({"slurm": {"mail_type": "END"}}, '"mail_type" is not an option of sbatch', 'write "mail-type"'),
    ({"slurm": {"array": "1-3"}}, "clusterfn needs `--array` for itself", "call the function with `.map`"),
    ({"slurm": {"gres": "gpu:2"}}, "counts GPUs", "write only their type"),
    ({"slurm": {"nodes": 2}}, "nothing would run on any node but the first", "write nodes= in @cluster"),
    ({"slurm": {"clusters": "b"}}, "slurm= cannot set 'clusters'", "write `slurm: {clusters: …}` in clusterfn.yml"),
    ({"slurm": {"exclusive": False}}, "slurm= cannot set 'exclusive' to False", "leave it out"),
    ({"slurm": {"-p": "gpu"}}, '"-p" is not an option of sbatch', "use the option's long name, without dashes"),
    ({"nodes": 0}, "nodes=0 is not a whole number of at least 1", "write nodes=1"),
    ({"gpus": "2"}, "", "write gpus=1: a number, without quotes"),
    ({"gpus": "a100:2"}, "", 'gpu_type="a6000" is their type'),
    ({"cores": 2.5}, "", "write cores=1: a number"),
    ({"memory": 16}, "", 'write it with a unit: memory="16GB"'),
    ({"time": "1h30"}, "", 'write it with a unit: time="90min"'),
    ({"name": 5}, "", 'letters, digits, blanks, "_", "." and "-", a letter or "_" first: name="train"'),
    ({"cwd": "."}, "", "cwd= is a folder on the host: write an absolute path or use ~"),
    ({"env": {"A": True}}, "", 'write env={"A": "1"}'),
    ({"outputs": ["/tmp/x"]}, "", "outputs= takes paths relative to the job's own folder"),
]


@pytest.mark.parametrize("given, says, hint", ADVICE)
def test_what_people_write_is_answered_with_what_to_write(given, says, hint):
    with pytest.raises(ConfigError) as caught:
        cluster(**given)
    assert says in caught.value.message
    assert hint in caught.value.hint


class Model:
    pass


@pytest.mark.parametrize(
    "wanted, hint",
    [
        ("tensor01", 'write @cluster(host="tensor01")'),
        ("two words", 'write @cluster(cores=2, host="tensor01")'),
        (4, 'write @cluster(cores=2, host="tensor01")'),
        (Model, "decorate one of its methods, or a function that creates an instance and works with it"),
        (classmethod(print), "put @classmethod above @cluster"),
        (staticmethod(print), "put @staticmethod above @cluster"),
        (property(print), "put @property above @cluster"),
    ],
)
def test_what_is_no_function_is_not_decorated(wanted, hint):
    with pytest.raises(ConfigError) as caught:
        cluster(wanted)
    assert caught.value.hint == hint


@pytest.mark.parametrize("address", ["ada@gpu.example.edu", "ada@gpu:2222"])
def test_an_address_instead_of_a_host_is_reported_with_how_to_become_one(address: str):
    with pytest.raises(ConfigError) as refused:
        cluster(host=address)
    assert f"clusterfn init {address}" in (refused.value.hint or "")


def test_nothing_that_a_shell_would_read_as_an_option_or_a_command_is_proposed():
    for text in ("ada@-oProxyCommand=x", "ada@x; rm y", "-x@y"):
        with pytest.raises(ConfigError) as refused:
            cluster(host=text)
        assert "clusterfn init" not in (refused.value.hint or "")


SECRET = "https://hooks.example.com/T0/B0/abc"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("mail -s done ada@example.edu", {"command": "mail -s done ada@example.edu"}),
        ({"command": "touch x", "after": "10min"}, {"command": "touch x", "after_s": 600.0}),
        ({}, {}),
    ],
)
def test_what_a_call_says(written, meant):
    notify = cluster(notify=written)(abs).options.notify
    assert {name: value for name, value in notify._asdict().items() if value} == meant


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (SECRET, "this is an address"),
        ({"command": SECRET}, "this is an address"),
        ("$SLACK_WEBHOOK", "this is an address"),
        ("ada@example.edu", "this is an address"),
        ({"mail": "ada@example.edu"}, "has no key 'mail'"),
        ({"command": " "}, "is not a text"),
        ({"command": "x", "after": 10}, "is not a duration"),
        (True, "is no command"),
    ],
)
def test_what_it_cannot_say_is_rejected_without_a_word_of_a_secret(written, said):
    with pytest.raises(ConfigError) as caught:
        cluster(notify=written)(abs)
    assert said in str(caught.value) and "T0/B0" not in str(caught.value)


def test_an_address_in_the_file_is_rejected_and_its_line_not_shown(tmp_path, monkeypatch, capsys):
    (tmp_path / "clusterfn.yml").write_text(
        f"hosts:\n  box:\n    scheduler: bare\n    notify: {{command: '{SECRET}'}}\n"
    )
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    assert main(["hosts"]) == 2
    said = capsys.readouterr().err
    assert "clusterfn.yml:4" in said and "T0/B0" not in said
