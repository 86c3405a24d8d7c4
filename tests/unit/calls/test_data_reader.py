"""Values of hosts that are not trusted: plain data comes through whole, and nothing else is made or called."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import os
import pathlib
import pickle
import sys
import threading
import time
import types
import uuid
import zoneinfo
from pathlib import Path

import pytest

from clusterfn import FunctionError, ResultError
from clusterfn.hosts import serialization
from tests.sent import packed, pickled
from tests.unit.calls import received
from tests.unit.calls.received import PLACE, file_of, from_file, load, named, untrusted_exception


def there_and_back(value: object) -> object:
    return from_file(packed(value))


def attached() -> collections.OrderedDict:
    """What `state_dict()` of a torch module is: an OrderedDict with an attribute."""
    made = collections.OrderedDict(weight=[1.5], bias=[0.5])
    made._metadata = collections.OrderedDict([("", {"version": 1})])
    return made


def around_itself() -> list:
    made: list = [1]
    made.append(made)
    return made


PLAIN = {
    "nothing": None, "truth": [True, False], "small": list(range(300)), "large": [2**15, -1, 2**31, -(2**70), 10**400],
    "floats": [0.5, -1e300, float("inf")], "complex": 1 - 2j, "texts": ["", "a", "ä" * 300, "\udcff", "x" * 70_000],
    "bytes": [b"", b"x" * 300, bytes(70_000), bytearray(b"abc")], "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "containers": {"a": [1, {2: {3}}], (1, (2, "b")): frozenset([4, (5, 6)])}, "range": [range(3), slice(1, None)],
    "ordered": collections.OrderedDict(a=1), "counter": collections.Counter("hello"),
    "default": collections.defaultdict(list, {1: [2]}), "deque": collections.deque([1, 2], 5),
    "endless deque": collections.deque([1]), "days": [datetime.date(2026, 11, 22), datetime.timedelta(1, 2, 3)],
    "moments": [
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc), datetime.datetime(2026, 1, 2),
        datetime.datetime(2026, 1, 2, tzinfo=zoneinfo.ZoneInfo("UTC")), datetime.time(1, 2),
        datetime.timezone(datetime.timedelta(hours=1), "X"),
    ],
    "numbers": [decimal.Decimal("1.10"), fractions.Fraction(1, 3)], "ids": [uuid.UUID(int=7), uuid.uuid4()],
    "paths": [Path("a/b"), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("c:/x")],
    "constants": [Ellipsis, NotImplemented], "shared": [[1]] * 3,
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_plain_data_comes_back_equal_and_of_the_same_type(name):
    value = PLAIN[name]
    found = there_and_back(value)

    assert found == value and type(found) is type(value)
    assert pickle.dumps(found, 5) == pickle.dumps(there_and_back(found), 5)


def test_what_is_shared_stays_shared_and_what_holds_itself_too():
    first, second, _ = there_and_back([[1]] * 3)
    assert first is second
    ring = there_and_back(around_itself())
    assert ring[0] == 1 and ring[1] is ring


def test_the_attribute_that_torch_sets_on_a_state_dict_is_kept():
    found = there_and_back(attached())
    assert found == attached() and found._metadata == attached()._metadata


def test_arrays_and_scalars_of_numpy_come_back_writable_and_equal():
    numpy = pytest.importorskip("numpy")
    values = [
        numpy.arange(6.0).reshape(2, 3), numpy.asfortranarray(numpy.ones((2, 3))), numpy.zeros((0, 3)),
        numpy.arange(300_000), numpy.array(["2026-01-01"], "M8[D]"), numpy.array(["a", "bc"]), numpy.array(True),
        numpy.array([b"x"]), numpy.array([1 + 2j], ">c8"),
    ]  # fmt: skip
    for value in values:
        found = there_and_back(value)
        assert found.dtype == value.dtype and found.shape == value.shape and (found == value).all()
        assert found.flags.writeable and found.flags.c_contiguous == value.flags.c_contiguous
    scalars = [numpy.float32(1.5), numpy.True_, numpy.int64(-3), numpy.datetime64("2026-01-01"), numpy.str_("x")]
    found = there_and_back(scalars)
    assert found == scalars and [type(each) for each in found] == [type(each) for each in scalars]


class View:
    """An array over the memory of another one, as a host claims it to be."""

    def __init__(self, *args: object) -> None:
        self.args = args

    def __reduce__(self):
        return serialization.part("arrays").view, self.args


def test_a_view_comes_back_as_one_and_reaches_into_no_other_memory():
    numpy = pytest.importorskip("numpy")
    value = numpy.broadcast_to(numpy.arange(3.0)[:, None], (3, 10**9))
    assert there_and_back(value).strides == value.strides
    right = [numpy.arange(4.0), (4,), (0,), 3, True]
    assert there_and_back(View(*right)).tolist() == [3.0] * 4
    inside = View(numpy.arange(1.0), (4,), (0,), 0, True)
    damages = [(0, None), (0, inside), (1, (1 << 62,)), (1, (-1,)), (2, (-8,)), (2, (1,)), (2, (1, 1)), (3, 7), (3, -1)]
    damages += [(4, "yes")]
    for place, wrong in damages:
        with pytest.raises(ResultError, match="damaged"):
            there_and_back(View(*right[:place], wrong, *right[place + 1 :]))


class Opener:
    """Opens a file where it is loaded, as an attacker's object would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


