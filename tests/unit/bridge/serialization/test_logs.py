"""Settings and loggers of a script: a job has those settings once it imports their library, and logs look as here."""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn.hosts import serialization
from tests.sent import logging_here
from tests.unit.bridge.serialization.test_calls import TORCH

ROOT = str(Path(__file__).parents[4])
SHOW = """
import sys
sys.path.insert(0, {root!r})
from tests.sent import log_as
log_as({facts!r})
import logging
{program}
"""


@pytest.fixture
def fresh(monkeypatch):
    """Gives the root logger as a fresh process has it; to be called in the test, as pytest adds its handlers last."""

    def make() -> logging.Logger:
        monkeypatch.setattr(root, "handlers", [])
        monkeypatch.setattr(root.manager, "loggerDict", {})
        root.setLevel(logging.WARNING)
        return root

    root = logging.getLogger()
    level = root.level
    yield make
    root.setLevel(level)


def logged(facts, program: str) -> str:
    """What a process that was told `facts` writes to stderr."""
    code = SHOW.format(root=ROOT, facts=facts, program=program)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr


def test_nothing_travels_where_nobody_set_logging_up(fresh):
    fresh()

    assert logging_here() is None

    logging.getLogger("clusterfn.ssh").setLevel(logging.WARNING)
    assert logging_here() is None, "the library's own level is for this process"


def test_nothing_travels_where_logging_was_never_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "logging")

    assert logging_here() is None


@pytest.mark.parametrize(
    "options",
    [{"level": logging.INFO, "format": "%(levelname)s|%(message)s", "datefmt": "%H"}, {"level": logging.INFO}],
)
def test_level_and_format_travel_in_the_header(fresh, options):
    root = fresh()
    logging.basicConfig(**options) if "format" in options else root.setLevel(options["level"])

    described, usual = logging_here(), {"format": logging.BASIC_FORMAT}
    assert {name: described[name] for name in (*usual, *options)} == {**usual, **options}


class OnDemand(logging.StreamHandler):
    """As PyTorch's `LazyTraceHandler`."""

    def __init__(self):
        logging.Handler.__init__(self)
        self.stream = None


@pytest.mark.parametrize(
    "make",
    [
        lambda file: OnDemand(),
        lambda file: logging.FileHandler(file.name),
        lambda file: logging.FileHandler(file.name, delay=True),
    ],
)
def test_what_goes_to_a_file_here_is_not_shown_in_a_job(fresh, tmp_path, make):
    fresh()
    mine = logging.getLogger("mine")
    mine.setLevel(logging.DEBUG)
    with (tmp_path / "x.log").open("w") as file, contextlib.closing(make(file)) as handler:
        mine.addHandler(handler)

        assert logging_here()["loggers"] == {"mine": {"level": logging.DEBUG}}


class Odd(logging.Formatter):
    pass


@pytest.mark.parametrize(
    "formatter",
    [Odd("odd %(message)s"), logging.Formatter("%(rank)s %(message)s"), logging.Formatter("{message}", style="{")],
)
def test_a_format_that_needs_more_than_a_text_does_not_travel(fresh, formatter):
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    fresh().addHandler(handler)

    assert logging_here()["format"] == logging.BASIC_FORMAT


def test_what_is_logged_is_shown_from_that_level_on():
    facts = {"level": 20, "format": "%(levelname)s|%(name)s|%(message)s"}
    program = "log = logging.getLogger('a.b'); log.addHandler(logging.NullHandler()); log.info('yes'); log.debug('no')"

    assert logged(facts, program) == "INFO|a.b|yes\n"


def test_logging_without_a_logger_keeps_the_format():
    facts = {"level": 20, "format": "theirs %(message)s"}

    assert logged(facts, "logging.info('a'); logging.getLogger('x').info('b')") == "theirs a\ntheirs b\n"


@pytest.mark.parametrize(
    "own",
    [
        "logging.basicConfig(level=10, format='own %(message)s')",
        "logging.getLogger().addHandler(h := logging.StreamHandler()); logging.getLogger().setLevel(10);"
        "h.setFormatter(logging.Formatter('own %(message)s'))",
        "from logging import config; config.dictConfig({'version': 1,"
        "'formatters': {'f': {'format': 'own %(message)s'}},"
        "'handlers': {'h': {'class': 'logging.StreamHandler', 'formatter': 'f'}},"
        "'root': {'level': 'DEBUG', 'handlers': ['h']}})",
    ],
)
def test_the_functions_own_logging_wins(own):
    facts = {"level": 20, "format": "theirs %(message)s"}

    assert logged(facts, f"{own}\nlogging.getLogger('a').debug('said')") == "own said\n"


