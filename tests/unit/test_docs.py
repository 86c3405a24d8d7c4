"""The documents keep what they promise: commands exist, no error is forgotten, pictures and foreign words are right."""

from __future__ import annotations

import argparse
import ast
import doctest
import functools
import importlib.util
import json
import re
import runpy
import textwrap
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import clusterfn
from clusterfn import ConfigError, cluster, gpu
from clusterfn.bridge import layout
from clusterfn.cli.check import host
from clusterfn.cli.parser import make_parser
from clusterfn.config import config_file
from clusterfn.config.options import CallOptions, parse_options
from clusterfn.hosts.survey import SurveyedGpus
from tests.fixtures.waiting_call import calls_on
from tests.unit.test_examples_of_docs import EXAMPLES, PAGES, ROOT, RUNNABLE


@functools.cache
def commands(parser: argparse.ArgumentParser | None = None) -> dict[str, argparse.ArgumentParser]:
    """The commands of clusterfn, or those of one of them."""
    actions = (parser or make_parser())._actions
    return {
        name: command
        for action in actions
        if isinstance(action, argparse._SubParsersAction)
        for name, command in action.choices.items()
    }


def all_commands() -> dict[str, argparse.ArgumentParser]:
    """As they are typed: "env lock"."""
    found = commands()
    below = {f"{name} {word}": each for name, parser in found.items() for word, each in commands(parser).items()}
    return {**found, **below}


def options(name: str, rest: str) -> set[str]:
    """Of the command that a line of a page means."""
    known, word = all_commands(), rest.split()[:1]
    parser = known.get(f"{name} {word[0]}" if word else name, known[name])
    return {option for action in parser._actions for option in action.option_strings}


COMMAND = re.compile(r"(?:^ {4,}|`)clusterfn ([a-z]+)\b([^`\n#|]*)", re.MULTILINE)
SCRIPT = re.compile(r"\s(?:\S+\.(?:py|sh|sbatch)|--|-m)(?=\s|$)")


def known_below(name: str, word: str) -> bool:
    """Whether it is a command of that command, or stands for all of them, as COMMAND does."""
    return word.isupper() or all(each in commands(commands()[name]) for each in word.split("|"))


def test_every_command_and_option_in_a_page_exists():
    known = commands()
    used = [(page.name, *found) for page in PAGES for found in COMMAND.findall(page.read_text(encoding="utf-8"))]
    wrong = [each for each in used if each[1] not in known]
    for page, name, rest in (each for each in used if each[1] in known):
        ours = SCRIPT.split(rest)[0] if name == "run" else rest  # what follows a script is the script's own
        words = re.findall(r"(?<!\S)\[?(--?[a-z][a-z-]*)", ours)
        wrong += [(page, name, word) for word in words if word not in options(name, rest)]
        first = rest.split()[:1] if commands(known[name]) else []
        wrong += [(page, name, word) for word in first if not known_below(name, word)]

    assert wrong == []


# They ask a person, or the way to a host and not the host: tests/contract/test_login.py and tests/unit/cli/init.
ASK_A_PERSON = {"init", "trust", "login", "logout"}
ASK_NO_HOST = {"demo", "hosts", "config", "completion", "kernel add"}
AS_ANOTHER = {"stop": "cancel", "env show": "env list", "env verify": "env list", "env remove": "env gc"}


def test_every_command_that_asks_a_host_is_in_the_table_of_waits():
    """The table of tests/e2e/test_waits.py."""
    asked = {AS_ANOTHER.get(name, name) for name, parser in all_commands().items() if not commands(parser)}

    made = {call.removesuffix(" -f") for call in calls_on("host", "", "")}
    assert {f"clusterfn {name}" for name in asked - ASK_NO_HOST - ASK_A_PERSON} <= made


def test_the_reference_has_every_command_and_option():
    text = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    known = {option for parser in all_commands().values() for each in parser._actions for option in each.option_strings}
    long = {option for option in known if option.startswith("--")} - {"--verbose", "--follow"}

    words = [*(f"clusterfn {name}" for name in all_commands()), *sorted(long)]
    assert [word for word in words if word not in text] == []


