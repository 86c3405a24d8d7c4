"""What a call asks for, and what is wrong with it before it connects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn import cluster
from clusterfn.calls.demand import resources_of
from clusterfn.config.options import parse_options
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import ConfigError
from clusterfn.scheduler import scheduler_for

BARE = Host(name="tensor01", address="tensor01", scheduler="bare", source="clusterfn.yml:2")
SLURM = BARE._replace(name="hpc", scheduler="slurm")


def asked(host, **words):
    return resources_of(parse_options(words), host, scheduler_for(host))


def test_the_words_of_a_call_reach_a_bare_host_as_they_are():
    found = asked(BARE, gpus=2, gpu_type="RTX A6000", gpu_memory="24GB")

    assert found == Resources(gpus=2, gpu_type="RTX A6000", gpu_memory_bytes=24 << 30)


def test_the_hosts_defaults_count_for_calls_with_gpus_alone():
    host = BARE._replace(defaults=Resources(gpu_type="a6000", gpu_memory_bytes=1 << 30))

    assert asked(host, gpus=1) == Resources(gpus=1, gpu_type="a6000", gpu_memory_bytes=1 << 30)
    assert asked(host, gpus=1, gpu_type="a100").gpu_type == "a100"
    assert asked(host) == Resources()


@pytest.mark.parametrize("words", [{"gpu_type": "a6000"}, {"gpu_memory": "20GB"}, {"gpu_type": "a6000", "gpus": 0}])
def test_a_kind_of_gpu_without_gpus_is_refused(words):
    with pytest.raises(ConfigError, match="selects GPUs, but the call asks for none") as caught:
        asked(BARE, **words)

    assert "gpus=1" in caught.value.hint


def test_no_gpus_take_their_type_and_size_back():
    trained = cluster(gpus=2, gpu_type="a6000", gpu_memory="24GB")(lambda: None)

    assert resources_of(trained.with_options(gpus=0).options, BARE, scheduler_for(BARE)) == Resources()
    assert resources_of(trained.with_options(gpus=1).options, BARE, scheduler_for(BARE)).gpu_type == "a6000"


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        ({"gpu_memory": "40GB"}, 'gpu_memory="40GB" cannot be requested from SLURM', "set gpu_type="),
        ({"gpu_type": "RTX A6000"}, "is not a type of SLURM", "sinfo -o %G"),
    ],
)
def test_what_slurm_cannot_be_asked_for_is_refused(words, says, hint):
    with pytest.raises(ConfigError) as caught:
        asked(SLURM, gpus=1, **words)

    assert says in caught.value.message
    assert hint in caught.value.hint


BEGIN = """
import sys
import clusterfn
from clusterfn.hosts.transports.base import ProcessStream

@clusterfn.cluster(host=HOST, OPTIONS)
def double(x):
    return 2 * x

"""


def run(tmp_path: Path, code: str, host: str = "here", options: str = "") -> str:
    config = tmp_path / "clusterfn.yml"
    config.write_text(
        f"hosts:\n  here: {{scheduler: local, root: {tmp_path}/root, environment: 'python:{sys.executable}'}}\n"
        f"  away: {{address: nobody@127.0.0.1:1, scheduler: bare, root: /tmp/none}}\n"
    )
    begin = BEGIN.replace("HOST", repr(host)).replace(", OPTIONS", options)
    ran = subprocess.run(
        [sys.executable, "-c", begin + code], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "CLUSTERFN_CONFIG": str(config), "XDG_STATE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_it_goes_to_this_machine_without_its_hosts_options_if_all_calls_do(tmp_path: Path):
    options = ", slurm={'partition': 'gpu'}, environment='python:/nowhere/python'"
    code = "import os; os.environ['CLUSTERFN_LOCAL'] = '1'; print(double(21))"
    assert run(tmp_path, code, "away", options) == "42"


@pytest.mark.parametrize(
    ("call", "options", "error"),
    [
        ("double()", "", "TypeError double() missing 1 required positional argument: 'x'"),
        ("double.submit(1, 2)", "", "TypeError double() takes 1 positional argument but 2 were given"),
        (
            "double.submit(1, priority=5)",
            "",
            "TypeError double() got an unexpected keyword argument 'priority'; "
            "priority= is an option of clusterfn: write @cluster(priority=…) or double.with_options(priority=…)",
        ),
        ("double(1)", ", slurm={'partition': 'gpu'}", "ConfigError slurm= is for hosts"),
        ("double(1)", "", "Unreachable"),
    ],
)
def test_what_is_wrong_with_it_is_found_before_it_connects(tmp_path: Path, call: str, options: str, error: str):
    code = f"try: {call}\nexcept Exception as error: print(type(error).__name__, error)"
    assert run(tmp_path, code, "away", options).startswith(error)


def test_ctrl_c_while_it_connects_says_that_nothing_runs(tmp_path: Path):
    code = "def stop(*_): raise KeyboardInterrupt\nProcessStream.write = stop\n"
    code += "sys.stderr = sys.stdout\ntry: double(1)\nexcept KeyboardInterrupt: print('interrupted')"
    said = run(tmp_path, code)
    assert "it was not sent, and nothing runs" in said
    assert said.endswith("interrupted")
