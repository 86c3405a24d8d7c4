"""The file format of payloads and values: what was written comes back, and nothing else ever does."""

from __future__ import annotations

import functools
import hashlib
import json
import linecache
import os
import pickle
import pickletools
import re
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clusterfn.hosts import serialization
from tests.fixtures import roundtrip

container, unpicklable = serialization.part("container"), serialization.part("unpicklable")
SHORT = 1 << 20


class Buffer:
    """An object whose bytes pickle keeps apart, as numpy's arrays do."""

    def __init__(self, data):
        self.data = data

    def __reduce_ex__(self, protocol):
        return Buffer, (pickle.PickleBuffer(self.data),)


def whole(value, **more) -> bytes:
    return b"".join(replace(container.pack(value), **more).pieces())


def write_with_blob(folder):
    packed = container.pack(Buffer(bytearray(b"a" * SHORT)))
    digest = hashlib.sha256(packed.buffers[0]).hexdigest()
    (folder / digest).write_bytes(packed.buffers[0])
    (folder / "file").write_bytes(
        b"".join(replace(packed, blobs={0: digest}, crcs={digest: zlib.crc32(packed.buffers[0])}).pieces())
    )
    return folder / digest


def load(folder, read_blob=None):
    return container.load(str(folder / "file"), lambda digest: str(folder / digest), read_blob=read_blob)


def load_or_remove(folder):
    return load(folder, functools.partial(container.check_blob, removes=True))


@pytest.mark.parametrize("sources", [{}, {"<cell>": 'a, "crc": 3}\n'}], ids=["plain", "with sources"])
def test_a_flipped_byte_is_seen_wherever_it_is(sources):
    good = whole({"a": list(range(20))}, sources=sources)
    for position in range(len(good)):
        for flip in (0x01, 0x20, 0x80):
            bad = bytearray(good)
            bad[position] ^= flip
            with pytest.raises(container.Damaged):
                container.loads(bad)


def test_a_file_cut_short_is_seen_wherever_it_is_cut_and_so_is_more_at_its_end():
    good = whole(list(range(20)))
    for bad in [*(good[:length] for length in range(len(good))), good + b"\0"]:
        with pytest.raises(container.Damaged):
            container.loads(bad)


