"""Read and write payload.pkl and value.pkl: one JSON line, a pickle or plain data, and its large buffers.

The versions in the JSON line are compared before anything is unpickled: byte code of another minor version can end the
process without a word. Knows nothing of jobs.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import linecache
import os
import pickle
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from . import hints, load_failure, pickler, unpickler

# A Python that is too old for these imports must still get as far as reporting its version.
if TYPE_CHECKING:
    # From a blob's path, size and CRC-32, its content.
    ReadBlob = Callable[[str, int, int], Any]
    # From plain data and its buffers, the value.
    Read = Callable[[memoryview, Sequence[Any]], Any]

FORMAT = 1
_LARGE = 1 << 20
_WRITTEN_AT_ONCE = 4 << 20
# The first line of a file and what follows it, of one file that was read ahead.
_ahead: dict[str, tuple[bytes, bytearray]] = {}


class Damaged(Exception):
    """The bytes are not those that were written."""


class NoPlainData(Exception):
    """The bytes are a pickle, but only plain data is accepted; the text says which part is none, if that is known."""


class OtherPython(Exception):
    """The bytes were made by another minor version of Python.

    Attributes:
        wanted: (major, minor) that made them.
        here: (major, minor) that was asked to read them.
    """

    def __init__(self, wanted: tuple[int, int], here: tuple[int, int]) -> None:
        super().__init__(wanted, here)
        self.wanted = wanted
        self.here = here

    def __str__(self) -> str:
        return "made by Python %d.%d, but this is Python %d.%d" % (*self.wanted, *self.here)


@dataclass(frozen=True)
class Packed:
    """An object as bytes, its large buffers apart.

    Attributes:
        pickle: The pickle, protocol 5.
        buffers: What the pickle refers to, in order.
        blobs: Index of a buffer -> its name by content, for buffers that travel by themselves.
        crcs: Name of such a buffer -> its CRC-32.
        sources: File name -> text, so that tracebacks there show lines.
        logging: What `logs.describe` said; None writes nothing.
        settings: What `settings.current` said.
        argv: The words after the name of the caller's program.
        as_text: Whether code is in it as text, which any minor version can read.
        kinds: The classes of its objects.
        is_data: Whether the pickle is none, but plain data as `plain_data` writes it.
        refused: Why it is a pickle, if it was to be plain data.
    """

    pickle: bytes
    buffers: Sequence[memoryview] = ()
    blobs: Mapping[int, str] = field(default_factory=dict)
    crcs: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    logging: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    argv: Sequence[str] = ()
    as_text: bool = False
    kinds: Iterable[type] = ()
    is_data: bool = False
    refused: str = ""

    def pieces(self) -> list[bytes | memoryview]:
        """Return the whole file: header, pickle and the buffers that are not blobs."""
        return self.sealed()[0]

    def sealed(self) -> tuple[list[bytes | memoryview], int]:
        """Return the pieces of the file, and the checksum of what follows its header."""
        own = [buffer for index, buffer in enumerate(self.buffers) if index not in self.blobs]
        body: list[bytes | memoryview] = [self.pickle, *own]
        packages = load_failure.versions(self.kinds)
        record = {
            "format": FORMAT,
            "python": list(sys.version_info[:2]),
            "cloudpickle": pickler.VERSION,
            "pickle": len(self.pickle),
            "buffers": [self._entry(self.blobs.get(index), len(view)) for index, view in enumerate(self.buffers)],
            "sources": dict(self.sources),
            **({"logging": dict(self.logging)} if self.logging else {}),
            **({"settings": dict(self.settings)} if self.settings else {}),
            **({"argv": list(self.argv)} if self.argv else {}),
            **({"code": "text"} if self.as_text else {}),
            **({"packages": packages} if packages else {}),
            **({"data": True} if self.is_data else {}),
            **({"refused": self.refused} if self.refused else {}),
        }
        # A CRC-32 finds damage, and Python 3.6 has no faster checksum. Against intent, ssh protects the bytes in
        # transit.
        crc = checksum(body)
        return [seal(json.dumps(record).encode()[:-1], crc), *body], crc

    def _entry(self, blob: str | None, size: int) -> dict[str, Any]:
        return {"size": size, "blob": blob, **({"crc": self.crcs[blob]} if blob else {})}


def seal(facts: bytes, crc: int) -> bytes:
    """Complete the JSON line: add to `facts`, which lacks its last brace, the checksum of the body and these facts."""
    # The checksum covers the header too: a damaged size there would make a reader take other bytes for the value.
    return b'%s, "crc": %d}\n' % (facts, zlib.crc32(facts, crc))


def pack(obj: object, on_object: Callable[[object], Any] | None = None, target: pickler.Version = None) -> Packed:
    """Pickle `obj`; `on_object` sees each object that is not plain data and may return its reduction.

    Args:
        obj: What to pickle.
        on_object: As above.
        target: (major, minor) of the Python that will read it; None is this one's.

    Raises:
        Whatever pickling raises; for another version also `source.NoSource`.
    """
    names = hints.Hints()
    try:
        return _packed(obj, on_object, target, names)
    except Exception:  # pickling runs the user's code, which may raise anything
        if not names.used:
            raise
    # An annotation that cannot be pickled must not keep a call from being sent, so this attempt leaves the annotations
    # out.
    return _packed(obj, on_object, target, None)


def _packed(
    obj: object, on_object: Callable[[object], Any] | None, target: pickler.Version, names: hints.Hints | None
) -> Packed:
    work = functools.partial(_pack, obj, on_object, names)
    target = target or pickler.HERE
    if target == pickler.HERE:
        with contextlib.suppress(pickler.LibraryMade):
            return work(functools.partial(pickler.Pickler, in_parts=False))
    # This import is late, because most calls are within one Python version, and take no class that a library made.
    from . import crossing

    return replace(crossing.twice(work, target), as_text=target != pickler.HERE)


def _pack(
    obj: object,
    on_object: Callable[[object], Any] | None,
    names: hints.Hints | None,
    make: Callable[..., pickler.Pickler],
) -> Packed:
    buffers: list[memoryview] = []

    def keep_apart(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        # Large buffers stay out of the pickle, so that they are neither copied nor read into it again.
        large = len(view) >= _LARGE
        if large:
            buffers.append(view)
        return not large

    out = io.BytesIO()
    writer = make(out, keep_apart, on_object, hints=names)
    writer.dump(obj)
    return Packed(out.getvalue(), buffers, kinds=writer.kinds.values())


def dump(
    obj: object,
    file: BinaryIO,
    target: pickler.Version = None,
    writing: Callable[[Callable[[], None]], None] = lambda write: write(),
    as_data: bool = False,
) -> dict[str, int]:
    """Write `obj` as a whole value file; return its size in bytes and the checksum of what follows its header.

    Args:
        writing: Calls what writes it, once or again.
        as_data: Whether to write plain data, if it is such data. What is none can still be taken by other jobs there.
    """
    pieces, crc = (_as_data(obj, target) if as_data else pack(obj, target=target)).sealed()

    def write() -> None:
        for piece in pieces:
            # The agent sends what the file has after each write, so large pieces go in parts.
            for begin in range(0, len(piece), _WRITTEN_AT_ONCE):
                file.write(memoryview(piece)[begin : begin + _WRITTEN_AT_ONCE])

    writing(write)
    return {"size": sum(len(piece) for piece in pieces), "crc": crc}


def _as_data(obj: object, target: pickler.Version) -> Packed:
    from . import plain_data

    try:
        text, buffers = plain_data.dumps(obj)
    except plain_data.NotData as refused:
        return replace(pack(obj, target=target), refused=str(refused))
    return Packed(text, buffers, is_data=True)


def load(
    path: str,
    blob_path: Callable[[str], str],
    on_header: Callable[[Mapping[str, Any]], None] | None = None,
    part: Sequence[int] | None = None,
    read_blob: ReadBlob | None = None,
    any_python: bool = False,
    shared: bool = False,
) -> Any:
    """Load the object in a file; buffers that are blobs are read from `blob_path(name)`.

    Args:
        path: The file.
        blob_path: The path of a blob, by its name.
        on_header: Called with the header once it is known to be whole, before anything is unpickled.
        part: Offset and size of a part of the file; None for all of it.
        read_blob: Returns a blob's content; None: `check_blob`.
        any_python: Whether a file of another minor version is loaded if there is no byte code in it.
        shared: Whether to map a large file instead of reading it: processes share its pages until they write to them.

    Raises:
        Damaged: The file is cut short or altered.
        OtherPython: Another minor version made it.
        Exception: Whatever unpickling raises.
    """
    body, crc = None, None
    if path in _ahead:
        line, data = _ahead.pop(path)
        body = memoryview(data)
    else:
        with open(path, "rb") as file:
            offset, size = part or (0, os.fstat(file.fileno()).st_size)
            file.seek(offset)
            line = file.readline(size)
            body = _map(file, offset + len(line), size - len(line)) if shared else None
            # The checksum reads the file first: bytes that cannot be read raise OSError here, but kill the process
            # (SIGBUS) in a mapping.
            if body is not None:
                crc = _checksum_of_file(file, len(body))
            else:
                data = bytearray(size - len(line))
                body = memoryview(data)[: file.readinto(data)]

    def blob(digest: str, size: int, crc: int) -> Any:
        return (read_blob or check_blob)(blob_path(digest), size, crc)

    return _load_body(line, body, blob, on_header=on_header, any_python=any_python, crc=crc)


def read_ahead(path: str) -> None:
    """Read a small file for the next `load` of it, here or in forks; raise OSError if it cannot be read."""
    if path not in _ahead:
        _ahead.clear()
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _LARGE:
                line = file.readline()
                _ahead[path] = (line, bytearray(file.read()))


def _map(file: BinaryIO, offset: int, size: int) -> memoryview | None:
    """Map a large part of a file; None if it is small or cut short, or if its file system cannot."""
    if size < _LARGE or os.fstat(file.fileno()).st_size < offset + size:
        return None
    # Most calls take no large value.
    import mmap

    lead = offset % mmap.ALLOCATIONGRANULARITY
    try:
        return memoryview(mmap.mmap(file.fileno(), lead + size, access=mmap.ACCESS_COPY, offset=offset - lead))[lead:]
    except OSError:
        return None


def loads(data: bytes | bytearray, same_python: bool = True, read: Read | None = None) -> Any:
    """Load the object in the bytes of a whole file; arrays share the memory of a bytearray.

    Args:
        data: The file's content, without blobs.
        same_python: Whether another minor version is refused. Plain records of an exception may cross.
        read: Reads plain data; a pickle is refused then, and nothing else of the file has an effect, either.

    Raises:
        NoPlainData: It is a pickle.
        Exception: As `load`.
    """
    end = data.find(b"\n") + 1
    return _load_body(bytes(data[:end]), memoryview(data)[end:], no_blob, same_python, read=read)


def no_blob(digest: str, *_: object) -> Any:
    """Reject a value that has a part in another file."""
    raise Damaged("a value refers to the blob %s, which only a payload may" % digest)


def _load_body(
    line: bytes,
    body: memoryview,
    blobs: Callable[[str, int, int], Any],
    same_python: bool = True,
    on_header: Callable[[Mapping[str, Any]], None] | None = None,
    any_python: bool = False,
    crc: int | None = None,
    read: Read | None = None,
) -> Any:
    header = _parsed(line, seal(line.rpartition(b', "crc": ')[0], checksum([body]) if crc is None else crc))
    # Blobs are elsewhere.
    if len(body) != header["pickle"] + sum(entry["size"] for entry in header["buffers"] if not entry.get("blob")):
        raise Damaged("the header does not describe the %d bytes that follow it" % len(body))
    major, minor = header["python"]
    as_text = header.get("code") == "text" or (any_python and (major, minor) != sys.version_info[:2])
    is_data = header.get("data") is True
    if read is not None and not is_data:
        raise NoPlainData(header.get("refused", ""))
    if same_python and not (as_text or is_data) and (major, minor) != sys.version_info[:2]:
        raise OtherPython((major, minor), sys.version_info[:2])
    if not is_data:
        register_sources(header["sources"])
    if on_header is not None:
        on_header(header)
    buffers: list[Any] = []
    offset = header["pickle"]
    for entry in header["buffers"]:
        if entry.get("blob"):
            buffers.append(blobs(entry["blob"], entry["size"], entry.get("crc", -1)))
        else:
            buffers.append(body[offset : offset + entry["size"]])
            offset += entry["size"]
    pickled = body[: header["pickle"]]
    if is_data:
        return _read_data(pickled, buffers, read)
    try:
        return (unpickler.loads_without_code if as_text else unpickler.loads)(pickled, buffers)
    except Exception as error:  # loading runs the user's code, which may raise anything
        load_failure.note(error, header.get("packages"))
        raise


def _read_data(text: memoryview, buffers: list[Any], read: Read | None) -> Any:
    from . import data_reader

    try:
        return (read or data_reader.loads)(text, buffers)
    except ValueError as error:
        raise Damaged(str(error)) from None


def _parsed(line: bytes, sealed: bytes | None = None) -> dict[str, Any]:
    """Return the header that a first line holds; `sealed` is how it must be."""
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        raise Damaged("the header is not readable") from None
    if not isinstance(header, dict):
        raise Damaged("the header is not readable")
    # The format is checked first: a file of another version gets this message, and not one about a wrong checksum.
    if header.get("format") != FORMAT:
        raise Damaged("format %r is not known to this version" % header.get("format"))
    if sealed is not None and line != sealed:
        raise Damaged("the checksum is wrong, the file was cut short or altered")
    if not _makes_sense(header):
        raise Damaged("the header lacks what belongs there, or has it of another type")
    return header


def _makes_sense(header: Mapping[str, Any]) -> bool:
    python, buffers, sources = header.get("python"), header.get("buffers"), header.get("sources")
    if not (isinstance(python, list) and isinstance(buffers, list) and isinstance(sources, dict)):
        return False
    if len(python) != 2 or not all(isinstance(entry, dict) for entry in buffers):
        return False
    sizes = [*python, header.get("pickle")]
    sizes += [size for entry in buffers for size in (entry.get("size"), entry.get("crc", 0))]
    texts = [header.get("refused", ""), *sources.values(), *(entry.get("blob") or "" for entry in buffers)]
    return all(type(size) is int and size >= 0 for size in sizes) and all(isinstance(text, str) for text in texts)


def check_blob(path: str, size: int, crc: int, removes: bool = False) -> Any:
    """Check a blob and map it: no process has a copy of its own, and what it writes to is copied then.

    Args:
        removes: Whether to remove a damaged one, so that it is sent again. A power cut leaves such a blob on a machine
            that had not written it to its disk yet. On a cluster, only this node may read it wrong.

    Raises:
        Damaged: It is not there, or not what was sent.
    """
    removed = False
    try:
        with open(path, "rb") as file:
            opened = os.fstat(file.fileno())
            actual_size = opened.st_size
            # Reading comes first: what cannot be read is an OSError here, and would end the process in the mapping.
            whole = actual_size == size and _checksum_of_file(file, size) == crc
            mapped = _map(file, 0, size) if whole else None
            if whole and mapped is None:
                data = bytearray(size)
                file.seek(0)
                whole = file.readinto(data) == size
                mapped = memoryview(data)
            if removes and not whole:
                with contextlib.suppress(OSError):
                    # Another process may have replaced the blob since it was opened: only the damaged file may be
                    # removed.
                    if os.path.samestat(os.stat(path), opened):
                        os.unlink(path)
                        removed = True
    except FileNotFoundError:
        raise Damaged("the blob %s is not there" % path) from None
    if not whole:
        what = "was altered" if actual_size == size else "has %d bytes instead of %d" % (actual_size, size)
        raise Damaged("the blob %s %s: %s" % (path, what, "it has been removed" if removed else "remove it"))
    return mapped


def map_blob(path: str, size: int, crc: int) -> Any:
    """Map a blob that this machine has checked before: processes share its pages until they write to them."""
    # This import is late, because only spawned children call this function.
    import mmap

    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)


def register_sources(sources: Mapping[str, str]) -> None:
    """Let tracebacks show the lines of files that exist only on the caller's machine."""
    for name, text in sources.items():
        if name not in linecache.cache:
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _checksum_of_file(file: BinaryIO, size: int) -> int:
    crc = 0
    while size > 0:
        piece = file.read(min(_LARGE, size))
        # Another process cut the file short after its size was read.
        if not piece:
            break
        crc, size = zlib.crc32(piece, crc), size - len(piece)
    return crc


def checksum(pieces: Sequence[bytes | memoryview]) -> int:
    return functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces, 0)
