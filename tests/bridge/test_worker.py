"""What the worker says when a call cannot be loaded, or its value cannot travel."""

from __future__ import annotations

import shutil

import pytest

from tests.bridge.host import Bench
from tests.interpreters import interpreter


def test_a_missing_module_is_named_with_something_to_do(bench: Bench):
    job = bench.job("def f():\n    pass\n")
    (job.folder / "payload.pkl").write_bytes(_calling_a_missing_module(bench))

    outcome = job.run()

    assert (outcome["kind"], outcome["stage"]) == ("payload", "load")
    assert "ModuleNotFoundError" in outcome["message"]
    assert "'nowhere_mod'" in outcome["hint"] and "modules=" not in outcome["hint"]
    assert outcome["exception"]["missing"] == {"module": "nowhere_mod", "python": bench.python}


def test_a_module_missing_in_the_function_is_named_with_its_interpreter(bench: Bench):
    _, outcome = bench.run("def f():\n    import nowhere_mod\n")

    assert outcome["exception"]["missing"] == {"module": "nowhere_mod", "python": bench.python}


def test_missing_metadata_is_distinguished_from_a_missing_module(bench: Bench):
    _, outcome = bench.run("def f():\n    import importlib.metadata\n    importlib.metadata.version('nowhere-pkg')\n")

    missing = {"module": "nowhere-pkg", "python": bench.python, "metadata": True}
    assert outcome["exception"]["missing"] == missing


def test_files_that_nobody_asked_for_are_listed_with_the_outcome(bench: Bench):
    source = (
        "def f():\n    import os\n    os.mkdir('d')\n    open('d/b', 'w').close()\n"
        "    os.symlink('/etc', 'l')\n    open('a', 'w').write('123')\n"
        "    os.mkdir('d/__pycache__')\n    open('d/__pycache__/b.pyc', 'w').close()\n"
    )

    assert bench.run(source)[1]["left"] == [["a", 3], ["d/b", 0]]
    assert bench.run(source, outputs=["*"])[1]["left"] == []


def test_of_many_files_only_some_are_listed(bench: Bench):
    _, outcome = bench.run("def f():\n    for n in range(3000):\n        open(str(n), 'w').close()\n")

    assert len(outcome["left"]) == 20


def _calling_a_missing_module(bench: Bench) -> bytes:
    """A payload that names a module which does not exist when it is loaded."""
    source = (
        "import sys, types\nmodule = types.ModuleType('nowhere_mod')\nclass C: pass\nC.__module__ = 'nowhere_mod'\n"
        "C.__qualname__ = 'C'\nmodule.C = C\nsys.modules['nowhere_mod'] = module\nmodule.__file__ = 'x'\n"
        "def f(c=C):\n    pass\n"
    )
    return (bench.job(source).folder / "payload.pkl").read_bytes()


def test_a_call_of_another_minor_version_is_refused(bench: Bench):
    other = interpreter("3.9")
    if other is None:
        pytest.skip("Python 3.9 is not installed here")
    made = Bench(bench.root, bench.bridge, bench.host, other).job("def f():\n    pass\n")
    job = bench.job("def f():\n    pass\n")
    shutil.copy(made.folder / "payload.pkl", job.folder)

    outcome = job.run()

    assert outcome["kind"] == "environment"
    assert outcome["hint"] == "use an environment with Python 3.9"


def test_for_an_open_file_no_list_is_advised(bench: Bench):
    _, outcome = bench.run("def f():\n    return {'log': open('x', 'w+')}\n")

    assert outcome["kind"] == "result"
    assert "outputs=" in outcome["hint"] and "list" not in outcome["hint"]


def test_an_exception_that_refuses_to_travel_still_gives_its_text(bench: Bench):
    _, outcome = bench.run("""def f():
    class Odd(Exception):
        def __reduce__(self):
            raise RuntimeError('no')
    raise Odd('why')
""")

    assert outcome["kind"] == "raised"
    assert outcome["exception"]["message"] == "why"


def test_the_function_runs_in_the_main_thread(bench: Bench):
    source = "def f():\n    import threading\n    return threading.current_thread() is threading.main_thread()\n"
    job, _ = bench.run(source)

    assert job.value() is True


def test_pickling_that_ends_the_process_is_not_a_success(bench: Bench):
    _, outcome = bench.run("""def f():
    import os
    class Bad:
        def __reduce__(self):
            os._exit(5)
    return Bad()
""")

    assert (outcome["kind"], outcome["stage"], outcome["code"]) == ("exited", "result", 5)


def test_a_very_long_message_is_cut_in_the_outcome_and_whole_in_the_value(bench: Bench):
    size = 10 << 20
    job, outcome = bench.run("def f(size):\n    raise ValueError('a' + 'x' * size + 'z')\n", size)

    message, trace = outcome["exception"]["message"], outcome["exception"]["traceback"]
    assert outcome["kind"] == "raised"
    assert (message[:2], message[-2:]) == ("ax", "xz")
    assert len(message) < 70000
    assert trace.startswith("Traceback") and trace.endswith("xz\n")
    assert (job.attempt / "outcome.json").stat().st_size < 300000
    assert outcome["value"]["size"] > size
    assert outcome["usage"]["cpu_s"] < 8.0


def test_a_value_over_the_limit_of_file_sizes_could_not_be_written(bench: Bench):
    _, outcome = bench.run("""def f():
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    return 'x' * 10000
""")

    assert (outcome["kind"], outcome["message"]) == ("result", "the value could not be written: File too large")
    assert "ulimit -f" in outcome["hint"]


def test_a_value_whose_file_the_function_closed_could_not_be_written(bench: Bench):
    _, outcome = bench.run("""def f():
    import os
    for fd in os.listdir('/proc/self/fd'):
        if os.path.exists('/proc/self/fd/' + fd) and os.readlink('/proc/self/fd/' + fd).endswith('value.pkl'):
            os.close(int(fd))
    return 1
""")

    assert (outcome["kind"], outcome["message"]) == ("result", "the value could not be written: Bad file descriptor")


def test_an_oserror_of_pickling_itself_is_not_one_of_writing(bench: Bench):
    _, outcome = bench.run("""def f():
    class Odd:
        def __reduce__(self):
            open('/nowhere/at/all')
    return [Odd()]
""")

    assert outcome["kind"] == "result"
    assert "result[0]" in outcome["message"]


@pytest.mark.parametrize("interrupt", ["KeyboardInterrupt", "SystemExit"])
def test_an_exception_that_interrupts_its_own_description(bench: Bench, interrupt):
    _, outcome = bench.run(f"""def f():
    class Odd(Exception):
        def __str__(self):
            raise {interrupt}
    raise Odd
""")

    assert outcome["kind"] == "raised"
    assert outcome["exception"]["message"] == f"<no message: its __str__ raised {interrupt}>"
    assert "in f" in outcome["exception"]["traceback"]


def test_a_value_that_interrupts_its_own_pickling(bench: Bench):
    _, outcome = bench.run("""def f():
    class Odd:
        def __reduce__(self):
            raise KeyboardInterrupt
    return Odd()
""")

    assert (outcome["kind"], outcome["stage"]) == ("result", "result")
    assert "KeyboardInterrupt" in outcome["message"]


def test_a_value_whose_class_raises_breaks_nothing(bench: Bench):
    _, outcome = bench.run("""def f():
    class Odd:
        @property
        def __class__(self):
            raise KeyError("class")
    return Odd()
""")

    assert (outcome["kind"], outcome["stage"]) == ("result", "result")
    assert "pickling it raised KeyError: 'class'" in outcome["message"]
