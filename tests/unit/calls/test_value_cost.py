"""What a value of a host that is not trusted may cost: a moment for each megabyte, and no more memory than there is."""

from __future__ import annotations

import collections
import decimal
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterfn import ResultError
from tests.unit.calls.received import limit_memory, load, named

ROOT = Path(__file__).parents[3]
PRIME = (1 << 61) - 1  # Python's hash of an integer is its rest by this
MANY = 30_000


def number(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


COUNTER = named("collections", "Counter")
COLLIDING = [number(PRIME * each + 1) for each in range(MANY)]
FILLED = {
    "a set": b"\x8f(" + b"".join(COLLIDING) + b"\x90",
    "a frozenset": b"(" + b"".join(COLLIDING) + b"\x91",
    "a dict, key by key": b"}" + b"".join(each + b"Ns" for each in COLLIDING),
    "a Counter": COUNTER + b"}\x85R(" + b"".join(each + b"N" for each in COLLIDING) + b"u",
    "a set of tuples": b"\x8f(" + b"".join(each + b"\x85" for each in COLLIDING) + b"\x90",
}


@pytest.mark.parametrize("name", FILLED)
def test_keys_that_all_have_one_hash_are_rejected_in_a_time_that_grows_with_their_bytes(name):
    began = time.process_time()

    with pytest.raises(ResultError, match="the keys of a set or dict collide"):
        load(b"\x80\x05" + FILLED[name] + b".")

    assert time.process_time() - began < 5  # seconds; to fill it takes several times as long


def test_a_few_keys_of_one_hash_are_no_attack():
    honest = {-1: 1, -2: 2, **{PRIME * each: 0 for each in range(500)}}, {(PRIME * each,) for each in range(500)}

    assert load(pickle.dumps(honest, 5)) == honest


SHARED: dict[str, tuple[bytes, bytes, bytes]] = {
    "paths": (named("pathlib", "PurePosixPath"), b"X\x50\xc3\x00\x00" + b"a/" * 25_000, b"h\x01\x85"),
    "ranges": (named("builtins", "range"), b"\x8b\x10\x27\x00\x00" + b"\x01" * 10_000, b"h\x01\x85"),
    "fractions": (named("fractions", "Fraction"), b"\x8b\xa0\x0f\x00\x00" + b"\x01" * 4000, b"h\x01h\x01\x86"),
    "decimals": (named("decimal", "Decimal"), b"X\x50\xc3\x00\x00" + b"9" * 50_000, b"h\x01\x85"),
    "counters": (COUNTER, b"}(" + b"".join(number(each) + b"N" for each in range(5000)) + b"u", b"h\x01\x85"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_what_is_in_a_million_places_is_not_copied_for_each(name):
    maker, argument, call = SHARED[name]
    began = time.process_time()

    with pytest.raises(ResultError, match="the value is damaged: .*too many places"):
        load(b"\x80\x05" + maker + b"\x940" + argument + b"\x940](" + (b"h\x00" + call + b"R") * 20_000 + b"e.")

    assert time.process_time() - began < 5


def test_keys_of_one_hash_cost_in_each_counter_what_they_cost_in_the_dict():
    keys = b"}(" + b"".join(each + b"N" for each in COLLIDING[:2500]) + b"u"
    # The other bytes allow that many copies, each of which takes a tenth of a second.
    others = b"B" + (1 << 20).to_bytes(4, "little") + bytes(1 << 20)
    copies = b"h\x00h\x01\x85R" * 40

    with pytest.raises(ResultError, match="the keys of a set or dict collide"):
        load(b"\x80\x05" + COUNTER + b"\x940" + keys + b"\x940" + others + b"0](" + copies + b"e.")


def test_a_folder_that_a_hundred_thousand_paths_share_is_no_attack():
    paths = [Path("/a/long/name/of/a/folder/that/many/share", str(each)) for each in range(10_000)]

    assert load(pickle.dumps(paths, 5)) == paths


MADE = {
    "sets of one byte each": b"\x8f" * 2_000_000,
    "deques": named("collections", "deque") + b"\x94" + b"h\x00)R" * 500_000,
    "marks": b"(" * 4_000_000,
}
FREE = """
import os, sys
from pathlib import Path
import pytest
from clusterfn import ResultError
from tests.unit.calls.received import file_of, from_file, limit_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

file = file_of(sys.stdin.buffer.read())
limit = resident() + (80 << 20)
with pytest.MonkeyPatch.context() as patch:
    limit_memory(patch, lambda: limit - resident())
    try:
        from_file(file)
    except ResultError as error:
        print(resident() < limit, error.message)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no other system says what memory is free")
@pytest.mark.parametrize("name", MADE)
def test_objects_count_as_well_as_bytes_and_leave_the_machine_some_memory(name):
    stream = b"\x80\x05(" + MADE[name] + b"l."

    done = subprocess.run([sys.executable, "-c", FREE], cwd=ROOT, input=stream, capture_output=True, timeout=120)

    assert re.match(rb"True .*: its objects need more than the [67]\d(\.\d)? MB of free memory", done.stdout), done


def test_a_value_for_which_memory_ends_is_said_to_be_too_large_for_the_machine(monkeypatch):
    left = iter([1 << 30, 1 << 20])
    limit_memory(monkeypatch, lambda: next(left))

    with pytest.raises(ResultError, match="does not fit into the memory of this machine") as caught:
        load(pickle.dumps([0.5] * 100_000, 5))

    assert "on a machine with more memory" in str(caught.value)


def test_a_copy_for_which_no_memory_is_left_is_not_made(monkeypatch):
    limit_memory(monkeypatch, lambda: 2_200_000)

    with pytest.raises(ResultError, match="need more than the 2.1 MB of free memory"):
        load(pickle.dumps(decimal.Decimal("1" * 2_000_000), 5))


NESTED = """
from clusterfn import ResultError
from tests.unit.calls.received import load
made, link = {kind}, {link}
try:
    value = load(b"\\x80\\x05" + made * 100_000 + b"N" + link * 100_000 + b".")
except ResultError as error:
    print(error.message.removeprefix("the value is damaged: "))
else:
    del value
    print("freed")
"""


@pytest.mark.parametrize(
    ("kind", "link", "said"),
    [
        (named("collections", "deque") + b")R", b"a", "a deque that is nested too deeply"),
        (named("collections", "defaultdict") + b")RN", b"s", "a defaultdict that is nested too deeply"),
        (named("collections", "OrderedDict") + b")RN", b"s", "freed"),
        (named("collections", "deque") + b")R", b"\x85a", "freed"),
        (b"]", b"a", "freed"),
    ],
    ids=["deque", "defaultdict", "OrderedDict", "deques in tuples", "list"],
)
def test_no_nesting_crashes_the_interpreter_when_the_value_is_freed(kind, link, said):
    program = NESTED.format(kind=repr(kind), link=repr(link))

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr[-500:]


def test_what_holds_its_like_as_people_write_it_is_no_attack():
    inner: Callable[[], object] = lambda: collections.defaultdict(int, {1: 2})  # noqa: E731
    ring: collections.deque = collections.deque([1])
    ring.append(ring)
    honest = [
        collections.defaultdict(dict, {each: inner() for each in range(1000)}),
        collections.deque([collections.deque()] * 9),
    ]

    assert load(pickle.dumps(honest, 5)) == honest
    found = load(pickle.dumps(ring, 5))
    assert found[0] == 1 and found[1] is found
