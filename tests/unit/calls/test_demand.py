"""What a call asks for, what its job is called, and what is wrong with it before it connects."""

from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from clusterfn import cluster
from clusterfn.bridge import layout
from clusterfn.bridge.supervisor import text
from clusterfn.calls.demand import job_name, resources_of
from clusterfn.config.options import parse_options
from clusterfn.config.spec import Host, Resources
from clusterfn.display import live
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


ID = "7f3a" * 4
NAMES = ["größe_日本", "обучение", "हिन्दी", "学習.v2", "naïve-fit", "ﾊﾝｶｸ", "épreuve"]


@pytest.mark.parametrize("name", NAMES)
def test_a_function_keeps_its_own_name_in_both_ways_to_write_a_letter(name: str):
    for written in (name, unicodedata.normalize("NFD", name)):
        assert job_name(written) == name == parse_options({"name": written}).name


@pytest.mark.parametrize(
    ("name", "known"),
    [("größe_日本", "gr_e"), ("日本", "function"), ("train", "train"), ("ö1", "_1"), ("a_", "a_"), ("_a.1", "_a.1")],
)
def test_a_scheduler_knows_a_job_by_letters_that_it_takes(name: str, known: str):
    assert layout.job_name(name, ID) == f"{known}.{ID}"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x1b[31mb", "a_31mb"), ("a\u202eb", "a_b"), ("日\u200b本", "日_本"), ("a\x07", "a"), ("a\nb", "a_b"),
        ("a\u2028b", "a_b"), ("١٢", "_١٢"), ("a\x9bb", "a_b"), ("a;rm -rf $HOME", "a_rm_-rf_HOME"), ("../../x", "x"),
        ("🚀", "function"), ("train", "train"), ("a.b", "a.b"), ("train-2.1", "train-2.1"), ("_private_", "private"),
        ("<lambda>", "lambda"), ("my job/1", "my_job_1"), ("01_train", "_01_train"), ("42", "_42"), ("...", "function"),
        ("a" * 80, "a" * 64), ("1" * 80, "_" + "1" * 63),
    ],
)  # fmt: skip
def test_nothing_else_gets_into_a_name(name: str, shown: str):
    assert job_name(name) == shown == parse_options({"name": shown}).name


@pytest.mark.parametrize("name", ["my/größe", "größe\x1b", "日\u202e本", "-größe", "1größe", "ö" * 65, ""])
def test_a_name_that_is_none_is_rejected_with_one_that_is(name: str):
    with pytest.raises(ConfigError, match="is not possible") as caught:
        parse_options({"name": name})

    offered = (caught.value.hint or "").partition('name="')[2].rstrip('"')
    assert parse_options({"name": offered}).name == offered


def test_columns_of_wide_letters_are_below_each_other():
    rows = [("größe_日本", "RUNNING"), (unicodedata.normalize("NFD", "größe"), "DIED"), ("train", "PENDING")]

    lines = live.table(("NAME", "STATE"), rows).splitlines()

    assert {text.width(line[: line.index(state)]) for line, (_, state) in zip(lines[1:], rows)} == {12}
    assert "\u001b" not in live.table(("NAME",), [("a\x1b[2J日",)])


@pytest.mark.parametrize(("most", "shown"), [(10, "日本語"), (6, "日本語"), (5, "日本…"), (4, "日…"), (1, "…")])
def test_a_text_is_cut_by_columns(most: int, shown: str):
    assert text.shortened("日本語", most) == shown
    assert text.width(shown) <= most
