"""Many calls of one function as bytes: the function once, the arguments of each call apart, large buffers once for all.

What cannot travel is named by the index of its item before anything is sent. Sends nothing.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterfn.bridge import layout
from clusterfn.errors import PayloadError
from clusterfn.packing.dependencies import Place
from clusterfn.packing.files import name_of_buffer
from clusterfn.packing.payload import Large, Needs, Payload, keep_registrations, of_program, pack_object


@dataclass(frozen=True)
class Items:
    """The calls of a group, ready to travel.

    Attributes:
        payload: The function, and all that it and the items need.
        data: The content of items.pkl.
        ends: Where each item ends in it.
        inputs: The jobs whose values each item takes, each with the item of a group or None for all of its value.
        inputs_of_all: The same of the function and the constants, for all items.
    """

    payload: Payload
    data: bytes
    ends: Sequence[int]
    inputs: Sequence[Sequence[tuple[str, int | None]]] = ()
    inputs_of_all: Sequence[tuple[str, int | None]] = ()

    def described_inputs(self) -> bytes:
        """Return the file by which the host knows which item fails with which job."""
        return json.dumps({"all": self.inputs_of_all, "items": self.inputs}).encode()


def files_of(data: bytes, ends: Sequence[int], indices: Iterable[int]) -> dict[str, bytes]:
    """Return the files of a group's folder that have these items, in this order."""
    parts = [data[ends[index - 1] if index else 0 : ends[index]] for index in indices]
    return {
        layout.ITEMS: b"".join(parts),
        layout.ITEMS_INDEX: json.dumps([*itertools.accumulate(map(len, parts))]).encode(),
    }


def pack(
    function: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    target: tuple[int, int] | None = None,
    constants: Mapping[str, Any] | None = None,
    place: Place | None = None,
) -> Items:
    """Pack the calls `function(*args, **constants)` as bytes.

    Args:
        function: What to call.
        calls: The arguments of each call.
        target: As for `payload.pack`.
        constants: Keyword arguments of all calls; they travel with the function.
        place: As for `payload.pack`.

    Raises:
        PayloadError: The function or an item cannot travel; the message says which, and by what.
    """
    constants = constants or {}
    keep_registrations()
    packing = _Packing(target, place)
    items = [packing.item(index, args, function) for index, args in enumerate(calls)]
    payload = packing.function(function, constants)
    *of_items, of_all = packing.taken
    return Items(payload, b"".join(items), list(itertools.accumulate(map(len, items))), of_items, of_all)


class _Packing:
    """What the pickles of one group have in common."""

    def __init__(self, target: tuple[int, int] | None, place: Place | None) -> None:
        self.target = target
        self.large, self.needs = Large(), Needs(place)
        self.blobs: dict[str, memoryview] = {}
        self.crcs: dict[str, int] = {}
        self._digests: dict[tuple[int, int], tuple[Any, str]] = {}
        # The references of each item, and last those of the function.
        self.taken: list[list[tuple[str, int | None]]] = []

    def item(self, index: int, args: tuple[Any, ...], function: Callable[..., Any]) -> bytes:
        """Pack the arguments of one item."""
        try:
            return self._bytes(
                pack_object(tuple(map(self.large.of, args)), self.needs, self.target, (function, args, {}))
            )
        except PayloadError as refused:
            refused.message = refused.message.replace("the call", f"item {index}", 1)
            raise

    def function(self, function: Callable[..., Any], constants: Mapping[str, Any]) -> Payload:
        """Pack the function and the constants, after all items, with what they need."""
        self.needs.read_code(function, constants)
        apart = {name: self.large.of(value) for name, value in constants.items()}
        packed = pack_object((function, (), apart), self.needs, self.target, (function, (), constants))
        packed = replace(packed, sources=self.needs.texts, **of_program())
        return self.needs.as_payload(self._bytes(packed), self.blobs, self.crcs)

    def _bytes(self, packed: Any) -> bytes:
        digests = {index: self._digest(view) for index, view in enumerate(packed.buffers)}
        self.blobs.update((digest, packed.buffers[index]) for index, digest in digests.items())
        self.taken.append(list(dict.fromkeys(self.needs.taken)))
        self.needs.taken.clear()
        return b"".join(replace(packed, blobs=digests, crcs=self.crcs).pieces())

    def _digest(self, view: memoryview) -> str:
        """Return the digest of a buffer; compute it once if many items share it."""
        key = (id(view.obj), len(view))
        if key not in self._digests:
            digest, self.crcs[digest] = name_of_buffer(view)
            self._digests[key] = (view.obj, digest)
        return self._digests[key][1]