def test_the_page_for_assistants_is_the_skill_and_names_what_may_and_may_not_be_run():
    """That each command and option in it exists is tested with those of all pages."""
    page, written = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/how-to/assistants.md", "SKILL.md"))
    runs, asks = (
        re.findall(r"`clusterfn ([a-z]+(?: (?:remove|gc))?)", part) for part in page.split("## What needs")[:2]
    )
    with_json = {name for name, parser in all_commands().items() if "--json" in parser._option_string_actions}

    assert written == runpy.run_path(str(ROOT / "packaging/skill.py"))["skill"](page), "python packaging/skill.py"
    assert len(page.split()) <= 600
    assert {*runs} <= with_json and all(
        "--json" in row for row in re.findall(r"^\|.*`clusterfn.*", page.split("## What n")[0], re.M)
    )
    assert {"cancel", "stop", "rm", "clean", "env remove", "env gc", "trust", "init", "login", "logout"} <= {*asks}


def test_the_page_of_errors_names_the_stages_in_their_order():
    text = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    said = re.findall(r"`stage` says how far the job came: (.*?)\.", text)[0].replace("`", "").split(", ")

    assert [*said, "supervisor", "scheduler"] == [*layout.STAGES]


def test_the_page_of_files_names_every_file_that_the_layout_names():
    files, builder = (
        (ROOT / "docs/reference" / page).read_text(encoding="utf-8") for page in ("job-directory.md", "builder.md")
    )
    # A name may also be an English word, so what the lists say about each file does not count.
    listed = re.sub(r"(?<=\S)  .*", "", "".join(re.findall(r"^```\n(.*?)^```", files, re.DOTALL | re.MULTILINE)))
    said = set(re.findall(r"[\w.-]+", listed + builder))
    source = Path(layout.__file__).read_text(encoding="utf-8")
    blocks = re.findall(r"^# -- Names below (?!bridge).*\n\n((?:[A-Z#].*\n)+)", source, re.MULTILINE)
    names = set(re.findall(r'"([^"]+)"', re.sub(r"#.*", "", "".join(blocks))))

    assert len(names) > 60
    assert sorted(name for name in names - {layout.DEFAULT} if name not in said) == []


def test_the_interface_has_every_option_of_a_call():
    text = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8").partition("## `ClusterFunction`")[0]

    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == CallOptions.__annotations__.keys()


def test_the_starter_configuration_is_right():
    read = config_file.read(ROOT / "templates" / "clusterfn.yml")

    assert read.resolve(None)[0].name == "tensor01"
    assert read.hosts["cluster"].scheduler == "slurm"


def test_the_readme_is_short_and_shows_what_check_prints_of_gpus():
    cards = SurveyedGpus(("NVIDIA RTX A6000",) * 8, 49140 << 20, "575.57.08", ("8.6",) * 8)

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"PASS  gpus           {host.describe_gpus(cards)}" in text
    assert len(text.split()) <= 1200  # whoever opens it reads it in a few minutes


