"""Tensors on devices that only torch can read: bounded pieces of them go through the host.

The library knows host memory and CUDA. Of a tensor on another device (ROCm, XPU, ...) it gets a descriptor without
elements, so that names, arguments and baselines are checked as always; here is made what it could not make. Tensors
that fit are copied to the host whole, many at once, for the library; a larger one piece by piece.

Only torch says how such a tensor lies: it may have no address, and strides that mean nothing. Torch is not imported:
whoever passes a tensor has imported it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import _native
from ._native import DIGEST_PREFIXES, Options
from ._pybuffer import memory_at
from .errors import NativeError, Status, TensorError
from .notices import warn_once
from .rank import Rank
from .tensors import describe

if TYPE_CHECKING:
    import torch

_DEFAULT_HOST_BYTES = 256 << 20
_LEAST_HOST_BYTES = 1 << 20


def parts(tensors: Mapping[str, torch.Tensor], options: Options) -> tuple[Options, Options]:
    """The options for the library and those for this module, such that `progress` hears of one call."""
    progress = options.progress
    if progress is None or not tensors:
        return options, options
    here, there = 0, size(_unique(tensors))

    def of_library(done: int, total: int) -> Any:
        nonlocal here
        here = total
        return progress(done, total + there)

    def of_rest(done: int, _total: int) -> Any:
        return progress(here + done, here + there)

    return replace(options, progress=of_library), replace(options, progress=of_rest)


def digests(tensors: Mapping[str, torch.Tensor], options: Options) -> dict[str, str]:
    """{name: digest} of all tensors. Those of the same memory are hashed once."""
    if not tensors:
        return {}
    _say(tensors)
    unique = _unique(tensors)
    room = _room(options)
    count = _Counter(size(unique), options)
    found: dict[str, str] = {}
    batch: dict[str, torch.Tensor] = {}
    held = 0
    with _plain():
        for name, tensor in unique.items():
            if held + _size(tensor) > room:
                found.update(_of_batch(batch, options, count))
                held = 0
            if _size(tensor) > room:
                found[name] = _of_pieces(name, tensor, room, options, count)
                continue
            with _copying(name, "copied to the host"):
                batch[name] = _bits(tensor).cpu()
            held += _size(tensor)
        found.update(_of_batch(batch, options, count))
    return {name: found[first] for name, first in _first_of_same_memory(tensors).items()}


def fill(tensors: Mapping[str, torch.Tensor], kind: str, seed: int, options: Options) -> tuple[int, int]:
    """Overwrites all tensors; how many are of the same memory as one before, and the bytes written.

    The bytes are those that the library writes on the host. "random" ones depend on their place in the tensor, so
    they are made for a whole tensor at a time.
    """
    if not tensors:
        return 0, 0
    _say(tensors)
    unique = _unique(tensors)
    count = _Counter(size(unique), options)
    with _plain():
        for name, tensor in unique.items():
            pieces = iter([tensor]) if kind == "random" else _pieces(tensor, _room(options))
            for piece in pieces:
                with _copying(name, "written"), sys.modules["torch"].inference_mode(tensor.is_inference()):
                    _fill_piece(name, piece, kind, seed, options)
                count.advance(_size(piece))
    return len(tensors) - len(unique), size(unique)


def corrected(report: dict[str, Any], found: Mapping[str, str], baseline: bytes) -> None:
    """Puts the digests {key: digest} into the library's report of a compare, which has seen none of their elements."""
    expected = json.loads(baseline)
    differing = {key for key in report["differing"] if key not in found}
    differing |= {key for key in found if expected.get(key, found[key]) != found[key]}
    report["differing"] = sorted(differing)
    report["equal"] = report["compared"] - len(differing)
    report["mismatches"] = sorted([*differing, *report["missing"], *report["unexpected"]])
    report["match"] = not report["mismatches"]


def size(tensors: Mapping[str, torch.Tensor]) -> int:
    """The bytes of all tensors."""
    return sum(map(_size, tensors.values()))


class _Counter:
    """Tells `progress` how far a call has come."""

    def __init__(self, total: int, options: Options) -> None:
        self._done, self._total, self._progress = 0, total, options.progress
        self.advance(0)

    def advance(self, count: int) -> None:
        self._done += count
        if self._progress is not None and self._progress(self._done, self._total):
            raise NativeError(Status.CANCELLED, "the progress callback asked to stop")


def _of_batch(batch: dict[str, torch.Tensor], options: Options, count: _Counter) -> dict[str, str]:
    """The digests of copies on the host, which are let go."""
    found = _native.checksum(describe(batch, writable=False), Rank(), replace(options, progress=None))
    named = dict(zip(batch, found.values(), strict=True))
    count.advance(size(batch))
    batch.clear()
    return named


def _of_pieces(name: str, tensor: torch.Tensor, room: int, options: Options, count: _Counter) -> str:
    hash_pieces = _tree_of if options.algorithm == "sha256-tree" else _sha256_of
    return DIGEST_PREFIXES[options.algorithm] + hash_pieces(_host_bytes(name, tensor, room, count), room, options).hex()


def _sha256_of(pieces: Iterator[torch.Tensor], _room: int, _options: Options) -> bytes:
    running = hashlib.sha256()
    for piece in pieces:
        running.update(memory_at(piece.data_ptr(), len(piece)))
    return running.digest()


