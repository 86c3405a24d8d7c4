"""Values of hosts that are not trusted: plain data comes through whole, and nothing else is made or called."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import io
import json
import linecache
import os
import pathlib
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterfn import FunctionError, ResultError
from tests.unit.bridge.serialization.test_calls import TORCH
from tests.unit.calls.received import PLACE, container, from_file, limit_memory, untrusted_exception

ROOT = Path(__file__).parents[3]


def written(value: object) -> bytes:
    """The value file of a job whose caller accepts plain data alone."""
    file = io.BytesIO()
    container.dump(value, file, as_data=True)
    return file.getvalue()


def there_and_back(value: object) -> object:
    return from_file(written(value))


def file_of(text: str | bytes, *buffers: bytes, **more: object) -> bytes:
    """A value file as a hostile host writes it: all sums are right, and the text is what it likes."""
    data = text if isinstance(text, bytes) else text.encode()
    views = [memoryview(each) for each in buffers]
    return b"".join(container.Packed(data, views, is_data=True, **more).pieces())


def load(text: str | bytes, *buffers: bytes) -> object:
    return from_file(file_of(text, *buffers))


def attached() -> collections.OrderedDict:
    """What `state_dict()` of a torch module is: an OrderedDict with an attribute."""
    made = collections.OrderedDict(weight=[1.5], bias=[0.5])
    made._metadata = collections.OrderedDict([("", {"version": 1})])
    return made


PLAIN = {
    "nothing": None, "truth": [True, False], "small": list(range(300)), "large": [2**15, -1, 2**64, -(2**70), 10**4000],
    "floats": [0.5, -1e300, float("inf")], "complex": [1 - 2j, complex("inf")], "empty": [[], {}, (), set(), "", b""],
    "texts": ["", "a", "ä" * 300, "\udcff", "x" * 70_000, "\udcff" * 70_000, "$tuple"],
    "bytes": [b"", b"x" * 300, bytes(70_000)],
    "tuples": [(), (1,), (1, (2, [3]))], "a word that is a tag": [{"$tuple": [1]}, {"a": 1, "$b": 2}],
    "containers": {"a": [1, {2: {3}}], (1, (2, "b")): frozenset([4, (5, 6)]), None: 1.5, b"c": 2, "3": 4, 3: 5},
    "ordered": collections.OrderedDict(a=1, b=2), "counter": collections.Counter("hello"),
    "days": [datetime.date(2026, 11, 22), datetime.timedelta(1, 2, 3)],
    "moments": [
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc), datetime.datetime(2026, 1, 2, fold=1),
        datetime.timezone(datetime.timedelta(hours=1), "X"),
    ],
    "numbers": [decimal.Decimal("1.10")],
    "paths": [Path("a/b"), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("c:/x")],
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_plain_data_comes_back_equal_and_of_the_same_type(name):
    value = PLAIN[name]
    found = there_and_back(value)

    assert found == value and type(found) is type(value)
    assert pickle.dumps(found, 5) == pickle.dumps(there_and_back(found), 5)
    assert repr(found) == repr(value)


def test_no_number_is_no_number():
    (found,) = there_and_back([float("nan")])
    assert found != found


def test_the_attribute_that_torch_sets_on_a_state_dict_is_kept():
    found = there_and_back(attached())
    assert found == attached() and found._metadata == attached()._metadata


def test_another_job_of_the_host_takes_it_too(tmp_path):
    (tmp_path / "value.pkl").write_bytes(written([{1, 2}, b"a" * 5000]))

    assert container.load(str(tmp_path / "value.pkl"), container.no_blob) == [{1, 2}, b"a" * 5000]


def test_arrays_and_scalars_of_numpy_come_back_writable_and_equal():
    numpy = pytest.importorskip("numpy")
    values = [
        numpy.arange(6.0).reshape(2, 3), numpy.asfortranarray(numpy.ones((2, 3))), numpy.zeros((0, 3)),
        numpy.arange(300_000), numpy.array(["2026-01-01"], "M8[D]"), numpy.array(["a", "bc"]), numpy.array(True),
        numpy.array([b"x"]), numpy.array([1 + 2j], ">c8"), numpy.arange(9)[::2], numpy.broadcast_to(1.5, (2, 2)),
    ]  # fmt: skip
    for value, found in zip(values, there_and_back(values)):
        assert found.dtype == value.dtype and found.shape == value.shape and (found == value).all()
        assert found.flags.writeable
    assert there_and_back(values[1]).flags.f_contiguous
    scalars = [numpy.float32(1.5), numpy.True_, numpy.int64(-3), numpy.datetime64("2026-01-01"), numpy.str_("x")]
    scalars += [numpy.str_("")]
    found = there_and_back(scalars)
    assert found == scalars and [type(each) for each in found] == [type(each) for each in scalars]


OF_TORCH = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from tests.unit.calls.test_data_reader import there_and_back
values = {"a": torch.arange(6.0).reshape(2, 3), "t": torch.arange(6).reshape(2, 3).t(), "none": torch.empty(0, 2),
          "half": torch.ones(2, dtype=torch.bfloat16), "wide": torch.ones(1).expand(3),
          "grad": torch.ones(1).requires_grad_()}
found = there_and_back(values)
for name, value in values.items():
    assert type(found[name]) is torch.Tensor and found[name].dtype == value.dtype, name
    assert torch.equal(found[name], value) and found[name].requires_grad == value.requires_grad, name
model = torch.nn.Linear(2, 1)
model.load_state_dict(there_and_back(model.state_dict()))
try:
    there_and_back([torch.eye(2).to_sparse()])
except Exception as error:
    print(error.message)
"""