class Model:
    pass


FUNCTION = pickled(lambda: 1)


def _hostile(path: Path) -> dict[str, tuple[bytes, str]]:
    """Pickles that would create a file, or reach further, and what they are rejected for."""
    touch = b"\x8c" + bytes([len(str(path))]) + str(path).encode() + b"\x8c\x01w\x86"
    opened = named("builtins", "open") + touch + b"R"
    system = f"touch {path}".encode()
    run = b"X" + len(system).to_bytes(4, "little") + system + b"\x85R"
    name = named
    return {
        "a plain call": (pickle.dumps(Opener(path), 5), "io.open"),
        "an old protocol": (pickle.dumps(Opener(path), 0), "io.open"),
        "protocol 2": (pickle.dumps(Opener(path), 2), "io.open"),
        "a call within a call": (b"\x80\x05" + name("builtins", "range") + opened + b"\x85R.", "builtins.open"),
        "a call as a key": (b"\x80\x05}" + opened + b"Ns.", "builtins.open"),
        "a dotted name": (b"\x80\x05" + name("os", "path.os.system") + run + b".", "os.path.os.system"),
        "a dotted name of what is allowed": (
            b"\x80\x05" + name("datetime", "sys.modules") + b".", "datetime.sys.modules",
        ),
        "a dotted name below a class": (
            b"\x80\x05" + name("collections", "Counter.fromkeys") + b".", "collections.Counter.fromkeys",
        ),
        "the text of protocol 0": (b"cos\nsystem\n(" + b"S'touch'\ntR.", "os.system"),
        "INST": (b"(S'touch'\nios\nsystem\n.", "an object made by the opcode MARK|os.system|.*STRING"),
        "an extension": (b"\x80\x02\x82\x01.", "EXT1"),
        "a persistent id": (b"\x80\x02Pnumber\n.", "PERSID"),
        "OBJ": (b"\x80\x02(" + name("os", "system") + b"o.", "os.system"),
        "NEWOBJ_EX": (b"\x80\x05" + name("uuid", "UUID") + b")}\x92.", "NEWOBJ_EX"),
        "a class": (pickle.dumps(Model, 5), "test_data_reader.Model"),
        "an object": (pickle.dumps([1, {"a": Model()}], 5), "test_data_reader.Model"),
        "a function": (FUNCTION, "_make_function|_builtin_type"),
        "a class that is allowed, as a value": (pickle.dumps([datetime.date], 5), "datetime.date"),
        "a factory, as a value": (pickle.dumps([int], 5), "builtins.int"),
        "a factory that is called": (b"\x80\x05" + name("builtins", "list") + b")R.", "builtins.list"),
        "a factory that is no type": (
            b"\x80\x05" + name("collections", "defaultdict") + name("builtins", "complex") + b"\x85R.",
            "builtins.complex",
        ),
        "getattr of what is allowed": (
            b"\x80\x05" + name("builtins", "getattr") + name("datetime", "datetime") + b"\x8c\x08__init__\x86R.",
            "getattr of datetime.datetime",
        ),
        "getattr of a zone's own name, of what is none": (
            b"\x80\x05" + name("builtins", "getattr") + name("datetime", "datetime") + b"\x8c\x09_unpickle\x86R.",
            "getattr of datetime.datetime",
        ),
        "getattr of a zone's insides": (
            b"\x80\x05" + name("builtins", "getattr") + name("zoneinfo", "ZoneInfo") + b"\x8c\x08__dict__\x86R.",
            "getattr of zoneinfo.ZoneInfo",
        ),
        "a class that is allowed, as an argument": (
            b"\x80\x05" + name("builtins", "range") + name("datetime", "date") + b"\x85R.", "datetime.date",
        ),
        "NEWOBJ with arguments": (b"\x80\x05" + name("uuid", "UUID") + b"K\x01\x85\x81.", "uuid.UUID"),
        "arrays of objects": (
            b"\x80\x05" + name("numpy.core.multiarray", "_reconstruct") + name("numpy", "ndarray")
            + b"K\x00\x85C\x01b\x87R.",
            "numpy.core.multiarray._reconstruct",
        ),
        "arrays of objects, in our way": (
            b"\x80\x05" + name("_clusterfn_wire.pickler", "unfilled_array") + b".",
            "_clusterfn_wire.pickler.unfilled_array",
        ),
        "a dtype": (b"\x80\x05" + name("numpy", "dtype") + b"\x8c\x01O\x85R.", "numpy.dtype"),
        "our own code": (
            b"\x80\x05" + name("_clusterfn_wire.unpickler", "loads") + b"C\x01.\x85R.",
            "_clusterfn_wire.unpickler.loads",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", _hostile(Path("/nowhere")))
def test_what_is_no_data_is_rejected_by_name_and_nothing_of_it_happens(name, tmp_path):
    stream, word = _hostile(tmp_path / "made")[name]
    with pytest.raises(
        ResultError, match=f'the value holds .*({word}).*: with results="data" box may return'
    ) as caught:
        load(stream)

    assert not (tmp_path / "made").exists()
    assert caught.value.message.isprintable() and len(caught.value.message) < 300


@pytest.mark.parametrize("name", ["Local", "_" * 300])
def test_a_class_that_comes_by_value_is_rejected_by_its_own_name(name):
    made = type(name, (), {"__module__": "__main__"})

    with pytest.raises(ResultError, match=rf"the value holds __main__\.{name[:50]}"):
        there_and_back([made()])


def test_a_stream_that_only_begins_as_a_class_by_value_is_rejected_all_the_same():
    for rest in (b"", b".", b"(", b"h\x09", b"(X\xff\xff\xff\xff", b"(K\x01"):
        with pytest.raises(ResultError, match="the value (holds|is damaged)"):
            load(b"\x80\x05" + named("_clusterfn_wire.pickler", "remake_class") + rest)


class Broken(types.ModuleType):
    def __getattr__(self, name: str) -> None:
        raise ImportError("libcudart.so.12: cannot open shared object file")


def test_a_value_that_this_machine_cannot_read_is_not_unpickled_to_describe_the_failure(tmp_path, monkeypatch):
    array = _array(bytes(8), b"<f8", b"K\x01\x85\x8c\x01C")
    assert load(array) == [0.0]
    both = b"\x80\x05](" + array[2:-1] + pickle.dumps(Opener(tmp_path / "made"), 0)[:-1] + b"e."
    monkeypatch.setitem(sys.modules, "numpy", Broken("numpy"))

    with pytest.raises(ResultError, match="libcudart"):
        load(both)
    assert not (tmp_path / "made").exists()


def test_without_the_option_the_same_value_does_what_it_wants(tmp_path):
    from_file(file_of(pickle.dumps(Opener(tmp_path / "made"), 5)), PLACE).close()

    assert (tmp_path / "made").exists()


def _array(buffer: bytes, dtype: bytes, rest: bytes) -> bytes:
    made = b"\x80\x05" + named("_clusterfn_wire.arrays", "array") + b"(C" + bytes([len(buffer)]) + buffer
    return made + b"\x8c" + bytes([len(dtype)]) + dtype + rest + b"tR."


def _doubled_key(count: int) -> bytes:
    """A key of so many tuples, each of which has the one before it twice."""
    levels = b"".join(b"\x94h" + bytes([level]) + b"\x86" for level in range(count))
    return b"\x80\x05})" + levels + b"Ns."


DEQUE = b"\x80\x05" + named("collections", "deque")
HUGE = (10**12).to_bytes(8, "little")
DAMAGED = {
    "a frame of 10^12 bytes": b"\x80\x05\x95" + HUGE + b"N.",
    "a text of 10^12 bytes": b"\x80\x05\x8d" + HUGE + b"a.",
    "bytes of 10^12 bytes": b"\x80\x05\x8e" + HUGE + b"a.",
    "a bytearray of 10^12 bytes": b"\x80\x05\x96" + HUGE + b"a.",
    "a number of 2 GB": b"\x80\x05\x8b\xff\xff\xff\x7f.",
    "nothing": b"", "no end": b"\x80\x05N", "more after the end": b"\x80\x05N.N.", "an empty stack": b"\x80\x05.",
    "a memo that was not written": b"\x80\x05h\x07.", "a mark too many": b"\x80\x05(N.", "no mark": b"\x80\x05t.",
    "a float that is cut": b"\x80\x05G\x00", "a small number that is cut": b"\x80\x05K",
    "a protocol of the future": b"\x80\x09N.", "a buffer that was not sent": b"\x80\x05\x97.",
    "a call of a number": b"\x80\x05K\x01)R.", "a name of a number": b"\x80\x05K\x01K\x02\x93.",
    "items for a number": b"\x80\x05K\x01K\x02a.", "entries for a list": b"\x80\x05]K\x01K\x02s.",
    "a key without a value": b"\x80\x05}(K\x01u.", "a list as a key": b"\x80\x05}]Ns.",
    "a state for a list": b"\x80\x05]}b.",
    "a state for a date": b"\x80\x05" + named("datetime", "timedelta") + b")R}b.",
    "a key that doubles twenty times": _doubled_key(20), "a key that doubles sixty times": _doubled_key(60),
    "items of a set for a dict": b"\x80\x05}(K\x01K\x02\x86\x90.",
    "an attribute that hides a method": b"\x80\x05" + named("collections", "OrderedDict") + b")R}\x8c\x05itemsNsb.",
    "a deque that is filled after another one holds it": DEQUE + b"\x940h\x00)Rh\x00)R\x94ah\x01h\x00)Ra0.",
    "deep deques that hold an empty one too": DEQUE + b"\x940" + b"h\x00)R" * 300 + b"ah\x00)Ra" * 299 + b".",
    "an array of objects": _array(bytes(8), b"|O", b"K\x01\x85\x8c\x01C"),
    "an array of records": _array(bytes(8), b"i4,i4", b"K\x01\x85\x8c\x01C"),
    "an array larger than its buffer": _array(bytes(8), b"<f8", b"J\x00\x00\x00\x7f\x85\x8c\x01C"),
    "an array of an unknown order": _array(bytes(8), b"<f8", b"K\x01\x85\x8c\x01A"),
    "an array of a negative shape": _array(bytes(8), b"<f8", b"J\xff\xff\xff\xff\x85\x8c\x01C"),
    "a scalar of no bytes": b"\x80\x05" + named("_clusterfn_wire.pickler", "scalar") + b"C\x00\x8c\x03<U0\x86R.",
    "a fraction of a text": b"\x80\x05" + named("fractions", "Fraction") + b"\x8c\x051e999\x85R.",
    "a zone that is a path": b"\x80\x05" + named("builtins", "getattr") + named("zoneinfo", "ZoneInfo")
    + b"\x8c\x09_unpickle\x86R\x8c\x06../etcK\x01\x86R.",
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_pickle_that_ours_does_not_write_is_damaged_and_takes_neither_memory_nor_time(name):
    limit = threading.stack_size()
    began = time.process_time()
    claims = ".*claims 1000000000000 bytes" if "10^12" in name else ""
    with pytest.raises(ResultError, match=f"the value is damaged{claims}"):
        load(DAMAGED[name])

    assert time.process_time() - began < 30 and threading.stack_size() == limit


@pytest.mark.parametrize("opcode", [b"p4294967290\n", b"q\xff", b"r\xff\xff\xff\xff"])
def test_a_place_in_the_memo_cannot_be_chosen_so_none_takes_sixty_gigabytes(opcode):
    with pytest.raises(ResultError, match="the value holds .*PUT"):
        load(b"\x80\x05N" + opcode + b".")


def test_lists_may_be_nested_deeper_than_python_would_follow():
    deep = load(b"\x80\x05" + b"]" * 200_000 + b"a" * 199_999 + b".")

    for _ in range(199_999):
        (deep,) = deep
    assert deep == []


def test_the_state_of_a_class_cannot_be_set_so_none_changes_for_others():
    stream = b"\x80\x05" + named("uuid", "UUID") + b"}\x8c\x08__init__Nsb."
    with pytest.raises(ResultError, match="the value is damaged"):
        load(stream)

    assert uuid.UUID(int=7).int == 7


def test_a_value_of_another_python_is_read_and_its_sources_reach_no_traceback():
    import linecache

    file = received.file_of_another_python(pickle.dumps([1], 5), {"/nowhere/f.py": "import os\n"})

    assert from_file(file) == [1]
    assert "/nowhere/f.py" not in linecache.cache


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


def test_a_million_numbers_are_read_in_a_moment():
    value = [float(number) for number in range(200_000)], list(range(200_000))
    file = packed(value)
    began = time.process_time()

    assert from_file(file) == value
    assert time.process_time() - began < 20  # half a second here; a loop that copies the rest each time takes minutes


@pytest.mark.skipif(sys.platform == "win32", reason="it has paths of its own")
def test_a_path_of_another_system_is_read_as_a_pure_one():
    stream = b"\x80\x05" + named("pathlib._local", "WindowsPath") + b"\x8c\x03c:/\x85R."
    assert load(stream) == pathlib.PureWindowsPath("c:/")


@pytest.mark.parametrize(
    "value", [fractions.Fraction(1, (1 << 70_000) + 1), pathlib.PurePosixPath("a" * 70_000)], ids=["Fraction", "path"]
)
def test_what_would_hold_the_client_for_minutes_is_rejected(value):
    with pytest.raises(ResultError, match="the value (holds|is damaged)"):
        there_and_back(value)
