"""Affine pieces of memory: which elements of one copy come from which elements of another. Plain integers, no torch.

A loader moves weights in strided blocks. When it copies from memory that it filled before, each element
of the second copy came from an element of the first; `follow` finds all of them at once, as few strided
blocks. Everything counts in elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

MOST_PIECES = 1 << 16
"""Blocks that one copy may fall into before it is called too finely cut."""

Dim = tuple[int, int, int]
"""Extent, stride in the memory in the middle, stride at the far end."""


class TooManyPieces(Exception):
    """A copy falls into more than `MOST_PIECES` blocks."""


@dataclass(frozen=True)
class Region:
    """Element `i` of a block of `shape` lies at `offset + sum(i * strides)`."""

    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    @classmethod
    def contiguous(cls, shape: Sequence[int]) -> Region:
        """The elements of `shape` in row-major order, from offset 0 on."""
        strides = []
        stride = 1
        for extent in reversed(shape):
            strides.append(stride)
            stride *= extent
        return cls(tuple(shape), 0, tuple(reversed(strides)))

    def reversed(self, dims: Sequence[int]) -> Region:
        """The same elements, the last one of each of these dimensions first."""
        offset = self.offset + sum((self.shape[dim] - 1) * self.strides[dim] for dim in dims)
        strides = [-stride if dim in dims else stride for dim, stride in enumerate(self.strides)]
        return Region(self.shape, offset, tuple(strides))


@dataclass(frozen=True)
class Move:
    """Element `i` of a block goes from `source_offset + sum(i * source_strides)` to `offset + sum(i * strides)`.

    What has no place where it comes from, such as a constant, has source strides of 0.
    """

    shape: tuple[int, ...]
    source_offset: int
    source_strides: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    @classmethod
    def between(cls, source: Region, target: Region) -> Move:
        """Copies `source` to `target`, which have one shape."""
        return cls(target.shape, source.offset, source.strides, target.offset, target.strides)

    @property
    def elements(self) -> int:
        """How many elements are moved."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def tidy(self) -> Move:
        """The same elements with the fewest dimensions, and with no negative stride where they go."""
        source_offset, offset = self.source_offset, self.offset
        dims = []
        for extent, source, target in zip(self.shape, self.source_strides, self.strides, strict=True):
            if extent == 1:
                continue
            if target < 0:
                source_offset, offset = source_offset + (extent - 1) * source, offset + (extent - 1) * target
                source, target = -source, -target
            dims.append((extent, source, target))
        dims.sort(key=lambda dim: -dim[2])
        merged: list[Dim] = []
        for extent, source, target in dims:
            if merged and merged[-1][1:] == (extent * source, extent * target):
                merged[-1] = (merged[-1][0] * extent, source, target)
            else:
                merged.append((extent, source, target))
        shape, source_strides, strides = zip(*merged, strict=True) if merged else ((), (), ())
        return Move(shape, source_offset, source_strides, offset, strides)


def follow(second: Move, first: Move) -> list[Move]:
    """The part of `second` that reads what `first` wrote, as moves from where `first` read to where `second` writes.

    Raises:
        TooManyPieces: that would be too many blocks.
    """
    if second.elements == 0 or first.elements == 0:
        return []
    if (second.shape, second.source_offset, second.source_strides) == (first.shape, first.offset, first.strides):
        return [replace(second, source_offset=first.source_offset, source_strides=first.source_strides)]
    reader, repeated, reader_offset, target_offset = _reading(second)
    writer, writer_offset, source_offset = _writing(first)
    moves = []
    for dims, target, source in _common(reader, reader_offset, writer, writer_offset, _Budget()):
        dims = dims + repeated
        moves.append(
            Move(
                tuple(extent for extent, _, _ in dims),
                source_offset + source,
                tuple(stride for _, _, stride in dims),
                target_offset + target,
                tuple(stride for _, stride, _ in dims),
            ).tidy()
        )
    return moves


def _reading(move: Move) -> tuple[list[Dim], list[Dim], int, int]:
    """The dimensions of a move by falling stride where it reads; those that read one element again and again apart."""
    dims, repeated, source_offset, offset = [], [], move.source_offset, move.offset
    for extent, source, target in zip(move.shape, move.source_strides, move.strides, strict=True):
        if source < 0:
            source_offset, offset = source_offset + (extent - 1) * source, offset + (extent - 1) * target
            source, target = -source, -target
        if extent > 1:
            (dims if source else repeated).append((extent, source, target) if source else (extent, target, 0))
    dims.sort(key=lambda dim: -dim[1])
    return dims, repeated, source_offset, offset