@pytest.mark.skipif(not TORCH.exists(), reason="the lab's torch environment is not there")
@pytest.mark.long
def test_tensors_of_torch_come_back_and_sparse_ones_are_named():
    argv = [str(TORCH), "-c", OF_TORCH, str(ROOT)]
    path = os.pathsep.join([str(ROOT), *(each for each in sys.path if "site-packages" in each)])
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=120)

    assert done.stdout.startswith("result[0] is a torch.Tensor that is not dense"), done.stderr


class Opener:
    """Opens a file where it is loaded, as an attacker's object would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


class Model:
    pass


@dataclasses.dataclass
class Point:
    x: int = 1


Named = collections.namedtuple("Named", "x")
noted = collections.OrderedDict(a=1)
noted.unit = "m"  # type: ignore[attr-defined]
ring: list = [1]
ring.append(ring)
NO_DATA = [
    ([1, {"model": Model()}], r"result\[1\]\['model'\] is a .*Model"), (Model, "result is the class .*Model"),
    ((0, {"a": (Point(),)}), r"result\[1\]\['a'\]\[0\] is a .*Point"), (Named(1), "result is a .*Named"),
    ({"f": print}, r"result\['f'\] is a builtins.builtin_function_or_method"),
    ({1: {Model}}, r"result\[1\]\[0\] is the"),
    ([collections.defaultdict(list)], r"result\[0\] is a collections.defaultdict"), (ring, "or holds itself"),
    ([noted], r"result\[0\] is a dict with attributes"),
    (type("_" * 300, (), {})(), "result is a .*____"), ({(1, Model): 2}, "is the class .*Model"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "said"), NO_DATA, ids=range(len(NO_DATA)))
def test_what_is_no_data_is_named_with_the_path_to_it(value, said):
    with pytest.raises(ResultError, match=f'{said}.*: with results="data" box') as caught:
        there_and_back(value)

    assert caught.value.message.isprintable() and len(caught.value.message) < 400


def test_arrays_of_objects_and_of_records_and_other_kinds_of_arrays_are_named():
    numpy = pytest.importorskip("numpy")
    for value, said in (
        (numpy.array([None]), "a numpy.ndarray of the dtype object"),
        (numpy.zeros(1, "i4,i4"), "a numpy.ndarray of the dtype"),
        (numpy.ma.array([1]), "a numpy.ma.*MaskedArray"),
    ):
        with pytest.raises(ResultError, match=rf"result\['x'\] is {said}"):
            there_and_back({"x": value})


def test_a_pickle_is_rejected_and_nothing_of_it_happens(tmp_path):
    made = tmp_path / "made"
    plain = b"".join(container.Packed(pickle.dumps(Opener(made), 5)).pieces())
    for file in (plain, written(Opener(made)), file_of(pickle.dumps(Opener(made), 5))):
        with pytest.raises(ResultError):
            from_file(file)
        assert not made.exists()

    with pytest.raises(ResultError, match='the value is a Python pickle: with results="data" box'):
        from_file(plain)
    from_file(written(Opener(made)), PLACE).close()
    assert made.exists()


def test_the_value_of_another_python_is_read_and_its_sources_reach_no_traceback():
    head, *body = container.Packed(b"[1]", is_data=True, sources={"/nowhere/f.py": "import os\n"}).pieces()
    facts = bytes(head).rpartition(b', "crc"')[0].replace(b'"python": [3', b'"python": [4')
    file = b"".join([container.seal(facts, container.checksum(body)), *body])

    assert from_file(file) == [1]
    assert from_file(file, PLACE) == [1]
    assert "/nowhere/f.py" not in linecache.cache


def tag(name: str, *parts: object) -> str:
    return json.dumps({f"${name}": parts})


DEEP = 100_000
DAMAGED = {
    "nothing": "", "no end": "[1", "more after the end": "[] []", "no text": b"\xff", "another encoding": '"ä"',
    "an unknown tag": tag("open", "/etc/passwd"), "a private name": tag("__import__", "os"),
    "a tag and more": '{"$tuple": [], "a": 1}', "a tag of no parts": '{"$tuple": 3}', "a list as a key": tag("set", []),
    "lists in lists": "[" * DEEP + "]" * DEEP, "tags in tags": '{"$tuple":[' * DEEP + "]}" * DEEP,
    "a number of a million digits": "1" * 1_000_000, "a number that is none": tag("int", "os"),
    "keys without values": tag("dict", [1], [], {}), "keys that are no list": tag("dict", 5, [1], {}),
    "an attribute that hides a method": tag("OrderedDict", [], [], {"items": 1}),
    "a complex of texts": tag("complex", "1"), "a moment of none": tag("datetime"),
    "a day of a text": tag("date", "1"), "a month that is none": tag("date", 1, 13, 1),
    "a Decimal of a number": tag("Decimal", 1), "a Decimal of a word": tag("Decimal", "x"),
    "a path of another kind": tag("path", "Path", "a"), "bytes that are none": tag("bytes", "ä"),
    "bytes that did not come": tag("bytes"), "a text that did not come": tag("str"),
    "a long path": tag("path", "PurePosixPath", "a" * 70_000),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_what_our_job_does_not_write_is_damaged_and_takes_neither_memory_nor_time(name):
    began = time.process_time()
    with pytest.raises(ResultError, match="the value is damaged: ") as caught:
        load(DAMAGED[name])

    assert time.process_time() - began < 10 and len(caught.value.message) < 400


OF_ARRAYS = {
    "an array of objects": tag("array", "|O", [1], "C"), "an array of records": tag("array", "i4,i4", [1], "C"),
    "an array larger than its buffer": tag("array", "<f8", [10**12], "C"), "of no order": tag("array", "<f8", [1], "A"),
    "an array of a negative shape": tag("array", "<f8", [-1, -1], "C"),
    "a shape of texts": tag("array", "<f8", ["1"], "C"),
    "too many axes": tag("array", "<f8", [1] * 65, "C"), "texts of no length": tag("array", "<U0", [10**12], "C"),
    "a scalar of no bytes": tag("scalar", "<f8", ""), "a scalar of a class": tag("scalar", "O", ""),
    "a buffer that nothing needs": "[]", "one buffer for two": f"[{tag('bytes')}, {tag('bytes')}]",
}  # fmt: skip


@pytest.mark.parametrize("name", OF_ARRAYS)
def test_an_array_has_the_memory_that_came_for_it_and_no_other(name):
    pytest.importorskip("numpy")
    assert load(tag("array", "<f8", [1], "C"), bytes(8)) == [0.0]

    with pytest.raises(ResultError, match="the value is damaged"):
        load(OF_ARRAYS[name], bytes(8))


def test_a_host_says_what_it_likes_of_a_value_and_that_stays_short_and_printable():
    file = b"".join(container.Packed(b"N.", refused="\x1b[2J" + "x" * 5000).pieces())

    with pytest.raises(ResultError, match="x: with results=") as caught:
        from_file(file)
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 1000


MANY = 30_000
FULL = {
    "a set": lambda keys: tag("set", *keys), "a frozenset": lambda keys: tag("frozenset", *keys),
    "a dict": lambda keys: tag("dict", keys, [None] * MANY, {}),
    "a Counter": lambda keys: tag("Counter", keys, [1] * MANY, {}),
    "a set of tuples": lambda keys: tag("set", *({"$tuple": [each]} for each in keys)),
}  # fmt: skip
SLOW = ("a frozenset", "a Counter", "a set of tuples")  # filled as a set and a dict are


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long if name in SLOW else ()) for name in FULL])
def test_keys_that_all_have_one_hash_are_rejected_in_a_time_that_grows_with_their_bytes(name):
    keys = [{"$int": [hex(((1 << 61) - 1) * number + 1)]} for number in range(MANY)]  # Python's hash of each is 1
    colliding, filled = FULL[name](keys), set()
    began = time.process_time()
    filled.update(((1 << 61) - 1) * number + 1 for number in range(MANY // 4))
    quarter_s, began = time.process_time() - began, time.process_time()

    with pytest.raises(ResultError, match="the keys of a set or dict collide"):
        load(colliding)

    assert time.process_time() - began < 10 * quarter_s, "to fill it takes sixteen times as long"


def test_many_keys_and_a_few_of_one_hash_are_no_attack():
    prime = (1 << 61) - 1
    honest = {-1: 1, -2: 2, **{prime * each: 0 for each in range(500)}}, {(prime * each,) for each in range(500)}
    many = set(range(200_000)), {(each, str(each)): float(each) for each in range(50_000)}
    began = time.process_time()

    assert there_and_back([honest, many]) == [honest, many]
    assert time.process_time() - began < 20


def test_objects_count_before_they_are_made(monkeypatch):
    limit_memory(monkeypatch, lambda: 10 << 20)

    assert there_and_back(["x" * (1 << 20)] * 3) == ["x" * (1 << 20)] * 3
    with pytest.raises(ResultError, match="does not fit into the memory of this machine") as caught:
        load("[" + "[]," * 200_000 + "0]")
    assert "on a machine with more memory" in str(caught.value)


class Unkind(Exception):
    def __reduce__(self):
        return os.system, ("touch made-by-unkind",)


def test_an_exception_arrives_as_text_and_none_of_its_bytes_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    summary = {"type": "there.Unkind", "message": "no access", "traceback": "Traceback …\nthere.Unkind: no access"}

    found = untrusted_exception(Unkind("no access"), kind="raised", exception=summary)

    assert type(found) is FunctionError and list(tmp_path.iterdir()) == []
    assert found.message == "the function raised there.Unkind: no access" and found.type_name == "there.Unkind"
    assert found.traceback == summary["traceback"]
    assert 'exceptions of box arrive as text (results="data")' in str(found)


def test_the_cause_of_a_dependency_arrives_as_text_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cause = {"kind": "raised", "job": "1234", "exception": {"type": "there.Unkind", "message": "m", "traceback": "t"}}

    found = untrusted_exception(Unkind("no access"), kind="dependency", cause=cause)

    assert type(found.__cause__) is FunctionError and list(tmp_path.iterdir()) == []
