"""A call as bytes: what goes with it, and what is refused before anything is sent, such as a Job for its value."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import pytest

import clusterfn
from clusterfn import File, JobGroup, PayloadError, cluster
from clusterfn.calls import outcome
from clusterfn.calls.job import Job
from clusterfn.display import labels
from clusterfn.hosts import serialization
from clusterfn.packing import payload_items
from clusterfn.packing.dependencies import Place
from tests.fakes.taken import run, source, taken
from tests.fixtures import roundtrip
from tests.sent import look_patiently, prepared
from tests.unit.calls.groups import group


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    look_patiently(monkeypatch)


def pack(*args, **kwargs):
    return prepared(len, args, kwargs)


def two(x, y, *, key=None):
    pass


@functools.wraps(two)
def fills_in(*args, **kwargs):
    return two(*args, 2, **kwargs)


@pytest.mark.parametrize(
    ("file", "words", "travels"),
    [
        ("/p/train.py", ["train.py", "--lr", "1"], ["--lr", "1"]),
        (None, ["/lib/ipykernel_launcher.py", "--f=/run/kernel.json"], None),
        ("/p/cell.py", ["/lib/ipykernel_launcher.py", "--f=/run/kernel.json"], None),
        ("/p/train.py", [], None),
    ],
)  # fmt: skip
def test_the_words_of_a_script_travel_and_not_those_of_a_notebook(monkeypatch, file, words, travels):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", file, raising=False)
    monkeypatch.setattr(sys, "argv", words)

    assert json.loads(pack([]).data.partition(b"\n")[0]).get("argv") == travels


def test_beside_a_job_what_cannot_travel_is_named_and_not_the_job():
    job = taken("7f3a" * 4, "there")

    with pytest.raises(PayloadError, match=r"args\[1\]: cannot pickle '_thread.lock' object"):
        prepared(print, (job, threading.Lock()), host="there")
    chosen = prepared(print, (job, [job["loss"]]), host="there")
    assert chosen.after == {job.id: {"name": "train", "items": None}} and chosen.inputs[0].source.argument is job
    with pytest.raises(PayloadError, match="wait and pass its value"):
        prepared(print, (job,), host="there", root="/other")
    with pytest.raises(PayloadError, match="args"):
        prepared(print, (job,))


@pytest.mark.parametrize(("function", "args"), [(fills_in, (1,)), (functools.partial(two, 1), (2,)), (max, (1, 2))])
def test_a_signature_that_is_not_certain_refuses_nothing(function, args):
    assert prepared(function, args)


JOB = taken()
GROUP: JobGroup[Any, Any] = group(2)[1]


@pytest.mark.parametrize(
    ("argument", "message", "hint"),
    [
        (JOB, "args[0]: this is the Job 7f3a000011112222 itself", "pass the value of that job: job.result()"),
        ([GROUP], "args[0][0]: this is the JobGroup 7f3a000011112222 itself", "group.results()"),
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
        ([Odd()], {}, "args[0]: pickling it raised SystemError: odd"),
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
            prepared(len, (file,))
        with pytest.raises(PayloadError, match=r"closure variable file\): cannot pickle '_io.TextIOWrapper'"):
            prepared(lambda: file.read())

    assert caught.value.hint == "open it inside the function, or pass clusterfn.File(path) as the argument"


def test_the_streams_of_the_process_are_those_of_the_one_there(monkeypatch):
    with Path(os.devnull).open() as file:
        monkeypatch.setattr(sys, "stdout", file)
        prepared(print, ("x",), {"file": sys.stdout})


def test_an_edited_module_of_the_same_package_is_reported(tmp_path, monkeypatch):
    (tmp_path / "mine_p").mkdir()
    (tmp_path / "mine_p/__init__.py").write_text("from .other import value\ndef f():\n    return value()\n")
    (tmp_path / "mine_p/other.py").write_text("def value():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine_p

    assert prepared(mine_p.f).notes == ()
    (tmp_path / "mine_p/other.py").write_text("def value():\n    return 22\n")

    (note,) = prepared(mine_p.f).notes
    assert note.text == "mine_p.other has changed since this process imported it; the job gets the current file"
    for name in ("mine_p", "mine_p.other"):
        del sys.modules[name]


def test_an_attribute_named_like_a_folder_beside_the_script_is_no_import(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/large.csv").write_text("a")
    monkeypatch.syspath_prepend(str(tmp_path))
    scope = {"__name__": "__main__"}
    exec("def f(x):\n    return x.data", scope)

    assert prepared(scope["f"], (1,)).sources is None


def test_a_module_registered_with_the_users_cloudpickle_goes_by_value(tmp_path, monkeypatch):
    import cloudpickle

    (tmp_path / "mine_v.py").write_text("def f():\n    return 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine_v

    cloudpickle.register_pickle_by_value(mine_v)
    packed = prepared(mine_v.f)
    cloudpickle.unregister_pickle_by_value(mine_v)
    again = prepared(mine_v.f)
    del sys.modules["mine_v"]

    assert packed.sources is None and b"mine_v.py" in packed.data
    assert set(again.sources.files) == {"mine_v.py"}


HOME = """
import sys, time
sys.path[:0] = {site!r}, {tests!r}
from tests.sent import prepared
import helper_of_mine
def f():
    import late_of_mine
    return late_of_mine, helper_of_mine.x, (1).real
