"""A call as bytes: what goes with it, and what is refused before anything is sent."""

from __future__ import annotations

import fractions
import functools
import hashlib
import importlib.machinery
import importlib.util
import linecache
import os
import subprocess
import sys
import threading
import time
import types
import zlib
from pathlib import Path

import pytest

import clusterfn
from clusterfn import PayloadError
from clusterfn.calls import job_display
from clusterfn.calls.group import JobGroup
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.job import Job
from clusterfn.display import console
from clusterfn.hosts import serialization
from clusterfn.packing import payload
from clusterfn.packing.dependencies import Place
from clusterfn.packing.files import File
from tests.fakes.taken import Taken
from tests.fixtures import roundtrip
from tests.waiting import until


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """What cannot travel is looked for as long as that takes."""
    monkeypatch.setattr(serialization.part("unpicklable"), "LIMIT_S", 60.0)


def pack(*args, **kwargs):
    return payload.pack(len, args, kwargs)


def two(x, y, *, key=None):
    pass


@functools.wraps(two)
def fills_in(*args, **kwargs):
    return two(*args, 2, **kwargs)


def test_beside_a_job_what_cannot_travel_is_named_and_not_the_job():
    job = Job("7f3a" * 4, "train", "there", f"/root/jobs/{'7f3a' * 4}", None)

    with pytest.raises(PayloadError, match=r"args\[1\]: cannot pickle '_thread.lock' object"):
        payload.pack(print, (job, threading.Lock()), {}, place=Place("there", "/root"))
    packed = payload.pack(print, (job, [job["loss"]]), {}, place=Place("there", "/root"))
    assert packed.after == {job.id: {"name": "train", "items": None}} and packed.inputs[0].source.argument is job
    with pytest.raises(PayloadError, match="wait and pass its value"):
        payload.pack(print, (job,), {}, place=Place("there", "/other"))
    with pytest.raises(PayloadError, match="args"):
        payload.pack(print, (job,), {})


@pytest.mark.parametrize(("function", "args"), [(fills_in, (1,)), (functools.partial(two, 1), (2,)), (max, (1, 2))])
def test_a_signature_that_is_not_certain_refuses_nothing(function, args):
    assert payload.pack(function, args, {})


JOB = Job("7f3a000011112222", "train", "tensor01", "/root/jobs/7f3a", Taken())
GROUP = JobGroup(GroupState("8fb3000011112222", "train", "tensor01", "/root/jobs/8fb3", 2))


@pytest.mark.parametrize(
    ("argument", "message", "hint"),
    [
        (JOB, "args[0]: this is the Job 7f3a000011112222 itself", "pass the value of that job: job.result()"),
        ([GROUP], "args[0][0]: this is the JobGroup 8fb3000011112222 itself", "group.results()"),
    ],
)
def test_a_job_as_an_argument_is_refused_by_its_name_with_what_to_pass_instead(argument, message, hint):
    with pytest.raises(PayloadError) as caught:
        pack(argument)

    assert message in caught.value.message
    assert hint in caught.value.hint


class Odd:
    def __reduce__(self):
        raise SystemError("odd")


@pytest.mark.parametrize(
    ("args", "kwargs", "where"),
    [
        ([threading.Lock()], {}, "args[0]"),
        ([1, {"a": [threading.Lock()]}], {}, "args[1]['a'][0]"),
        ([], {"model": threading.Lock()}, "kwargs['model']"),
        ([(i for i in ())], {}, "args[0]: cannot pickle 'generator' object"),
        ([File(__file__), threading.Lock()], {}, "args[1]"),
        ([Odd()], {}, "Odd.__reduce__, which raised SystemError: odd"),
    ],
)
def test_what_cannot_travel_is_named_before_anything_is_sent(args, kwargs, where):
    with pytest.raises(PayloadError, match="the call cannot be sent: ") as caught:
        pack(*args, **kwargs)
    assert where in caught.value.message and caught.value.hint and caught.value.stage == "submit"


def test_an_open_file_is_refused_with_what_to_send_instead(tmp_path):
    """cloudpickle would quietly send its whole content."""
    (tmp_path / "data.txt").write_text("1\n")
    with (tmp_path / "data.txt").open() as file:
        with pytest.raises(PayloadError, match=r"args\[0\]: cannot pickle '_io.TextIOWrapper' object") as caught:
            payload.pack(len, (file,), {})
        with pytest.raises(PayloadError, match=r"closure variable file\): cannot pickle '_io.TextIOWrapper'"):
            payload.pack(lambda: file.read(), (), {})

    assert caught.value.hint == "open it inside the function, or pass clusterfn.File(path) as the argument"


