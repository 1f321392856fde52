"""Following one strided copy through another, against the same done element by element."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from vllm_weight_checker.regions import Move, Region, TooManyPieces, follow


def indices(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, shape))


def address(offset: int, strides: tuple[int, ...], index: tuple[int, ...]) -> int:
    return offset + sum(step * stride for step, stride in zip(index, strides, strict=True))


def pairs(move: Move) -> list[tuple[int, int]]:
    """(where it writes, where it reads) of every element."""
    return sorted(
        (address(move.offset, move.strides, index), address(move.source_offset, move.source_strides, index))
        for index in indices(move.shape)
    )


def writer(choose: random.Random) -> Move:
    """A copy that writes no element twice, to strides that nest."""
    shape = tuple(choose.randint(1, 5) for _ in range(choose.randint(0, 4)))
    strides, reach = [0] * len(shape), choose.choice([1, 1, 2, 3])
    for dim in choose.sample(range(len(shape)), len(shape)):
        strides[dim] = reach
        reach = (reach * shape[dim] + choose.choice([0, 0, 1, 3])) * choose.choice([1, 1, 2])
    sources = tuple(choose.randint(-3, 30) for _ in shape)
    return Move(shape, 1000, sources, choose.randint(0, 20), tuple(strides))


def reader(choose: random.Random) -> Move:
    """A copy that reads anything: overlapping, repeated, backwards."""
    shape = tuple(choose.randint(1, 5) for _ in range(choose.randint(0, 4)))
    steps = [0, 1, 2, 3, 4, 5, 6, 8, 12, -1, -2, -4]
    sources = tuple(choose.choice(steps) for _ in shape)
    targets = tuple(choose.choice([1, -1]) * 7 ** (dim + 1) for dim in range(len(shape)))
    return Move(shape, choose.randint(0, 20), sources, 500, targets)


@pytest.mark.parametrize("seed", range(20))
def test_following_gives_exactly_the_elements_in_common(seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(400):
        first, second = writer(choose), choose.choice([reader, writer])(choose)
        wrote = dict(pairs(first))
        expected = sorted((to, wrote[at]) for to, at in pairs(second) if at in wrote)
        found = sorted(pair for move in follow(second, first) for pair in pairs(move))
        assert found == expected, (first, second)


@pytest.mark.parametrize("seed", range(5))
def test_tidying_keeps_every_element_in_its_place(seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(400):
        move = reader(choose)
        tidy = move.tidy()
        assert pairs(tidy) == pairs(move)
        assert len(tidy.shape) <= len(move.shape)
        assert all(stride > 0 for stride in tidy.strides)


def test_a_copy_along_blocks_stays_few_blocks() -> None:
    """Interleaved heads (heads, 3, size), put apart into three parts, are three blocks whatever their number."""
    heads, size, hidden = 64, 128, 1024
    whole = Region.contiguous((3 * heads * size * hidden,))
    first = Move.between(whole, whole)
    strides = (size * hidden, 3 * size * hidden, hidden, 1)
    apart = Move.between(Region((3, heads, size, hidden), 0, strides), Region.contiguous((3, heads, size, hidden)))
    (only,) = follow(apart, first)
    assert only.shape == (3, heads, size * hidden)
    part = Move.between(
        Region((heads * size * hidden,), heads * size * hidden, (1,)), Region.contiguous((heads * size * hidden,))
    )
    (middle,) = follow(part, only)
    assert (middle.source_offset, middle.shape) == (size * hidden, (heads, size * hidden))


def test_a_copy_cut_too_finely_is_given_up() -> None:
    odd = Move((1 << 20,), 0, (7,), 0, (1,))
    even = Move((1 << 20,), 0, (1,), 0, (5,))
    with pytest.raises(TooManyPieces):
        follow(odd, even)