def test_a_flipped_byte_in_a_buffer_is_seen():
    bad = bytearray(whole(Buffer(b"a" * SHORT)))
    bad[-SHORT // 2] ^= 1

    with pytest.raises(container.Damaged):
        container.loads(bad)


def test_a_blob_is_read_from_its_own_file(tmp_path):
    write_with_blob(tmp_path)

    assert bytes(load(tmp_path).data) == b"a" * SHORT
    assert (tmp_path / "file").stat().st_size < 1000


def test_who_writes_to_a_blob_writes_to_a_copy(tmp_path):
    blob = write_with_blob(tmp_path)
    loaded = load(tmp_path)

    loaded.data[0] = 7

    assert bytes(loaded.data[:2]) == b"\7a"
    assert blob.read_bytes() == b"a" * SHORT


@pytest.mark.parametrize(
    "content", [b"b" + b"a" * (SHORT - 1), b"a" * (SHORT - 1), b"a" * (SHORT + 1), b""],
    ids=["flipped", "short", "long", "empty"],
)  # fmt: skip
def test_a_damaged_blob_is_named_and_removed_where_that_was_asked_for(tmp_path, content):
    blob = write_with_blob(tmp_path)
    blob.write_bytes(content)

    with pytest.raises(container.Damaged, match=f"{blob.name} .*: remove it"):
        load(tmp_path)
    assert blob.exists()
    with pytest.raises(container.Damaged, match=f"{blob.name} .*: it has been removed"):
        load_or_remove(tmp_path)
    assert not blob.exists()


def test_a_damaged_blob_that_cannot_be_removed_is_not_called_removed(tmp_path, monkeypatch):
    blob = write_with_blob(tmp_path)
    blob.write_bytes(b"")

    def refuse(_):
        raise OSError("read-only file system")

    monkeypatch.setattr(os, "unlink", refuse)

    with pytest.raises(container.Damaged, match=f"{blob.name} .*: remove it"):
        load_or_remove(tmp_path)


def test_a_blob_that_was_sent_again_while_a_damaged_one_was_read_stays(tmp_path, monkeypatch):
    blob = write_with_blob(tmp_path)
    whole = blob.read_bytes()
    blob.write_bytes(b"b" + whole[1:])

    new = tmp_path / "new"
    new.write_bytes(whole)
    damaged, fstat = blob.stat(), os.fstat

    def send_again_after(fd):
        found = fstat(fd)
        if os.path.samestat(found, damaged):
            new.rename(blob)
        return found

    monkeypatch.setattr(os, "fstat", send_again_after)
    with pytest.raises(container.Damaged, match="was altered"):
        load_or_remove(tmp_path)

    assert bytes(load(tmp_path).data) == whole


def test_a_missing_blob_is_named(tmp_path):
    blob = write_with_blob(tmp_path)
    blob.unlink()

    with pytest.raises(container.Damaged, match=f"{blob.name} is not there"):
        load(tmp_path)


def test_a_value_may_not_name_a_blob(tmp_path):
    write_with_blob(tmp_path)

    with pytest.raises(container.Damaged, match="only a payload may"):
        container.loads((tmp_path / "file").read_bytes())


@pytest.mark.parametrize("lead", [0, 5, 1 << 16])
def test_a_value_among_others_is_mapped_at_its_place_or_called_damaged_where_it_is_cut(tmp_path, lead):
    data = whole(Buffer(b"ab" * SHORT))
    path, part = tmp_path / "values", [lead, len(data)]
    path.write_bytes(b"x" * lead + data + b"y")

    loaded = container.load(str(path), container.no_blob, part=part, shared=True)
    assert bytes(loaded.data) == b"ab" * SHORT

    other = tmp_path / "cut"
    other.write_bytes(b"x" * lead + data[:-1])
    with pytest.raises(container.Damaged):
        container.load(str(other), container.no_blob, part=part, shared=True)


def test_what_was_read_ahead_is_used_once_and_a_large_file_is_left_on_the_disk(tmp_path):
    small, large = tmp_path / "small", tmp_path / "large"
    for path, value in ((small, [1]), (large, Buffer(b"a" * SHORT))):
        path.write_bytes(whole(value))
        container.read_ahead(str(path))
        path.write_bytes(whole([2]))
        if path == small:
            assert container.load(str(path), container.no_blob) == [1]
        assert container.load(str(path), container.no_blob) == [2]


def test_large_buffers_stay_out_of_the_pickle_and_can_be_written_to_unless_they_were_read_only():
    packed = container.pack([Buffer(bytearray(SHORT)), Buffer(bytearray(10)), Buffer(b"a" * SHORT)])

    assert [len(buffer) for buffer in packed.buffers] == [SHORT] * 2 and len(packed.pickle) < 1000
    large, _, read_only = container.loads(bytearray(b"".join(packed.pieces())))
    large.data[0] = 7
    assert memoryview(read_only.data).readonly


def test_the_object_watcher_may_reduce_an_object():
    reduce_lock = lambda obj: (int, ("7",)) if type(obj) is type(threading.Lock()) else NotImplemented  # noqa: E731

    assert container.loads(b"".join(container.pack([threading.Lock()], reduce_lock).pieces())) == [7]


@pytest.mark.parametrize("line", [b"[]\n", b"{}\n", b"\n", b"", b'{"format": 2}\n', b"[" * 100_000, b"\xff\n"])
def test_any_other_header_is_damaged(line):
    with pytest.raises(container.Damaged):
        container.loads(line)


def test_the_lines_of_a_file_that_is_only_there_are_shown():
    container.register_sources({"<only there>": "first\nsecond\n"})
    linecache.checkcache()

    assert linecache.getline("<only there>", 2) == "second\n"


def test_the_lines_of_a_file_that_is_here_stay_its_own():
    first = linecache.getline(__file__, 1)
    container.register_sources({__file__: "theirs\n"})

    assert linecache.getline(__file__, 1) == first != "theirs\n"


DUMP = """
import sys
sys.path.insert(0, {library!r})
from clusterfn.hosts import serialization as wire
class Mine(Exception):
    def __str__(self): return "mine"
def raises():
    raise Mine(1)
try: raises()
except Exception as error: mine = error
value = {{"plain": 1, "function": raises, "records": [wire.part("exceptions").to_records(mine),
         wire.part("exceptions").to_records(KeyError(1))]}}[{what!r}]
wire.part("container").dump(value, sys.stdout.buffer)
"""


def made_by_another(what, tmp_path):
    python = next((p for p in roundtrip.pythons() if p != sys.executable), None)
    if python is None:
        pytest.skip("there is no other Python here")
    roundtrip.site_packages(tmp_path)
    code = DUMP.format(library=str(tmp_path / "site-packages"), what=what)
    return subprocess.run([python, "-c", code], capture_output=True, check=True).stdout


def test_the_pickle_of_another_python_is_not_touched(tmp_path):
    with pytest.raises(container.OtherPython) as caught:
        container.loads(made_by_another("function", tmp_path))

    assert caught.value.here == sys.version_info[:2] != caught.value.wanted
    assert pickle.loads(pickle.dumps(caught.value)).wanted == caught.value.wanted


def test_records_of_another_python_bring_no_byte_code(tmp_path):
    exceptions = serialization.part("exceptions")
    by_value, plain = container.loads(made_by_another("records", tmp_path), same_python=False)

    assert exceptions.from_records(plain).args == (1,)
    with pytest.raises(exceptions.CannotRebuild, match="byte code of another version"):
        exceptions.from_records(by_value)


def test_a_large_value_is_written_in_pieces_of_which_each_can_leave_at_once():
    """The kernel tells those who watch a file about each write when it ends."""
    written: list[bytes] = []
    value = Buffer(bytes(range(256)) * (5 * SHORT // 64 + 1))

    told = container.dump(value, SimpleNamespace(write=lambda data: written.append(bytes(data))))

    assert b"".join(written) == whole(value)
    assert told["size"] == len(whole(value)) > 20 << 20
    assert max(map(len, written)) <= 4 << 20


@pytest.mark.parametrize(
    "entry", [{}, {"size": -1}, {"size": "1"}, {"size": 1, "crc": "x"}, {"size": 1, "blob": 3}], ids=str
)
def test_a_first_line_that_makes_no_sense_is_damage(entry):
    header = {"format": container.FORMAT, "python": [3, 11], "pickle": 1, "buffers": [entry], "sources": {}}
    line = container.seal(json.dumps(header).encode()[:-1], zlib.crc32(b"x"))

    with pytest.raises(container.Damaged):
        container.loads(line + b"x")


OTHER = (3, 9) if sys.version_info[:2] != (3, 9) else (3, 10)


def packed(obj, target=OTHER):
    return container.pack(obj, target=target)


def names_in(data):
    return {str(argument) for _, argument, _ in pickletools.genops(data)}


def closed_over(n):
    class Local:
        def get(self):
            return n

    return lambda m: (m, n, Local)


def test_there_is_no_byte_code_between_versions():
    here = names_in(packed(closed_over(1), target=None).pickle)
    there = names_in(packed(closed_over(1)).pickle)

    assert "CodeType" in here
    assert "CodeType" not in there
    assert any("lambda m: (m, n, Local)" in name for name in there)


def test_only_what_goes_to_another_version_says_so_in_its_header():
    headers = [packed([1], target).pieces()[0] for target in (None, sys.version_info[:2], OTHER)]

    assert [b'"code": "text"' in header for header in headers] == [False, False, True]


def test_byte_code_under_that_header_is_refused():
    pieces = packed(closed_over(1), target=None).pieces()
    head = re.sub(rb', "crc": \d+}\n', b', "code": "text"', pieces[0])
    data = container.seal(head, container.checksum(pieces[1:])) + b"".join(pieces[1:])

    with pytest.raises(Exception, match="byte code of another version"):
        container.loads(data)


def test_the_last_of_a_million_is_found_without_pickling_each_by_itself(monkeypatch):
    monkeypatch.setattr(unpicklable, "LIMIT_S", 60.0)
    pickled, failure = [], unpicklable.pickling_failure
    counted = lambda *told, **more: pickled.append(told) or failure(*told, **more)  # noqa: E731
    monkeypatch.setattr(unpicklable, "pickling_failure", counted)

    assert unpicklable.where([*range(1_000_000), threading.Lock()], "result").startswith(
        "result[1000000]: cannot pickle"
    )
    assert len(pickled) < 40


def test_a_deep_chain_ends_soon(monkeypatch):
    monkeypatch.setattr(unpicklable, "LIMIT_S", 0.05)
    value: object = threading.Lock()
    for _ in range(300):
        value = [value]
    looks = []
    monkeypatch.setattr(
        unpicklable, "pickling_failure", lambda *told, **more: looks.append(time.sleep(0.02)) or "cannot pickle"
    )

    assert unpicklable.where(value, "result").startswith("result[0]")
    assert len(looks) < 100, "it was followed to its end, however long that takes"
