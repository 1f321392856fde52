"""Where the contents of tensors come from: which checkpoint tensor's elements lie where in each tensor's memory.

`Provenance` is told of every write and keeps, for each piece of memory (a torch storage, whatever tensors
look at it), the blocks written to it in order. A block's values are elements of a checkpoint tensor, a
constant, or computed by the engine in a way that is not followed. What is copied on keeps its origin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .regions import Move, Region, TooManyPieces, follow

if TYPE_CHECKING:
    import torch

TOO_FINE = "its elements are moved in too many pieces to follow"
REINTERPRETED = "its bytes are read as another dtype"


@dataclass(frozen=True)
class Origin:
    """What a block's values are: elements of `source`; or a `constant`; or `computed`, from the tensors `inputs`."""

    source: str | None = None
    constant: bool | int | float | None = None
    computed: str | None = None
    inputs: frozenset[str] = frozenset()

    @property
    def sources(self) -> frozenset[str]:
        """The checkpoint tensors that the values depend on."""
        return self.inputs if self.source is None else frozenset({self.source})


@dataclass(frozen=True)
class Block:
    """Elements of one origin that were written together."""

    origin: Origin
    move: Move
    """From the origin (a source's contiguous elements) to the memory that the block is in."""
    dtypes: tuple[str, ...]
    """The dtypes that the values have had, a source's own first; the last is that of the memory."""


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch dtype in a plan."""
    return str(dtype).removeprefix("torch.")


class Provenance:
    """The origins of everything in the memories that it has been told of. Not for use by several threads at once."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[Block]] = {}
        # A storage's address may be used again once nobody holds it.
        self._held: list[Any] = []

    def add_source(self, name: str, tensor: torch.Tensor) -> None:
        """`tensor`, contiguous from the start of its memory, has the elements of the checkpoint tensor `name`."""
        whole = Region.contiguous(tensor.shape)
        self._of(tensor)[:] = [Block(Origin(source=name), Move.between(whole, whole), (dtype_name(tensor.dtype),))]

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether anything is known of the memory of `tensor`."""
        return _memory(tensor) in self._blocks

    def sources(self, tensors: Iterable[torch.Tensor]) -> frozenset[str]:
        """The checkpoint tensors that the memories of `tensors` depend on."""
        blocks = [block for tensor in tensors for block in self._blocks.get(_memory(tensor), ())]
        return frozenset(name for block in blocks for name in block.origin.sources)

    def copy(self, target: torch.Tensor, source: torch.Tensor, reversed_dims: tuple[int, ...] = ()) -> None:
        """The elements of `source`, broadcast, are now in `target`, cast to its dtype; `reversed_dims` reversed."""
        if (
            region_of(source) == region_of(target)
            and _memory(source) == _memory(target)
            and source.dtype == target.dtype
        ):
            return
        moved = self._read(source.expand(target.shape), region_of(target).reversed(reversed_dims))
        dtype = dtype_name(target.dtype)
        cast = [b if b.dtypes[-1:] == (dtype,) else replace(b, dtypes=(*b.dtypes, dtype)) for b in moved]
        self._append(target, cast)

    def fill(self, target: torch.Tensor, value: bool | int | float) -> None:
        """Every element of `target` is now `value`, cast to its dtype."""
        self._append(target, [_block(Origin(constant=value), region_of(target), dtype_name(target.dtype))])

    def compute(self, target: torch.Tensor, reason: str, inputs: frozenset[str]) -> None:
        """The elements of `target` were made from `inputs` in a way that is not followed."""
        origin = Origin(computed=reason, inputs=inputs)
        self._append(target, [_block(origin, region_of(target), dtype_name(target.dtype))])

    def blocks(self, tensor: torch.Tensor) -> list[Block]:
        """Everything that was written to the elements of `tensor`, in order, as moves to its row-major elements.

        Elements that no block covers have never been written; the last block that covers one is what it holds.
        """
        return self._read(tensor, Region.contiguous(tensor.shape))

    def _append(self, target: torch.Tensor, blocks: Iterable[Block]) -> None:
        written = self._of(target)
        for block in blocks:
            if block.move.elements == 0:
                continue
            if block.origin.source is None:
                written[:] = [old for old in written if not _covers(block.move, old.move)]
            written.append(block)

    def _read(self, tensor: torch.Tensor, target: Region) -> list[Block]:
        own, dtype = region_of(tensor), dtype_name(tensor.dtype)
        written = self._blocks.get(_memory(tensor), ())
        other = [block for block in written if block.dtypes[-1] != dtype]
        if other:  # the same bytes through another dtype, in which elements may even have another size
            inputs = frozenset(name for block in written for name in block.origin.sources)
            return [_block(Origin(computed=REINTERPRETED, inputs=inputs), target, dtype)]
        if own == target and _is_whole(tensor):
            return list(written)
        read = Move.between(own, target)
        return [part for block in written for part in _followed(read, block)]

    def _of(self, tensor: torch.Tensor) -> list[Block]:
        key = _memory(tensor)
        if key not in self._blocks:
            self._blocks[key] = []
            self._held.append(tensor.untyped_storage())
        return self._blocks[key]


def region_of(tensor: torch.Tensor) -> Region:
    """Where the elements of a tensor lie in its memory."""
    return Region(tuple(tensor.shape), tensor.storage_offset(), tensor.stride())


def piece(block: Block) -> dict[str, Any]:
    """A block of a parameter as the plan writes it."""
    origin, move = block.origin, block.move.tidy()
    where = {"shape": list(move.shape), "offset": move.offset, "strides": list(move.strides)}
    if origin.computed is not None:
        return {"computed": origin.computed, "sources": sorted(origin.inputs), **where}
    if origin.source is None:
        via = block.dtypes[:-1]
        return {"constant": _json_number(origin.constant), **where, **({"via": list(via)} if via else {})}
    via = block.dtypes[1:-1]
    source = {
        "source": origin.source,
        "source_offset": move.source_offset,
        "source_strides": list(move.source_strides),
    }
    return {**source, **where, **({"via": list(via)} if via else {})}


def _json_number(value: Any) -> Any:
    """JSON has no numbers for these three."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _block(origin: Origin, target: Region, dtype: str) -> Block:
    """A block of values that have no place where they come from."""
    nowhere = Region(target.shape, 0, (0,) * len(target.shape))
    return Block(origin, Move.between(nowhere, target), (dtype,))


def _followed(read: Move, block: Block) -> list[Block]:
    try:
        return [replace(block, move=move) for move in follow(read, block.move)]
    except TooManyPieces:
        origin = Origin(computed=TOO_FINE, inputs=block.origin.sources)
        # At least these elements are meant; which of them exactly is what was too much.
        return [replace(block, origin=origin, move=replace(read, source_strides=(0,) * len(read.shape)).tidy())]


def _covers(new: Move, old: Move) -> bool:
    """Whether `new`, if it is without gaps, covers all that `old` wrote; False when that is not easy to see."""
    new, old = new.tidy(), old.tidy()
    if (new.shape, new.offset, new.strides) == (old.shape, old.offset, old.strides):
        return True
    if len(new.shape) > 1 or (new.shape and new.strides != (1,)):
        return False
    reach = sum((extent - 1) * stride for extent, stride in zip(old.shape, old.strides, strict=True))
    return new.offset <= old.offset and old.offset + reach < new.offset + new.elements


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether the memory of a contiguous tensor has no other elements."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _memory(tensor: torch.Tensor) -> int:
    """What tells one storage from every other; tensors that share memory have the same. Meta storages have one too."""
    return tensor.untyped_storage()._cdata
