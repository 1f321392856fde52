"""Turns a mapping of names to tensors into the array of `WcTensor` that the library takes.

Nothing is copied: a descriptor says where the elements lie. Everything that cannot be described
without a copy is refused by name, as is read-only memory when it would be written.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NoReturn

from ._dlpack import cuda_device, read_dlpack
from ._exchange import WORDS, devices_of, exchange_table
from .arrays import read_interface, read_numpy
from .buffers import CUDA, STAND_IN, Buffer
from .errors import NativeError, Status, TensorError
from .torch_tensors import TorchReader

# size_t struct_size, char *name, void *data, {int32 type, int32 id} device, int32 ndim, uint32 dtype,
# int64 *shape, int64 *strides, uint64 byte_offset
WC_TENSOR = struct.Struct("=QQQiiiIQQQ")


@dataclass(frozen=True)
class Described:
    """An array of `count` WcTensor at `address`, valid as long as this object lives."""

    address: int
    count: int
    names: list[str]
    keep: tuple[object, ...]
    """The memory of the descriptors and the tensors themselves."""
    stream: int = 0
    """The CUDA stream after whose work the tensors on CUDA devices are complete; 0 is the legacy default stream."""
    elsewhere: dict[str, Any] = field(default_factory=dict)
    """The torch tensors on devices that only torch can read. Among the descriptors each is one without elements."""


NO_TENSORS = Described(0, 0, [], ())


def describe(tensors: Mapping[str, object], writable: bool) -> Described:
    """Describes torch tensors, numpy arrays and anything with `__dlpack__` or `__array_interface__`.

    Args:
        tensors: name -> tensor, of any shape and strides, in host memory or on a device.
        writable: whether the elements will be written.

    Raises:
        TensorError: one of them cannot be read (or written) where it lies; the message names it and
            says what to pass instead.
    """
    if not isinstance(tensors, Mapping):
        raise TensorError(
            f"tensors is a {type(tensors).__qualname__}; pass a mapping of name to tensor, "
            "such as dict(model.named_parameters())"
        )
    items = list(tensors.items())
    names: list[str] = [name for name, _ in items]
    keep: list[object] = [tensor for _, tensor in items]
    torch_module = sys.modules.get("torch")
    torch_reader = None if torch_module is None else TorchReader(torch_module)
    table = exchange_table(keep)
    if table is not None:
        devices = {index for kind, index in devices_of(table) if kind == CUDA}
        return _name(names, table, keep, _stream(torch_reader, devices, devices))
    with nullcontext() if torch_reader is None else torch_reader.context():
        buffers, stream = _read_all(items, torch_reader, keep)
    for name, buffer in zip(names, buffers):
        if writable and buffer.readonly:
            raise TensorError(f"tensor {name!r} is read-only ({buffer.readonly}); pass writable memory to reset it")
    elsewhere = {name: tensor for (name, tensor), buffer in zip(items, buffers) if buffer is STAND_IN}
    return _pack(names, buffers, keep, stream, elsewhere)


def _read_all(
    items: list[tuple[str, Any]], torch_reader: TorchReader | None, keep: list[object]
) -> tuple[list[Buffer], int]:
    """Where the elements of all tensors are, and the stream for the library; `keep` gets what must be held.

    Objects with `__dlpack__` on CUDA devices come last, since they are told the stream, which is torch's if it has
    tensors there.
    """
    buffers: list[Buffer] = []
    of_torch: set[int] = set()
    exporters: dict[int, int] = {}
    for position, (name, tensor) in enumerate(items):
        try:
            if torch_reader is not None and torch_reader.reads(tensor):
                buffers.append(torch_reader.read(tensor))
                kind, index = buffers[-1].device
                if kind == CUDA:
                    of_torch.add(index)
            elif (device := cuda_device(tensor)) is not None:
                exporters[position] = device
                buffers.append(STAND_IN)
            else:
                buffers.append(_read_host(tensor, keep))
        except Exception as error:
            _refuse(name, error)
    stream = _stream(torch_reader, of_torch.union(exporters.values()), of_torch)
    for position in exporters:
        name, tensor = items[position]
        try:
            buffers[position] = _held(read_dlpack(tensor, stream), keep)
        except Exception as error:
            _refuse(name, error)
    return buffers, stream


def _read_host(tensor: Any, keep: list[object]) -> Buffer:
    """Reads what is neither torch's nor on a CUDA device."""
    if isinstance(tensor, getattr(sys.modules.get("numpy"), "ndarray", ())):
        return read_numpy(tensor)
    if hasattr(tensor, "__dlpack__"):
        return _held(read_dlpack(tensor), keep)
    if hasattr(tensor, "__array_interface__"):
        return _held(read_interface(tensor), keep)
    raise TensorError(
        f"is a {type(tensor).__qualname__}, which is no tensor; pass a torch tensor, a numpy array, "
        "or an object with __dlpack__ or __array_interface__"
    )


