"""Modules that a session loads before its calls: each call is as if it had loaded them itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bridge.session.serving import Client, Server, of_main
from tests.waiting import until

StartThere = Callable[[], tuple[Server, Client]]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The modules of a virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    return next((tmp_path / "venv" / "lib").glob("python*/site-packages"))


@pytest.fixture
def start_there(packages: Path, start: Callable[..., Server]) -> StartThere:
    """Starts a session in that environment, whose own modules alone are loaded before calls."""

    def run() -> tuple[Server, Client]:
        python = str(packages.parents[2] / "bin" / "python")
        server = start(python=python, PYTHONPATH=os.pathsep.join([str(packages), *filter(None, sys.path)]))
        return server, Client(server)

    return run


def install_numpy(packages: Path) -> list[str]:
    """Let the environment have it too; return its name."""
    numpy = Path(pytest.importorskip("numpy").__file__).parent
    (packages / "numpy").symlink_to(numpy)
    return ["numpy"]


@of_main
def whose(*names: str) -> list[str]:
    import importlib

    return [importlib.import_module(name).WHOSE for name in names]


def write(folder: Path, whose: str, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"WHOSE = {whose!r}\n")


def test_a_module_of_the_users_is_never_replaced_by_one_of_the_environment(packages, tmp_path, start_there):
    write(packages, "environment", "helpers.py")
    write(tmp_path / "sources", "user", "helpers.py")
    server, client = start_there()
    sent: dict[str, Any] = {"facts": {"sys_path": [str(tmp_path / "sources")]}}

    assert client.values(2, whose, "helpers", **sent) == [["user"], ["user"]]
    assert server.close()["loaded beforehand"] == []


def test_a_module_of_the_environment_makes_way_in_a_call_that_has_one_of_its_own(packages, tmp_path, start_there):
    write(packages, "environment", "helpers/__init__.py", "helpers/part.py", "other/__init__.py", "other/part.py")
    write(tmp_path / "sources", "user", "helpers/__init__.py", "helpers/part.py", "other/part.py")
    server, client = start_there()
    names = ("helpers", "helpers.part", "other.part")
    sent: dict[str, Any] = {"facts": {"sys_path": [str(tmp_path / "sources")]}}

    client.send(1, whose, *names)
    client.send(2, whose, *names, **sent)
    client.send(3, whose, *names)

    assert client.end(1)[1] == ["environment"] * 3
    assert client.end(2)[1] == ["user", "user", "environment"], "a folder alone takes no module's place in an import"
    assert client.end(3)[1] == ["environment"] * 3
    assert server.close()["loaded beforehand"] == ["helpers", "other"]


@of_main
def helper() -> tuple[int, bool]:
    """The process that a module has started, and whether it lives."""
    import os

    import helped  # type: ignore[import-not-found]

    return helped.PID, os.path.exists(f"/proc/{helped.PID}")


HELPERS = {
    "fork": "import os, time\nPID = os.fork()\nif not PID:\n    time.sleep(600)\n    os._exit(0)\n",
    "program": "import subprocess\nPID = subprocess.Popen(['sleep', '600']).pid\n",
}


@pytest.mark.parametrize("source", HELPERS.values(), ids=HELPERS)
def test_a_module_that_starts_a_process_is_left_to_the_calls(packages: Path, start_there: StartThere, source: str):
    (packages / "helped.py").write_text(source)
    server, client = start_there()

    started = client.values(3, helper)

    assert [lives for _, lives in started] == [True] * 3
    assert len({pid for pid, _ in started}) == 3
    assert server.close()["loaded beforehand"] == []
    until(lambda: not [pid for pid, _ in started if Path(f"/proc/{pid}").exists()])


def test_a_module_that_forks_and_comes_back_twice_makes_no_second_worker(packages: Path, start_there: StartThere):
    (packages / "forking.py").write_text("import os\nos.fork()\nWHOSE = 'environment'\n")
    server, client = start_there()

    assert client.values(3, whose, "forking") == [["environment"]] * 3
    assert server.close() == {"calls": 3, "why": "closed", "loaded beforehand": []}


@of_main
def draw(module: str) -> dict[str, Any]:
    import importlib

    return {name: float(draw()) for name, draw in importlib.import_module(module).DRAWS.items()}


DRAWING = """
import random

