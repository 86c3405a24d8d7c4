"""Many calls of one function as bytes: the function once, the arguments of each call apart, large buffers once for all.

What cannot travel is named by the index of its item before anything is sent. Sends nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from clusterfn.bridge import layout
from clusterfn.calls.payload import Large, Needs, Payload, check_arguments, keep_registrations, pack_object
from clusterfn.errors import PayloadError
from clusterfn.hosts import serialization

_LABEL = 40


@dataclass(frozen=True)
class Items:
    """The calls of a group, ready to travel.

    Attributes:
        payload: The function, and all that it and the items need.
        data: The content of items.pkl.
        ends: Where each item ends in it.
    """

    payload: Payload
    data: bytes
    ends: Sequence[int]

    def files(self) -> dict[str, bytes]:
        """Return the files of the group's folder besides those of every job."""
        return {layout.ITEMS: self.data, layout.ITEMS_INDEX: json.dumps(list(self.ends)).encode()}


def pack(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], target: tuple[int, int] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Items:  # fmt: skip
    """Pack the calls `function(*args, **constants)` as bytes.

    Args:
        function: What to call.
        calls: The arguments of each call.
        target: As for `payload.pack`.
        constants: Keyword arguments of all calls; they travel with the function.

    Raises:
        TypeError: The function does not take these arguments.
        PayloadError: The function or an item cannot travel; the message says which, and by what.
    """
    constants = constants or {}
    for args in {len(args): args for args in calls}.values():
        check_arguments(function, args, constants)
    keep_registrations()
    packing = _Packing(target)
    items = [packing.item(index, args, function) for index, args in enumerate(calls)]
    payload = packing.function(function, constants)
    return Items(payload, b"".join(items), list(itertools.accumulate(map(len, items))))


class _Packing:
    """What the pickles of one group have in common."""

    def __init__(self, target: tuple[int, int] | None) -> None:
        self.target = target
        self.large, self.needs = Large(), Needs()
        self.blobs: dict[str, memoryview] = {}
        self._digests: dict[tuple[int, int], tuple[Any, str]] = {}

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
        apart = {name: self.large.of(value) for name, value in constants.items()}
        packed = pack_object((function, (), apart), self.needs, self.target, (function, (), constants))
        packed = replace(packed, sources=self.needs.texts, logging=serialization.part("logs").describe())
        return self.needs.as_payload(self._bytes(packed), self.blobs)

    def _bytes(self, packed: Any) -> bytes:
        digests = {index: self._digest(view) for index, view in enumerate(packed.buffers)}
        self.blobs.update((digest, packed.buffers[index]) for index, digest in digests.items())
        return b"".join(replace(packed, blobs=digests).pieces())

    def _digest(self, view: memoryview) -> str:
        """Return the digest of a buffer; compute it once if many items share it."""
        key = (id(view.obj), len(view))
        if key not in self._digests:
            self._digests[key] = (view.obj, hashlib.sha256(view).hexdigest())
        return self._digests[key][1]


def label(args: tuple[Any, ...]) -> str:
    """Name an item for people by its plain arguments, and the types of the others.

    Example:
        >>> label((0.1, "adam", [1, 2]))
        "0.1, 'adam', list"
    """
    text = ", ".join(_shown(value) for value in args)
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def _shown(value: Any) -> str:
    if isinstance(value, PurePath):
        return value.name
    plain = value is None or type(value) in (bool, int, float, complex) or (type(value) is str and len(value) < 1000)
    return repr(value) if plain else type(value).__name__