def _stream(torch_reader: TorchReader | None, devices: set[int], of_torch: set[int]) -> int:
    """`TorchReader.stream`, or the legacy default stream where torch has no tensor of the call on a CUDA device."""
    if torch_reader is None or not of_torch:
        return 0
    try:
        return torch_reader.stream(devices, of_torch)
    except RuntimeError as error:
        raise NativeError(Status.CUDA, f"torch fails to tell or to wait for its current stream: {error}") from error


def _held(read: tuple[Buffer, object], keep: list[object]) -> Buffer:
    buffer, held = read
    keep.append(held)
    return buffer


def _refuse(name: str, error: Exception) -> NoReturn:
    """Raises what is said of a tensor, with its name before it."""
    if isinstance(error, TensorError):
        raise TensorError(f"tensor {name!r} {error}") from error.__cause__
    raise TensorError(f"tensor {name!r} cannot be read: {type(error).__name__}: {error}") from error


def _pack(
    names: list[str], buffers: list[Buffer], keep: list[object], stream: int, elsewhere: dict[str, Any]
) -> Described:
    """Writes the descriptors, their names, shapes and strides into one piece of memory each."""
    name_offsets, name_bytes = _pack_names(names)
    dims, dim_offsets = array("q"), []
    for name, buffer in zip(names, buffers):
        dim_offsets.append(len(dims))
        try:
            dims.extend(buffer.shape)
            dims.extend(buffer.strides or ())
        except (OverflowError, TypeError) as error:
            raise TensorError(f"tensor {name!r} has a shape {buffer.shape} that is none: {error}") from error
    table = array("b", bytes(WC_TENSOR.size * len(buffers)))
    name_base, dim_base = name_bytes.buffer_info()[0], dims.buffer_info()[0]
    position = 0
    for buffer, name_offset, dim_offset in zip(buffers, name_offsets, dim_offsets):
        address, (device_type, device_id), dtype, shape, strides, _, byte_offset = buffer
        shape_address = dim_base + dims.itemsize * dim_offset
        ndim = len(shape)
        WC_TENSOR.pack_into(
            table,
            position,
            WC_TENSOR.size,
            name_base + name_offset,
            address,
            device_type,
            device_id,
            ndim,
            dtype,
            shape_address,
            0 if strides is None else shape_address + dims.itemsize * ndim,
            byte_offset,
        )
        position += WC_TENSOR.size
    held = (table, name_bytes, dims, *keep)
    return Described(table.buffer_info()[0], len(buffers), names, held, stream, elsewhere)


def _name(names: list[str], table: array[int], keep: list[object], stream: int) -> Described:
    """Completes an `exchange_table` with sizes and names."""
    name_offsets, name_bytes = _pack_names(names)
    base = name_bytes.buffer_info()[0]
    table[0::WORDS] = array("Q", [WC_TENSOR.size]) * len(names)
    table[1::WORDS] = array("Q", [base + offset for offset in name_offsets])
    return Described(table.buffer_info()[0], len(names), names, (table, name_bytes, *keep), stream)


def _pack_names(names: list[str]) -> tuple[list[int], array[int]]:
    """Where each name begins in the NUL-terminated UTF-8 text of all names."""
    try:
        encoded = list(map(str.encode, names))
    except (TypeError, UnicodeEncodeError):
        encoded = []
    text = b"".join([name + b"\0" for name in encoded])
    if len(encoded) < len(names) or text.count(0) > len(names):
        raise _bad_name(names)
    ends = accumulate(map(len, encoded), lambda end, length: end + length + 1, initial=0)
    return list(ends)[:-1], array("b", text)


def _bad_name(names: list[str]) -> TensorError:
    """What is wrong with the first bad one."""
    for name in names:
        if not isinstance(name, str) or "\0" in name:
            return TensorError(f"the name {name!r} of a tensor is no text without NUL characters")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            return TensorError(f"the name {name!r} of a tensor has no UTF-8 form: {error}")
    raise AssertionError("one of the names is bad")