def _writing(move: Move) -> tuple[list[Dim], int, int]:
    """The dimensions of a move by falling stride where it writes."""
    tidy = move.tidy()
    dims = [
        (e, target, source) for e, source, target in zip(tidy.shape, tidy.source_strides, tidy.strides, strict=True)
    ]
    return dims, tidy.offset, tidy.source_offset


class _Budget:
    """Counts the steps of one search."""

    def __init__(self) -> None:
        self._left = 4 * MOST_PIECES

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooManyPieces


Found = tuple[list[Dim], int, int]
"""Dimensions (extent, stride at the reader's end, stride at the writer's end), and an offset at either end."""


def _common(reader: list[Dim], at: int, writer: list[Dim], to: int, budget: _Budget) -> list[Found]:
    """The addresses that both reach from their offsets `at` and `to`, with what either has at its far end for them.

    Goes from the largest stride inwards. Where both have the same one, the two outermost indices of a
    common address can differ by few numbers only, and each of those gives one block for all indices;
    otherwise the finer one is cut to the coarser one's stride.
    """
    budget.spend()
    if at > to + _reach(writer) or to > at + _reach(reader):
        return []
    if not reader and not writer:
        return [([], 0, 0)]
    coarse_reader = reader[0][1] if reader else 0
    coarse_writer = writer[0][1] if writer else 0
    if coarse_reader == coarse_writer:
        return _same_stride(reader, at, writer, to, budget)
    if coarse_reader > coarse_writer:
        return _cut(reader, at, writer, to, budget)
    return [(dims, a, b) for dims, b, a in _swap(_cut(writer, to, reader, at, budget))]


def _same_stride(reader: list[Dim], at: int, writer: list[Dim], to: int, budget: _Budget) -> list[Found]:
    (readers, stride, reader_far), (writers, _, writer_far) = reader[0], writer[0]
    lowest = -((at + _reach(reader[1:]) - to) // stride)
    highest = (to + _reach(writer[1:]) - at) // stride
    found = []
    for shift in range(max(lowest, 1 - writers), min(highest, readers - 1) + 1):
        first, last = max(0, shift), min(readers, writers + shift)
        for dims, a, b in _common(reader[1:], at + shift * stride, writer[1:], to, budget):
            outer = [(last - first, reader_far, writer_far)]
            found.append((outer + dims, a + first * reader_far, b + (first - shift) * writer_far))
    return found


def _cut(coarse: list[Dim], at: int, fine: list[Dim], to: int, budget: _Budget) -> list[Found]:
    """`_common` of a `coarse` side, whose first stride is the larger one, with a `fine` side."""
    extent, stride, far = coarse[0]
    if fine and fine[0][0] * fine[0][1] >= stride and stride % fine[0][1] == 0:
        return _split(coarse, at, fine, to, budget)
    # The outermost indices whose blocks the fine side reaches, one by one; few, unless the strides do not fit together.
    first = max(0, -((at + _reach(coarse[1:]) - to) // stride))
    last = min(extent - 1, (to + _reach(fine) - at) // stride)
    found = []
    for index in range(first, last + 1):
        inner = _common(coarse[1:], at + index * stride, fine, to, budget)
        found += [(dims, a + index * far, b) for dims, a, b in inner]
    return found


def _split(coarse: list[Dim], at: int, fine: list[Dim], to: int, budget: _Budget) -> list[Found]:
    """Cuts the outermost dimension of `fine` into steps of the stride of `coarse`, and a rest."""
    extent, stride, far = fine[0]
    step = coarse[0][1] // stride
    whole, rest = divmod(extent, step)
    steps: list[Dim] = [(whole, step * stride, step * far), (step, stride, far)]
    found = _common(coarse, at, steps + fine[1:], to, budget)
    if rest:
        skipped = whole * step
        inner = _common(coarse, at, [(rest, stride, far), *fine[1:]], to + skipped * stride, budget)
        found += [(dims, a, b + skipped * far) for dims, a, b in inner]
    return found


def _swap(found: list[Found]) -> list[Found]:
    return [([(extent, b, a) for extent, a, b in dims], first, second) for dims, first, second in found]


def _reach(dims: list[Dim]) -> int:
    """How far the last element lies from the first."""
    return sum((extent - 1) * stride for extent, stride, _ in dims)
