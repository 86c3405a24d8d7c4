"""Where the user's code calls ours: wrong keywords are told with the near one, and errors show the user's frames."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn import ConfigError, Executor, Session, attach, cluster, public_api, sweep


def double(x: int) -> int:
    return 2 * x


there = cluster(double)
CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: there.map([1], on_eror="raise"), "map() has no argument 'on_eror'; did you mean on_error?"),
    (lambda: there.with_options(gpu=1), "with_options() has no argument 'gpu'; did you mean gpus?"),  # type: ignore[call-arg]
    (lambda: sweep(there, {"x": [1]}, max_config=3), "sweep() has no argument 'max_config'; did you mean max_configs?"),  # type: ignore[call-arg]
    (lambda: Session(gpu=1), "Session() has no argument 'gpu'; did you mean gpus?"),  # type: ignore[call-arg]
    (lambda: Executor(gpu=1), "Executor() has no argument 'gpu'; did you mean gpus?"),  # type: ignore[call-arg]
    (lambda: Executor().map(abs, [1], time_out=1), "map() has no argument 'time_out'; did you mean timeout?"),  # type: ignore[call-arg]
    (lambda: there.map([1], scale=3), "arguments are max_parallel, chunksize, on_error, sequential_up_to, x"),
    (lambda: there.map([1], max_workers=2), "write max_parallel=2"),
    (lambda: there.map([1], timeout=2), "next:  set it where you wait: .results(timeout=2)"),
    (lambda: cluster(timeout=3), 'next:  write it with a unit: time="90min"'),  # type: ignore[call-overload]
    (lambda: cluster(timeout="3min"), 'next:  write time="3min"'),  # type: ignore[call-overload]
    (lambda: cluster(mem=16), 'next:  write it with a unit: memory="16GB"'),  # type: ignore[call-overload]
    (lambda: there.map([1], gpu=1), "write @cluster(gpus=…) or f.with_options(gpus=…)"),
    (lambda: Session(priority=1), "f.with_options(priority=…) and call f without Session"),  # type: ignore[call-arg]
    (lambda: cluster(image="nvcr.io/x"), 'name an image of the host: environment="apptainer:/image.sif"'),  # type: ignore[call-overload]
    (lambda: Executor(8), 'write Executor("tensor01", max_workers=8), with the name of your host'),  # type: ignore[arg-type]
    (lambda: Session(max_workers=4), "the host's free resources decide"),  # type: ignore[call-arg]
    (lambda: Session(partition="short"), 'write slurm={"partition": "short"}'),  # type: ignore[call-arg]
]  # fmt: skip


class Model:
    def __init__(self, path: str) -> None: ...

    def predict(self, batch: int) -> None: ...


IN_F, IN_SESSION = "write @cluster(gpus=…) or f.with_options(gpus=…)", "write Session(gpus=…)"
# An option of @cluster where no option can be: each error names the place that has it.
MISPLACED: list[tuple[Callable[[], Any], str]] = [
    (lambda: there.on(gpus=1), IN_F),  # type: ignore[call-arg]
    (lambda: there.on("tensor01", gpus=1), IN_F),  # type: ignore[call-arg]
    (lambda: attach("7f3a", gpus=1), IN_F),  # type: ignore[call-arg]
    (lambda: there.submit(1, gpus=1), "write @cluster(gpus=…) or double.with_options(gpus=…)"),  # type: ignore[call-arg]
    (lambda: Executor().submit(double, 1, gpus=1), "write Executor(gpus=…)"),
    (lambda: Executor().submit(double, 1, retries=1), "write @cluster(retries=…) or double.with_options(retries=…)"),
    (lambda: Executor().map(double, [1], gpus=1), "write Executor(gpus=…)"),  # type: ignore[call-overload]
    (lambda: Session().call(double, 1, gpus=1), IN_SESSION),
    (lambda: Session().submit(double, 1, retries=1), "double.with_options(retries=…) and call double without Session"),
    (lambda: Session().map(double, [1], gpus=1), IN_SESSION),  # type: ignore[call-overload]
    (lambda: Session().actor(Model, "a", gpus=1), IN_SESSION),
    (lambda: there.with_options("tensor01"), 'write host="tensor01"'),  # type: ignore[call-arg, arg-type]
    (lambda: there.with_options({"gpus": 1, "time": "2h"}), 'write gpus=1, time="2h"'),  # type: ignore[call-arg, arg-type]
    (lambda: Session("tensor01", 4), "write one of these before it: idle=, workers=,"),  # type: ignore[call-arg, arg-type]
    (lambda: Executor("tensor01", 4, {"cores": 2}), "write cores=2"),  # type: ignore[call-arg, arg-type]
    (lambda: cluster(max_parallel=4), "set it where you map: f.map(items, max_parallel=4)"),  # type: ignore[call-overload]
    (lambda: cluster(idle="1h"), 'clusterfn.Session(idle="1h")'),  # type: ignore[call-overload]
    (lambda: Executor(workers=3), "write max_workers=3"),  # type: ignore[call-arg]
]  # fmt: skip


@pytest.mark.parametrize(("call", "says"), MISPLACED)
def test_an_option_at_the_wrong_place_is_refused_with_the_place_that_has_it(call: Callable[[], Any], says: str) -> None:
    with pytest.raises((ConfigError, TypeError)) as refused:
        call()

    assert str(refused.value).endswith(says) or f"{says} " in str(refused.value)


@pytest.mark.parametrize(("call", "says"), CALLS)
def test_a_keyword_that_is_unknown_is_refused_with_what_is_near(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        call()

    assert says in str(refused.value)


OPTIONS = inspect.signature(cluster).parameters.keys() - {"function"}
COMPLETED = [
    (there.map, {"max_parallel", "on_error"}),
    (sweep, {"max_configs"}),
    (cluster, {"function", "cores", "gpus", "notify", "environment"}),
    (there.with_options, OPTIONS),
    (Session, {"host", "idle", "workers", "cores", "environment"}),
    (Executor, {"host", "cores", "environment"}),
]


@pytest.mark.parametrize(("public", "words"), COMPLETED)
def test_completion_of_keywords_sees_those_of_the_function_itself(public: Callable[..., Any], words: set[str]) -> None:
    shown = inspect.signature(public).parameters
    assert words <= shown.keys()
    assert [name for name, each in shown.items() if each.kind is each.VAR_KEYWORD] in ([], ["constants"])


def test_help_describes_every_option() -> None:
    told = inspect.getdoc(cluster) or ""
    assert [name for name in OPTIONS if f"\n    {name}: " not in told] == []


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration whose only host is this machine."""
    (tmp_path / "clusterfn.yml").write_text(f"hosts: {{here: {{scheduler: local, root: {tmp_path / 'root'}}}}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))


OF_OLD_PYTHON = {"public_api.py"} if sys.version_info < (3, 11) else set()  # it shows the function that raises again


def files_of(error: BaseException) -> list[str]:
    """The end of the path of each frame of it, the outermost first."""
    return [each.filename.rpartition("/")[2] for each in traceback.extract_tb(error.__traceback__)]


def generates() -> Iterator[int]:
    yield 1


REFUSED: dict[str, Callable[[], Any]] = {
    "a call": lambda: there(1, 2),  # type: ignore[call-arg]
    "submit": lambda: there.submit(1, 2),  # type: ignore[call-arg]
    "map": lambda: there.map([1], [2]),
    "an unknown word": lambda: there.map([1], on_eror=1),
    "script": lambda: there.script(1, 2),  # type: ignore[call-arg]
    "the decorator": lambda: cluster(cores="many"),  # type: ignore[call-overload]
    "its function": lambda: cluster(cores=1)(generates),
    "attach": lambda: attach("xyz"),
    "a session": lambda: Session(cores="many"),  # type: ignore[arg-type]
    "an executor": lambda: Executor().submit(double, 1, 2),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("what", REFUSED)
def test_an_error_shows_the_users_frames_alone(what: str) -> None:
    with pytest.raises((TypeError, ConfigError)) as refused:
        REFUSED[what]()
    assert {*files_of(refused.value)} - OF_OLD_PYTHON == {"test_public_api.py"}


UNCAUGHT = """
from clusterfn import attach
def of_the_user():
    attach("xyz")
of_the_user()
"""


@pytest.mark.skipif(bool(OF_OLD_PYTHON), reason="it shows one frame of ours")
@pytest.mark.usefixtures("here")
def test_in_ipython_an_uncaught_error_shows_no_frame_of_clusterfn(tmp_path: Path) -> None:
    """As tests/e2e/test_daily.py shows it for a script."""
    pytest.importorskip("IPython")
    argv = [sys.executable, "-m", "IPython", "--colors=NoColor", "-c", UNCAUGHT]
    env = {**os.environ, "IPYTHONDIR": str(tmp_path)}

    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120, check=False)

    shown = done.stdout + done.stderr
    assert "ConfigError" in shown and "of_the_user" in shown
    assert "public_api.py" not in shown and "attach.py" not in shown and "hidden" not in shown


@pytest.mark.usefixtures("here")
def test_debug_shows_the_frames_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERFN_DEBUG", "1")

    with pytest.raises(TypeError) as whole:
        there.submit(1, 2)  # type: ignore[call-arg]

    assert "call.py" in files_of(whole.value)


OF_OURS = """
def prepare(*given):
    try:
        raise ValueError("of ours")
    except ValueError:
        raise KeyboardInterrupt
"""


def test_what_we_met_on_the_way_is_not_shown_and_what_the_user_met_is(monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, Any] = {}
    exec(compile(OF_OURS, public_api.__file__, "exec"), scope)
    monkeypatch.setattr("clusterfn.calls.call.prepare", scope["prepare"])

    with pytest.raises(KeyboardInterrupt) as interrupted:
        try:
            raise KeyError("of the user")
        except KeyError:
            there.submit(1)

    met = interrupted.value.__context__
    assert isinstance(met, KeyError) and met.__context__ is None


@pytest.mark.usefixtures("here")
def test_frames_of_the_users_among_ours_are_never_left_out() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as interrupted:
        there.map(items())

    shown = [name for name in files_of(interrupted.value) if name not in OF_OLD_PYTHON]
    assert shown == ["test_public_api.py", "test_public_api.py"]


@pytest.mark.parametrize(("package", "is_shown"), [("ipykernel", False), ("IPython", False), ("pandas", True)])
def test_ctrl_c_while_we_display_shows_no_frames_of_jupyter(package: str, is_shown: bool) -> None:
    theirs = f"/venv/lib/python3.11/site-packages/{package}/display.py"
    ours = str(Path(public_api.__file__).with_name("calls") / "console.py")
    space: dict[str, Any] = {}
    exec(compile("def publish():\n    raise KeyboardInterrupt\n", theirs, "exec"), space)
    exec(compile("def call():\n    publish()\n", ours, "exec"), space)

    with pytest.raises(KeyboardInterrupt) as raised:
        public_api.public_api(space["call"])()

    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    assert (theirs in files) == is_shown


def one(x: int) -> None: ...
def some(x: int, y: int, /, z: int, w: int = 1) -> None: ...
def keyworded(x: int = 1, *rest: int, y: int, z: int, w: int = 2) -> None: ...
def bare(*, y: int) -> None: ...
def open_to_all(x: int, **more: int) -> None: ...
def nothing() -> None: ...


MISFITS: list[tuple[tuple[int, ...], dict[str, int]]] = [
    ((), {}), ((1, 2), {}), ((1, 2, 3), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"x": 1}), ((1, 2), {"z": 3, "q": 4}),
    ((), {"y": 1}), ((1, 2), {"y": 1}), ((1,), {"z": 1}), ((1, 2, 3), {"y": 1}), ((1, 2, 3, 4, 5), {"w": 1}),
]  # fmt: skip


@pytest.mark.parametrize("function", [one, some, keyworded, bare, open_to_all, nothing])
def test_arguments_that_do_not_fit_are_rejected_in_pythons_words(function: Callable[..., Any]) -> None:
    for args, kwargs in MISFITS:
        try:
            function(*args, **kwargs)
        except TypeError as refused:
            said = str(refused).partition(". Did you mean")[0]  # which Python 3.13 adds
        else:
            public_api.check_arguments(function, args, kwargs)
            continue
        with pytest.raises(TypeError) as error:
            public_api.check_arguments(function, args, kwargs)
        if "positional-only" not in said:  # which `inspect` says in words of its own
            assert str(error.value) == said