prepared(len)
start = time.process_time()
packed = prepared(f)
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
    (home / "script.py").write_text(HOME.format(site=str(site), tests=str(Path(__file__).parents[3])))

    told = subprocess.run([sys.executable, "script.py"], cwd=home, capture_output=True, text=True)

    assert told.stdout == "['helper_of_mine.py', 'late_of_mine.py'] True\n", told.stderr


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


def test_jobs_can_be_compared_and_tested_for_being_there() -> None:
    assert JOB == JOB and JOB != 3 and JOB and JOB in {JOB}


def test_a_retried_group_that_has_not_ended_is_no_argument_yet() -> None:
    _, retried = group(2)

    with pytest.raises(PayloadError, match=r"runs again after retry_failed\(\) and has not ended") as rejected:
        prepared(print, (retried,), host="tensor01")
    assert rejected.value.hint == "wait for it first: group.wait()"


@pytest.mark.parametrize("given", [JOB, JOB["history"]])
def test_mapping_over_one_job_says_both_things_that_can_be_meant(given: Any) -> None:
    def total(x: int) -> int:
        return x

    with pytest.raises(TypeError) as rejected:
        cluster(total).map(given)
    assert str(rejected.value) == (
        f"{given!r:.80} means one value, and map() takes lists: map over its .result() to call total with "
        "each item of that value, or use submit() to call total once, with the value"
    )


def test_each_item_is_small_and_independent(tmp_path):
    packed = payload_items.pack(lambda a, b: a, [(n, str(n)) for n in range(2000)])
    path = tmp_path / "items.pkl"
    path.write_bytes(packed.data)
    begins = [0, *packed.ends]

    load = serialization.part("container").load
    for n in (0, 1, 1999):
        assert load(str(path), str, None, (begins[n], begins[n + 1] - begins[n])) == (n, str(n))
    assert len(packed.data) < 2000 * 300 and len(packed.ends) == 2000


def test_what_items_share_is_one_blob():
    shared = bytes(3 << 20)
    packed = payload_items.pack(lambda data, n: n, [(shared, n) for n in range(50)])

    assert [len(view) for view in packed.payload.blobs.values()] == [3 << 20]
    assert len(packed.data) < 50 * 1000


def test_large_arguments_of_one_size_keep_their_own_content():
    large = [bytes([n]) * (3 << 20) for n in range(3)]
    packed = payload_items.pack(lambda data: data, [(each,) for each in large])

    assert sorted(map(bytes, packed.payload.blobs.values())) == large


def test_an_item_that_cannot_travel_is_named():
    with pytest.raises(PayloadError, match=r"item 3 cannot be sent: args\[1\]\['lock'\]"):
        payload_items.pack(lambda a, b: a, [(n, {"lock": threading.Lock()} if n == 3 else {}) for n in range(5)])


def test_a_table_of_arguments_names_them_as_the_function_does():
    def train(lr, model, /, *layers, epochs=1): ...

    calls = [(0.5, "mlp", 3, Fraction(1, 2)), (True, None, [1])]

    assert labels.argument_table(train, calls, {"epochs": 10}) == [
        {"lr": 0.5, "model": "mlp", "layers_0": 3, "layers_1": "1/2", "epochs": 10},
        {"lr": True, "model": None, "layers_0": "[1]", "epochs": 10},
    ]
    assert labels.argument_table(max, [(1, 2)], {}) == [{"argument_0": 1, "argument_1": 2}]


class Ended(Job[Any]):
    """A job whose value is here."""

    def done(self) -> bool:
        return True


def test_the_host_knows_whose_values_each_item_takes_and_what_all_of_them_take():
    def job(name: str, kind: type[Job[Any]] = Job) -> Job[Any]:
        known = run(f"{name}{'0' * 12}", "there")
        return kind(known, source(known))

    one, two, constant, old = job("aaaa"), job("bbbb"), job("cccc"), job("dddd", Ended)
    place = Place("there", "/root")
    packed = payload_items.pack(total, [(one, [one["loss"], two]), (5, old)], None, {"key": constant}, place)

    told = json.loads(packed.described_inputs())
    assert told == {"all": [[constant.id, None]], "items": [[[one.id, None], [two.id, None]], [[old.id, None]]]}
    assert set(packed.payload.after) == {one.id, two.id, constant.id, old.id}


def total(*values: Any, key: Any = None) -> Any:
    return values


THERE, BELOW = "/root/files/aa/model1.zip", "/root/files/bb/data"
GIVEN = {THERE: PurePath("model1.zip"), BELOW: PurePath("/home/ada/data")}


@pytest.mark.parametrize(
    ("value", "mine"),
    [
        (THERE, "model1.zip"),
        (PurePosixPath(THERE), Path("model1.zip")),
        ({THERE: 1, "other": [THERE]}, {"model1.zip": 1, "other": ["model1.zip"]}),
        (({THERE}, frozenset([THERE])), ({"model1.zip"}, frozenset(["model1.zip"]))),
        (f"{BELOW}/a/b.csv", str(PurePath("/home/ada/data/a/b.csv"))),
        (f"{BELOW}2/a", f"{BELOW}2/a"),
        (f"read {THERE}", f"read {THERE}"),
        ([1, None, b"x"], [1, None, b"x"]),
    ],
)
def test_a_path_of_an_argument_in_a_value_is_the_callers_again(value, mine):
    assert outcome.with_own_paths(value, GIVEN) == mine


def test_a_list_that_holds_itself_stays_that_list():
    value = [THERE]
    value.append(value)

    found = outcome.with_own_paths(value, GIVEN)

    assert found is value and found[1] is value and found[0] == "model1.zip"