def test_the_streams_of_the_process_are_those_of_the_one_there(monkeypatch):
    with Path(os.devnull).open() as file:
        monkeypatch.setattr(sys, "stdout", file)
        payload.pack(print, ("x",), {"file": sys.stdout})


class Uncomparable(type):
    def __eq__(cls, other: object) -> bool:
        raise ValueError("what are these?")

    __hash__ = type.__hash__


def test_a_class_that_cannot_be_compared_goes():
    class Column(metaclass=Uncomparable):
        pass

    pack(Column(), [Column()])


def test_an_edited_module_of_the_same_package_is_reported(tmp_path, monkeypatch):
    (tmp_path / "mine_p").mkdir()
    (tmp_path / "mine_p/__init__.py").write_text("from .other import value\ndef f():\n    return value()\n")
    (tmp_path / "mine_p/other.py").write_text("def value():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine_p

    assert payload.pack(mine_p.f, (), {}).edited == ()
    (tmp_path / "mine_p/other.py").write_text("def value():\n    return 22\n")

    assert payload.pack(mine_p.f, (), {}).edited == ("mine_p.other",)
    assert payload.pack(mine_p.f, (), {}).edited == ()
    for name in ("mine_p", "mine_p.other"):
        del sys.modules[name]


def test_a_compiled_module_of_ones_own_is_left_to_the_environment(tmp_path, monkeypatch):
    extension = tmp_path / "fastmine.so"
    extension.touch()
    module = types.ModuleType("fastmine")
    loader = importlib.machinery.ExtensionFileLoader("fastmine", str(extension))
    module.__spec__ = importlib.util.spec_from_file_location("fastmine", extension, loader=loader)
    monkeypatch.setitem(sys.modules, "fastmine", module)

    packed = payload.pack(lambda: module, (), {})

    assert [each.name for each in packed.compiled] == ["fastmine"] and packed.sources is None
    assert "fastmine" in payload.imports_of(packed)


def test_an_attribute_named_like_a_folder_beside_the_script_is_no_import(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/large.csv").write_text("a")
    monkeypatch.syspath_prepend(str(tmp_path))
    scope = {"__name__": "__main__"}
    exec("def f(x):\n    return x.data", scope)

    assert payload.pack(scope["f"], (1,), {}).sources is None


def test_a_module_registered_with_the_users_cloudpickle_goes_by_value(tmp_path, monkeypatch):
    import cloudpickle

    (tmp_path / "mine_v.py").write_text("def f():\n    return 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine_v

    cloudpickle.register_pickle_by_value(mine_v)
    packed = payload.pack(mine_v.f, (), {})
    cloudpickle.unregister_pickle_by_value(mine_v)
    again = payload.pack(mine_v.f, (), {})
    del sys.modules["mine_v"]

    assert packed.sources is None and b"mine_v.py" in packed.data
    assert set(again.sources.files) == {"mine_v.py"}


def test_a_type_is_looked_up_once_however_many_objects_it_has(monkeypatch):
    asked = []
    monkeypatch.setattr(payload.own_modules, "is_own", lambda name: asked.append(name))

    pack([fractions.Fraction(number) for number in range(1000)])

    assert sorted(asked) == ["abc", "builtins", "fractions"]


HOME = """
import sys, time
sys.path.insert(0, {site!r})
from clusterfn.packing import payload
import helper_of_mine
def f():
    import late_of_mine
    return late_of_mine, helper_of_mine.x, (1).real
payload.pack(len, (), {{}})
start = time.process_time()
packed = payload.pack(f, (), {{}})
print(sorted(packed.sources.files), time.process_time() - start < 0.4)
"""


def test_a_script_in_a_home_full_of_files_is_sent_quickly(tmp_path):
    site = roundtrip.site_packages(tmp_path / "elsewhere")
    home = tmp_path / "home"
    home.mkdir()
    for number in range(8_000):
        os.close(os.open(home / f"file{number}", os.O_CREAT))
    (home / "helper_of_mine.py").write_text("x = 1")
    (home / "late_of_mine.py").touch()
    (home / "script.py").write_text(HOME.format(site=str(site)))

    told = subprocess.run([sys.executable, "script.py"], cwd=home, capture_output=True, text=True)

    assert told.stdout == "['helper_of_mine.py', 'late_of_mine.py'] True\n", told.stderr


def packed(function):
    return payload.pack(function, (), {})


def of_a_script(source, **more):
    """The function `f` of a script, as Python has it that runs the script."""
    name = f"<script {len(linecache.cache)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope = {"__name__": "__main__", **more}
    exec(compile(source, name, "exec"), scope)
    return scope["f"]


ABSENT = [
    "try:\n import {module}\n HAS = True\nexcept ImportError:\n HAS = False\ndef f():\n return HAS\n",
    "HAS = False\ntry:\n import {module} as m\n HAS = True\nexcept ImportError:\n pass\ndef f():\n return HAS\n",
    "try:\n from {module} import path as HAS\nexcept (ImportError, OSError):\n HAS = None\ndef f():\n return HAS\n",
]


@pytest.mark.parametrize("source", ABSENT)
def test_a_name_that_a_missing_module_decided_on_this_machine_is_reported(source):
    (told,) = packed(of_a_script(source.format(module="nowhere_mod"))).decided_here

    assert told.startswith("HAS is ") and "because this machine has no nowhere_mod" in told
    assert packed(of_a_script(source.format(module="os"))).decided_here == ()


def test_it_is_reported_too_where_another_cell_of_a_notebook_has_decided_it():
    cells = ["%matplotlib inline", "try:\n    import nowhere_mod\nexcept ImportError:\n    nowhere_mod = None\n"]

    f = of_a_script("def f():\n    return [each for each in (nowhere_mod,)]\n", In=cells, nowhere_mod=None)

    assert "because this machine has no nowhere_mod" in packed(f).decided_here[0]


def test_a_name_that_no_import_decides_is_not_reported():
    assert packed(of_a_script("DEBUG = False\ndef f():\n    return DEBUG\n")).decided_here == ()
    assert packed(of_a_script(ABSENT[0].format(module="nowhere_mod") + "HAS = 3\n")).decided_here == ()


class Pressed:
    """Ctrl-C comes while this is pickled."""

    def __reduce__(self):
        raise KeyboardInterrupt


class Fitted:
    @clusterfn.cluster
    def fit(self, rows): ...


def test_a_decorated_method_of_an_object_needs_no_clusterfn_on_the_host():
    assert b"clusterfn.api" not in pack(Fitted().fit).data


@clusterfn.cluster
def takes(_: object) -> None: ...


@pytest.mark.parametrize("send", [takes, takes.submit, lambda each: takes.map([each])], ids=["call", "submit", "map"])
def test_ctrl_c_while_a_call_is_prepared_says_that_it_was_not_sent(send, tmp_path, monkeypatch, capsys):
    (tmp_path / "clusterfn.yml").write_text("default_host: local\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    with pytest.raises(KeyboardInterrupt):
        send(Pressed())
    assert capsys.readouterr().err.count("it was not sent, and nothing runs") == 1


def test_calls_that_are_prepared_side_by_side_are_each_reported_once(monkeypatch):
    said = []
    monkeypatch.setattr(job_display, "PREPARING_S", 0.0)
    monkeypatch.setattr(console, "tell", said.append)
    with job_display.preparing("first"), job_display.preparing("second"):
        until(lambda: len(said) >= 2)

    assert sorted(said) == [f"preparing {each}: reading and packing its arguments" for each in ("first", "second")]


def test_calls_that_are_prepared_soon_say_nothing(monkeypatch, capsys):
    now, looks = [0.0], []
    clock = types.SimpleNamespace(monotonic=lambda: (looks.append(1), now[0])[1], sleep=time.sleep)
    monkeypatch.setattr(job_display, "time", clock)
    for _ in range(3):
        with job_display.preparing("train"):
            now[0] += 0.9 * job_display.PREPARING_S
            seen = len(looks)
            until(lambda seen=seen: len(looks) > seen + 1)

    assert capsys.readouterr().err == ""


MB = 1 << 20


def name_by_pieces(data):
    pieces = (hashlib.sha256(data[at : at + 4 * MB]).digest() for at in range(0, len(data), 4 * MB))
    return hashlib.sha256(b"clusterfn pieces of 4 MB\0" + b"".join(pieces)).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 4 * MB - 1, 4 * MB])
def test_the_name_of_a_buffer_is_its_sha256_with_its_crc(size):
    data = os.urandom(size)

    assert payload.name_of(memoryview(data)) == (hashlib.sha256(data).hexdigest(), zlib.crc32(data))


@pytest.mark.parametrize("size", [4 * MB + 1, 8 * MB, 9 * MB + 3, 41 * MB])
@pytest.mark.parametrize("cores", [1, 2, 64, None])
def test_the_name_of_a_large_buffer_does_not_depend_on_the_number_of_cores(monkeypatch, size, cores):
    data = os.urandom(size)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)

    assert payload.name_of(memoryview(data)) == (name_by_pieces(data), zlib.crc32(data))


def test_a_buffer_has_a_name_when_no_thread_can_be_started(monkeypatch):
    def refuse(*_):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", refuse)
    data = os.urandom(5 * MB)

    assert payload.name_of(memoryview(data)) == (name_by_pieces(data), zlib.crc32(data))