class Kept:
    generator = random.Random()

OWN, SECURE, bound = random.Random(), random.SystemRandom(), random.Random().random
DRAWS = {
    "own": lambda: OWN.random(), "bound": bound, "of a class": Kept.generator.random,
    "secure": SECURE.random, "random": random.random,
}
"""
DRAWING_BY_NUMPY = """
import numpy.random

NEW, OLD, BITS = numpy.random.default_rng(), numpy.random.RandomState(), numpy.random.PCG64()
DRAWS = {
    "new": lambda: NEW.random(), "old": lambda: OLD.random_sample(), "bits": lambda: BITS.random_raw(),
    "numpy": numpy.random.random,
}
"""


@pytest.mark.parametrize("source", [DRAWING, DRAWING_BY_NUMPY], ids=["random", "numpy"])
def test_random_numbers_of_a_module_are_each_calls_own(packages: Path, start_there: StartThere, source: str):
    own = install_numpy(packages) if source is DRAWING_BY_NUMPY else []
    (packages / "drawing.py").write_text(source)
    server, client = start_there()

    drawn = client.values(3, draw, "drawing")

    assert {name: len({each[name] for each in drawn}) for name in drawn[0]} == dict.fromkeys(drawn[0], 3)
    assert server.close()["loaded beforehand"] == [*own, "drawing"]


@of_main
def say(module: str, word: str) -> None:
    import importlib

    importlib.import_module(module).say(word)


SAYING = {
    "keeps its stream": "import sys\nSTREAM = sys.stdout\ndef say(word):\n    print(word, file=STREAM, flush=True)\n",
    "prints": "print('loading')\ndef say(word):\n    print(word)\n",
    "keeps a copy": "import os\nCOPY = os.dup(1)\ndef say(word):\n    os.write(COPY, word.encode() + b'\\n')\n",
}


@pytest.mark.parametrize("source", SAYING.values(), ids=SAYING)
def test_what_a_module_prints_by_the_stream_that_it_keeps_is_each_calls(packages, start_there, source):
    (packages / "saying.py").write_text(source)
    server, client = start_there()

    for number in (1, 2):
        client.send(number, say, "saying", f"word {number}")
        client.end(number)

    shown = [client.printed()["stdout", number].decode().splitlines() for number in (1, 2)]
    assert [each[-1] for each in shown] == ["word 1", "word 2"]
    assert server.close()["loaded beforehand"] == ([] if "COPY" in source else ["saying"])


@of_main
def use(module: str) -> Any:
    import importlib

    return importlib.import_module(module).use()


# What a module does when it is imported that each call must find done anew, and what its `use` then returns each time.
DONE_ANEW = {
    "seeds": ("import random\nrandom.seed(42)\nuse = lambda: random.random()\n", 0.6394267984578837),
    "seeds numpy": (
        "import numpy.random\nnumpy.random.seed(42)\nuse = lambda: float(numpy.random.random())\n",
        0.3745401188473625,
    ),
    "opens a file": ("FILE = open(__file__)\nuse = lambda: FILE.readline()\n", "FILE = open(__file__)\n"),
    "shares memory": (
        "import multiprocessing\nCOUNT = multiprocessing.Value('i')\ndef use():\n"
        "    with COUNT.get_lock():\n        COUNT.value += 1\n        return COUNT.value\n",
        1,
    ),
    "handles a signal": (
        "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "use = lambda: int(signal.getsignal(signal.SIGCHLD))\n",
        1,
    ),
}


@pytest.mark.parametrize(("source", "value"), DONE_ANEW.values(), ids=DONE_ANEW)
def test_what_a_module_does_to_its_process_when_it_is_imported_is_done_in_each_call(
    packages: Path, start_there: StartThere, source: str, value: object
):
    own = install_numpy(packages) if "numpy" in source else []
    (packages / "doing.py").write_text(source)
    server, client = start_there()

    assert client.values(4, use, "doing") == [value] * 4
    assert server.close()["loaded beforehand"] == own