BLOCK = re.compile(r"^ *```(python|yaml)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def test_blocks_that_no_test_runs_have_options_and_keys_that_exist():
    texts = [RUNNABLE.sub("", page.read_text(encoding="utf-8")) for page in PAGES]
    for kind, block in (found for text in texts for found in BLOCK.findall(text)):
        block = textwrap.dedent(block)
        if kind == "yaml" and block.startswith(("hosts:", "default_host:")):
            assert config_file.parse(block.encode(), Path("clusterfn.yml")).hosts
        code = "" if kind == "yaml" else f"{block}\ndef f(): ..." if block.startswith("@") else block
        for call in ast.walk(ast.parse(code)):
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in ("cluster", "with_options"):
                parse_options({each.arg: literal(each.value) for each in call.keywords})


def literal(node: ast.expr) -> object:
    """The value of a literal; None, which counts as not said, for anything else."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


# What runs the blocks behind these marks: tests/unit/test_examples_of_docs.py and tests/e2e/test_recipes.py.
MARKS = ("<!-- runnable -->", "<!-- runs on a host -->", "<!-- file: ")
# Why no test runs a block, and the page of each such block.
NOT_RUN = {
    "it needs GPUs, nodes, an account or packages of its own": "README checkpoints containers dask environments "
    + "experiment-tracking " * 3 + "frameworks " * 4 + "gpu-helpers " * 3 + "notebook retries tutorial "
    + "several-gpus " * 3,
    "it is a part, or shows several ways, of what stands elsewhere on the page": "attach checkpoints commands debug "
    "configuration dependencies dependencies dependencies environments environments experiment-tracking files notebook "
    "experiment-tracking follow-jobs follow-jobs gpu-server many-calls python-versions retries several-servers sweep "
    "untrusted-hosts",
    "it shows another tool": "migrate migrate",
}  # fmt: skip
OURS = {"clusterfn": clusterfn, "gpu": gpu, "job": clusterfn.Job, "group": clusterfn.JobGroup}


def python_blocks(page: Path) -> list[tuple[str, str]]:
    """Each Python block of a page, and the line before it."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^([^\n]*)\n *```python\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)


def test_each_python_block_is_run_by_a_test_or_has_a_reason_why_not_and_names_what_exists():
    blocks = [(page, *found) for page in PAGES for found in python_blocks(page)]
    skipped = [(page, block) for page, mark, block in blocks if not mark.startswith(MARKS)]

    assert len(blocks) == sum(page.read_text(encoding="utf-8").count("```python") for page in PAGES)
    assert Counter(page.stem for page, _ in skipped) == Counter(" ".join(NOT_RUN.values()).split())
    assert sum(mark == MARKS[0] for _, mark, _ in blocks) == len(EXAMPLES)
    assert {page.stem for page, mark, _ in blocks if mark.startswith(MARKS[1:])} == {"libraries", "testing"}
    for page, block in skipped:
        names = re.findall(r"\b(clusterfn|gpu|job|group)\.(\w+)", re.sub(r"#.*|\".*?\"", "", block))
        names += [("clusterfn", name) for name in re.findall(r"^from clusterfn import (\w+)$", block, re.MULTILINE)]
        assert [each for each in names if each[1] != "id" and not hasattr(OURS[each[0]], each[1])] == [], page


PAGE = (Path(__file__).parents[2] / "docs/how-to/migrate.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `((?:cluster|clusterfn\.configure|train\.\w+)\(.*?\))` \| (.+?) \|$", PAGE, re.MULTILINE)


@cluster(cores=1)
def train(lr: float) -> float:
    return lr


def test_a_word_of_another_tool_is_rejected_with_the_new_spelling() -> None:
    for written, says in ROWS:
        with pytest.raises((ConfigError, AttributeError)) as rejected:
            eval(written, {"cluster": cluster, "clusterfn": clusterfn, "train": train})

        assert says in str(rejected.value), written


@pytest.mark.parametrize("given", [[], [{"num_gpus": 1}]])
def test_options_that_are_called_as_in_ray_are_rejected_with_the_new_spelling(given: list[dict[str, int]]) -> None:
    with pytest.raises(ConfigError, match="is not a function") as rejected:
        train.options(*given, num_gpus=1)

    assert rejected.value.hint == "call f.with_options(gpus=1)(x)"


def test_the_tables_name_what_code_for_the_three_tools_has() -> None:
    words = {re.split(r"[(=]", written.replace("cluster(", "", 1))[0] for written, _ in ROWS}

    shown = "partition queue environment async_submit timeout_min mem_gb gpu train.remote"
    assert {*shown.split()} <= words


PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PICTURES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("picture", ["call", "speed"])
def test_a_picture_is_what_its_script_draws(picture: str) -> None:
    assert (PICTURES / f"{picture}.svg").read_text(encoding="utf-8") == script(f"draw_{picture}").draw()


WITH_EXAMPLES = [path for path in (ROOT / "clusterfn").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")]
WITHIN = sorted(path.relative_to(ROOT).as_posix() for path in WITH_EXAMPLES)
# These need a host, a GPU, a copied library, or names that the page about them has.
NEED_MORE = re.compile(r"/(api|integrations|gpu|serialization)/|/calls/(attach|group|job)\.py|/(live|files|search)\.py")


@pytest.mark.parametrize("name", [name for name in WITHIN if not NEED_MORE.search(name)])
def test_the_example_of_a_docstring_shows_what_it_does(name: str) -> None:
    ran = doctest.testmod(importlib.import_module(name[:-3].replace("/", ".").removesuffix(".__init__")))
    assert ran.attempted and not ran.failed


@pytest.mark.long
@pytest.mark.parametrize("name", ["terminal", "top"])
def test_the_terminal_shows_what_was_recorded(name: str) -> None:
    pytest.importorskip("pyte", reason="pyte is not installed: run make docs once")
    recorded = [(pause, text) for pause, text in json.loads((PICTURES / f"{name}.json").read_text(encoding="utf-8"))]

    assert (PICTURES / f"{name}.svg").read_text(encoding="utf-8") == script("record_terminal").draw(recorded, name)