def _tree_of(pieces: Iterator[torch.Tensor], room: int, options: Options) -> bytes:
    """The tree's root. Pieces are joined to blocks of a power of two of bytes, each of which is a whole subtree."""
    torch_module = sys.modules["torch"]
    block = torch_module.empty(1 << room.bit_length() - 1, dtype=torch_module.uint8)
    filled = 0
    roots: list[bytes] = []

    def root() -> bytes:
        described = describe({"block": block[:filled]}, writable=False)
        (digest,) = _native.checksum(described, Rank(), replace(options, progress=None)).values()
        return bytes.fromhex(digest.removeprefix(DIGEST_PREFIXES["sha256-tree"]))

    for piece in pieces:
        while len(piece):
            taken = piece[: len(block) - filled]
            block[filled : filled + len(taken)] = taken
            filled, piece = filled + len(taken), piece[len(taken) :]
            if filled == len(block):
                roots.append(root())
                filled = 0
    if filled:
        roots.append(root())
    return _fold(roots)


def _fold(roots: list[bytes]) -> bytes:
    """The root over subtrees of one size, of which the last may be smaller (RFC 9162 section 2.1.1)."""
    while len(roots) > 1:
        pairs = zip(roots[::2], roots[1::2])
        alone = roots[len(roots) & ~1 :]
        roots = [hashlib.sha256(b"\1" + left + right).digest() for left, right in pairs] + alone
    return roots[0]


def _host_bytes(name: str, tensor: torch.Tensor, room: int, count: _Counter) -> Iterator[torch.Tensor]:
    """The tensor's bytes in row-major order, as uint8 tensors on the host of at most `room` each."""
    torch_module = sys.modules["torch"]
    for piece in _pieces(tensor, room):
        with _copying(name, "copied to the host"):
            copy = _bits(piece).cpu().contiguous()
        # Not .view(torch.uint8), which quantised types lack.
        yield torch_module.empty(0, dtype=torch_module.uint8).set_(copy.untyped_storage())[: _size(piece)]
        count.advance(_size(piece))


def _pieces(tensor: torch.Tensor, room: int) -> Iterator[torch.Tensor]:
    """Views whose elements, one after the other, are those of the tensor; each of at most `room` bytes."""
    if _size(tensor) <= room:
        yield tensor
        return
    rows = len(tensor)
    row = _size(tensor) // rows
    if row > room:
        for index in range(rows):
            yield from _pieces(tensor.select(0, index), room)
        return
    step = room // row
    for start in range(0, rows, step):
        yield tensor.narrow(0, start, min(step, rows - start))


def _fill_piece(name: str, piece: torch.Tensor, kind: str, seed: int, options: Options) -> None:
    torch_module = sys.modules["torch"]
    host = torch_module.empty_like(piece, device="cpu", memory_format=torch_module.contiguous_format)
    _native.reset(describe({name: host}, writable=True), kind, seed, replace(options, progress=None))
    # Of elements that share memory the last one written stays.
    for dim, (extent, stride) in enumerate(zip(piece.shape, piece.stride())):
        if stride == 0 and extent > 1:
            piece, host = piece.narrow(dim, extent - 1, 1), host.narrow(dim, extent - 1, 1)
    _bits(piece).copy_(_bits(host))


def _unique(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors without those of the same memory as one before."""
    return {name: tensors[name] for name, first in _first_of_same_memory(tensors).items() if name == first}


def _first_of_same_memory(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """For every tensor the name of the first one that is the same memory, mostly its own."""
    seen: dict[object, str] = {}
    return {name: seen.setdefault(_memory(tensor) or (name,), name) for name, tensor in tensors.items()}


def _memory(tensor: torch.Tensor) -> object:
    """Equal for tensors whose elements are the same memory in the same order; None when torch does not say."""
    try:
        address = tensor.data_ptr()
    except RuntimeError:
        address = 0
    if not address or not tensor.numel():
        return None
    layout = tensor.numel() if tensor.is_contiguous() else (tuple(tensor.shape), tensor.stride())
    return str(tensor.device), address, tensor.dtype, layout


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as integers: torch copies those of every width, and changes no bit of them."""
    torch_module = sys.modules["torch"]
    of_width = {1: torch_module.uint8, 2: torch_module.int16, 4: torch_module.int32, 8: torch_module.int64}
    integer = of_width.get(tensor.element_size())
    return tensor if integer is None or tensor.is_quantized else tensor.view(integer)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _room(options: Options) -> int:
    """The most bytes of one piece or batch; there are two at most, since a tree's block is beside the piece."""
    return max(options.max_host_bytes or _DEFAULT_HOST_BYTES, _LEAST_HOST_BYTES) // 2


def _say(tensors: Mapping[str, torch.Tensor]) -> None:
    for device in sorted({tensor.device.type for tensor in tensors.values()}):
        warn_once(
            f"tensors on {device}",
            "tensors on %s devices are not read where they are: torch copies them to the host, piece by piece, in "
            "every check, which is slower and gives the same digests",
            "ROCm" if device == "cuda" else device,
        )


@contextmanager
def _plain() -> Iterator[None]:
    """Without autograd, and without what a parameter's class makes of torch's functions."""
    torch_module = sys.modules["torch"]
    with torch_module._C.DisableTorchFunction(), torch_module.no_grad():
        yield


@contextmanager
def _copying(name: str, done: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise TensorError(f"tensor {name!r} cannot be {done}: {type(error).__name__}: {error}") from error
