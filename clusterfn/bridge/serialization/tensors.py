"""Pickle torch's tensors as dtype, shape and the bytes of their memory; they are always loaded into main memory.

A tensor on a GPU would not load without a GPU, and must not fill the GPU of another process. Modules, parameters
and optimisers need nothing of their own: pickle takes them apart to tensors.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from typing import Any

from . import stand_ins

torch: Any = stand_ins.Library("torch")
Note = Callable[[str], None]

# A tensor on one of these devices stays as it is; a meta tensor has no content.
_STAYS = ("cpu", "meta")
_STORAGES = ("TypedStorage", "UntypedStorage")
_SPARSE = ("torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc", "torch.sparse_bsr", "torch.sparse_bsc")


def reduce(obj: Any, note: Note) -> Any:
    """Reduce an object whose class is torch's; return NotImplemented if pickle's own way will do.

    Args:
        obj: The object.
        note: Takes a sentence that says what will be different where it is loaded.

    Raises:
        pickle.PicklingError: A tensor of a layout that torch itself cannot write.
    """
    kind = type(obj)
    if kind.__name__ == "TorchVersion":
        return str, (str(obj),)
    if kind is torch.Tensor:
        return _reduce_tensor(obj, note)
    # A storage comes here only as a part of a tensor whose class is not torch's own.
    if kind.__name__ not in _STORAGES:
        return NotImplemented
    bytes_of = getattr(obj, "_untyped_storage", obj)
    if bytes_of.device.type in _STAYS:
        return NotImplemented
    _note_device(bytes_of, note)
    local = bytes_of.cpu()
    return (local if obj is bytes_of else obj._new_wrapped_storage(local)).__reduce_ex__(5)


def _reduce_tensor(obj: Any, note: Note) -> Any:
    if obj.device.type == "meta":
        return NotImplemented
    layout = str(obj.layout)
    is_special = layout in _SPARSE or obj.is_quantized or obj.is_nested or any(getattr(obj, "names", ()))
    shared = NotImplemented if is_special or layout != "torch.strided" else _reduce_view(obj)
    if shared is not NotImplemented:
        return shared
    local = obj
    if obj.device.type not in _STAYS:
        _note_device(obj, note)
        local = obj.detach().cpu().requires_grad_(obj.requires_grad)
    if is_special:
        return local.__reduce_ex__(5)
    if layout != "torch.strided":
        raise pickle.PicklingError("a tensor of layout %s cannot be sent: use its .to_dense()" % layout)
    return _reduce_dense(local, vars(obj))


def _note_device(obj: Any, note: Note) -> None:
    note("a tensor was on %s: it was sent as a copy in CPU memory" % obj.device)


def _reduce_view(obj: Any) -> Any:
    """Reduce a tensor whose elements share memory, such as that of `expand`, to this memory and its strides."""
    steps = obj.stride()
    repeated = [axis for axis, step in enumerate(steps) if not step and obj.shape[axis] > 1]
    core = obj.detach()
    for axis in repeated:
        core = core.narrow(axis, 0, 1)
    span = 1 + sum((count - 1) * step for count, step in zip(core.shape, steps))
    if 0 < span < core.numel() and not core.is_conj() and not core.is_neg():
        memory = core.as_strided((span,), (1,))
    elif repeated and obj.numel():
        core = core.resolve_conj().resolve_neg().contiguous()
        memory = core.reshape(-1)
        steps = tuple(own if step else 0 for own, step in zip(core.stride(), steps))
    else:
        return NotImplemented
    return view, (memory, tuple(obj.shape), steps, obj.requires_grad), vars(obj) or None, None, None, set_attributes


def _reduce_dense(obj: Any, attributes: dict[str, Any]) -> tuple[Any, ...]:
    """Reduce its elements in the order that they have in memory, so that a transposed tensor costs no copy."""
    order = sorted(range(obj.dim()), key=lambda axis: -obj.stride(axis))
    packed = obj.detach().permute(order).contiguous().resolve_conj().resolve_neg()
    dtype = str(obj.dtype).partition(".")[2]
    args = (_memory(packed), dtype, tuple(packed.shape), tuple(order), obj.requires_grad)
    return tensor, args, attributes or None, None, None, set_attributes


def _memory(packed: Any) -> Any:
    size = packed.numel() * packed.element_size()
    if not size:
        return b""
    memory: Any = (ctypes.c_ubyte * size).from_address(packed.data_ptr())
    memory.held = packed
    return pickle.PickleBuffer(memory)


def tensor(buffer: Any, dtype: str, shape: tuple[int, ...], order: tuple[int, ...], requires_grad: bool) -> Any:
    """Rebuild a tensor over `buffer`, or over a copy of read-only or misaligned bytes."""
    kind = getattr(torch, dtype)
    if not len(buffer):
        flat = torch.empty(0, dtype=kind)
    else:
        flat = torch.frombuffer(bytearray(buffer) if memoryview(buffer).readonly else buffer, dtype=kind)
    if flat.data_ptr() % flat.element_size():
        flat = flat.clone()
    back = sorted(range(len(order)), key=order.__getitem__)
    return flat.reshape(shape).permute(back).requires_grad_(requires_grad)


def view(memory: Any, shape: tuple[int, ...], steps: tuple[int, ...], requires_grad: bool) -> Any:
    """Rebuild a tensor whose elements share memory."""
    return memory.as_strided(shape, steps).requires_grad_(requires_grad)


def set_attributes(obj: Any, attributes: dict[str, Any]) -> None:
    """Set the attributes that a user gave a tensor; its own `__setstate__` reads something else."""
    obj.__dict__.update(attributes)