CONFIGURED = {
    "a named logger at DEBUG below a quiet root": (
        "logging.basicConfig(level='WARNING', format=FORMAT)\nlogging.getLogger('mine').setLevel('DEBUG')",
        "mine d\nmine w\nother w\n",
    ),
    "a named logger at ERROR below a loud root": (
        "logging.basicConfig(level='DEBUG', format=FORMAT)\nlogging.getLogger('mine').setLevel('ERROR')",
        "other d\nother w\n",
    ),
    "a handler that shows less than its logger": (
        "logging.basicConfig(level='DEBUG', format=FORMAT)\nlogging.root.handlers[0].setLevel('WARNING')",
        "mine w\nother w\n",
    ),
    "a named logger with a handler of its own": (
        "logging.basicConfig(format=FORMAT); mine = logging.getLogger('mine')\n"
        "mine.propagate = False; mine.setLevel('DEBUG')\n"
        "mine.addHandler(logging.StreamHandler())\nmine.handlers[0].setFormatter(logging.Formatter('own %(message)s'))",
        "own d\nown w\nother w\n",
    ),
}
LOGS = "for name in ('mine', 'other'):\n  log = logging.getLogger(name); log.debug('d'); log.warning('w')"


@pytest.mark.parametrize(("setup", "said"), CONFIGURED.values(), ids=CONFIGURED)
def test_each_logger_says_in_a_job_what_it_says_here(setup, said):
    describe = (
        f"import sys; sys.path.insert(0, {ROOT!r})\nfrom tests.sent import logging_here\n"
        f"import logging\nFORMAT = '%(name)s %(message)s'\n{setup}\n{LOGS}\n"
        "print(repr(logging_here()))"
    )
    here = subprocess.run([sys.executable, "-c", describe], capture_output=True, text=True, check=True)

    assert here.stderr == said
    assert logged(ast.literal_eval(here.stdout), LOGS) == said


def test_a_logger_whose_class_a_library_has_made_is_left_to_the_library(fresh, monkeypatch):
    root = fresh()
    monkeypatch.setattr(root.manager, "loggerClass", type("Own", (logging.Logger,), {"__module__": "library.logger"}))
    logging.getLogger("of a library").setLevel(logging.INFO)

    assert logging_here() is None


settings = serialization.part("settings")
DEBUG = Path(__file__).parents[4] / "docs" / "how-to" / "debug.md"
LOAD = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("settings", {settings.__file__!r})
sys.modules["settings"] = settings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(settings)
"""
OF_SMALL_ONES = """
import csv, decimal, sys, warnings
sys.setrecursionlimit(4000)
csv.field_size_limit(1 << 20)
decimal.getcontext().prec = 5
warnings.simplefilter("ignore")
warnings.simplefilter("always", UserWarning)
import numpy
numpy.seterr(all="raise")
numpy.set_printoptions(precision=3)
"""
OF_LIBRARIES = """
import pandas, torch
pandas.set_option("display.max_rows", 7)
torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.set_float32_matmul_precision("high")
torch.set_grad_enabled(False)
torch.autograd.set_detect_anomaly(True)
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = True
torch.backends.cuda.enable_flash_sdp(False)
"""


def run(python: str, *lines: str) -> list[str]:
    argv = [python, "-c", "\n".join([LOAD, *lines])]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("python", "script", "modules"),
    [
        (sys.executable, OF_SMALL_ONES, "csv, decimal, numpy"),
        pytest.param(str(TORCH), OF_LIBRARIES, "pandas, torch", marks=pytest.mark.long),
    ],
)
def test_what_a_script_sets_is_set_in_a_job_once_it_imports_the_library(python: str, script: str, modules: str):
    (before, here) = run(
        python, "print(json.dumps(settings.current()))", script, "print(json.dumps(settings.current()))"
    )
    there = run(
        python, f"settings.apply({json.loads(here)!r})", f"print({modules.split(', ')!r}[-1] in sys.modules)",
        f"import {modules}", "print(json.dumps(settings.current()))",
    )  # fmt: skip

    assert before == "{}"
    assert len(json.loads(here)) >= script.count("\n") // 2
    assert there == ["False", here]


def test_what_a_library_does_not_have_is_named_and_the_rest_is_set_for_this_call(capsys):
    limit = sys.getrecursionlimit()
    finders = list(sys.meta_path)
    settings.apply({"sys:set_nothing": 1, "sys:setrecursionlimit": limit + 7, "not_imported:setting": 1})

    assert sys.getrecursionlimit() == limit + 7
    settings.apply({})
    assert (sys.getrecursionlimit(), sys.meta_path) == (limit, finders), "the next call of an actor comes without it"
    assert "clusterfn: sys.set_nothing of your script has no effect in this job: " in capsys.readouterr().err


def test_the_page_lists_each_setting():
    text = DEBUG.read_text(encoding="utf-8")
    listed = {name.replace(":", ".") for name in settings.CARRIED} | {name.partition("(")[0] for name in settings.NAMED}

    assert sorted(name for name in listed if f"`{name}`" not in text) == []
